"""What more images are worth to each model (Figures 3 and 4, and Table 5, of arXiv 2010.11929).

    python -m vit_jax.study configs/studies/data_size.py --workdir=DIR \
        --config.data.source=folder:DIR --sizes=10000,100000,0 --finetune=pets=configs/folder.py:DIR

Each model is trained on parts of the images by its own recipe of JFT-300M (Table 3), and judged by a
linear classifier of five images a class. Each --finetune adds a task, as in Figure 3 and Table 5.

Expected: of random 9 to 300 million images of JFT-300M ResNets are better with the smaller parts, ViTs
with the larger (Figure 4).
"""

from vit_jax.studies.definition import Study

RECIPES = {
    "ViT-b/32": "configs/vit.py:b32,jft300m",  # B/32 with all widths halved.
    "ViT-B/32": "configs/vit.py:b32,jft300m",
    "ViT-L/32": "configs/vit.py:l32,jft300m",
    "ViT-L/16": "configs/vit.py:l16,jft300m,7",
    "BiT-R50x1": "configs/bit.py:r50x1,jft300m",
    "BiT-R152x2": "configs/bit.py:r152x2,jft300m",
}


def get_study() -> Study:
    """Figure 4's models and sizes."""
    return Study(
        title="Accuracy against the number of pre-training images",
        config=RECIPES,
        models={
            **{name: () for name in RECIPES},
            "ViT-b/32": ("model.name=ViT-b/32", "model.representation_size=384"),
        },
        sizes=(9_000_000, 30_000_000, 90_000_000, 300_000_000),
        overrides=("evaluators=classification | fewshot(shots=(5,))",),
        metrics={"5-shot accuracy (share of images)": "fewshot/5_shot"},
    )
