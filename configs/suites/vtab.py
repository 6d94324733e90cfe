"""VTAB-1k's 19 tasks (arXiv 1910.04867), by the protocol of the paper's appendix B.1.1.

    python -m vit_jax.suite configs/suites/vtab.py --workdir=DIR --config.init=WEIGHTS

Images come from TFDS; see configs/vtab.py, whose tasks these are.

Expected: see configs/vtab.py.
"""

GROUPS = {
    "natural": "caltech101 cifar100 dtd oxford_flowers102 oxford_iiit_pet sun397 svhn",
    "specialized": "camelyon eurosat resisc45 retinopathy",
    "structured": "clevr_count clevr_distance dmlab dsprites_location dsprites_orientation "
    "kitti_distance smallnorb_azimuth smallnorb_elevation",
}
SUITE = {
    group: {task: f"configs/vtab.py:{task},b16" for task in tasks.split()}
    for group, tasks in GROUPS.items()
}
