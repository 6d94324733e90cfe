"""Class token or average pooling (Figure 9 of arXiv 2010.11929).

    python -m vit_jax.study configs/studies/pooling.py --workdir=DIR --config.data.source=folder:DIR
    python -m vit_jax.study configs/studies/pooling.py --workdir=DIR \
        --config=configs/fashion_mnist.py    # On a CPU.

Expected on JFT-300M: both are equally good, each with its own learning rate: 8e-4 for the class token,
3e-4 for the average, which at 8e-4 is clearly worse.
"""

from vit_jax.studies.definition import Study
from vit_jax.studies.views import TRAINING


def get_study() -> Study:
    """Figure 9's three lines, at the end of each epoch."""
    return Study(
        title="Class token or average pooling",
        config="configs/vit.py:b16,jft300m",
        models={
            "class token, rate 8e-4": ("model.pooling=token", "optimizer.learning_rate=8e-4"),
            "average, rate 8e-4": ("model.pooling=average", "optimizer.learning_rate=8e-4"),
            "average, rate 3e-4": ("model.pooling=average", "optimizer.learning_rate=3e-4"),
        },
        overrides=(
            "evaluators=classification | fewshot(shots=(5,))",
            "eval_every_epochs=1",
        ),
        metrics={"5-shot accuracy (share of images)": "fewshot/5_shot"},
        views=(TRAINING,),
    )
