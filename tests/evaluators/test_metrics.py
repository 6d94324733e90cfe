"""Every measure against scikit-learn's own, on random and on degenerate input."""

import warnings

import numpy as np
import pytest
import sklearn.metrics
from sklearn.calibration import calibration_curve

from vit_jax.evaluators import metrics

GENERATOR = np.random.default_rng(0)
K = 6


def labels_and_predictions():
    some = GENERATOR.integers(0, K, 200)
    return {
        "random": (some, GENERATOR.integers(0, K, 200)),
        "mostly right": (some, np.where(GENERATOR.random(200) < 0.8, some, 0)),
        "all right": (some, some),
        "all wrong": (some, (some + 1) % K),
        "one class": (np.full(50, 2), np.full(50, 2)),
        "one class, never found": (np.full(50, 2), GENERATOR.integers(3, 5, 50)),
        "empty classes": (2 * GENERATOR.integers(0, 2, 80), 1 + GENERATOR.integers(0, 2, 80)),
        "one image": (np.array([1]), np.array([4])),
    }


@pytest.mark.parametrize("case", labels_and_predictions())
def test_confusion_and_what_follows_from_it(case):
    labels, predictions = labels_and_predictions()[case]
    confusion = metrics.confusion_matrix(labels, predictions, K)
    expected = sklearn.metrics.confusion_matrix(labels, predictions, labels=range(K))
    np.testing.assert_array_equal(confusion, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of classes without images.
        balanced = sklearn.metrics.balanced_accuracy_score(labels, predictions)
        f1 = sklearn.metrics.f1_score(labels, predictions, average="macro", zero_division=0)
        recall = sklearn.metrics.recall_score(
            labels, predictions, average=None, labels=range(K), zero_division=np.nan
        )
    assert metrics.balanced_accuracy(confusion) == pytest.approx(balanced)
    assert metrics.macro_f1(confusion) == pytest.approx(f1)
    np.testing.assert_allclose(metrics.class_accuracies(confusion), recall)


def test_macro_f1_is_over_the_datas_classes_alone():
    """An answer that is none of them, the last column, is a miss, and no class."""
    confusion = np.array([[3, 0, 1], [0, 2, 0], [0, 0, 0]])
    assert metrics.macro_f1(confusion, 2) == pytest.approx((6 / 7 + 1) / 2)


def test_a_confidence_on_an_edge_is_of_the_bin_below():
    found = metrics.reliability(np.array([0.25, 0.5, 0.5, 1.0]), np.array([1, 0, 1, 1]), num_bins=4)
    assert found.size.tolist() == [1, 2, 0, 1]


def test_measures_of_nothing_are_no_numbers():
    nothing = metrics.confusion_matrix(np.array([], int), np.array([], int), K)
    assert np.isnan([metrics.balanced_accuracy(nothing), metrics.macro_f1(nothing)]).all()
    assert np.isnan(metrics.reliability(np.array([]), np.array([])).calibration_error)
    assert np.isnan(metrics.mean_average_precision(np.zeros((3, 2)), np.ones((3, 2))))


@pytest.mark.parametrize(
    "confidences",
    [
        GENERATOR.random(500),
        GENERATOR.random(500) ** 0.1,
        np.ones(20),
        np.zeros(20),
        np.linspace(0, 1, 16),  # On the edges of the bins.
    ],
)
def test_reliability(confidences):
    hits = GENERATOR.random(len(confidences)) < confidences
    found = metrics.reliability(confidences, hits)
    accuracy, confidence = calibration_curve(hits, confidences, n_bins=metrics.NUM_BINS)
    filled = found.size > 0
    np.testing.assert_allclose(found.accuracy[filled], accuracy)
    np.testing.assert_allclose(found.confidence[filled], confidence)
    assert found.size.sum() == len(confidences)
    gaps = np.abs(accuracy - confidence) * found.size[filled] / len(confidences)
    assert found.calibration_error == pytest.approx(gaps.sum(), abs=1e-12)


def test_the_calibration_error_by_hand():
    """Two bins: four at 0.9, of which two are right; one at 0.5, which is."""
    found = metrics.reliability(np.array([0.9] * 4 + [0.5]), np.array([1, 1, 0, 0, 1]), 10)
    assert found.calibration_error == pytest.approx(0.8 * 0.4 + 0.2 * 0.5)


@pytest.mark.parametrize("kind", ["random", "ties", "all equal", "one image"])
def test_average_precision(kind):
    count = 1 if kind == "one image" else 60
    targets = np.zeros((count, K)) if count > 1 else np.ones((1, K))
    if count > 1:
        targets[:, :-1] = GENERATOR.random((count, K - 1)) < 0.3
    scores = {
        "random": GENERATOR.normal(size=(count, K)),
        "ties": GENERATOR.integers(0, 4, (count, K)).astype(float),
    }.get(kind, np.zeros((count, K)))
    found = metrics.average_precisions(0.5 * targets, scores)  # Above 0 is there.
    present = targets.any(0)
    expected = sklearn.metrics.average_precision_score(
        targets[:, present], scores[:, present], average=None
    )
    np.testing.assert_allclose(found[present], expected)
    assert np.isnan(found[~present]).all()
    assert metrics.mean_average_precision(targets, scores) == pytest.approx(np.mean(expected))
