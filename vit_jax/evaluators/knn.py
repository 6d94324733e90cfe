"""k-NN: the classes of the nearest training images vote, those of nearer ones more.

As in Wu et al. (arXiv 1805.01978) and DINO (arXiv 2104.14294): similarity is the cosine between
features, and an image's vote is exp(similarity / temperature).
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.errors import DataError
from vit_jax.evaluators.base import Setting
from vit_jax.evaluators.feature_evaluator import FeatureEvaluator
from vit_jax.evaluators.features import CHUNK_ROWS, Array, Features
from vit_jax.kinds import Positive, one_of, whole

EXPONENTIAL, UNIFORM = "exponential", "uniform"


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearestNeighbors(FeatureEvaluator):
    """Accuracy of the nearest training images' vote.

    Attributes:
      k: so many vote.
      weights: exponential, as in DINO, or uniform, where all votes are equal.
      temperature: of the exponential ones.
    """

    NAME: ClassVar[str] = "knn"

    k: whole(1) = 20
    weights: one_of(EXPONENTIAL, UNIFORM) = EXPONENTIAL
    temperature: Positive = 0.07

    def metrics(self, setting: Setting) -> tuple[str, ...]:
        """See `Evaluator.metrics`."""
        del setting
        return ("accuracy",)

    def score(self, train: Features, test: Features) -> dict[str, float]:
        """The accuracy; raises DataError if there are fewer training images than votes."""
        temperature = self.temperature if self.weights == EXPONENTIAL else None
        predicted = predict(*train, test.values, k=self.k, temperature=temperature)
        return {"accuracy": float(np.mean(predicted == test.labels))}


def predict(
    train_features: Array,
    train_labels: Array,
    test_features: Array,
    *,
    k: int,
    temperature: float | None,
) -> Array:
    """The classes that the votes choose, [M]; of those with equal votes the first.

    Args:
      train_features: float32 [N, R].
      train_labels: integers [N].
      test_features: float32 [M, R].
      k: so many vote.
      temperature: of the votes; None: all are equal.

    Raises:
      DataError: N is less than k.
    """
    if len(train_features) < k:
        raise DataError(f"k-NN: {len(train_features):,} training images, fewer than k={k:,}.")
    classes, numbers = np.unique(train_labels, return_inverse=True)
    predicted = []
    for start in range(0, len(test_features), CHUNK_ROWS):
        rows = test_features[start : start + CHUNK_ROWS]
        similarities, nearest = neighbors(train_features, rows, k)
        ones = np.ones_like(
            similarities
        )  # A factor for all changes no vote, and 1 cannot overflow.
        weights = ones if temperature is None else np.exp((similarities - 1) / temperature)
        votes = np.zeros((len(rows), len(classes)))
        np.add.at(votes, (np.arange(len(rows))[:, None], numbers[nearest]), weights)
        predicted.append(votes.argmax(-1))
    return classes[np.concatenate(predicted)]


def neighbors(train: Array, test: Array, k: int) -> tuple[Array, Array]:
    """The k most similar rows of `train` [N, R] to each of `test` [M, R], the nearest first.

    Chunk by chunk on one device, so that memory does not grow with N.

    Returns:
      Their cosine similarities, float64 [M, k], and their indices [M, k].
    """
    queries = jnp.asarray(_normalized(test))
    best = jnp.full((len(test), k), -jnp.inf), jnp.zeros((len(test), k), jnp.int32)
    for start in range(0, len(train), CHUNK_ROWS):
        rows = _normalized(train[start : start + CHUNK_ROWS])
        padded = np.pad(rows, ((0, CHUNK_ROWS - len(rows)), (0, 0)))
        best = _nearer(queries, jnp.asarray(padded), len(rows), start, *best)
    similarities, indices = jax.device_get(best)
    return similarities.astype(np.float64), indices


@jax.jit
def _nearer(
    queries: jax.Array,
    rows: jax.Array,
    count: int,
    start: int,
    similarities: jax.Array,
    indices: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The nearest of those so far and of the first `count` of `rows`, which begin at `start`."""
    k = similarities.shape[1]
    positions = jnp.arange(len(rows))
    found = jnp.matmul(queries, rows.T, precision="highest")
    found = jnp.where(positions < count, found, -jnp.inf)
    every = jnp.concatenate([similarities, found], axis=1)
    numbers = jnp.broadcast_to(start + positions, found.shape).astype(jnp.int32)
    values, chosen = jax.lax.top_k(every, k)
    return values, jnp.take_along_axis(jnp.concatenate([indices, numbers], 1), chosen, axis=1)


def _normalized(rows: Array) -> Array:
    """Rows of length 1; zeros stay zeros."""
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.maximum(lengths, np.finfo(np.float32).tiny)
