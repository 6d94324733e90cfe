"""Pre-training of ViTs and hybrids as in Table 3 of the paper (arXiv 2010.11929).

    python -m vit_jax.main --config=configs/vit.py:b16 --workdir=DIR
    python -m vit_jax.main --config=configs/vit.py:l16,imagenet21k,30 --workdir=DIR \
        --config.data.source=folder:DIR

Arguments: MODEL[,DATASET[,EPOCHS]]; DATASET is imagenet2012 (default), imagenet21k or jft300m, of
which you name your copy: folder:DIR, tar:DIR, tfds:NAME (docs/data.md). EPOCHS is one that the table
has, the longest by default. The table itself, and what is taken where it has no row, are in
`vit_jax/recipes/pretraining.py`.

Expected: ViT-B/16 pre-trained on ImageNet for 300 epochs and fine-tuned on it at 384 px reaches
77.91 % (Table 5); on ImageNet-21k for 90 epochs 83.97 %; on JFT-300M for 7 epochs 84.15 %.
"""

from ml_collections import ConfigDict

from vit_jax.recipes.models import TRANSFORMERS
from vit_jax.recipes.pretraining import paper_pretraining


def get_config(arguments: str = "b16") -> ConfigDict:
    """The recipe of Table 3 for MODEL[,DATASET[,EPOCHS]]."""
    return paper_pretraining(TRANSFORMERS, arguments, default_model="b16")
