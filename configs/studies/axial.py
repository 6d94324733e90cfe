"""Attention along rows and columns, against compute and speed (Figure 13 of arXiv 2010.11929).

    python -m vit_jax.study configs/studies/axial.py --workdir=DIR --config.data.source=folder:DIR

Each model is trained by the recipe of JFT-300M that is its own or its counterpart's, then its inference is
measured on one device.

Expected: both Axial-ViTs are better than their counterparts for more compute; AxialResNet50 is slow.
"""

from vit_jax.studies.definition import Study
from vit_jax.studies.runs import trained_and_measured
from vit_jax.studies.views import COMPUTE, SPEED

RECIPES = {
    "ResNet: 50": "configs/bit.py:r50x1,jft300m",
    "Axial-ResNet: 50": "configs/bit.py:axial_r50,jft300m",
    "ViT: B/32": "configs/vit.py:b32,jft300m",
    "ViT: B/16": "configs/vit.py:b16,jft300m",
    "Axial-ViT: B/32": "configs/vit.py:axial_b32,jft300m",
    "Axial-ViT: B/16": "configs/vit.py:axial_b16,jft300m",
}


def get_study() -> Study:
    """Figure 13's six models."""
    return Study(
        title="Axial attention",
        config=RECIPES,
        models={name: () for name in RECIPES},
        overrides=("evaluators=classification | fewshot(shots=(5,))",),
        metrics={"5-shot accuracy (share of images)": "fewshot/5_shot"},
        run=trained_and_measured,
        views=(COMPUTE, SPEED),
    )
