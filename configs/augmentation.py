"""Does augmentation help? The same small model on 10,000 images of Fashion-MNIST, with and without.

    python -m vit_jax.main --config=configs/augmentation.py:plain --workdir=runs/plain
    python -m vit_jax.main --config=configs/augmentation.py:augmented --workdir=runs/augmented

Arguments: RECIPE[,SEED]. Both runs see 300,000 images: 10,000 of the training images, 30 times. The
plain recipe shows them as they are; the augmented one mirrors, crops, distorts and mixes them.
Measured on all 10,000 test images.

Expected: see docs/recipes.md.
"""

from ml_collections import ConfigDict

from vit_jax.errors import ConfigError
from vit_jax.recipes.fashion_mnist import small_vit


def get_config(arguments: str = "plain") -> ConfigDict:
    """One of the two recipes, RECIPE[,SEED]."""
    recipe, _, seed = arguments.partition(",")
    if recipe not in RECIPES or not (seed or "0").isdecimal():
        raise ConfigError(
            f"{arguments!r}: expected RECIPE[,SEED], RECIPE one of {', '.join(RECIPES)}."
        )
    config = small_vit()
    config.seed = int(seed or 0)
    config.data.train_split = "train[:10000]"
    config.total_epochs = 30.0
    config.warmup_epochs = 2.0
    config.eval_every_epochs = 10.0
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
    config.objective.mixing.mixup_alpha = 0.2


RECIPES = {"plain": plain, "augmented": augmented}
