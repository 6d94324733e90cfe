"""Fine-tuning at a higher resolution as in Table 4 of the paper (arXiv 2010.11929).

    python -m vit_jax.main --config=configs/finetune.py:b16,cifar10 --workdir=DIR \
        --config.init=ViT-B_16.npz
    python -m vit_jax.sweep --config=configs/finetune.py:b16,folder:DIR --workdir=DIR \
        --config.init=ViT-B_16.npz

Arguments: MODEL[,DATASET], where DATASET is cifar10 (default), cifar100, oxford_iiit_pet,
oxford_flowers102, imagenet2012 or folder:DIR. The first command takes one learning rate, the second
tries the table's four on a part of the training images and then trains with the best. Images are
384 px, 392 px for ViT-H/14; ImageNet is 512 and 518 px, with averaged weights.

Expected, from weights pre-trained on ImageNet-21k at 384 px (Table 5): ViT-B/16 reaches 98.95 % on
CIFAR-10, 91.67 % on CIFAR-100, 94.43 % on Pets, 99.38 % on Flowers; ViT-L/16 85.30 % on ImageNet at
512 px (Table 2). The table itself is in `vit_jax/recipes/finetuning.py`.

Other ways to fine-tune, one line each:
    --config.optimizer.freeze='^(?!head/)'              a linear probe: only the head learns
    --config.optimizer.freeze='^blocks/0[0-7]/'         the first eight blocks stay as they are
"""

from ml_collections import ConfigDict

from vit_jax.recipes.finetuning import finetuning


def get_config(arguments: str = "b16,cifar10") -> ConfigDict:
    """The recipe of Table 4 for MODEL[,DATASET]."""
    return finetuning(arguments)
