"""What images without labels, and a teacher, are worth: Fashion-MNIST with few labelled images.

    python -m vit_jax.main --config=configs/few_labels.py:masked_autoencoder --workdir=runs/mae
    python -m vit_jax.main --config=configs/few_labels.py:finetune,100 --workdir=runs/mae_100 \
        --config.init=runs/mae
    python -m vit_jax.main --config=configs/few_labels.py:scratch,100 --workdir=runs/scratch_100
    python -m vit_jax.main --config=configs/few_labels.py:teacher --workdir=runs/teacher
    python -m vit_jax.main --config=configs/few_labels.py:distillation,100 --workdir=runs/distilled_100 \
        --config.init_teacher=runs/teacher

Arguments: RUN[,LABELS[,SEED]]. RUN is masked_patches, masked_autoencoder or self_distillation: 6
epochs of 50,000 images without labels; teacher: a wider model, 3 epochs with all their labels; or
finetune, scratch or distillation: 300 updates on LABELS of them (1,000 by default), the SEED-th such
part. `finetune` without config.init is `scratch` at another rate. Distillation is scratch but for its
loss: the teacher's answers instead of labels. All 10,000 test images are measured, at the end; the last
10,000 training images are in no run, and settings were chosen on them.

Expected: see docs/objectives.md. `benchmarks/few_labels.py` makes all the runs.
"""

from ml_collections import ConfigDict

from vit_jax.errors import ConfigError
from vit_jax.recipes.arguments import choose, split_arguments
from vit_jax.recipes.fashion_mnist import small_vit

OBJECTIVES = {
    "masked_patches": {},
    "masked_autoencoder": {"decoder_width": 48, "decoder_depth": 1, "decoder_heads": 2},
    "self_distillation": {
        "prototypes": 1024,
        "head_width": 256,
        "bottleneck_width": 64,
        "local_views": 2,
    },
}
TEACHER = "teacher"
FEW = ("finetune", "scratch", "distillation")
ALL_IMAGES = "train[:50000]"


def get_config(arguments: str = "masked_autoencoder") -> ConfigDict:
    """One of the runs, RUN[,LABELS[,SEED]]."""
    run, labels, seed = split_arguments(arguments, "RUN[,LABELS[,SEED]]")
    choose(arguments, run, [*OBJECTIVES, TEACHER, *FEW])
    if not ((labels or "1000").isdecimal() and (seed or "0").isdecimal()):
        raise ConfigError(f"{arguments!r}: expected RUN[,LABELS[,SEED]], two whole numbers.")
    config = small_vit()
    config.seed = int(seed or 0)
    config.data.train_crop = "pad(2)"
    if run == TEACHER:
        with_all_labels(config)
        return config
    config.model.width = 64
    config.model.num_heads = 2
    config.model.mlp_width = 128
    if run in OBJECTIVES:
        without_labels(config, run)
    else:
        with_few_labels(config, int(labels or 1000), finetune=run == "finetune")
    if run == "distillation":
        config.objective.name = "distillation"
    return config


def without_labels(config: ConfigDict, objective: str) -> None:
    """All training images."""
    config.objective.name = objective
    config.objective.update(OBJECTIVES[objective])
    config.data.train_split = ALL_IMAGES
    config.batch_size = 256
    config.total_epochs = 6.0
    config.warmup_epochs = 1.0
    config.checkpoint_every_epochs = 1.0


def with_all_labels(config: ConfigDict) -> None:
    """The model of fashion_mnist.py."""
    config.data.train_split = ALL_IMAGES
    config.total_epochs = 3.0
    config.warmup_epochs = 1.0
    config.checkpoint_every_epochs = 1.0


def with_few_labels(config: ConfigDict, num_labels: int, *, finetune: bool) -> None:
    """A few training images, at a rate chosen on the last training images.

    From given weights 2e-3, better than 1e-3 with layer decay 0.75; from scratch 5e-3, better than
    2e-3. Distillation at temperature 1 was better than at 3.
    """
    first = num_labels * config.seed
    config.data.train_split = f"train[{first}:{first + num_labels}]"
    config.batch_size = 50
    config.total_steps = 300
    config.warmup_steps = 30
    config.optimizer.learning_rate = 2e-3 if finetune else 5e-3
