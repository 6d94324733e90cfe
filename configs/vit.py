"""Pre-training of ViTs and hybrids as in Table 3 of the paper (arXiv 2010.11929).

    python -m vit_jax.main --config=configs/vit.py:b16 --workdir=DIR
    python -m vit_jax.main --config=configs/vit.py:l16,imagenet21k,30 --workdir=DIR \
        --config.data.source=folder:DIR

Arguments: MODEL[,DATASET[,EPOCHS]]; DATASET is imagenet2012 (default), imagenet21k or jft300m;
EPOCHS is one that the table has, the longest by default. The table itself, and what is taken where
it has no row, are in `vit_jax/recipes.py`.

Expected: ViT-B/16 pre-trained on ImageNet for 300 epochs and fine-tuned on it at 384 px reaches
77.91 % (Table 5); on ImageNet-21k for 90 epochs 83.97 %; on JFT-300M for 7 epochs 84.15 %.
"""

from ml_collections import ConfigDict

from vit_jax.recipes import paper_pretraining

MODELS = {
    "ti16": "ViT-Ti/16",
    "s16": "ViT-S/16",
    "s32": "ViT-S/32",
    "b8": "ViT-B/8",
    "b16": "ViT-B/16",
    "b32": "ViT-B/32",
    "l16": "ViT-L/16",
    "l32": "ViT-L/32",
    "h14": "ViT-H/14",
    "r_ti16": "R+ViT-Ti/16",
    "r26_s32": "R26+ViT-S/32",
    "r26_b32": "R26+ViT-B/32",
    "r50_b16": "R50+ViT-B/16",
    "r50_b32": "R50+ViT-B/32",
    "r50_l16": "R50+ViT-L/16",
    "r50_l32": "R50+ViT-L/32",
    "axial_b16": "Axial-ViT-B/16",
    "axial_b32": "Axial-ViT-B/32",
    "mixer_b16": "Mixer-B/16",
    "mixer_b32": "Mixer-B/32",
    "mixer_l16": "Mixer-L/16",
}


def get_config(arguments: str = "b16") -> ConfigDict:
    """The recipe of Table 3 for MODEL[,DATASET[,EPOCHS]]."""
    return paper_pretraining(MODELS, arguments, default_model="b16")
