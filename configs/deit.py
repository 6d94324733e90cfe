"""DeiT: a ViT from ImageNet alone, by strong augmentation (arXiv 2012.12877).

    python -m vit_jax.main --config=configs/deit.py:b16 --workdir=DIR

Arguments: [MODEL], ti16 s16 b16 (default). 300 epochs, without distillation.

Expected on ImageNet: Ti/16 72.2, S/16 79.8, B/16 81.8 % (the paper).

Values are the defaults of the authors' main.py (github.com/facebookresearch/deit), which their
commands in README_deit.md leave as they are. There mixup draws its share and its mode on each
device, here once for the whole batch.
"""

from ml_collections import ConfigDict

from vit_jax.recipes.arguments import choose
from vit_jax.recipes.datasets import IMAGENET
from vit_jax.recipes.starts import pretraining

MODELS = {"ti16": "ViT-Ti/16", "s16": "ViT-S/16", "b16": "ViT-B/16"}


def get_config(arguments: str = "b16") -> ConfigDict:
    """The recipe for MODEL."""
    config = pretraining(MODELS[choose(arguments, arguments or "b16", MODELS)], IMAGENET)
    config.batch_size = 1024
    config.total_epochs = 300.0
    config.warmup_epochs = 5.0
    config.objective.label_smoothing = 0.1
    config.objective.mixing.form = "deit"
    config.objective.mixing.mixup_alpha = 0.8
    config.objective.mixing.cutmix_alpha = 1.0

    config.data.train_crop = "random_resized"
    config.data.augmentation = "randaug_timm | random_erasing(0.25)"
    config.data.repeated_augmentation = 3
    config.data.interpolation = "bicubic"
    config.data.mean = (0.485, 0.456, 0.406)  # ImageNet's.
    config.data.std = (0.229, 0.224, 0.225)
    config.data.eval_resize = 256  # A centre crop of 0.875 of the smaller side.

    config.model.gelu = "erf"
    config.model.stochastic_depth_rate = 0.1  # For all sizes, from 0 at the first block.
    config.model.kernel_std = config.model.position_std = 0.02

    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.05
    config.optimizer.b1, config.optimizer.b2 = 0.9, 0.999
    config.schedule.name = "cosine"
    config.schedule.warmup_start = 1e-6
    config.schedule.end = 1e-5
    return config
