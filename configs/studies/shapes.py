"""The shape of a ViT: depth, widths and patches (Figure 8 of arXiv 2010.11929).

    python -m vit_jax.study configs/studies/shapes.py --workdir=DIR --config.data.source=folder:DIR

Around 8 layers of width 1,024 with an MLP of 2,048 on patches of 32 pixels, one of them changes, or
all together. The paper's largest depth is 64; it names no other value, these are ours.

Expected on JFT-300M: depth helps most, with less and less to gain beyond 16 layers; width least;
smaller patches help without a parameter more.
"""

from vit_jax.studies.definition import Overrides, Study

BASE = {"depth": 8, "width": 1024, "mlp_width": 2048, "patch_size": 32}
CHANGES = {
    "depth": ({"depth": n} for n in (2, 4, 16, 32, 64)),
    "width": ({"width": n} for n in (256, 512, 2048)),
    "MLP width": ({"mlp_width": n} for n in (512, 1024, 4096, 8192)),
    "patch size": ({"patch_size": n} for n in (56, 28, 16, 14)),
    "all": (
        {"depth": 4, "width": 512, "mlp_width": 1024, "patch_size": 56},
        {"depth": 16, "width": 2048, "mlp_width": 4096, "patch_size": 16},
    ),
}


def shape(**changed: int) -> Overrides:
    """A model's overrides: the base's with some changed."""
    values = {**BASE, **changed}
    sizes = (f"model.{name}={value}" for name, value in values.items())
    return ("model.name=ViT-L/32", *sizes, f"model.representation_size={values['width']}")


def get_study() -> Study:
    """The base stands on every line."""
    models = {f"{', '.join(CHANGES)}: base": shape()}
    for family, changes in CHANGES.items():
        for changed in changes:
            text = " × ".join(map(str, changed.values()))
            models[f"{family}: {text}"] = shape(**changed)
    return Study(
        title="The shape of a ViT",
        config="configs/vit.py:l32,jft300m",
        models=models,
        overrides=("evaluators=classification | fewshot(shots=(5,))",),
        metrics={"5-shot accuracy (share of images)": "fewshot/5_shot"},
    )
