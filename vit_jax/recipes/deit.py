"""Shared by the configs of DeiT (arXiv 2012.12877), with and without a teacher."""

from ml_collections import ConfigDict

from vit_jax.recipes.datasets import IMAGENET
from vit_jax.recipes.starts import pretraining

MODELS = {"ti16": "ViT-Ti/16", "s16": "ViT-S/16", "b16": "ViT-B/16"}


def deit(model: str) -> ConfigDict:
    """The recipe for one of `MODELS`, but for the objective's loss."""
    config = pretraining(MODELS[model], IMAGENET)
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
