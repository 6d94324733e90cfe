"""Objectives that call a model's stages, on models with every option that changes the stages."""

import jax
import pytest

from tests.objectives.test_flops import make_experiment
from vit_jax.errors import ConfigError

STAGES = {
    "more and less": {
        **{"final_norm": False, "pre_norm": True, "mlp": "swiglu", "layer_scale": 0.1},
        **{"distillation_token": True, "num_registers": 2},
    },
    "pooled, then normalised": {
        **{"pooling": "average", "norm_after_pooling": True, "dtype": "bfloat16", "remat": "full"},
    },
}
NEEDS_ALL_PATCHES = [
    {"positions": "relative"},
    {"positions": "rotary_2d"},
    {"positions": "learned_1d_rotary_2d"},
    {"position_placement": "every_layer"},
    {"name": "Axial-ViT-B/16", "patch_size": 2},
]
OBJECTIVES = ("masked_patches", "masked_autoencoder", "self_distillation")


def of_model(options):
    return {f"model.{key}": value for key, value in options.items()}


@pytest.mark.parametrize("options", STAGES.values(), ids=STAGES)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_step_is_traced(name, options):
    experiment = make_experiment(name, **of_model(options))
    state, metrics = jax.eval_shape(
        experiment.step, experiment.state, experiment.frozen, experiment.batch
    )
    assert metrics["loss"].shape == ()
    assert jax.tree.structure(state) == jax.tree.structure(experiment.state)


@pytest.mark.parametrize("options", NEEDS_ALL_PATCHES, ids=str)
@pytest.mark.parametrize("name", ["masked_autoencoder", "self_distillation"])
def test_models_that_need_all_patches_are_refused_where_some_are_left_out(name, options):
    with pytest.raises(ConfigError, match=f"{name}.* changes the number of patches"):
        make_experiment(name, **of_model(options))
