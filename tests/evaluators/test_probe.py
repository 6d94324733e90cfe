"""The linear probe against scikit-learn's logistic regression, and how it is regularised."""

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
    assert found.accuracy(test, test_labels) == reference.score(np.float64(test), test_labels)


def test_the_sweep_finds_the_best_of_its_grid(monkeypatch):
    asked = []

    class Measured:
        def __init__(self, power):
            self.power = power

        def accuracy(self, features, labels):
            return -abs(self.power - 1.4)

    def fit(features, labels, *, l2, max_iterations):
        asked.append(round(np.log10(l2), 6))
        return Measured(asked[-1])

    monkeypatch.setattr(probe, "fit", fit)
    found = probe.choose_l2(np.zeros((20, 2)), np.arange(20) % 2, max_iterations=1)
    assert np.log10(found) == pytest.approx(1.375)
    assert asked[:7] == [-6, -4, -2, 0, 2, 4, 6]
    assert len(asked) == len(set(asked)) <= 15


def test_of_equally_good_ones_the_strongest_is_chosen_and_none_beyond_the_ends(monkeypatch):
    class Same:
        def accuracy(self, features, labels):
            return 1.0

    asked = []
    monkeypatch.setattr(probe, "fit", lambda *a, l2, **k: asked.append(l2) or Same())
    assert probe.choose_l2(np.zeros((20, 2)), np.arange(20) % 2, max_iterations=1) == 1e6
    assert max(asked) <= 1e6


def test_a_tenth_of_each_class_is_held_out_but_no_class_whole():
    labels = np.repeat([0, 1, 2, 3], [25, 10, 2, 1])
    mask = probe.hold_out(labels)
    assert np.bincount(labels[mask], minlength=4).tolist() == [3, 1, 1, 0]
    with pytest.raises(DataError, match="no class has two training images: set l2"):
        probe.choose_l2(np.zeros((4, 2)), np.arange(4), max_iterations=1)


def test_the_evaluator_tells_what_it_chose():
    train, labels, test, test_labels = problem(60, 8)
    evaluator = probe.LinearProbe(max_iterations=10)
    numbers = evaluator.score(Features(train, labels), Features(test, test_labels))
    assert numbers["accuracy"] > 0.5
    given = probe.LinearProbe(l2=numbers["l2"], max_iterations=10)
    assert given.score(Features(train, labels), Features(test, test_labels)) == numbers
