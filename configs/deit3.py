"""DeiT-III: revenge of the ViT, in two stages (arXiv 2204.07118).

    python -m vit_jax.main --config=configs/deit3.py:b16,400 --workdir=runs/deit3_b16_400
    python -m vit_jax.main --config=configs/deit3.py:b16,400,finetune --workdir=DIR

Arguments: [MODEL[,EPOCHS[,STAGE]]]. MODEL is s16 b16 (default) l16 h14. EPOCHS 400 (default) and 800
are on ImageNet, 90 and 240 on ImageNet-21k (--config.data.source=folder:DIR or tar:DIR). STAGE is
pretrain (default) or finetune: 20 epochs after ImageNet, 50 after ImageNet-21k, at 224 px, from the
first stage's workdir as named above (or --config.init=DIR). S/16 on ImageNet has one stage only.

Expected on ImageNet at 224 px after both stages, S/16, B/16, L/16, H/14: 80.4, 83.5, 84.5, 85.1 %
for 400 epochs; 81.4, 83.8, 84.9, 85.2 % for 800; 82.6, 85.2, 86.8, 87.2 % for 90 on ImageNet-21k;
83.1, 85.7, 87.0 % for 240 (no H/14). The values stand in `vit_jax/recipes/deit.py`.

After ImageNet-21k the authors keep the head's rows of ImageNet's classes; here the head is new.
"""

from ml_collections import ConfigDict

from vit_jax.errors import ConfigError
from vit_jax.recipes.arguments import choose, split_arguments
from vit_jax.recipes.deit import (
    DEIT3_EPOCHS,
    DEIT3_MODELS,
    ON_IMAGENET,
    deit3_finetuning,
    deit3_pretraining,
)

STAGES = {"pretrain": deit3_pretraining, "finetune": deit3_finetuning}


def get_config(arguments: str = "b16,400") -> ConfigDict:
    """The recipe for MODEL[,EPOCHS[,STAGE]]."""
    model, epochs, stage = split_arguments(arguments, "[MODEL[,EPOCHS[,STAGE]]]")
    model = choose(arguments, model or "b16", DEIT3_MODELS)
    epochs = int(choose(arguments, epochs or "400", [str(known) for known in DEIT3_EPOCHS]))
    stage = choose(arguments, stage or "pretrain", STAGES)
    if (model, stage) == ("s16", "finetune") and epochs in ON_IMAGENET:
        raise ConfigError(f"{arguments!r}: S/16 trains at 224 px at once, in one stage.")
    return STAGES[stage](model, epochs)
