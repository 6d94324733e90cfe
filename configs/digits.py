"""The demo: a tiny Vision Transformer on scikit-learn's 8×8 digits, in a minute on a CPU.

python -m vit_jax.main --config=configs/digits.py --workdir=runs/digits
"""

from ml_collections import ConfigDict

from vit_jax.config import default_config


def get_config() -> ConfigDict:
    """1,437 training images, 360 test images, ten classes."""
    config = default_config()
    config.data.source = "digits"
    config.data.train_crop = "resize"
    config.data.flip = False
    config.model.name = "ViT-Ti/2"
    config.model.image_size = 8
    config.model.channels = 1
    config.model.width = 64
    config.model.depth = 4
    config.model.num_heads = 4
    config.model.mlp_width = 128
    config.model.pooling = "average"
    config.model.position_std = 0.5  # At 0.02 so small a model learns positions too slowly.
    config.batch_size = 128
    config.total_steps = 400
    config.warmup_steps = 50
    config.eval_every_steps = 100
    config.checkpoint_every_steps = 100
    config.log_every_steps = 50
    config.optimizer.learning_rate = 1.5e-3
    config.optimizer.weight_decay = 0.1
    config.optimizer.grad_clip_norm = 1.0
    return config
