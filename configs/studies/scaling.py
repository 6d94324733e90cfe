"""Accuracy against compute: ViTs, hybrids and ResNets (Figure 5 and Table 6 of arXiv 2010.11929).

    python -m vit_jax.study configs/studies/scaling.py --workdir=DIR \
        --config.data.source=folder:DIR --finetune=pets=configs/folder.py:DIR

Each model is trained by its own recipe of JFT-300M (Table 3), some for two lengths. By default it is
then fine-tuned on the paper's five tasks, from TFDS; --finetune names others instead.

Expected on JFT-300M, fine-tuned on ImageNet: ViT-B/32 80.73 % for 55 exaFLOPs, ViT-L/16 87.12 % for
1,567, ResNet152x2 85.56 % for 1,126, R50x1+ViT-L/16 87.12 % for 1,668 (Table 6).
"""

from vit_jax.studies.definition import Study

RECIPES = {
    "ViT: B/32, 7 epochs": "configs/vit.py:b32,jft300m",
    "ViT: B/16, 7 epochs": "configs/vit.py:b16,jft300m",
    "ViT: L/32, 7 epochs": "configs/vit.py:l32,jft300m",
    "ViT: L/16, 7 epochs": "configs/vit.py:l16,jft300m,7",
    "ViT: L/16, 14 epochs": "configs/vit.py:l16,jft300m,14",
    "ViT: H/14, 14 epochs": "configs/vit.py:h14,jft300m",
    "hybrid: R50x1+B/32, 7 epochs": "configs/vit.py:r50_b32,jft300m",
    "hybrid: R50x1+B/16, 7 epochs": "configs/vit.py:r50_b16,jft300m",
    "hybrid: R50x1+L/32, 7 epochs": "configs/vit.py:r50_l32,jft300m",
    "hybrid: R50x1+L/16, 7 epochs": "configs/vit.py:r50_l16,jft300m,7",
    "hybrid: R50x1+L/16, 14 epochs": "configs/vit.py:r50_l16,jft300m,14",
    "ResNet: R50x1, 7 epochs": "configs/bit.py:r50x1,jft300m",
    "ResNet: R50x2, 7 epochs": "configs/bit.py:r50x2,jft300m",
    "ResNet: R101x1, 7 epochs": "configs/bit.py:r101x1,jft300m",
    "ResNet: R152x1, 7 epochs": "configs/bit.py:r152x1,jft300m",
    "ResNet: R152x2, 7 epochs": "configs/bit.py:r152x2,jft300m",
    "ResNet: R152x2, 14 epochs": "configs/bit.py:r152x2,jft300m",
    "ResNet: R200x3, 14 epochs": "configs/bit.py:r200x3,jft300m",
}
LONG = "14 epochs"
TASKS = ("imagenet2012", "cifar10", "cifar100", "oxford_iiit_pet", "oxford_flowers102")


def get_study() -> Study:
    """Table 6, with few-shot accuracy beside it."""
    lengths = {name: name.endswith(LONG) for name in RECIPES}
    return Study(
        title="Accuracy against pre-training compute",
        config=RECIPES,
        models={name: (f"total_epochs={14 if long else 7}",) for name, long in lengths.items()},
        overrides=("evaluators=classification | fewshot(shots=(5,))",),
        metrics={"5-shot accuracy (share of images)": "fewshot/5_shot"},
        finetune={task: (f"configs/finetune.py:b16,{task}",) for task in TASKS},
    )
