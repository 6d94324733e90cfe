"""Training on a folder of your own images, from scratch, by default with a ViT-S/16.

    python -m vit_jax.main --config=configs/folder.py:DIR --workdir=runs/mine

DIR holds one folder per class, under DIR/train and DIR/val (or validation, or test), or only
DIR/CLASS, of which a tenth is held out. Choose another model with --config.model.name=ViT-B/16, a
smaller image with --config.model.image_size=128, the length with --config.total_epochs=100, and
start from weights with --config.init=FILE.
"""

from ml_collections import ConfigDict

from vit_jax.config import default_config
from vit_jax.errors import ConfigError


def get_config(folder: str = "") -> ConfigDict:
    """A moderate recipe for some thousands of images; classes and sizes come from the data."""
    if not folder:
        raise ConfigError("Name the folder: --config=configs/folder.py:DIR.")
    config = default_config()
    config.data.source = f"folder:{folder}"
    config.data.train_crop = "inception(0.2, 1.0)"
    config.model.name = "ViT-S/16"
    config.batch_size = 64
    config.total_epochs = 50.0
    config.warmup_epochs = 5.0
    config.eval_every_epochs = 5.0
    config.checkpoint_every_epochs = 1.0
    config.optimizer.learning_rate = 3e-4
    config.optimizer.weight_decay = 0.1
    config.optimizer.grad_clip_norm = 1.0
    return config
