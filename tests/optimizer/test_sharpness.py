"""Sharpness-aware gradients on a function whose gradients are known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.checkpoint import TrainState
from vit_jax.config import default_config
from vit_jax.optimizer.groups import parameter_groups
from vit_jax.optimizer.schedules import make_schedule
from vit_jax.optimizer.sharpness import sharpness_aware

SCALES = {"a": {"kernel": np.array([1.0, 2.0])}, "b": {"bias": np.array([3.0])}}
PARAMS = {"a": {"kernel": np.array([0.5, -1.0])}, "b": {"bias": np.array([2.0])}}


def quartic(part, params, trainable):
    full = trainable.insert(part, params)
    terms = jax.tree.map(lambda p, s: jnp.sum(s * p**4), full, SCALES)
    return sum(jax.tree.leaves(terms))


def setup(*, freeze="", step=0, end=None, schedule=lambda step: 1.0, **sharpness):
    """The sharpness-aware loss and gradients of the quartic at PARAMS."""
    config = default_config()
    config.optimizer.freeze, config.optimizer.learning_rate = freeze, 1.0
    config.optimizer.sharpness.update(sharpness)
    config.schedule.name, config.schedule.end = "linear", end
    trainable = parameter_groups(config.optimizer, PARAMS).trainable

    def gradient(state, frozen, batch, key):
        del batch, key
        part = trainable.select(state.params)
        return jax.value_and_grad(quartic)(part, state.params, trainable)

    params = jax.tree.map(jnp.float32, PARAMS)
    state = TrainState(jnp.int32(step), params, None, None)
    found = sharpness_aware(gradient, config, schedule, trainable)
    return jax.jit(found)(state, {}, {}, jax.random.key(0)), found is gradient


def flat(tree):
    return np.concatenate([np.ravel(x) for x in jax.tree.leaves(tree)])


def derivative(x):
    return 4 * flat(SCALES) * x**3


def test_without_rho_nothing_is_wrapped():
    (_, gradients), same = setup()
    assert same
    np.testing.assert_allclose(flat(gradients), derivative(flat(PARAMS)), rtol=1e-6)


@pytest.mark.parametrize("rho", [0.05, 0.5])
def test_sam_takes_the_gradient_uphill(rho):
    (loss, gradients), _ = setup(rho=rho)
    clean = derivative(flat(PARAMS))
    expected = derivative(flat(PARAMS) + rho * clean / np.linalg.norm(clean))
    np.testing.assert_allclose(flat(gradients), expected, rtol=1e-5)
    np.testing.assert_allclose(loss, np.sum(flat(SCALES) * flat(PARAMS) ** 4), rtol=1e-6)


def test_gsam_subtracts_what_is_orthogonal():
    (_, gradients), _ = setup(rho=0.3, alpha=0.6)
    clean = derivative(flat(PARAMS))
    robust = derivative(flat(PARAMS) + 0.3 * clean / np.linalg.norm(clean))
    unit = robust / np.linalg.norm(robust)
    expected = robust - 0.6 * (clean - (clean @ unit) * unit)
    np.testing.assert_allclose(flat(gradients), expected, rtol=1e-4)


@pytest.mark.parametrize(
    ("rho_min", "step", "rho"),
    [(0.1, 0, 0.6), (0.1, 50, 0.35), (0.1, 100, 0.1), (0.0, 50, 0.3), (None, 50, 0.6)],
)
@pytest.mark.parametrize("end", [None, 0.0, 0.2], ids=["by default", "to zero", "to a fifth"])
def test_rho_follows_the_learning_rate(rho_min, step, rho, end):
    options = {} if end is None else {"end": end}
    schedule = make_schedule("linear", base=1.0, total_steps=100, warmup_steps=0, **options)
    (_, gradients), _ = setup(rho=0.6, rho_min=rho_min, step=step, end=end, schedule=schedule)
    (_, expected), _ = setup(rho=rho)
    np.testing.assert_allclose(flat(gradients), flat(expected), rtol=1e-5)


def test_a_rate_that_never_falls_has_the_highest_rho():
    flat_rate = make_schedule("cosine", base=1.0, total_steps=100, warmup_steps=0, end=1.0)
    (_, gradients), _ = setup(rho=0.6, rho_min=0.1, step=50, schedule=flat_rate, end=1.0)
    (_, expected), _ = setup(rho=0.6)
    np.testing.assert_allclose(flat(gradients), flat(expected), rtol=1e-5)


def test_the_perturbation_is_of_the_trained_part():
    (_, gradients), _ = setup(rho=0.5, freeze="^b/")
    assert list(gradients) == ["a"]
    start, scales = PARAMS["a"]["kernel"], SCALES["a"]["kernel"]
    clean = 4 * scales * start**3
    moved = start + 0.5 * clean / np.linalg.norm(clean)
    np.testing.assert_allclose(gradients["a"]["kernel"], 4 * scales * moved**3, rtol=1e-5)


def test_a_zero_gradient_stays_finite():
    zeros = jax.tree.map(np.zeros_like, PARAMS)
    config = default_config()
    config.optimizer.sharpness.rho, config.optimizer.sharpness.alpha = 0.1, 0.5
    trainable = parameter_groups(config.optimizer, PARAMS).trainable
    state = TrainState(jnp.int32(0), zeros, None, None)
    found = sharpness_aware(lambda *_: (0.0, zeros), config, lambda step: 1e-3, trainable)
    _, gradients = found(state, {}, {}, jax.random.key(0))
    np.testing.assert_array_equal(flat(gradients), 0)
