"""Adam or SGD for pre-training ResNets (Table 7 of arXiv 2010.11929).

    python -m vit_jax.study configs/studies/optimizers.py --workdir=DIR \
        --config.data.source=folder:DIR --finetune=pets=configs/folder.py:DIR

Adam is Table 3's recipe, SGD that of Big Transfer, both for 7 epochs. Then each is fine-tuned on the
paper's five tasks, from TFDS; --finetune names others instead.

Expected on JFT-300M, fine-tuned on ImageNet: R50x1 77.54 % with Adam, 78.24 % with SGD; R152x2 84.97 and
84.37 %; on the five tasks' mean Adam is better with both.
"""

from vit_jax.studies.definition import Study

RECIPES = {
    "Adam: R50x1": "configs/bit.py:r50x1,jft300m",
    "SGD: R50x1": "configs/bit.py:r50x1,jft300m,sgd",
    "Adam: R152x2": "configs/bit.py:r152x2,jft300m",
    "SGD: R152x2": "configs/bit.py:r152x2,jft300m,sgd",
}
TASKS = ("imagenet2012", "cifar10", "cifar100", "oxford_iiit_pet", "oxford_flowers102")


def get_study() -> Study:
    """Table 7's columns as rows."""
    return Study(
        title="Adam or SGD for ResNets",
        config=RECIPES,
        models={name: () for name in RECIPES},
        overrides=("total_epochs=7",),
        finetune={task: (f"configs/finetune.py:b16,{task}",) for task in TASKS},
    )
