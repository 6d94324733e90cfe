"""A small real benchmark: Fashion-MNIST (60,000 training and 10,000 test images), on a CPU.

    python -m vit_jax.main --config=configs/fashion_mnist.py --workdir=runs/fashion_mnist

Debian and Ubuntu have the files: `apt install dataset-fashion-mnist` puts them where the config
looks for them. Anywhere else: --config.data.source=idx:DIR, a folder of the four gzipped files.
"""

from ml_collections import ConfigDict

from vit_jax.config import default_config


def get_config() -> ConfigDict:
    """Four blocks of width 96 on 7×7-pixel patches, average-pooled; flips and ±2-pixel shifts."""
    config = default_config()
    config.data.source = "idx:/usr/share/datasets/fashion-mnist"
    config.data.train_crop = "pad(2)"
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
    config.total_epochs = 24.0
    config.warmup_epochs = 1.0
    config.eval_every_epochs = 4.0
    config.checkpoint_every_epochs = 1.0
    config.log_every_steps = 100
    config.optimizer.learning_rate = 2e-3
    config.optimizer.weight_decay = 0.1
    config.optimizer.grad_clip_norm = 1.0
    return config
