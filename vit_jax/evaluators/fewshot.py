"""Few-shot linear evaluation: how good a classifier of a few images a class features make.

In closed form, as in Figures 4 and 5 of the paper (arXiv 2010.11929) and in Big Vision: features are
standardised by the training images' mean and deviation, a large constant stands for the bias, targets
are 1 for the image's own class and -1 for others, and the weights are those of ridge regression,

    w = (XᵀX + λI)⁻¹ XᵀY = Xᵀ(XXᵀ + λI)⁻¹ Y

whichever matrix is the smaller. It is summed in float64, a chunk of rows at a time: beside the features
as they are given, memory holds four matrices of min(N, D)² and chunks of `CHUNK_ROWS` rows, in
float64, whatever the number of images N.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from vit_jax.data.sources.examples import Source
from vit_jax.errors import DataError
from vit_jax.evaluators.base import Setting
from vit_jax.evaluators.feature_evaluator import FeatureEvaluator, check_nonempty_classes
from vit_jax.evaluators.features import CHUNK_ROWS, Array, Features
from vit_jax.kinds import Positive, tuple_of, whole

BIAS = 100.0  # The constant feature; large, so that its weight is hardly regularised.
SMALLEST_DEVIATION = 1e-5  # Added to each feature's.


@dataclasses.dataclass(frozen=True, kw_only=True)
class FewShot(FeatureEvaluator):
    """Accuracy of a linear classifier in closed form, of a few images a class.

    Attributes:
      shots: numbers of images a class, each measured on its own.
      seeds: so many drawings of the images; accuracies are averaged over them.
      l2: the regularisation λ.
    """

    NAME: ClassVar[str] = "fewshot"

    shots: tuple_of(whole(1)) = (1, 5, 10, 25)
    seeds: whole(1) = 3
    l2: Positive = 1024.0

    def metrics(self, setting: Setting) -> tuple[str, ...]:
        """See `Evaluator.metrics`."""
        del setting
        return tuple(f"{shots}_shot{end}" for shots in self.shots for end in ("", "_std"))

    def check(self, train: Source) -> None:
        """Raises DataError if a class has fewer images than shots, where labels are at hand."""
        if isinstance(train.labels, np.ndarray):
            counts = np.bincount(train.labels, minlength=len(train.class_names))
            _check_counts(
                dict(zip(train.class_names, counts.tolist(), strict=True)), max(self.shots)
            )

    def score(self, train: Features, test: Features) -> dict[str, float]:
        """The mean over seeds for each number of shots, and the standard deviation."""
        numbers = {}
        for shots in self.shots:
            each = [
                accuracy(*train, *test, shots=shots, seed=seed, l2=self.l2)
                for seed in range(self.seeds)
            ]
            numbers[f"{shots}_shot"] = float(np.mean(each))
            numbers[f"{shots}_shot_std"] = float(np.std(each))
        return numbers


def accuracy(
    train_features: Array,
    train_labels: Array,
    test_features: Array,
    test_labels: Array,
    *,
    shots: int,
    seed: int,
    l2: float = 1024.0,
) -> float:
    """The share of test images that the classifier of so many images a class gets right.

    Args:
      train_features: [N, D], of which the shots are drawn.
      train_labels: integers [N].
      test_features: [M, D].
      test_labels: integers [M].
      shots: per class, ascending, the first so many of a permutation are taken.
      seed: of `numpy.random.default_rng`, which draws the permutations.
      l2: the regularisation λ.

    Raises:
      DataError: a class has fewer images than shots.
    """
    train_labels, test_labels = np.asarray(train_labels), np.asarray(test_labels)
    check_nonempty_classes(train_labels, test_labels)
    indices = draw_shots(train_labels, shots, seed)
    classes, targets = np.unique(train_labels[indices], return_inverse=True)
    classifier = fit(train_features, indices, targets, len(classes), l2)
    return float(np.mean(classes[classifier.predict(test_features)] == test_labels))


def draw_shots(labels: Array, shots: int, seed: int) -> Array:
    """The indices of `shots` images of each class, classes ascending; raises DataError for too few."""
    generator = np.random.default_rng(seed)
    classes, counts = np.unique(labels, return_counts=True)
    _check_counts(dict(zip(classes.tolist(), counts.tolist(), strict=True)), shots)
    order = np.argsort(labels, kind="stable")
    members = np.split(order, np.cumsum(counts)[:-1])
    return np.concatenate([generator.permutation(one)[:shots] for one in members])


def _check_counts(counts: dict, shots: int) -> None:
    """Raises DataError if a class, by name or number, has fewer images than shots."""
    few = {name: count for name, count in counts.items() if count < shots}
    if few:
        name, count = next(iter(few.items()))
        raise DataError(
            f"{len(few):,} of {len(counts):,} classes have fewer training images than the {shots} "
            f"shots, class {name!r} {count}: set fewer shots, or a larger train_split."
        )


@dataclasses.dataclass(frozen=True)
class Standardization:
    """The mean and the standard deviation, a little enlarged, of each feature: float64 [D] each."""

    mean: Array
    scale: Array

    @classmethod
    def of(cls, features: Array, indices: Array) -> Standardization:
        """That of the rows of features [N, D] at `indices` [n]."""
        mean = sum(rows.sum(0) for rows in _chunks(features, indices)) / len(indices)
        squares = sum(np.square(rows - mean).sum(0) for rows in _chunks(features, indices))
        return cls(mean, np.sqrt(squares / len(indices)) + SMALLEST_DEVIATION)

    def chunks(self, features: Array, indices: Array) -> Iterator[Array]:
        """The rows at `indices`, some at a time, [_, D + 1] with the constant for the bias."""
        for rows in _chunks(features, indices):
            yield np.pad((rows - self.mean) / self.scale, ((0, 0), (0, 1)), constant_values=BIAS)


@dataclasses.dataclass(frozen=True)
class RidgeClassifier:
    """A linear classifier of standardised features.

    Attributes:
      standardization: of the training features.
      weights: [D + 1, K] float64; the last row is that of the constant.
    """

    standardization: Standardization
    weights: Array

    def predict(self, features: Array) -> Array:
        """The likeliest class of each image: features [M, D] -> int64 [M]."""
        chunks = self.standardization.chunks(features, np.arange(len(features)))
        return np.concatenate([(rows @ self.weights).argmax(-1) for rows in chunks])


def fit(
    features: Array, indices: Array, labels: Array, num_classes: int, l2: float
) -> RidgeClassifier:
    """The classifier of the images at `indices` [n] of features [N, D], with labels [n]."""
    standardization = Standardization.of(features, indices)
    solve = solve_primal if len(indices) > features.shape[1] else solve_dual
    chunks = standardization.chunks(features, indices)
    return RidgeClassifier(standardization, solve(chunks, labels, num_classes, l2))


def solve_primal(chunks: Iterator[Array], labels: Array, num_classes: int, l2: float) -> Array:
    """The weights [D + 1, K], through XᵀX, of rows that come some at a time."""
    gram: Any = 0.0  # XᵀX, [D + 1, D + 1] after the first rows
    moment: Any = 0.0  # Xᵀ of the targets, [D + 1, K]
    start = 0
    for rows in chunks:
        end = start + len(rows)
        gram += rows.T @ rows
        moment += rows.T @ _targets(labels[start:end], num_classes)
        start = end
    return _solve(gram, moment, l2)


def solve_dual(chunks: Iterator[Array], labels: Array, num_classes: int, l2: float) -> Array:
    """The same weights, through XXᵀ."""
    rows = np.concatenate([*chunks])
    return rows.T @ _solve(rows @ rows.T, _targets(labels, num_classes), l2)


def _solve(gram: Array, right: Array, l2: float) -> Array:
    """(gram + λI)⁻¹ · right, for a symmetric matrix."""
    values, vectors = np.linalg.eigh(gram)
    return vectors @ ((vectors.T @ right) / (values + l2)[:, None])


def _targets(labels: Array, num_classes: int) -> Array:
    """1 for the own class and -1 for the others, float64 [n, K]."""
    return 2.0 * (labels[:, None] == np.arange(num_classes)) - 1.0


def _chunks(features: Array, indices: Array) -> Iterator[Array]:
    """The rows of features at `indices`, float64, some at a time."""
    for start in range(0, len(indices), CHUNK_ROWS):
        yield np.asarray(features[indices[start : start + CHUNK_ROWS]], np.float64)
