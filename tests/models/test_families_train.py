"""Every family trains with the one trainer, on scikit-learn's digits."""

import pytest

from vit_jax.config import default_config
from vit_jax.train import run

VIT = {"width": 16, "depth": 2, "mlp_width": 32, "num_heads": 2}
RESNET = {"width_factor": 0.5, "stage_depths": (1, 1)}
FAMILIES = {
    "R50+ViT-B/16": {**VIT, "stem_depths": (1,), "stem_width_factor": 0.5},
    "BiT-R50x1": RESNET,
    "BiT-v1-R50x1": RESNET,
    "Axial-ViT-B/16": {**VIT, "patch_size": 2},
    "AxialResNet50": RESNET,
    "Mixer-B/16": {"width": 16, "depth": 2, "mlp_width": 32, "token_mlp_width": 8, "patch_size": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_loss_falls(name, tmp_path):
    config = default_config()
    config.data.source = "digits"
    config.model.name = name
    config.model.image_size = 8
    config.model.channels = 1
    for option, value in FAMILIES[name].items():
        config.model[option] = value
    config.batch_size = 32
    config.total_steps = 60
    config.warmup_steps = 10
    config.log_every_steps = 60
    config.optimizer.learning_rate = 3e-3
    assert run(config, str(tmp_path))["train/loss"] < 2.28  # ln(10) = 2.30 at the start.
