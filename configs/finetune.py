"""Fine-tuning at a higher resolution as in Table 4 of the paper (arXiv 2010.11929).

    python -m vit_jax.main --config=configs/finetune.py:b16,cifar10 --workdir=DIR
    python -m vit_jax.sweep --config=configs/finetune.py:b16,folder:DIR --workdir=DIR

Arguments: MODEL[,DATASET[,OPTIONS]], where DATASET is cifar10 (default), cifar100, oxford_iiit_pet,
oxford_flowers102, imagenet2012, folder:DIR, hf:OWNER/NAME of the Hugging Face Hub, or hf:cifar10,
which is the same data from there where TFDS has not prepared it (docs/data.md). The first command
takes one learning rate, the second tries the table's four on a part of the training images and then
trains with the best. Images are 384 px, 378 px for ViT-H/14; ImageNet is 512 and 518 px, with
averaged weights. The weights are the paper's own on the Hub, pre-trained on ImageNet-21k, or the
nearest to them; --config.init=FILE takes others. OPTIONS joins by +

    384   ImageNet at 384 px without averages, as the other datasets (Table 5)
    drop  dropout 0.1, as in the authors' released configs of ViT-L/16, ViT-H/14, R50+ViT-B/16 and
          R50+ViT-L/32 (vision_transformer, configs/models.py at 0593a59; the paper's table has none)

Expected, from weights pre-trained on ImageNet-21k at 384 px (Table 5): ViT-B/16 reaches 98.95 % on
CIFAR-10, 91.67 % on CIFAR-100, 94.43 % on Pets, 99.38 % on Flowers; ViT-L/16 85.30 % on ImageNet at
512 px (Table 2).

CIFAR's rates are those of Big Vision's transfer.py (at 2f3f493) and belong to its pictures: the
smaller side resized to 448 by area, a random crop in training and the central one in evaluation. Pets,
Flowers and folders train on its other crop and are evaluated alike. ImageNet is evaluated on whole
pictures, as in vision_transformer's input_pipeline.py.

Other ways to fine-tune, one line each:
    --config.optimizer.freeze='^(?!head/)'              a linear probe: only the head learns
    --config.optimizer.freeze='^blocks/0[0-7]/'         the first eight blocks stay as they are
"""

from collections.abc import Callable
from typing import NamedTuple

from ml_collections import ConfigDict

from vit_jax.errors import ConfigError
from vit_jax.model_file import AREA
from vit_jax.models.registry import model_options
from vit_jax.models.vit import ViTOptions
from vit_jax.recipes.arguments import choose
from vit_jax.recipes.datasets import finetuning_dataset
from vit_jax.recipes.models import ALL, resolution
from vit_jax.recipes.starts import finetuning

SMALLER, DROP = "384", "drop"  # OPTIONS
CROPPED, RESIZED = 384, 448  # Pixels of an image, and of the smaller side that it is cut out of.
SMALL_RATES = (0.001, 0.003, 0.01, 0.03)
IMAGENET_RATES = (0.003, 0.01, 0.03, 0.06)


class Row(NamedTuple):
    """One row of Table 4, with what the table leaves to others."""

    steps: int
    warmup_steps: int  # The authors' code; the paper names none.
    learning_rate: float  # One of `rates`: Big Vision's re-run of ViT-B/32 chose it.
    rates: tuple[float, ...]
    train_percent: int  # To train on in the sweep; the rest is the paper's development split.
    pixels: Callable[[ConfigDict], None]


def small_crop(config: ConfigDict) -> None:
    """`resize_small(448)|random_crop(384)` in training, the central crop in evaluation."""
    centre(config)
    config.data.interpolation = AREA
    config.data.train_crop = f"resize_small_crop({config.data.eval_resize})"


def centre(config: ConfigDict) -> None:
    """`inception_crop(384)` in training, `resize_small(448)|central_crop(384)` in evaluation."""
    config.data.eval_crop = "center"
    config.data.eval_interpolation = AREA
    config.data.eval_resize = round(config.model.image_size * RESIZED / CROPPED)


def whole(config: ConfigDict) -> None:
    """`inception_crop(384)` in training, `resize(384)` in evaluation: the defaults."""


TABLE_4 = {
    "imagenet2012": Row(20_000, 500, 0.03, IMAGENET_RATES, 99, whole),
    "cifar100": Row(10_000, 500, 0.01, SMALL_RATES, 98, small_crop),
    "cifar10": Row(10_000, 500, 0.003, SMALL_RATES, 98, small_crop),
    "oxford_iiit_pet": Row(500, 100, 0.003, SMALL_RATES, 90, centre),
    "oxford_flowers102": Row(500, 100, 0.003, SMALL_RATES, 90, centre),
    # Taken for small, like the two before it.
    "folder": Row(500, 100, 0.003, SMALL_RATES, 90, centre),
}


def get_config(arguments: str = "b16,cifar10") -> ConfigDict:
    """The recipe of Table 4 for MODEL[,DATASET[,OPTIONS]]."""
    model, _, rest = arguments.partition(",")
    name = ALL[choose(arguments, model or "b16", ALL)]
    dataset, options = split_options(rest)
    dataset, data = finetuning_dataset(arguments, dataset or "cifar10")
    row = TABLE_4[dataset]

    config = finetuning(name, data)
    config.batch_size = 512
    config.total_steps = row.steps
    config.warmup_steps = row.warmup_steps
    config.eval_every_steps = row.steps // 10
    config.model.image_size = resolution(name, CROPPED)
    row.pixels(config)
    if SMALLER in options and dataset != "imagenet2012":
        raise ConfigError(f"{arguments!r}: {SMALLER} is of imagenet2012; others are 384 px anyway.")
    if DROP in options:
        if not isinstance(model_options(name), ViTOptions):
            raise ConfigError(f"{arguments!r}: {name} has no dropout.")
        config.model.dropout_rate = 0.1
    if (
        dataset == "imagenet2012" and SMALLER not in options
    ):  # Appendix B.1.1: and Polyak's averages.
        config.model.image_size = resolution(name, 518 if name.endswith("/14") else 512)
        config.ema_decay = 0.9999
        config.ema_warmup = False  # 20,000 updates end before it would: mean age 2,000, not 8,646.

    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.momentum_dtype = "bfloat16"  # As in the authors' code.
    config.optimizer.learning_rate = row.learning_rate
    config.optimizer.grad_clip_norm = 1.0
    config.schedule.name = "cosine"
    config.sweep.learning_rates = row.rates
    config.sweep.train_split = f"train[:{row.train_percent}%]"
    config.sweep.eval_split = f"train[{row.train_percent}%:]"
    return config


def split_options(text: str) -> tuple[str, frozenset[str]]:
    """DATASET[,OPTIONS] as both; a folder's name may have commas."""
    dataset, _, last = text.rpartition(",")
    options = frozenset(last.split("+"))
    known = dataset and options <= {SMALLER, DROP}
    return (dataset, options) if known else (text, frozenset())
