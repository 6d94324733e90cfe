"""Better plain ViT baselines for ImageNet: ViT-S/16, simply (arXiv 2205.01580).

    python -m vit_jax.main --config=configs/plain_vit.py:90 --workdir=DIR

Arguments: [EPOCHS], 90 (default), 150 or 300.

Expected on ImageNet: 76.5 % after 90 epochs (6 h 30 min on a TPUv3-8), 78.5 % after 150, 80.0 %
after 300; ReaL 83.1, 84.5, 85.4 %; ImageNet-v2 64.2, 66.4, 68.3 %. What each piece is worth at 90
epochs: without RandAugment and mixup 73.6, learned positions 75.0, a class token 75.0, batch 4096
74.7, a linear head 76.7 %.

Every value is the paper's, and the authors' vit_s16_i1k.py in Big Vision.
"""

from ml_collections import ConfigDict

from vit_jax.recipes.arguments import choose
from vit_jax.recipes.datasets import IMAGENET
from vit_jax.recipes.starts import big_vision_pixels, held_out, pretraining

EPOCHS = ("90", "150", "300")


def get_config(arguments: str = "90") -> ConfigDict:
    """The recipe for EPOCHS."""
    epochs = choose(arguments, arguments or "90", EPOCHS)
    config = pretraining("ViT-S/16", IMAGENET)
    big_vision_pixels(config)
    config.batch_size = 1024
    config.total_epochs = float(epochs)
    config.warmup_steps = 10_000
    held_out(config, train_percent=99)
    config.data.augmentation = "randaug_tf(2, 10)"
    config.objective.mixing.mixup_alpha = 0.2

    config.model.positions = "sincos_2d"
    config.model.pooling = "average"
    config.model.representation_size = 384  # A tanh layer before the head, as wide as the model.

    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.1  # Times the rate: 1e-4 at its peak.
    config.optimizer.momentum_dtype = "bfloat16"
    config.optimizer.grad_clip_norm = 1.0
    config.schedule.name = "cosine"
    return config
