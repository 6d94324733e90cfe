"""ResNets (BiT): as the paper's baselines, and by Big Transfer's own recipes.

    python -m vit_jax.main --config=configs/bit.py:r50x1,jft300m --workdir=DIR \
        --config.data.source=folder:DIR
    python -m vit_jax.main --config=configs/bit.py:r50x1,imagenet21k,sgd --workdir=DIR \
        --config.data.source=folder:DIR
    python -m vit_jax.main --config=configs/bit.py:r50x1,cifar10,hyperrule --workdir=DIR \
        --config.init=BiT-M-R50x1.npz

Arguments: MODEL[,DATASET[,RECIPE]]. MODEL is r50x1 ... r200x3 in the BiT paper's form
(pre-activation), v1_r50x1 ... in the hybrids' (post-activation). RECIPE is one of

    EPOCHS     Table 3 of arXiv 2010.11929, with Adam, as in configs/vit.py (default: its longest);
               the table has ResNets on jft300m only, other rows are taken as printed at the start
    sgd        pre-training of arXiv 1912.11370: rate 0.03 per 256 images, falling in steps
    hyperrule  its fine-tuning: length, size and mixup by the number and size of the images

DATASET is imagenet2012 (default), imagenet21k or jft300m; for the HyperRule imagenet2012, cifar10,
cifar100, oxford_iiit_pet, oxford_flowers102 or folder:DIR, which is counted (if its images are under
96 × 96 pixels: --config.data.train_crop='resize_crop(160)' --config.model.image_size=128).

Expected: pre-trained on JFT-300M for 7 epochs and fine-tuned on ImageNet at 384 px, R50x1 reaches
77.54 % with Adam, 78.24 % with SGD; R152x2 84.97 and 84.37 % (Tables 6 and 7 of 2010.11929).
Published BiT-M weights fine-tuned on ImageNet: R50x1 80.4 %, R152x4 84.9 % (timm's measurement).
"""

from ml_collections import ConfigDict

from vit_jax.recipes.arguments import choose, split_arguments
from vit_jax.recipes.bit import hyperrule, sgd_pretraining
from vit_jax.recipes.models import RESNETS
from vit_jax.recipes.pretraining import DATASETS, paper_pretraining


def get_config(arguments: str = "r50x1") -> ConfigDict:
    """The recipe for MODEL[,DATASET[,RECIPE]]."""
    model, dataset, recipe = split_arguments(arguments, "MODEL[,DATASET[,RECIPE]]")
    if not recipe or recipe.isdecimal():
        return paper_pretraining(RESNETS, arguments, default_model="r50x1")
    choose(arguments, recipe, ("sgd", "hyperrule"))
    name = RESNETS[choose(arguments, model or "r50x1", RESNETS)]
    dataset = dataset or "imagenet2012"
    if recipe == "hyperrule":
        return hyperrule(arguments, name, dataset)
    return sgd_pretraining(name, choose(arguments, dataset, DATASETS))
