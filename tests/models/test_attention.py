"""Fused attention: the plain form's values and gradients, as far as a CPU can tell."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.filled import filled_model
from vit_jax.models.attention import FUSED, cudnn_attention, cudnn_obstacle, even_length

# The library's program, its padding and lengths included, computed by XLA.
by_xla = functools.partial(cudnn_attention, implementation="xla")


def attend_by_xla(query, key, value):
    return by_xla(query, key, value, (query.shape[-3], key.shape[-3]))


def plain(query, key, value):
    """Softmax of float32 logits, with weights in the values' type: the form of the reference."""
    query = query / np.sqrt(query.shape[-1]).astype(query.dtype)
    logits = jnp.einsum("...qhd,...khd->...hqk", query, key, preferred_element_type=jnp.float32)
    weights = jax.nn.softmax(logits).astype(value.dtype)
    return jnp.einsum("...hqk,...khd->...qhd", weights, value)


def arrays(queries, keys, dtype, leading=(2,)):
    shapes = [(*leading, length, 3, 8) for length in (queries, keys, keys)]
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def values_and_gradients(attend, operands, weights):
    def loss(*operands):
        y = attend(*operands)
        return (y.astype(jnp.float32) * weights).sum(), y

    gradients, y = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*operands)
    return [np.asarray(x.astype(jnp.float32)) for x in (y, *gradients)]


@pytest.mark.parametrize(
    ("queries", "keys", "leading"), [(6, 6, (2,)), (5, 5, (2,)), (4, 7, (2, 3)), (1, 6, (2,))]
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("bfloat16", 2e-2)])
def test_values_and_gradients_are_the_plain_form_s(queries, keys, leading, dtype, tolerance):
    operands = arrays(queries, keys, dtype, leading)
    weights = np.random.default_rng(1).normal(size=operands[0].shape)
    expected = values_and_gradients(plain, arrays(queries, keys, "float32", leading), weights)
    for found, one in zip(
        values_and_gradients(attend_by_xla, operands, weights), expected, strict=True
    ):
        assert found.shape == one.shape
        np.testing.assert_allclose(found, one, rtol=0, atol=tolerance * np.abs(one).max())


def test_an_odd_sequence_becomes_even_with_zeros():
    x = jnp.ones((2, 3, 1, 4))
    assert even_length(x, 1).shape == even_length(x, -3).shape == (2, 4, 1, 4)
    assert not even_length(x, 1)[:, 3].any()
    assert even_length(x[:, :2], 1).shape == (2, 2, 1, 4)


@pytest.mark.parametrize(
    ("options", "fused"),
    [
        ({}, True),
        ({"query_key_norm": True}, True),
        ({"positions": "relative"}, False),
        ({"relative_position_bias": "every_layer"}, False),
        ({"relative_position_bias": "every_layer_shared"}, False),
        ({"attention_dropout_rate": 0.1}, False),
    ],
)
def test_a_model_uses_it_where_it_can(monkeypatch, options, fused):
    """And computes the same; a kernel cannot drop weights or add to logits."""
    calls = []

    def attend(query, key, value, lengths):
        """What lies beyond the lengths must count for nothing."""
        calls.append((query.shape[-3], key.shape[-3], lengths))
        queries, keys = lengths
        y = plain(query[:, :queries], key[:, :keys], value[:, :keys])
        return jnp.pad(
            y, ((0, 0), (0, query.shape[-3] - queries), (0, 0), (0, 0)), constant_values=7
        )

    monkeypatch.setitem(FUSED, "cudnn", attend)
    size = {"image_size": 8, "channels": 1, "width": 16, "depth": 2, "num_heads": 2}
    model = functools.partial(
        filled_model, "ViT-Ti/2", mlp_width=32, num_classes=3, **size, **options
    )
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype(np.float32)
    key = jax.random.key(0)
    found = model(attention="cudnn").outputs(images, key=key, capture=("attention_weights",))
    expected = model(attention="xla").outputs(images, key=key, capture=("attention_weights",))
    assert set(calls) == ({(18, 18, (17, 17))} if fused else set())
    for name in found:
        for one, other in zip(*map(jax.tree.leaves, (found[name], expected[name])), strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


def test_what_the_library_does_not_take_is_said():
    assert cudnn_obstacle(64, "bfloat16") == ""
    assert "float32" in cudnn_obstacle(64, "float32")
    assert "width of 20" in cudnn_obstacle(20, "bfloat16")
    assert "width of 160" in cudnn_obstacle(160, "bfloat16")


@pytest.mark.parametrize(
    ("dtype", "qkv_bias"),
    [
        *(("float32", True), ("bfloat16", False)),
        *(
            pytest.param(*other, marks=pytest.mark.slow)
            for other in (("float32", False), ("bfloat16", True))
        ),
    ],
)
def test_one_product_for_queries_keys_and_values_is_the_plain_form(dtype, qkv_bias):
    options = {"image_size": 8, "channels": 1, "width": 12, "depth": 2, "num_heads": 3}
    options |= {"mlp_width": 20, "num_classes": 5, "dtype": dtype, "qkv_bias": qkv_bias}
    images = np.random.default_rng(0).normal(size=(2, 8, 8, 1)).astype(np.float32)

    def loss_and_gradient(attention):
        model = filled_model("ViT-Ti/2", attention=attention, **options)
        graph, parameters = nnx.split(model)

        def loss(parameters):
            return jnp.mean(jnp.sin(nnx.merge(graph, parameters)(images)))

        return jax.jit(jax.value_and_grad(loss))(parameters)

    found, expected = loss_and_gradient("joint"), loss_and_gradient("xla")
    tolerance = 1e-6 if dtype == "float32" else 1e-2
    for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance)


def test_joint_makes_one_product_of_three():
    options = {"image_size": 8, "channels": 1, "width": 12, "depth": 1, "num_heads": 3}
    images = jnp.zeros((2, 8, 8, 1))

    def products(attention):
        model = filled_model(
            "ViT-Ti/2", attention=attention, mlp_width=20, num_classes=5, **options
        )
        return str(jax.make_jaxpr(model)(images)).count("dot_general")

    assert products("joint") == products("xla") - 2
