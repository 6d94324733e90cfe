"""Inference: images a second, and the largest batch (Figure 12 of arXiv 2010.11929).

    python -m vit_jax.study configs/studies/speed.py --workdir=DIR

Of eight models at five sizes of images on this machine's first device, with random parameters; nothing
is trained and no data is needed. On a CPU the largest sizes take minutes each.

Expected: at sizes where both fit, ViTs are as fast as ResNets of like accuracy, and take larger
batches.
"""

from vit_jax.recipes.models import ALL, TRANSFORMERS, resolution
from vit_jax.studies.definition import Study
from vit_jax.studies.runs import IMAGES_PER_SECOND, LARGEST_BATCH, measured
from vit_jax.studies.views import INPUT_SIZE

MODELS = {
    "R50x1": "r50x1",
    "R50x2": "r50x2",
    "ViT-B/32": "b32",
    "ViT-L/32": "l32",
    "ViT-B/16": "b16",
    "ViT-L/16": "l16",
    "ViT-H/14": "h14",
    "R152x4": "r152x4",
}
SIZES = (64, 128, 224, 384, 512)


def get_study() -> Study:
    """Figure 12's models and sizes; ViT-H/14's are the largest below that its patches divide."""
    cells = [(name, short, size) for name, short in MODELS.items() for size in SIZES]
    file = {short: "vit" if short in TRANSFORMERS else "bit" for short in MODELS.values()}
    return Study(
        title="Inference",
        config={
            f"{name}: {size} px": f"configs/{file[short]}.py:{short}" for name, short, size in cells
        },
        models={
            f"{name}: {size} px": (f"model.image_size={resolution(ALL[short], size)}",)
            for name, short, size in cells
        },
        metrics={
            "inference (images/s)": IMAGES_PER_SECOND,
            "largest batch (images)": LARGEST_BATCH,
        },
        run=measured,
        views=(INPUT_SIZE,),
    )
