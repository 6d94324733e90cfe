"""A configuration that trains in seconds: a two-block ViT on scikit-learn's digits."""

from ml_collections import ConfigDict

from vit_jax.config import default_config


def get_config() -> ConfigDict:
    """Shifted 8x8 digits, width 32, two blocks; a record and a loss for every step."""
    config = default_config()
    config.data.source = "digits"
    config.data.train_crop = "pad(1)"
    config.data.num_workers = 0  # On many cores too: they take seconds to start.
    config.model.name = "ViT-Ti/2"
    config.model.image_size = 8
    config.model.channels = 1
    config.model.width = 32
    config.model.depth = 2
    config.model.num_heads = 2
    config.model.mlp_width = 64
    config.batch_size = 32
    config.total_steps = 10
    config.warmup_steps = 3
    config.log_every_steps = 1
    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.1
    config.optimizer.grad_clip_norm = 1.0
    return config
