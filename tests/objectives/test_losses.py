"""Losses against their formulas in NumPy, in double precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.objectives.base import Labels
from vit_jax.objectives.classification import Classification
from vit_jax.objectives.losses import (
    LOSSES,
    binary_cross_entropy,
    make_targets,
    sigmoid_cross_entropy,
    softmax_cross_entropy,
)


@pytest.fixture
def batch():
    generator = np.random.default_rng(0)
    logits = 3 * generator.normal(size=(6, 5))
    return logits, np.eye(5)[generator.integers(5, size=6)]


def softmax_formula(logits, targets):
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    return -(targets * np.log(probabilities)).sum(-1)


def sigmoid_formula(logits, targets):
    probabilities = 1 / (1 + np.exp(-logits))
    return -(targets * np.log(probabilities) + (1 - targets) * np.log(1 - probabilities)).sum(-1)


def binary_formula(logits, targets):
    return sigmoid_formula(logits, targets > 0) / logits.shape[-1]


FORMULAS = [
    (softmax_cross_entropy, softmax_formula),
    (sigmoid_cross_entropy, sigmoid_formula),
    (binary_cross_entropy, binary_formula),
]


@pytest.mark.parametrize(("loss", "formula"), FORMULAS)
@pytest.mark.parametrize("smoothing", [0.0, 0.1], ids=["hard", "soft"])
def test_losses_are_their_formulas(loss, formula, smoothing, batch):
    logits, targets = batch
    targets = (1 - smoothing) * targets + smoothing / 5
    found = loss(jnp.float32(logits), jnp.float32(targets))
    assert found.shape == (6,)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, formula(logits, targets), rtol=1e-5)


@pytest.mark.parametrize(("loss", "formula"), FORMULAS)
def test_gradients_are_probabilities_less_targets(loss, formula, batch):
    logits, targets = batch
    gradient = jax.grad(lambda x: loss(x, jnp.float32(targets)).sum())(jnp.float32(logits))
    expected = {
        softmax_formula: np.exp(logits) / np.exp(logits).sum(-1, keepdims=True) - targets,
        sigmoid_formula: 1 / (1 + np.exp(-logits)) - targets,
        binary_formula: (1 / (1 + np.exp(-logits)) - targets) / 5,
    }[formula]
    np.testing.assert_allclose(gradient, expected, atol=1e-6)


def test_sigmoid_loss_is_summed_over_classes():
    for num_classes in (2, 1000):
        loss = sigmoid_cross_entropy(jnp.zeros((1, num_classes)), jnp.zeros((1, num_classes)))
        np.testing.assert_allclose(loss, num_classes * np.log(2), rtol=1e-5)


def test_the_initial_head_bias_makes_the_initial_loss_small():
    # Head kernel 0, head bias -10: one class of 21,843 costs 10, all the others next to nothing.
    targets = jax.nn.one_hot(jnp.array([3]), 21_843)
    loss = sigmoid_cross_entropy(jnp.full((1, 21_843), -10.0), targets)
    np.testing.assert_allclose(loss, 10 + 21_843 * np.log1p(np.exp(-10)), rtol=1e-4)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("size", [1e4, 1e30])
def test_large_logits_stay_finite(name, size):
    logits = jnp.array([[size, -size, 0.0]])
    for label in range(3):
        targets = jax.nn.one_hot(jnp.array([label]), 3)
        value, gradient = jax.value_and_grad(lambda x, t=targets: LOSSES[name](x, t).sum())(logits)
        assert np.isfinite(value)
        assert np.isfinite(gradient).all()


def test_binary_loss_counts_both_classes_of_a_mixed_image():
    logits = jnp.array([[2.0, -1.0, 0.5]])
    mixed = jnp.array([[0.9, 0.1, 0.0]])
    expected = binary_cross_entropy(logits, jnp.array([[1.0, 1.0, 0.0]]))
    np.testing.assert_array_equal(binary_cross_entropy(logits, mixed), expected)


def test_classes_that_the_data_lacks_weigh_one():
    labels = Labels(("a", "b"), 4, weights=(3.0, 0.5))
    found = Classification(Classification.Options(), None, labels)
    assert found._weights.tolist() == [3.0, 0.5, 1.0, 1.0]


def test_targets_of_labels_are_one_hot():
    targets = make_targets(jnp.array([2, 0]), 3)
    np.testing.assert_array_equal(targets, [[0, 0, 1], [1, 0, 0]])
    assert targets.dtype == jnp.float32


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_targets_that_are_given_stay_as_they_are(dtype):
    given = np.array([[1, 0, 1], [0, 0, 0]], dtype)
    targets = make_targets(jnp.asarray(given), 3)
    np.testing.assert_array_equal(targets, given)
    assert targets.dtype == jnp.float32


def test_smoothing_spreads_a_share_evenly():
    targets = make_targets(jnp.array([1]), 4, smoothing=0.1)
    np.testing.assert_allclose(targets, [[0.025, 0.925, 0.025, 0.025]], rtol=1e-6)
    mixed = make_targets(jnp.array([[0.3, 0.7, 0, 0]]), 4, smoothing=0.1)
    np.testing.assert_allclose(mixed.sum(), 1, rtol=1e-6)
    np.testing.assert_allclose(mixed, 0.9 * np.array([[0.3, 0.7, 0, 0]]) + 0.025, rtol=1e-6)


def test_the_floor_of_the_smoothed_loss_is_the_entropy_of_its_targets():
    targets = make_targets(jnp.array([0]), 2, smoothing=0.1)  # 0.95 and 0.05
    entropy = -(0.95 * np.log(0.95) + 0.05 * np.log(0.05))
    best = jnp.array([[np.log(0.95), np.log(0.05)]])
    np.testing.assert_allclose(softmax_cross_entropy(best, targets), entropy, rtol=1e-5)
    for other in (-1.0, 0.1, 1.0):
        assert softmax_cross_entropy(best + jnp.array([[other, 0]]), targets) > entropy
