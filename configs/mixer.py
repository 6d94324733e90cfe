"""MLP-Mixer on ImageNet, with stochastic depth (arXiv 2105.01601).

    python -m vit_jax.main --config=configs/mixer.py:300 --workdir=DIR

Arguments: [EPOCHS], 300 (default) or 60, of Mixer-B/16.

Expected on ImageNet: 76.3 % after 300 epochs (2 h 11 min on a TPUv3-128), 70.5 % after 60.

Every value is that of the authors' mlp_mixer_i1k.py in Big Vision (at 1c965d1).
"""

from ml_collections import ConfigDict

from vit_jax.recipes.arguments import choose
from vit_jax.recipes.datasets import IMAGENET
from vit_jax.recipes.starts import big_vision_pixels, held_out, pretraining

EPOCHS = ("300", "60")


def get_config(arguments: str = "300") -> ConfigDict:
    """The recipe for EPOCHS."""
    epochs = choose(arguments, arguments or "300", EPOCHS)
    config = pretraining("Mixer-B/16", IMAGENET)
    big_vision_pixels(config)
    config.batch_size = 4096
    config.total_epochs = float(epochs)
    config.warmup_steps = 10_000
    config.objective.loss = "sigmoid"
    held_out(config, train_percent=99)
    config.data.augmentation = "randaug_tf(2, 15)"
    config.objective.mixing.mixup_alpha = 0.5

    config.model.head_bias = -6.9
    config.model.stochastic_depth_rate = 0.1

    config.optimizer.learning_rate = 1e-3
    config.optimizer.weight_decay = 0.1  # Times the rate: 1e-4 at its peak.
    config.optimizer.grad_clip_norm = 1.0
    config.schedule.name = "linear"
    config.schedule.end = 1e-8  # A share of 1e-5 of the peak.
    return config
