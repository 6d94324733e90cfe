"""Measures of classifiers, from the predictions of all images: arrays in, numbers out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

Array = np.ndarray
NUM_BINS = 15  # Of confidence, as in Guo et al. (arXiv 1706.04599).


def confusion_matrix(labels: Array, predictions: Array, num_classes: int) -> Array:
    """How many images of each class (rows) are taken for each (columns), int64 [K, K].

    Args:
      labels, predictions: int [N] in [0, K).
      num_classes: K.
    """
    pairs = labels.astype(np.int64) * num_classes + predictions
    return np.bincount(pairs, minlength=num_classes**2).reshape(num_classes, num_classes)


def class_accuracies(confusion: Array) -> Array:
    """The share of each class's images that are recognised, [K]; NaN for a class without images."""
    counts = confusion.sum(1)
    with np.errstate(invalid="ignore"):
        return np.where(counts, confusion.diagonal() / np.where(counts, counts, 1), np.nan)


def balanced_accuracy(confusion: Array) -> float:
    """The mean of `class_accuracies` over the classes that have images."""
    accuracies = class_accuracies(confusion)
    present = ~np.isnan(accuracies)
    return float(accuracies[present].mean()) if present.any() else float("nan")


def macro_f1(confusion: Array, num_classes: int | None = None) -> float:
    """The mean F1 over the classes that have images or are predicted; of the first so many."""
    relevant = confusion.sum(0) + confusion.sum(1)  # Twice the hits, and all that is wrong once.
    present = np.flatnonzero(relevant[:num_classes])
    scores = 2 * confusion.diagonal()[present] / relevant[present]
    return float(scores.mean()) if len(present) else float("nan")


class Reliability(NamedTuple):
    """How often predictions of some confidence are right, bin by bin; bins are (low, high]."""

    confidence: Array  # Its mean, [bins]; NaN in an empty bin, as the next.
    accuracy: Array
    size: Array

    @property
    def calibration_error(self) -> float:
        """The expected calibration error: the mean gap of both, weighted by size."""
        filled = self.size > 0
        gaps = np.abs(self.confidence - self.accuracy)[filled]
        return float(np.average(gaps, weights=self.size[filled])) if filled.any() else float("nan")


def reliability(confidences: Array, hits: Array, num_bins: int = NUM_BINS) -> Reliability:
    """The reliability curve.

    Args:
      confidences: of each image's prediction, [N] in [0, 1].
      hits: whether it is right, [N].
      num_bins: of equal width.
    """
    edges = np.linspace(0, 1, num_bins + 1)
    bins = np.searchsorted(edges[1:-1], confidences)
    count = np.bincount(bins, minlength=num_bins)
    with np.errstate(invalid="ignore"):
        means = [
            np.bincount(bins, weights=values, minlength=num_bins) / count
            for values in (confidences, hits)
        ]
    return Reliability(means[0], means[1], count)


def average_precisions(targets: Array, scores: Array) -> Array:
    """Σ (recall - previous recall) · precision over the thresholds, [K]; NaN without a positive.

    Args:
      targets: whether an image has a class, [N, K].
      scores: of each class, [N, K]; those of equal scores are found together.
    """
    return np.array([_average_precision(*pair) for pair in zip(targets.T, scores.T, strict=True)])


def _average_precision(targets: Array, scores: Array) -> float:
    order = np.argsort(-scores, kind="stable")
    found, scores = np.cumsum(targets[order] > 0), scores[order]
    if not len(found) or not found[-1]:
        return float("nan")
    last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)  # Of each threshold.
    recall, precision = found[last] / found[-1], found[last] / (last + 1)
    return float(np.sum(np.diff(recall, prepend=0) * precision))


def mean_average_precision(targets: Array, scores: Array) -> float:
    """The mean of `average_precisions` over the classes that some image has."""
    each = average_precisions(targets, scores)
    return float(np.nanmean(each)) if np.isfinite(each).any() else float("nan")
