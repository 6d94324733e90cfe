"""The softmax: values as JAX's, gradients as those of float64, on every platform's way."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.models import softmax as module
from vit_jax.models.softmax import softmax


@pytest.fixture(scope="module")
def arrays():
    """Logits [2, 3, 7] far apart, and a gradient of their softmax."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(0, 5, (2, 3, 7)), jnp.float32) for _ in range(2)]


def exact_gradient(logits, dy):
    """By the Jacobian, diag(y) - y yᵀ, in float64."""
    exponentials = np.exp(np.asarray(logits, np.float64))
    y = exponentials / exponentials.sum(-1, keepdims=True)
    jacobian = y[..., None] * np.eye(7) - y[..., None] * y[..., None, :]
    return np.einsum("...ij,...j->...i", jacobian, np.asarray(dy, np.float64))


def elsewhere(logits, dy, monkeypatch):
    """As on a platform without a way of its own."""
    monkeypatch.setattr(
        module.jax.lax, "platform_dependent", lambda *arrays, default, **ways: default(*arrays)
    )
    return jax.vjp(softmax, logits)[1](dy)[0]


def test_values_and_gradients(arrays, monkeypatch):
    logits, dy = arrays
    y, pull = jax.vjp(softmax, logits)
    np.testing.assert_array_equal(y, jax.nn.softmax(logits))
    expected = exact_gradient(logits, dy)
    for found in (pull(dy)[0], elsewhere(logits, dy, monkeypatch)):
        np.testing.assert_allclose(found, expected, atol=2e-6)
    theirs = jax.vjp(jax.nn.softmax, logits)[1](dy)[0]
    np.testing.assert_allclose(found, theirs, atol=2e-6)
