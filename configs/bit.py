"""Pre-training of the paper's ResNet baselines (BiT) as in its Table 3 (arXiv 2010.11929).

    python -m vit_jax.main --config=configs/bit.py:r50x1 --workdir=DIR

Arguments: MODEL[,DATASET[,EPOCHS]] as in `configs/vit.py`. The table has these models on JFT-300M
only, with Adam; what is taken elsewhere is in `vit_jax/recipes/pretraining.py` and printed at the
start. The form is the BiT paper's (pre-activation); `v1_` names are the hybrids', post-activation.

Expected: BiT-R50x1 pre-trained on JFT-300M for 7 epochs and fine-tuned on ImageNet at 384 px reaches
77.54 %, BiT-R152x2 84.97 % (Table 6).
"""

from ml_collections import ConfigDict

from vit_jax.recipes.models import RESNETS
from vit_jax.recipes.pretraining import paper_pretraining


def get_config(arguments: str = "r50x1") -> ConfigDict:
    """The recipe of Table 3 for MODEL[,DATASET[,EPOCHS]]."""
    return paper_pretraining(RESNETS, arguments, default_model="r50x1")
