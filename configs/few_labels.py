"""What images without labels, and a teacher, are worth: Fashion-MNIST with few labelled images.

    python -m vit_jax.main --config=configs/few_labels.py:masked_autoencoder --workdir=runs/mae
    python -m vit_jax.main --config=configs/few_labels.py:finetune,100 --workdir=runs/mae_100 \
        --config.init=runs/mae
    python -m vit_jax.main --config=configs/few_labels.py:scratch,100 --workdir=runs/scratch_100
    python -m vit_jax.main --config=configs/few_labels.py:teacher --workdir=runs/teacher
    python -m vit_jax.main --config=configs/few_labels.py:distillation,100 --workdir=runs/distilled_100 \
        --config.init_teacher=runs/teacher

Arguments: RUN[,LABELS[,SEED]]. RUN is masked_patches, masked_autoencoder or self_distillation: 20
epochs of all 60,000 images without labels; teacher: a larger model, 10 epochs with all labels; or
finetune, scratch or distillation: 1,000 updates on LABELS images (1,000 by default), the SEED-th such
part of the training set. Distillation is scratch but for its loss: the teacher's answers instead of
labels. All 10,000 test images are measured.

Expected: see docs/objectives.md. `benchmarks/few_labels.py` makes all the runs.
"""

from ml_collections import ConfigDict

from vit_jax.errors import ConfigError
from vit_jax.recipes.arguments import choose, split_arguments
from vit_jax.recipes.fashion_mnist import small_vit

OBJECTIVES = {
    "masked_patches": {},
    "masked_autoencoder": {"decoder_width": 64, "decoder_depth": 2, "decoder_heads": 2},
    "self_distillation": {
        "prototypes": 1024,
        "head_width": 256,
        "bottleneck_width": 64,
        "local_views": 2,
    },
}
TEACHER = "teacher"
FEW = ("finetune", "scratch", "distillation")
BATCH_SIZE = 100


def get_config(arguments: str = "masked_autoencoder") -> ConfigDict:
    """One of the runs, RUN[,LABELS[,SEED]]."""
    run, labels, seed = split_arguments(arguments, "RUN[,LABELS[,SEED]]")
    choose(arguments, run, [*OBJECTIVES, TEACHER, *FEW])
    if not ((labels or "1000").isdecimal() and (seed or "0").isdecimal()):
        raise ConfigError(f"{arguments!r}: expected RUN[,LABELS[,SEED]], two whole numbers.")
    config = small_vit()
    config.seed = int(seed or 0)
    config.model.name = "ViT-Ti/4"  # 49 patches: enough to leave most of them out.
    if run in OBJECTIVES:
        without_labels(config, run)
    elif run == TEACHER:
        with_all_labels(config)
    else:
        with_few_labels(config, int(labels or 1000), finetune=run == "finetune")
    if run == "distillation":
        config.objective.name = "distillation"
    return config


def without_labels(config: ConfigDict, objective: str) -> None:
    """All training images."""
    config.objective.name = objective
    config.objective.update(OBJECTIVES[objective])
    config.data.train_crop = "random_resized(0.5, 1)"
    config.batch_size = 256
    config.total_epochs = 20.0
    config.warmup_epochs = 1.0
    config.eval_every_epochs = 5.0
    config.checkpoint_every_epochs = 5.0


def with_all_labels(config: ConfigDict) -> None:
    """A model twice as wide and half as deep again, on everything."""
    config.model.width = 192
    config.model.depth = 6
    config.model.mlp_width = 384
    config.data.train_crop = "pad(2)"
    config.batch_size = 256
    config.total_epochs = 10.0
    config.warmup_epochs = 1.0
    config.checkpoint_every_epochs = 1.0


def with_few_labels(config: ConfigDict, num_labels: int, *, finetune: bool) -> None:
    """A few training images; from given weights at a third of the rate."""
    first = num_labels * config.seed
    config.data.train_split = f"train[{first}:{first + num_labels}]"
    config.data.train_crop = "pad(2)"
    config.batch_size = min(num_labels, BATCH_SIZE)
    config.total_steps = 1_000
    config.warmup_steps = 100
    config.optimizer.learning_rate = 1e-3 if finetune else 2e-3
    config.optimizer.layer_decay = 0.75 if finetune else 1.0
