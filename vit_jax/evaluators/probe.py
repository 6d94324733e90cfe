"""The linear probe: logistic regression on frozen features by L-BFGS.

As in CLIP (arXiv 2103.00020, Appendix A.3): at most 1,000 iterations, and the regularisation is
chosen on images held out: seven strengths from 1e-6 to 1e6, then the interval around the best halved
until eight steps make a decade.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from vit_jax.errors import DataError
from vit_jax.evaluators.base import Setting
from vit_jax.evaluators.feature_evaluator import FeatureEvaluator, check_nonempty_classes
from vit_jax.evaluators.features import CHUNK_ROWS, Array, Features
from vit_jax.kinds import Positive, optional, whole

COARSE = tuple(range(-6, 7, 2))  # Powers of ten.
FINEST_STEP = 1 / 8  # Of a decade.
HELD_OUT_SHARE = 0.1  # Of each class, to choose by.
GRADIENT_TOLERANCE = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class LinearProbe(FeatureEvaluator):
    """Accuracy of logistic regression.

    Attributes:
      l2: the regularisation λ, 1/C of scikit-learn's; None: chosen on a tenth of the training images.
      max_iterations: of L-BFGS.
    """

    NAME: ClassVar[str] = "probe"

    l2: optional(Positive) = None
    max_iterations: whole(1) = 1000

    def metrics(self, setting: Setting) -> tuple[str, ...]:
        """See `Evaluator.metrics`."""
        del setting
        return ("accuracy", "l2")

    def score(self, train: Features, test: Features) -> dict[str, float]:
        """The accuracy, and the regularisation that was chosen."""
        check_nonempty_classes(train.labels, test.labels)
        l2 = self.l2 or choose_l2(*train, max_iterations=self.max_iterations)
        probe = fit(*train, l2=l2, max_iterations=self.max_iterations)
        return {"accuracy": probe.accuracy(*test), "l2": l2}


@dataclasses.dataclass(frozen=True)
class LogisticRegression:
    """A linear classifier: classes [K], weights [D, K] and biases [K] float64."""

    classes: Array
    weights: Array
    biases: Array

    def accuracy(self, features: Array, labels: Array) -> float:
        """The share of images, features [M, D], that get their label [M]."""
        hits = 0
        for start in range(0, len(features), CHUNK_ROWS):
            rows = slice(start, start + CHUNK_ROWS)
            logits = features[rows] @ self.weights + self.biases
            hits += int(np.sum(self.classes[logits.argmax(-1)] == labels[rows]))
        return hits / len(labels)


def fit(features: Array, labels: Array, *, l2: float, max_iterations: int) -> LogisticRegression:
    """Minimises Σ cross-entropy + λ/2 · ‖weights‖², in float64; biases are not regularised.

    Args:
      features: [N, D].
      labels: integers [N].
      l2: the regularisation λ.
      max_iterations: of L-BFGS.
    """
    from scipy import optimize  # Takes a fifth of a second, and few commands need it.

    classes, numbers = np.unique(labels, return_inverse=True)
    shape = (features.shape[1] + 1, len(classes))

    def objective(flat: Array) -> tuple[float, Array]:
        parameters = flat.reshape(shape)
        weights, biases = parameters[:-1], parameters[-1]
        loss, gradient = l2 / 2 * np.sum(weights**2), np.zeros(shape)
        gradient[:-1] = l2 * weights
        for start in range(0, len(features), CHUNK_ROWS):
            rows = np.asarray(features[start : start + CHUNK_ROWS], np.float64)
            own = np.arange(len(rows)), numbers[start : start + CHUNK_ROWS]
            logits = rows @ weights + biases
            logits -= logits.max(-1, keepdims=True)
            exponentials = np.exp(logits)
            totals = exponentials.sum(-1, keepdims=True)
            loss += np.sum(np.log(totals[:, 0]) - logits[own])
            errors = exponentials / totals
            errors[own] -= 1
            gradient[:-1] += rows.T @ errors
            gradient[-1] += errors.sum(0)
        return loss / len(features), gradient.ravel() / len(features)

    found = optimize.minimize(
        objective,
        np.zeros(np.prod(shape)),
        jac=True,
        method="L-BFGS-B",
        options={"maxiter": max_iterations, "gtol": GRADIENT_TOLERANCE, "ftol": 0.0},
    )
    parameters = found.x.reshape(shape)
    return LogisticRegression(classes, parameters[:-1], parameters[-1])


def choose_l2(features: Array, labels: Array, *, max_iterations: int) -> float:
    """The regularisation that is best on a tenth of each class; of equals the strongest."""
    held_out = hold_out(labels)
    if not held_out.any():
        raise DataError(
            "the linear probe holds out a tenth of each class to choose its regularisation, and no "
            "class has two training images: set l2, or a larger train_split."
        )
    train, test = (features[~held_out], labels[~held_out]), (features[held_out], labels[held_out])
    found: dict[float, float] = {}  # By power of ten.

    def measure(power: float) -> None:
        if COARSE[0] <= power <= COARSE[-1] and power not in found:
            probe = fit(*train, l2=10.0**power, max_iterations=max_iterations)
            found[power] = probe.accuracy(*test)

    def best() -> float:
        return max(found, key=lambda power: (found[power], power))

    for power in COARSE:
        measure(power)
    step = (COARSE[1] - COARSE[0]) / 2
    while step >= FINEST_STEP:
        around = best()
        measure(around - step)
        measure(around + step)
        step /= 2
    return 10.0 ** best()


def hold_out(labels: Array) -> Array:
    """A mask [N] of a tenth of each class, drawn with seed 0, but never a class's only image."""
    generator, mask = np.random.default_rng(0), np.zeros(len(labels), bool)
    for one in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == one))
        mask[members[: min(math.ceil(HELD_OUT_SHARE * len(members)), len(members) - 1)]] = True
    return mask
