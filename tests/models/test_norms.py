"""LayerNorm's own backward pass: values as Flax's, gradients as those of float64, in numpy."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from vit_jax.models.norms import (
    Kept,
    LayerNorm,
    backward,
    backward_by_rows,
    differentiated,
    forward,
)

WIDTH, EPSILON = 48, 1e-6


@pytest.fixture(scope="module")
def arrays():
    """The input [2, 5, D], scale, bias and the result's gradient, bfloat16."""
    rng = np.random.default_rng(0)
    shapes = ((2, 5, WIDTH), (WIDTH,), (WIDTH,), (2, 5, WIDTH))
    return [jnp.asarray(rng.normal(0.3, 1.5, shape), jnp.bfloat16) for shape in shapes]


def exact_gradients(x, scale, bias, dy):
    """Of sum(dy * norm(x)), by the chain rule written out."""
    x, scale, dy = (np.asarray(a.astype(jnp.float32), np.float64) for a in (x, scale, dy))
    deviation = np.sqrt(x.var(-1, keepdims=True) + EPSILON)
    hat = (x - x.mean(-1, keepdims=True)) / deviation
    g = dy * scale
    jacobian = (np.eye(WIDTH) - 1 / WIDTH - hat[..., None] * hat[..., None, :] / WIDTH) / deviation[
        ..., None
    ]
    return np.einsum("...ij,...j->...i", jacobian, g), (dy * hat).sum((0, 1)), dy.sum((0, 1))


@pytest.mark.parametrize(
    "pull",
    [partial(backward, EPSILON), backward_by_rows, partial(differentiated, EPSILON)],
    ids=["here", "GPU", "elsewhere"],
)
@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2**-7), ("float32", 1e-6)])
def test_gradients_are_those_of_float64(arrays, pull, dtype, tolerance):
    x, scale, bias, dy = arrays = [array.astype(dtype) for array in arrays]
    y, kept = forward(EPSILON, x, scale, bias)
    flax = nnx.LayerNorm(WIDTH, epsilon=EPSILON, dtype=dtype, rngs=nnx.Rngs(0))
    flax.scale[...], flax.bias[...] = scale.astype(jnp.float32), bias.astype(jnp.float32)
    np.testing.assert_array_equal(y, flax(x))
    for found, expected in zip(pull(kept, dy), exact_gradients(*arrays), strict=True):
        assert found.dtype == dtype
        error = np.abs(np.asarray(found, np.float64) - expected).max()
        assert error < tolerance * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_is_flax_s_layer_here(arrays, dtype):
    layers = [
        make(WIDTH, epsilon=EPSILON, dtype=dtype, rngs=nnx.Rngs(0))
        for make in (LayerNorm, nnx.LayerNorm)
    ]
    own, flax = (jax.jit(lambda x, layer=layer: layer(x))(arrays[0]) for layer in layers)
    assert own.dtype == dtype
    np.testing.assert_array_equal(own, flax)


def test_the_backward_pass_keeps_bfloat16_and_two_numbers_a_row(arrays):
    x, scale, bias, _ = arrays
    kept = jax.eval_shape(partial(forward, EPSILON), x, scale, bias)[1]
    assert Kept(*(leaf.dtype for leaf in kept)) == ("bfloat16", "bfloat16", "float32", "float32")
    assert kept.x.shape == x.shape
    assert kept.mean.shape == kept.inverse.shape == (*x.shape[:-1], 1)


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 2**-7), ("float32", 1e-6)])
def test_a_layer_s_gradient_is_its_own(arrays, dtype, tolerance):
    """Through the layer, under jit and remat, as through Flax's."""
    x, *_, dy = arrays

    def gradient(make):
        layer = make(WIDTH, epsilon=EPSILON, dtype=dtype, rngs=nnx.Rngs(0))
        loss = jax.checkpoint(lambda x: (layer(x) * dy).astype(jnp.float32).sum())
        return jax.jit(jax.grad(loss))(x).astype(jnp.float32)

    expected = gradient(nnx.LayerNorm)
    np.testing.assert_allclose(
        gradient(LayerNorm), expected, atol=tolerance * np.abs(expected).max()
    )
