"""How a state begins, of an objective with parameters and arrays of its own."""

import types

import jax
import jax.numpy as jnp
import numpy as np

from tests.stages import mesh_of
from vit_jax.checkpoint import TrainState
from vit_jax.models import model_options
from vit_jax.training.state import abstract_frozen, initial_params, load_frozen, with_weights

OWN = types.SimpleNamespace(
    head_bias=(1.0, 2.0, 3.0),
    init=lambda key: {"key": jax.random.key_data(key)},
    state=lambda params: {"teacher": params},
)


def test_the_objective_adds_to_the_heads_biases_and_draws_by_another_key():
    sizes = {"width": 8, "depth": 1, "mlp_width": 8, "num_heads": 1, "image_size": 16}
    options = model_options(
        "ViT-Ti/16", num_classes=3, head_bias=-10.0, distillation_token=True, **sizes
    )
    key = jax.random.key(5)
    params = initial_params("ViT-Ti/16", options, OWN, key)
    for head in ("head", "distillation_head"):
        np.testing.assert_array_equal(params[head]["bias"], [-9, -8, -7])
    assert params["objective"]["key"].tolist() != jax.random.key_data(key).tolist()


def test_frozen_arrays_are_read_only_where_there_are_some():
    mesh = mesh_of(2, fsdp=2)
    shapes = {"teacher": {"kernel": jax.ShapeDtypeStruct((4, 6), np.float32)}}
    some = types.SimpleNamespace(
        abstract_frozen=lambda: shapes, frozen=lambda: {"teacher": {"kernel": np.ones((4, 6))}}
    )
    none = types.SimpleNamespace(abstract_frozen=dict, frozen=lambda: 1 / 0)
    assert load_frozen(none, abstract_frozen(none, mesh)) == {}
    abstract = abstract_frozen(some, mesh)
    leaf = abstract["teacher"]["kernel"]
    assert (leaf.shape, leaf.dtype) == ((4, 6), np.float32)
    found = load_frozen(some, abstract)["teacher"]["kernel"]
    assert found.sharding == leaf.sharding


def test_given_weights_reach_averages_and_what_the_objective_keeps():
    fresh = {"a": jnp.zeros(2), "b": jnp.full((3, 2), 9.0), "c": jnp.full(2, 7.0)}
    state = TrainState(jnp.int32(0), fresh, (), dict(fresh), {"teacher": dict(fresh)})
    layers = np.ma.MaskedArray(np.float32([[1, 2], [3, 4], [5, 6]]), [[0, 0], [1, 1], [0, 0]])
    weights = {"a": np.float32([4, 5]), "b": layers, "c": jax.ShapeDtypeStruct((2,), np.float32)}
    expected = {"a": [4, 5], "b": [[1, 2], [9, 9], [5, 6]], "c": [7, 7]}
    found = with_weights(state, weights, OWN)
    for tree in (found.params, found.ema, found.objective["teacher"]):
        assert {name: array.tolist() for name, array in tree.items()} == expected
    plain = with_weights(state._replace(ema=None, objective={}), weights, OWN)
    assert (plain.ema, plain.objective) == (None, {})
