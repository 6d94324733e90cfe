"""The linear probe against scikit-learn's logistic regression, and how it is regularised."""

import types

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tests.evaluators.test_fewshot import problem
from vit_jax.errors import DataError
from vit_jax.evaluators import probe
from vit_jax.evaluators.features import Features


@pytest.mark.parametrize("l2", [1e-2, 1.0, 1e3])
def test_probabilities_are_those_of_scikit_learn(monkeypatch, l2):
    monkeypatch.setattr(probe, "CHUNK_ROWS", 32)
    train, labels, test, test_labels = problem(150, 8)
    labels, test_labels = (np.array([3, 10, 11, 500, 501])[x] for x in (labels, test_labels))
    reference = LogisticRegression(C=1 / l2, tol=1e-10, max_iter=5000)
    reference.fit(np.float64(train), labels)
    found = probe.fit(train, labels, l2=l2, max_iterations=1000)
    scale = np.abs(reference.coef_).max()
    np.testing.assert_allclose(found.weights.T, reference.coef_, rtol=0, atol=2e-3 * scale)
    accuracy = reference.score(np.float64(test), test_labels)
    assert found.accuracy(test, test_labels) == accuracy
    evaluator = probe.LinearProbe(l2=l2)
    assert evaluator.max_iterations == 1000, "CLIP's"
    assert evaluator.metrics(None) == ("accuracy", "l2")
    score = evaluator.score(Features(train, labels), Features(test, test_labels))
    assert score == {"accuracy": accuracy, "l2": l2}


def test_few_iterations_are_few():
    train, labels, test, test_labels = problem(60, 8)
    few, many = (probe.fit(train, labels, l2=1e-3, max_iterations=n) for n in (2, 100))
    assert np.abs(few.weights).max() < 0.9 * np.abs(many.weights).max()
    unknown = Features(test, np.where(test_labels == 0, 7, test_labels))
    with pytest.raises(DataError, match="class 7 has 0 training images"):
        probe.LinearProbe(l2=1.0).score(Features(train, labels), unknown)


def test_the_sweep_finds_the_best_of_its_grid(monkeypatch):
    asked = []

    class Measured:
        def __init__(self, power):
            self.power = power

        def accuracy(self, features, labels):
            assert sorted(features[:, 0]) == held_out
            return -abs(self.power - 1.4)

    def fit(features, labels, *, l2, max_iterations):
        assert (len(features), max_iterations) == (18, 7)
        assert not np.isin(features[:, 0], held_out).any()
        asked.append(round(np.log10(l2), 6))
        return Measured(asked[-1])

    monkeypatch.setattr(probe, "fit", fit)
    labels, features = np.arange(20) % 2, np.arange(20.0)[:, None]
    held_out = features[probe.hold_out(labels), 0].tolist()
    found = probe.choose_l2(features, labels, max_iterations=7)
    assert np.log10(found) == pytest.approx(1.375)
    assert asked[:7] == [-6, -4, -2, 0, 2, 4, 6]
    assert len(asked) == len(set(asked)) <= 15


def test_of_equally_good_ones_the_strongest_is_chosen_and_none_beyond_the_ends(monkeypatch):
    for power, best in ((0, 1e6), (-1, 1e-6)):
        asked = []

        def fit(*arrays, l2, asked=asked, power=power, **options):
            asked.append(l2)
            return types.SimpleNamespace(accuracy=lambda *test: l2**power)

        monkeypatch.setattr(probe, "fit", fit)
        assert probe.choose_l2(np.zeros((20, 2)), np.arange(20) % 2, max_iterations=1) == best
        assert 1e-6 <= min(asked) <= max(asked) <= 1e6


def test_a_tenth_of_each_class_is_held_out_but_no_class_whole():
    labels = np.repeat([0, 1, 2, 3], [25, 10, 2, 1])
    mask = probe.hold_out(labels)
    assert np.bincount(labels[mask], minlength=4).tolist() == [3, 1, 1, 0]
    generator = np.random.default_rng(0)
    drawn = [generator.permutation(np.flatnonzero(labels == c)) for c in range(4)]
    expected = np.concatenate([one[:n] for one, n in zip(drawn, (3, 1, 1, 0), strict=True)])
    np.testing.assert_array_equal(np.flatnonzero(mask), np.sort(expected))
    with pytest.raises(DataError, match="no class has two training images: set l2"):
        probe.choose_l2(np.zeros((4, 2)), np.arange(4), max_iterations=1)


def test_the_evaluator_tells_what_it_chose(monkeypatch):
    iterations, fit = [], probe.fit
    monkeypatch.setattr(
        probe, "fit", lambda *a, **k: iterations.append(k["max_iterations"]) or fit(*a, **k)
    )
    train, labels, test, test_labels = problem(60, 8)
    evaluator = probe.LinearProbe(max_iterations=10)
    numbers = evaluator.score(Features(train, labels), Features(test, test_labels))
    assert numbers["accuracy"] > 0.5
    given = probe.LinearProbe(l2=numbers["l2"], max_iterations=10)
    assert given.score(Features(train, labels), Features(test, test_labels)) == numbers
    assert set(iterations) == {10}


def test_large_features_overflow_nothing():
    """The first step is of length 1: its logits are of the features' size."""
    train, labels = 1e6 * np.eye(3), np.arange(3)
    with np.errstate(all="raise", under="ignore"):
        found = probe.fit(train, labels, l2=1e-3, max_iterations=50)
    assert np.isfinite(found.weights).all()
    assert found.accuracy(train, labels) == 1
