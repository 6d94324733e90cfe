"""VTAB-1k: 1,000 images of one of 19 tasks, with one setting for all (arXiv 2010.11929, B.1.1).

    python -m vit_jax.main --config=configs/vtab.py:caltech101,l16 --workdir=DIR

Arguments: TASK[,MODEL]. The tasks are caltech101 cifar100 dtd oxford_flowers102 oxford_iiit_pet
sun397 svhn, camelyon eurosat resisc45 retinopathy, clevr_count clevr_distance dmlab
dsprites_location dsprites_orientation kitti_distance smallnorb_azimuth smallnorb_elevation. Images
come from TFDS, or for cifar100, oxford_iiit_pet, svhn and camelyon from the Hugging Face Hub, as
hf:svhn (its order, and so the 1,000 images, is another; docs/data.md lists more). They are 384 px
(378 for ViT-H/14), and train for 2,500 steps at the rate 0.01. The weights are those on the Hub, as
in configs/finetune.py.

Expected, from ViT-L/16 pre-trained on ImageNet-21k: 72.7 % on average over the 19 tasks, 90.8 % on
caltech101, 41.7 % on smallnorb_elevation (Table 9).

Tasks and splits are VTAB's (arXiv 1910.04867); the protocol is that of arXiv 2010.11929, appendix
B.1.1. Which images are cropped and mirrored is BiT's choice (arXiv 1912.11370), as in Scenic's
vtab_plainvit_config.py: a mirrored angle would be another class.

A split counts TFDS's records in the order of its files, not shuffled. VTAB names the versions dmlab
2.0.1, kitti 3.1.0, sun397 4, 2.* of dsprites, eurosat, oxford_flowers102, patch_camelyon and
smallnorb, 3.* of the others; --config.data.source=tfds:kitti:3.1.0 reads one of several.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from vit_jax.recipes.arguments import choose
from vit_jax.recipes.datasets import Dataset, hub_dataset
from vit_jax.recipes.models import ALL, resolution
from vit_jax.recipes.starts import finetuning

CROP = "resize_crop(448)"  # Then a random crop of the model's size, 384 px.
RESIZE = "resize"


class Task(NamedTuple):
    """Where a task's images are, and how they may be changed in training."""

    source: str
    num_classes: int
    validation: str  # 200 images: the sweep's evaluation split, then the end of the training split.
    test: str
    crop: str = CROP
    flip: bool = True
    label: str = ""


_CLEVR = ("train[63000:63200]", "validation")
_DSPRITES = ("train[589824:590024]", "train[663552:]")
_SMALLNORB = ("test[:200]", "test[50%:]")

NATURAL = {
    "caltech101": Task("tfds:caltech101", 102, "train[2754:2954]", "test"),
    "cifar100": Task("tfds:cifar100", 100, "train[45000:45200]", "test"),
    "dtd": Task("tfds:dtd", 47, "validation[:200]", "test"),
    "oxford_flowers102": Task("tfds:oxford_flowers102", 102, "validation[:200]", "test"),
    "oxford_iiit_pet": Task("tfds:oxford_iiit_pet", 37, "train[2944:3144]", "test"),
    "sun397": Task("tfds:sun397:tfds", 397, "validation[:200]", "test"),
    "svhn": Task("tfds:svhn_cropped", 10, "train[65931:66131]", "test"),
}
SPECIALIZED = {
    "camelyon": Task("tfds:patch_camelyon", 2, "validation[:200]", "test"),
    "eurosat": Task("tfds:eurosat:rgb", 10, "train[16200:16400]", "train[21600:]"),
    "resisc45": Task("tfds:resisc45", 45, "train[18900:19100]", "train[25200:]"),
    "retinopathy": Task(
        "tfds:diabetic_retinopathy_detection:btgraham-300", 5, "validation[:200]", "test"
    ),
}
STRUCTURED = {
    "clevr_count": Task("tfds:clevr", 8, *_CLEVR, crop=RESIZE, label="clevr_count"),
    "clevr_distance": Task("tfds:clevr", 6, *_CLEVR, crop=RESIZE, label="clevr_distance"),
    "dmlab": Task("tfds:dmlab", 6, "validation[:200]", "test", crop=RESIZE),
    "dsprites_location": Task(
        "tfds:dsprites", 16, *_DSPRITES, crop=RESIZE, flip=False, label="dsprites_location"
    ),
    "dsprites_orientation": Task(
        "tfds:dsprites", 16, *_DSPRITES, flip=False, label="dsprites_orientation"
    ),
    "kitti_distance": Task(
        "tfds:kitti", 4, "validation[:200]", "test", crop=RESIZE, label="kitti_distance"
    ),
    "smallnorb_azimuth": Task("tfds:smallnorb", 18, *_SMALLNORB, flip=False, label="label_azimuth"),
    "smallnorb_elevation": Task("tfds:smallnorb", 9, *_SMALLNORB, label="label_elevation"),
}
TASKS = {**NATURAL, **SPECIALIZED, **STRUCTURED}


def get_config(arguments: str = "caltech101") -> ConfigDict:
    """The protocol for TASK[,MODEL]."""
    task_name, _, model = arguments.partition(",")
    data = None
    if task_name.startswith("hf:"):
        task_name, data = hub_dataset(arguments, task_name.removeprefix("hf:"), TASKS)
    task = TASKS[choose(arguments, task_name, TASKS)]
    source, columns = data or (task.source, "")
    name = ALL[choose(arguments, model or "b16", ALL)]

    config = finetuning(name, Dataset(source, 1_000, task.num_classes, task.test, columns))
    config.batch_size = 512
    config.total_steps = 2_500
    config.warmup_steps = 200  # Scenic's re-implementation by the authors.
    config.eval_every_steps = 500
    config.data.label = task.label
    config.data.train_split = f"train[:800]+{task.validation}"
    config.data.train_crop = task.crop
    config.data.flip = task.flip
    config.model.image_size = resolution(name, 384)

    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.momentum_dtype = "bfloat16"  # As in the authors' code.
    config.optimizer.learning_rate = 0.01
    config.optimizer.grad_clip_norm = 1.0
    config.schedule.name = "cosine"
    # As in arXiv 2106.10270; the paper takes 0.01.
    config.sweep.learning_rates = (0.001, 0.003, 0.01, 0.03)
    config.sweep.train_split = "train[:800]"
    config.sweep.eval_split = task.validation
    return config
