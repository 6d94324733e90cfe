"""Does augmentation help? The same small model on 10,000 images of Fashion-MNIST, with and without.

    python -m vit_jax.main --config=configs/augmentation.py:plain --workdir=runs/plain
    python -m vit_jax.main --config=configs/augmentation.py:augmented --workdir=runs/augmented

Arguments: RECIPE[,SEED]. Both runs see 300,000 images: 10,000 of the training images, 30 times. The
plain recipe shows them as they are; the augmented one mirrors, crops, distorts and mixes them.
Measured on all 10,000 test images.

Expected: see docs/recipes.md.
"""

from ml_collections import ConfigDict

from vit_jax.config import default_config
from vit_jax.errors import ConfigError


def get_config(arguments: str = "plain") -> ConfigDict:
    """One of the two recipes, RECIPE[,SEED]."""
    recipe, _, seed = arguments.partition(",")
    if recipe not in RECIPES or not (seed or "0").isdecimal():
        raise ConfigError(
            f"{arguments!r}: expected RECIPE[,SEED], RECIPE one of {', '.join(RECIPES)}."
        )
    config = default_config()
    config.seed = int(seed or 0)
    config.data.source = "idx:/usr/share/datasets/fashion-mnist"
    config.data.train_split = "train[:10000]"
    config.model.name = "ViT-Ti/7"
    config.model.image_size = 28
    config.model.channels = 1
    config.model.width = 96
    config.model.depth = 4
    config.model.num_heads = 3
    config.model.mlp_width = 192
    config.model.pooling = "average"
    config.model.position_std = 0.5  # As in configs/fashion_mnist.py.
    config.model.scan_unroll = 4
    config.batch_size = 128
    config.total_epochs = 30.0
    config.warmup_epochs = 2.0
    config.eval_every_epochs = 10.0
    config.log_every_steps = 100
    config.optimizer.learning_rate = 2e-3
    config.optimizer.weight_decay = 0.1
    config.optimizer.grad_clip_norm = 1.0
    RECIPES[recipe](config)
    return config


def plain(config: ConfigDict) -> None:
    """The images as they are."""
    config.data.flip = False
    config.data.train_crop = "resize"


def augmented(config: ConfigDict) -> None:
    """Mirrored, shifted, one random distortion each, and mixed: a light form of AugReg's levels."""
    config.data.train_crop = "pad(2)"
    config.data.augmentation = "randaug_timm(1, 5)"
    config.mixing.mixup_alpha = 0.2


RECIPES = {"plain": plain, "augmented": augmented}
