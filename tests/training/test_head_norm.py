"""The batch norm before a linear probe's head: its statistics against numpy, on meshes, in files."""

import jax
import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests.objectives.brightness import Brightness
from tests.stages import Setup, config_with, mesh_of, random_model
from vit_jax.errors import ConfigError

PROBE = {
    "model.head_norm": "batch",
    "model.depth": 1,
    "optimizer.freeze": "^(?!head/)",
    "optimizer.name": "lars",
    "schedule.name": "constant",
    "warmup_steps": 0,
    "total_steps": 4,
}
EPSILON, MOMENTUM = 1e-6, 0.1


def followed(setup, params):
    """The mean and variance after all batches, by hand."""
    features_of = jax.jit(setup.experiment.network.outputs)
    mean, variance = np.zeros(32), np.ones(32)
    for batch in setup.batches():
        features = np.float64(features_of(params, batch["image"])["pre_logits"])
        mean = (1 - MOMENTUM) * mean + MOMENTUM * features.mean(0)
        variance = (1 - MOMENTUM) * variance + MOMENTUM * features.var(0)
    return mean, variance


def test_statistics_follow_the_batches_and_the_encoder_stays():
    setup = Setup(config_with(**PROBE), mesh_of(1))
    before = jax.device_get(setup.state.params)
    mean, variance = followed(setup, before)
    losses, _, state = setup.run()
    found = jax.device_get(state.params)
    np.testing.assert_allclose(found["head_norm"]["mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found["head_norm"]["variance"], variance, rtol=1e-4)
    jax.tree.map(np.testing.assert_array_equal, found["blocks"], before["blocks"])
    assert (found["head"]["kernel"] != before["head"]["kernel"]).any()
    assert "head_norm" not in str(jax.tree_util.tree_structure(state.opt_state))

    config = config_with(**PROBE, **{"optimizer.accumulation_steps": 2})
    on_eight, _, other = Setup(config, mesh_of(8, data=4, fsdp=2)).run()
    np.testing.assert_allclose(on_eight, losses, atol=1e-5)
    for name, array in found["head_norm"].items():
        np.testing.assert_allclose(other.params["head_norm"][name], array, atol=1e-5)


@pytest.fixture(scope="module")
def model():
    """With statistics and a head that are not their initial ones, and no number that is 0."""
    sizes = {"width": 16, "depth": 1, "mlp_width": 16, "num_heads": 2, "patch_size": 4}
    model = random_model("ViT-Ti/16", **sizes, image_size=8, num_classes=3, head_norm="batch")
    rng = np.random.default_rng(0)
    model.head.kernel[...] = rng.normal(size=(16, 3)).astype(np.float32)
    model.head_norm.mean[...] = rng.normal(size=16).astype(np.float32)
    model.head_norm.variance[...] = rng.uniform(0.1, 2, 16).astype(np.float32)
    return model


IMAGES = np.random.default_rng(1).uniform(-1, 1, (2, 8, 8, 3)).astype(np.float32)


def test_the_head_against_numpy(model):
    features = np.float64(model.embed(IMAGES))
    norm = model.head_norm
    features = (features - norm.mean[...]) / np.sqrt(norm.variance[...] + EPSILON)
    expected = features @ model.head.kernel[...] + model.head.bias[...]
    np.testing.assert_allclose(model(IMAGES), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("format", ["vit_jax", "npz", "timm", "huggingface"])
def test_where_a_file_has_no_norm_it_is_part_of_the_head(model, tmp_path, format):
    path = tmp_path / ("model.npz" if format == "npz" else "model")
    vit_jax.save_model(model, path, format)
    hints = {"num_heads": 2} if format == "timm" else {}
    loaded = vit_jax.load_model(path, **hints)
    kept = format == "vit_jax"
    assert loaded.options.head_norm == ("batch" if kept else "none")
    assert hasattr(loaded, "head_norm") == kept
    np.testing.assert_allclose(loaded(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-4)


def test_a_model_without_the_norm_takes_it_into_its_head_and_a_trunk_leaves_it(model, tmp_path):
    vit_jax.save_model(model, tmp_path / "probe", "vit_jax")
    plain = vit_jax.load_model(tmp_path / "probe", head_norm="none")
    np.testing.assert_allclose(plain(IMAGES), model(IMAGES), rtol=1e-4, atol=1e-4)
    vit_jax.save_model(model, tmp_path / "trunk", "vit_jax", trunk_only=True)
    trunk = vit_jax.load_model(tmp_path / "trunk")
    names = nnx.to_pure_dict(nnx.split(trunk)[1])
    assert not {"head", "head_norm"} & set(names)


def test_a_second_head_is_refused():
    with pytest.raises(ConfigError, match="head_norm='batch' needs one head"):
        vit_jax.create_model("ViT-Ti/16", head_norm="batch", distillation_token=True)


def test_an_objective_that_does_not_give_the_features_is_refused():
    setup = Setup(config_with(**PROBE), mesh_of(1))
    plain = setup.experiment.objective
    objective = Brightness(Brightness.Options(), setup.experiment.network, plain.labels)
    with pytest.raises(ConfigError, match=r"must return network\.statistics"):
        objective.follow(setup.abstract.params, {"error": 0.0})
