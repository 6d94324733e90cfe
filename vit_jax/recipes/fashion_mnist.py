"""Shared by the configs of Fashion-MNIST: small enough for a CPU."""

from ml_collections import ConfigDict

from vit_jax.config import default_config


def small_vit() -> ConfigDict:
    """Four blocks of width 96 on 7×7-pixel patches, average-pooled; the files of Debian's package."""
    config = default_config()
    config.data.source = "idx:/usr/share/datasets/fashion-mnist"
    config.model.name = "ViT-Ti/7"
    config.model.image_size = 28
    config.model.channels = 1
    config.model.width = 96
    config.model.depth = 4
    config.model.num_heads = 3
    config.model.mlp_width = 192
    config.model.pooling = "average"
    config.model.position_std = 0.5  # At 0.02 the small model learns positions too slowly.
    config.model.scan_unroll = 4  # A fifth faster on a CPU.
    config.batch_size = 128
    config.log_every_steps = 100
    config.optimizer.learning_rate = 2e-3
    config.optimizer.weight_decay = 0.1
    config.optimizer.grad_clip_norm = 1.0
    return config
