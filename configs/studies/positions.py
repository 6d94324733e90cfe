"""Position embeddings (Table 8 of arXiv 2010.11929).

    python -m vit_jax.study configs/studies/positions.py --workdir=DIR --config.data.source=folder:DIR
    python -m vit_jax.study configs/studies/positions.py --workdir=DIR \
        --config=configs/fashion_mnist.py    # On a CPU.

None, learned for each patch, for rows and columns, or relative; added once, or before every layer, from
tables of its own or one for all. `python -m vit_jax.analyze CELL --output=DIR --figures=positions`
draws what a cell's model has learned, as Figure 10.

Expected for ViT-B/16 on JFT-300M, ImageNet 5-shot: none 0.614, all others between 0.640 and 0.643.
"""

from vit_jax.studies.definition import Study

KINDS = {"none": "none", "1-D": "learned_1d", "2-D": "learned_2d", "relative": "relative"}
PLACEMENTS = {"every layer": "every_layer", "every layer, shared": "every_layer_shared"}
PLACED = ("1-D", "2-D")  # What else than the stem has been tried with.


def get_study() -> Study:
    """Table 8's eight models."""
    once = {name: (f"model.positions={kind}",) for name, kind in KINDS.items()}
    elsewhere = {
        f"{name}, {where}": (*once[name], f"model.position_placement={placement}")
        for name in PLACED
        for where, placement in PLACEMENTS.items()
    }
    return Study(
        title="Position embeddings",
        config="configs/vit.py:b16,jft300m",
        models=once | elsewhere,
        overrides=("evaluators=classification | fewshot(shots=(5,))",),
        metrics={"5-shot accuracy (share of images)": "fewshot/5_shot"},
    )
