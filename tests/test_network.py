"""A model as a function: what it is given, and the statistics that follow the head's input."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.errors import ConfigError
from vit_jax.model_file import Preprocessing
from vit_jax.network import Network, normalize

MEAN, STD = (0.25, 0.5, 0.125), (0.5, 0.25, 2.0)
IMAGES = np.arange(2 * 3 * 4 * 3, dtype=np.uint8).reshape(2, 3, 4, 3)


class Scaled(nnx.Module):
    """Keeps what it is given besides images, and returns them times a factor."""

    def __init__(self):
        self.factor = nnx.Param(np.float32(3))

    def __call__(self, images, **given):
        return self.outputs(images, **given) | {"called": True}

    def outputs(self, images, **given):
        return {"images": np.asarray(images) * self.factor[...], **given}


def network(**options):
    given = {"head_norm": "none", "num_classes": 5, **options}
    structure, _ = nnx.split(Scaled())
    return Network(structure, types.SimpleNamespace(**given), Preprocessing(MEAN, STD), None)


def test_pixels_are_as_the_model_expects_them():
    found = normalize(IMAGES, Preprocessing(MEAN, STD))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, (IMAGES / 255 - MEAN) / STD, atol=1e-6)
    np.testing.assert_allclose(
        normalize(IMAGES[..., :1], Preprocessing((0.25,), (4.0,))),
        (IMAGES[..., :1] / 255 - 0.25) / 4,
        atol=1e-6,
    )


@pytest.mark.parametrize("key", [None, "a key"])
def test_a_model_gets_its_own_parameters_pixels_and_what_was_asked_for(key):
    made = network()
    params = {"factor": np.float32(-2), "objective": {"mask": np.ones(3)}}
    expected = -2 * (IMAGES / 255 - MEAN) / STD
    for found, called in (
        (made(params, IMAGES, key), True),
        (made.outputs(params, IMAGES, key), 0),
    ):
        np.testing.assert_allclose(found.pop("images"), expected, atol=1e-5)
        assert found["key"] is key
        assert found["constrain"] == made.constrain
        assert found.get("called", 0) == called
    assert made.outputs(params, IMAGES, capture=("a", "b"))["capture"] == ("a", "b")


@pytest.mark.parametrize(
    ("options", "follows"),
    [
        ({"head_norm": "batch"}, True),
        ({"head_norm": "batch", "num_classes": 1}, True),
        ({"head_norm": "batch", "num_classes": 0}, False),  # There is no head.
        ({}, False),
    ],
)
def test_statistics_follow_the_heads_input_where_it_has_a_norm(options, follows):
    made = network(**options)
    features = jnp.float32([[1, -2], [3, 0.5]])
    found = made.statistics({"pre_logits": features, "logits": None})
    params = {"a": 1, "head_norm": {"mean": np.zeros(2), "variance": np.ones(2)}}
    if not follows:
        assert found == {}
        assert made.follow(params, {}) is params
        return
    assert found.keys() == {"features", "features_squared"}
    np.testing.assert_array_equal(found["features"], features)
    np.testing.assert_array_equal(found["features_squared"], [[1, 4], [9, 0.25]])
    slopes = jax.jvp(lambda x: made.statistics({"pre_logits": x}), (features,), (features,))[1]
    assert not any(np.any(slope) for slope in slopes.values())
    moved = made.follow(params, {name: np.mean(x, 0) for name, x in found.items()})
    assert moved["a"] == 1
    np.testing.assert_allclose(moved["head_norm"]["mean"], [0.2, -0.075], rtol=1e-6)
    np.testing.assert_allclose(moved["head_norm"]["variance"], [1.0, 1.05625], rtol=1e-6)
    assert not params["head_norm"]["mean"].any()
    with pytest.raises(ConfigError, match=r"head_norm='batch' follows .*must return network\.stat"):
        made.follow(params, {"features_squared": 0})
