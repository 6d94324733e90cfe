"""Distillation on ImageNet: DeiT's student with its token, or a patient and consistent one.

    python -m vit_jax.main --config=configs/distill.py:b16 --workdir=DIR --config.init_teacher=WEIGHTS
    python -m vit_jax.main --config=configs/distill.py:r50x1,patient --workdir=DIR \
        --config.init_teacher=WEIGHTS

Arguments: [MODEL[,RECIPE]]. RECIPE deit (default; MODEL ti16 s16 b16, by default b16) is hard
distillation with a distillation token (arXiv 2012.12877); patient (any MODEL) is the paper "a good
teacher is patient and consistent" (arXiv 2106.05237). WEIGHTS are any model that loads and knows
ImageNet's classes.

Expected on ImageNet, deit, from a RegNetY-16GF of 82.9 %, which is not a model of this package:
Ti/16 74.5, S/16 81.2, B/16 83.4 %; 1,000 epochs: 76.6, 82.6, 84.2 %. Patient, R50x1 from a
BiT-M-R152x2 at 224 px of 83.0 %: 80.5 % at 160 px, 82.8 % at 224 px after 9,600 epochs.

DeiT's values are those of vit_jax/recipes/deit.py and of the paper's Table 9; the patient ones those of
configs/proj/distill/bit_i1k.py in Big Vision, whose 1,200 epochs are its authors' middle way.
"""

from ml_collections import ConfigDict

from vit_jax.recipes.arguments import choose, split_arguments
from vit_jax.recipes.datasets import IMAGENET
from vit_jax.recipes.deit import MODELS, deit
from vit_jax.recipes.models import ALL
from vit_jax.recipes.starts import big_vision_pixels, held_out, pretraining


def get_config(arguments: str = "b16") -> ConfigDict:
    """The recipe for MODEL[,RECIPE]."""
    model, recipe = split_arguments(arguments, "MODEL[,RECIPE]")
    recipe = choose(arguments, recipe or "deit", RECIPES)
    config = RECIPES[recipe](model or "b16", arguments)
    config.objective.name = "distillation"
    config.objective.teacher_dtype = "bfloat16"
    return config


def deit_student(model: str, arguments: str) -> ConfigDict:
    """Hard labels of the teacher for the distillation token's head, the data's for the other."""
    config = deit(choose(arguments, model, MODELS))
    config.model.distillation_token = True
    config.objective.kind = "hard"
    config.objective.teacher_weight = 0.5
    return config


def patient(model: str, arguments: str) -> ConfigDict:
    """The teacher's answers alone, on strong mixtures, for long."""
    config = pretraining(ALL[choose(arguments, model, ALL)], IMAGENET)
    big_vision_pixels(config)
    held_out(config, train_percent=98)
    config.batch_size = 4096
    config.total_epochs = 1200.0
    config.warmup_steps = 5_000
    config.objective.kind = "soft"
    config.objective.teacher_weight = 1.0
    config.objective.mixing.mixup_alpha = 1.0
    config.optimizer.learning_rate = 0.03
    config.optimizer.weight_decay = 0.01  # Times the rate: 3e-4 at its peak.
    config.optimizer.momentum_dtype = "bfloat16"
    config.optimizer.grad_clip_norm = 1.0
    config.schedule.name = "cosine"
    return config


RECIPES = {"deit": deit_student, "patient": patient}
