"""DeiT: a ViT from ImageNet alone, by strong augmentation (arXiv 2012.12877).

    python -m vit_jax.main --config=configs/deit.py:b16 --workdir=DIR

Arguments: [MODEL], ti16 s16 b16 (default). 300 epochs, without distillation.

Expected on ImageNet: Ti/16 72.2, S/16 79.8, B/16 81.8 % (the paper); 73.1, 79.7, 81.5 % (the
re-implementation whose values these are).
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from vit_jax.recipes.arguments import choose
from vit_jax.recipes.datasets import IMAGENET
from vit_jax.recipes.starts import pretraining


class Model(NamedTuple):
    """What differs between the models."""

    name: str
    stochastic_depth_rate: float


MODELS = {
    "ti16": Model("ViT-Ti/16", 0.0),
    "s16": Model("ViT-S/16", 0.0),
    "b16": Model("ViT-B/16", 0.05),
}


def get_config(arguments: str = "b16") -> ConfigDict:
    """The recipe for MODEL."""
    model = MODELS[choose(arguments, arguments or "b16", MODELS)]
    config = pretraining(model.name, IMAGENET)
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

    config.model.stochastic_depth_rate = model.stochastic_depth_rate
    config.model.stochastic_depth_schedule = "constant"
    config.model.kernel_std = config.model.position_std = 0.02
    config.model.prefix_positions = False  # None for the class token.

    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.05
    config.optimizer.b1, config.optimizer.b2 = 0.9, 0.999
    config.schedule.name = "cosine"
    config.schedule.warmup_start = 1e-6
    config.schedule.end = 1e-5
    return config
