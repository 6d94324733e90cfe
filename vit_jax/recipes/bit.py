"""Big Transfer's own recipes (BiT, arXiv 1912.11370), as data: SGD, and the HyperRule."""

import math
from typing import NamedTuple

from ml_collections import ConfigDict

from vit_jax.data.sources.registry import open_source
from vit_jax.recipes.finetuning import from_weights, named_task
from vit_jax.recipes.pretraining import DATASETS, pretraining


class Schedule(NamedTuple):
    """How long a run is, and when its rate falls to a tenth."""

    length: int
    drops: tuple[int, ...]


# In epochs: BiT-S, BiT-M and BiT-L.
SCHEDULES = {
    "imagenet2012": Schedule(90, (30, 60, 80)),
    "imagenet21k": Schedule(90, (30, 60, 80)),
    "jft300m": Schedule(40, (10, 23, 30, 37)),
}


def sgd_pretraining(name: str, dataset: str) -> ConfigDict:
    """Pre-training with SGD."""
    config = pretraining(name, DATASETS[dataset])
    config.batch_size = 4096
    config.total_epochs = float(SCHEDULES[dataset].length)
    config.warmup_steps = 5_000
    if dataset != "imagenet2012":  # Images of several classes: as in Big Vision's bit_i21k.py.
        config.objective.loss = "sigmoid"
        config.model.head_bias = -10.0
    _step_sgd(config, SCHEDULES[dataset])
    config.optimizer.learning_rate = 0.03 * config.batch_size / 256
    # The paper's 1e-4 goes through the momentum, which multiplies it by 1 / (1 - 0.9); ours does
    # not. Big Vision's bit_i21k.py and bit_i1k.py have the same ratio of decay to rate.
    config.optimizer.weight_decay = 1e-3
    return config


class Rule(NamedTuple):
    """A row of the HyperRule, in updates."""

    below: float  # For fewer training images than this.
    schedule: Schedule
    warmup_steps: int
    mixup_alpha: float


HYPERRULE = (
    Rule(20_000, Schedule(500, (200, 300, 400)), 100, 0.0),
    Rule(500_000, Schedule(10_000, (3_000, 6_000, 9_000)), 500, 0.1),
    Rule(math.inf, Schedule(20_000, (6_000, 12_000, 18_000)), 500, 0.1),
)
# Resized to, then cropped to: images under 96 × 96 pixels, and others (as in the released code;
# the paper has 448 and 384 for all but its largest model).
SMALL_IMAGES, LARGE_IMAGES = (160, 128), (512, 480)
DATASETS_OF_SMALL_IMAGES = ("cifar10", "cifar100")


def hyperrule(arguments: str, name: str, dataset: str) -> ConfigDict:
    """Fine-tuning by the HyperRule, on a dataset of Table 4 or on folder:DIR, which is counted."""
    task = named_task(arguments, dataset)
    config = from_weights(name)
    config.data.source = task.source
    config.data.num_train_examples = task.num_train_examples
    config.data.eval_split = task.eval_split
    config.model.num_classes = task.num_classes
    size = task.num_train_examples or _count(config.data)
    rule = next(rule for rule in HYPERRULE if size < rule.below)
    config.total_steps = rule.schedule.length
    config.warmup_steps = rule.warmup_steps
    config.eval_every_steps = rule.schedule.length // 10
    config.objective.mixing.mixup_alpha = rule.mixup_alpha
    side, crop = SMALL_IMAGES if dataset in DATASETS_OF_SMALL_IMAGES else LARGE_IMAGES
    config.data.train_crop = f"resize_crop({side})"
    config.model.image_size = crop
    _step_sgd(config, rule.schedule)
    config.optimizer.learning_rate = 0.003
    config.optimizer.grad_clip_norm = 0.0
    return config


def _step_sgd(config: ConfigDict, schedule: Schedule) -> None:
    config.optimizer.name = "sgd"
    config.optimizer.momentum = 0.9
    config.optimizer.momentum_dtype = "float32"
    config.schedule.name = "step"
    config.schedule.boundaries = tuple(drop / schedule.length for drop in schedule.drops)
    config.schedule.factor = 0.1


def _count(data: ConfigDict) -> int:
    return len(
        open_source(
            data, data.train_split, image_size=(1, 1), channels=3, num_classes=0, training=True
        )
    )
