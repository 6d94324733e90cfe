"""DeiT: a ViT from ImageNet alone, by strong augmentation (arXiv 2012.12877).

    python -m vit_jax.main --config=configs/deit.py:b16 --workdir=DIR

Arguments: [MODEL], ti16 s16 b16 (default). 300 epochs, without distillation.

Expected on ImageNet: Ti/16 72.2, S/16 79.8, B/16 81.8 % (the paper).

Values, in vit_jax/recipes/deit.py, are the defaults of the authors' main.py
(github.com/facebookresearch/deit), which their commands in README_deit.md leave as they are. There
mixup draws its share and its mode on each device, here once for the whole batch.
"""

from ml_collections import ConfigDict

from vit_jax.recipes.arguments import choose
from vit_jax.recipes.deit import MODELS, deit


def get_config(arguments: str = "b16") -> ConfigDict:
    """The recipe for MODEL."""
    return deit(choose(arguments, arguments or "b16", MODELS))
