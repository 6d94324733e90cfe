"""VTAB-1k: 1,000 images of one of 19 tasks, with one setting for all (arXiv 2010.11929, B.1.1).

    python -m vit_jax.main --config=configs/vtab.py:caltech101,l16 --workdir=DIR \
        --config.init=ViT-L_16.npz

Arguments: TASK[,MODEL]. The tasks are caltech101 cifar100 dtd oxford_flowers102 oxford_iiit_pet
sun397 svhn, camelyon eurosat resisc45 retinopathy, clevr_count clevr_distance dmlab
dsprites_location dsprites_orientation kitti_distance smallnorb_azimuth smallnorb_elevation. Images
come from TFDS, are 384 px (392 for ViT-H/14), and train for 2,500 steps at the rate 0.01.

Expected, from ViT-L/16 pre-trained on ImageNet-21k: 72.7 % on average over the 19 tasks, 90.8 % on
caltech101, 41.7 % on smallnorb_elevation (Table 9). The tasks are in `vit_jax/recipes/vtab.py`.
"""

from ml_collections import ConfigDict

from vit_jax.recipes.vtab import vtab


def get_config(arguments: str = "caltech101") -> ConfigDict:
    """The protocol for TASK[,MODEL]."""
    return vtab(arguments)
