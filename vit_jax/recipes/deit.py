"""DeiT (2012.12877) and DeiT-III (2204.07118), as data.

Values are those of the re-implementation in JAX that reproduces both papers' accuracies within
0.9 % (github.com/affjljoo3581/deit3-jax, its scripts under `config/`).
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from vit_jax.recipes.pretraining import DATASETS, PretrainingData, pretraining

IMAGENET = DATASETS["imagenet2012"]
IMAGENET_21K = PretrainingData("", 13_151_276, 19_167, "")  # The release of winter 2021.


def deit_family(name: str, data: PretrainingData) -> ConfigDict:
    """What all stages of both recipes share."""
    config = pretraining(name, data)
    config.warmup_epochs = 5.0
    config.data.interpolation = "bicubic"
    config.data.mean = (0.485, 0.456, 0.406)  # ImageNet's.
    config.data.std = (0.229, 0.224, 0.225)
    config.objective.mixing.form = "deit"
    config.objective.mixing.cutmix_alpha = 1.0
    config.model.kernel_std = config.model.position_std = 0.02
    config.model.prefix_positions = False  # None for the class token.
    config.model.stochastic_depth_schedule = "constant"
    config.optimizer.b1, config.optimizer.b2 = 0.9, 0.999
    config.schedule.name = "cosine"
    config.schedule.warmup_start = 1e-6
    config.schedule.end = 1e-5
    return config


def evaluate_on(config: ConfigDict, share: float) -> None:
    """Evaluates on a centre crop: that share of the picture's shorter side."""
    config.data.eval_crop = "center"
    config.data.eval_resize = int(config.model.image_size / share)


class DeiT(NamedTuple):
    """What differs between DeiT's models."""

    name: str
    stochastic_depth_rate: float


DEIT = {
    "ti16": DeiT("ViT-Ti/16", 0.0),
    "s16": DeiT("ViT-S/16", 0.0),
    "b16": DeiT("ViT-B/16", 0.05),
}


def deit(model: str) -> ConfigDict:
    """DeiT, without distillation: 300 epochs on ImageNet."""
    config = deit_family(DEIT[model].name, IMAGENET)
    config.batch_size = 1024
    config.total_epochs = 300.0
    config.objective.label_smoothing = 0.1
    config.data.train_crop = "random_resized"
    config.data.augmentation = "randaug_timm | random_erasing(0.25)"
    config.data.repeated_augmentation = 3
    config.objective.mixing.mixup_alpha = 0.8
    config.model.stochastic_depth_rate = DEIT[model].stochastic_depth_rate
    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.05
    evaluate_on(config, 0.875)
    return config


class Pretraining(NamedTuple):
    """The first stage of DeiT-III."""

    image_size: int
    learning_rate: float
    weight_decay: float
    stochastic_depth_rate: float


DEIT3_MODELS = {"s16": "ViT-S/16", "b16": "ViT-B/16", "l16": "ViT-L/16", "h14": "ViT-H/14"}
# Epochs -> model -> stage. 400 and 800 are on ImageNet, 90 and 240 on ImageNet-21k.
ON_IMAGENET = {
    400: {
        "s16": Pretraining(224, 4e-3, 0.02, 0.0),
        "b16": Pretraining(192, 3e-3, 0.02, 0.1),
        "l16": Pretraining(192, 3e-3, 0.02, 0.4),
        "h14": Pretraining(154, 3e-3, 0.02, 0.5),
    },
    800: {
        "s16": Pretraining(224, 4e-3, 0.05, 0.05),
        "b16": Pretraining(192, 3e-3, 0.05, 0.2),
        "l16": Pretraining(192, 3e-3, 0.05, 0.5),
        "h14": Pretraining(154, 3e-3, 0.05, 0.6),
    },
}
_ON_IMAGENET_21K = {
    "s16": Pretraining(224, 3e-3, 0.02, 0.05),
    "b16": Pretraining(224, 3e-3, 0.02, 0.1),
    "l16": Pretraining(224, 3e-3, 0.02, 0.3),
    "h14": Pretraining(126, 3e-3, 0.02, 0.5),
}
ON_IMAGENET_21K = {90: _ON_IMAGENET_21K, 240: _ON_IMAGENET_21K}
DEIT3_EPOCHS = ON_IMAGENET | ON_IMAGENET_21K


def deit3_family(model: str, data: PretrainingData, stage: Pretraining) -> ConfigDict:
    """What all stages of DeiT-III share."""
    config = deit_family(DEIT3_MODELS[model], data)
    config.data.augmentation = "three_augment(0.3)"
    config.model.image_size = stage.image_size
    config.model.layer_scale = 1e-4
    config.model.stochastic_depth_rate = stage.stochastic_depth_rate
    config.optimizer.name = "lamb"
    config.optimizer.learning_rate = stage.learning_rate
    config.optimizer.weight_decay = stage.weight_decay
    config.optimizer.grad_clip_norm = 1.0
    config.batch_size = 2048
    evaluate_on(config, 1.0)
    return config


def deit3_pretraining(model: str, epochs: int) -> ConfigDict:
    """The first stage."""
    on_imagenet = epochs in ON_IMAGENET
    stage = DEIT3_EPOCHS[epochs][model]
    config = deit3_family(model, IMAGENET if on_imagenet else IMAGENET_21K, stage)
    config.total_epochs = float(epochs)
    if on_imagenet:
        _augment_most(config)
    else:
        _augment_least(config)
    return config


def deit3_finetuning(model: str, epochs: int) -> ConfigDict:
    """The second stage, on ImageNet at 224 px, from the workdir of the first."""
    first = DEIT3_EPOCHS[epochs][model]
    if epochs in ON_IMAGENET:
        config = deit3_family(model, IMAGENET, first._replace(image_size=224))
        _finetune_on_the_same(config)
    else:
        config = deit3_family(model, IMAGENET, first._replace(image_size=224, learning_rate=3e-4))
        config.total_epochs = 50.0
        _augment_least(config)
        if model == "h14":
            config.model.stochastic_depth_rate = 0.45
    config.init = f"runs/deit3_{model}_{epochs}"
    config.init_position_resize = "bicubic"
    return config


def _augment_most(config: ConfigDict) -> None:
    config.objective.loss = "binary"
    config.data.train_crop = "random_resized"
    config.data.repeated_augmentation = 3
    config.objective.mixing.mixup_alpha = 0.8


def _augment_least(config: ConfigDict) -> None:
    config.objective.label_smoothing = 0.1
    config.data.train_crop = "simple_random"


def _finetune_on_the_same(config: ConfigDict) -> None:
    config.total_epochs = 20.0
    config.batch_size = 512
    config.objective.label_smoothing = 0.1
    config.data.train_crop = "random_resized"
    config.data.augmentation = "randaug_timm"
    config.objective.mixing.mixup_alpha = 0.8
    config.optimizer.name = "adamw"
    config.optimizer.learning_rate = 1e-5
    config.optimizer.weight_decay = 0.1
    config.optimizer.grad_clip_norm = 0.0
