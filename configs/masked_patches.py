"""Masked patch prediction, the paper's self-supervised pre-training (section 4.6, appendix B.1.2).

    python -m vit_jax.main --config=configs/masked_patches.py:b16 --workdir=DIR \
        --config.data.source=folder:DIR

Arguments: [MODEL[,TARGET]], ViT-B/16 by default; TARGET is mean_color (default: the mean 3-bit colour
of a patch), downsized (4×4 of them) or pixels (regression of all pixels). Labels are not used.

Expected: ViT-B/16, pre-trained so on JFT-300M and fine-tuned on ImageNet at 384 px, reaches 79.9 %:
2 % more than from scratch, 4 % less than with JFT's labels. Most of it is there after 100,000 updates,
and pre-training on ImageNet alone gains about as much. Fine-tune it with
--config=configs/finetune.py:b16,imagenet2012 --config.init=DIR.
"""

from ml_collections import ConfigDict

from vit_jax.objectives.masked_patches import MEAN_COLOR, TARGETS
from vit_jax.recipes.arguments import choose, split_arguments
from vit_jax.recipes.datasets import PRETRAINING
from vit_jax.recipes.models import TRANSFORMERS
from vit_jax.recipes.starts import big_vision_pixels, pretraining


def get_config(arguments: str = "b16") -> ConfigDict:
    """The recipe of appendix B.1.2 for MODEL[,TARGET]."""
    model, target = split_arguments(arguments, "MODEL[,TARGET]")
    name = TRANSFORMERS[choose(arguments, model or "b16", TRANSFORMERS)]
    config = pretraining(name, PRETRAINING["jft300m"])
    big_vision_pixels(config)
    config.objective.name = "masked_patches"
    config.objective.target = choose(arguments, target or MEAN_COLOR, TARGETS)
    config.objective.corruption_rate = 0.5

    config.total_steps = 1_000_000
    config.batch_size = 4096
    config.warmup_steps = 10_000
    config.eval_every_epochs = 0.0
    config.eval_every_steps = 10_000
    config.optimizer.name = "adamw"  # Adam: the paper names no weight decay here.
    config.optimizer.learning_rate = 2e-4
    config.optimizer.weight_decay = 0.0
    config.optimizer.grad_clip_norm = 1.0  # Not stated; as in the paper's other pre-training.
    config.schedule.name = "cosine"
    return config
