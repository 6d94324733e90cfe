"""Masked autoencoders: pre-training without labels, then fine-tuning (arXiv 2111.06377).

    python -m vit_jax.main --config=configs/mae.py:b16 --workdir=runs/mae_b16
    python -m vit_jax.main --config=configs/mae.py:b16,finetune --workdir=DIR
    python -m vit_jax.main --config=configs/mae.py:b16,probe --workdir=DIR

Arguments: [MODEL[,STAGE]]. MODEL is b16 (default), l16 or h14. STAGE is pretrain (default), or one on
ImageNet with labels, from the first one's workdir as named above (or --config.init=WEIGHTS, the
authors' own files too): finetune, all of the model; probe, a linear classifier of the class token.

Expected on ImageNet at 224 px, B/16, L/16, H/14: finetune 83.6, 85.9, 86.9 %; probe 68.0, 75.8, 76.6 %.

Values of the first stage are the paper's Table 8, at 1,600 epochs; those of finetune the commands in
the authors' FINETUNE.md (github.com/facebookresearch/mae), which differ by model from Table 9; those
of probe Table 10, with the batch norm without parameters of appendix A.1 before the head
(`model.head_norm`): by running statistics, which of a frozen encoder's features are a batch's but for
noise.
"""

from typing import NamedTuple

from ml_collections import ConfigDict

from vit_jax.recipes.arguments import choose, split_arguments
from vit_jax.recipes.datasets import IMAGENET
from vit_jax.recipes.starts import pretraining

MODELS = {"b16": "ViT-B/16", "l16": "ViT-L/16", "h14": "ViT-H/14"}


class Row(NamedTuple):
    """A model's second stage."""

    epochs: float
    learning_rate: float  # For 256 images.
    layer_decay: float
    stochastic_depth_rate: float


FINETUNING = {
    "b16": Row(100.0, 5e-4, 0.65, 0.1),
    "l16": Row(50.0, 1e-3, 0.75, 0.2),
    "h14": Row(50.0, 1e-3, 0.75, 0.3),
}


def get_config(arguments: str = "b16") -> ConfigDict:
    """The recipe for MODEL[,STAGE]."""
    model, stage = split_arguments(arguments, "MODEL[,STAGE]")
    model = choose(arguments, model or "b16", MODELS)
    return STAGES[choose(arguments, stage or "pretrain", STAGES)](model)


def pretrain(model: str) -> ConfigDict:
    """The first stage, Table 8."""
    config = shared(model)
    config.objective.name = "masked_autoencoder"
    config.objective.mask_ratio = 0.75
    config.batch_size = 4096
    config.total_epochs = 1600.0
    config.warmup_epochs = 40.0
    config.eval_every_epochs = 20.0
    config.data.train_crop = "random_resized(0.2, 1)"

    config.model.positions = "sincos_2d"
    config.model.kernel_std = 0.0  # Xavier's, as everywhere here.
    config.optimizer.learning_rate = 1.5e-4 * config.batch_size / 256
    config.optimizer.b1, config.optimizer.b2 = 0.9, 0.95
    # All but vectors: the tokens that stand for something are matrices to the authors' optimiser.
    config.optimizer.decay_multipliers = (("kernel$|class_token$|objective/mask$", 1.0),)
    return config


def finetune(model: str) -> ConfigDict:
    """The second stage, on ImageNet at 224 px, from the workdir of the first."""
    row = FINETUNING[model]
    config = shared(model)
    config.init = f"runs/mae_{model}"
    config.init_skip = "^norm/"  # The encoder's was of every token; this one is of their mean.
    config.batch_size = 1024
    config.total_epochs = row.epochs
    config.warmup_epochs = 5.0
    config.data.train_crop = "random_resized"
    config.data.augmentation = "randaug_timm | random_erasing(0.25)"
    config.objective.label_smoothing = 0.1
    config.objective.mixing.form = "deit"
    config.objective.mixing.mixup_alpha = 0.8
    config.objective.mixing.cutmix_alpha = 1.0

    config.model.positions = "learned_1d"  # They start from the fixed ones, and are trained.
    config.model.pooling = "average"
    config.model.class_token = True
    config.model.norm_after_pooling = True
    config.model.stochastic_depth_rate = row.stochastic_depth_rate
    config.optimizer.learning_rate = row.learning_rate * config.batch_size / 256
    config.optimizer.layer_decay = row.layer_decay
    config.schedule.end = 1e-6
    return config


def probe(model: str) -> ConfigDict:
    """The linear probe, Table 10: the frozen model's class token, and a head."""
    config = shared(model)
    config.init = f"runs/mae_{model}"
    config.batch_size = 16_384
    config.total_epochs = 90.0
    config.warmup_epochs = 10.0
    config.data.train_crop = "random_resized"

    config.model.positions = "sincos_2d"
    config.model.head_norm = "batch"
    config.model.kernel_std = 0.01  # Of the head alone: all else is in the weights.
    config.optimizer.freeze = "^(?!head/)"
    config.optimizer.name = "lars"
    config.optimizer.learning_rate = 0.1 * config.batch_size / 256
    config.optimizer.weight_decay = 0.0
    return config


def shared(model: str) -> ConfigDict:
    """What the stages have in common."""
    config = pretraining(MODELS[model], IMAGENET)
    config.data.eval_resize = 256
    config.data.interpolation = "bicubic"
    config.data.mean = (0.485, 0.456, 0.406)  # ImageNet's.
    config.data.std = (0.229, 0.224, 0.225)
    config.model.gelu = "erf"
    config.optimizer.name = "adamw"
    config.optimizer.weight_decay = 0.05
    config.schedule.name = "cosine"
    return config


STAGES = {"pretrain": pretrain, "finetune": finetune, "probe": probe}
