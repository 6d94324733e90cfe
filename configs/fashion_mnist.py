"""A small real benchmark: Fashion-MNIST (60,000 training and 10,000 test images), on a CPU.

    python -m vit_jax.main --config=configs/fashion_mnist.py --workdir=runs/fashion_mnist

Debian and Ubuntu have the files: `apt install dataset-fashion-mnist` puts them where the config
looks for them. Anywhere else: --config.data.source=idx:DIR, a folder of the four gzipped files.
"""

from ml_collections import ConfigDict

from vit_jax.recipes.fashion_mnist import small_vit


def get_config() -> ConfigDict:
    """Four blocks of width 96 on 7×7-pixel patches, average-pooled; flips and ±2-pixel shifts."""
    config = small_vit()
    config.data.train_crop = "pad(2)"
    config.total_epochs = 24.0
    config.warmup_epochs = 1.0
    config.eval_every_epochs = 4.0
    config.checkpoint_every_epochs = 1.0
    return config
