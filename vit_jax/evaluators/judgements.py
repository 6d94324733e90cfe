"""A classifier's answer to each image: whether it is right, what it costs, and how sure it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.evaluators.class_groups import NONE, ClassGroups
from vit_jax.objectives.losses import make_targets

TOP_K = 5  # Reported where there are more classes than this.

Array = Any  # On the devices a jax.Array, on the host a np.ndarray.
Loss = Callable[[jax.Array, jax.Array], jax.Array]


class Judgement(NamedTuple):
    """Of a batch's images."""

    loss: jax.Array  # float32 [B]
    hits: jax.Array  # bool [B, k]: whether each of the k best answers is right
    counts: jax.Array  # bool [B]: whether the image has a class that the model knows


def judge(
    logits: jax.Array, labels: jax.Array, loss: Loss, groups: ClassGroups | None = None
) -> Judgement:
    """Compares logits [B, K] with labels.

    Args:
      logits: float32 [B, K].
      labels: int [B], or targets [B, K], where any class above 0 is right; with groups int [B],
        the data's.
      loss: (logits [B, K], targets [B, K]) -> [B].
      groups: where the data's classes are not the model's. The loss is then the softmax's
        cross-entropy of all classes together that count as the label.
    """
    num_classes = logits.shape[-1]
    if groups is None:
        targets = make_targets(labels, num_classes)
        _, best = jax.lax.top_k(logits, min(TOP_K, num_classes))
        hits = jnp.take_along_axis(targets, best, axis=-1) > 0
        return Judgement(loss(logits, targets), hits, jnp.ones(len(logits), bool))
    allowed, own = groups.allowed(logits), groups.is_own(labels)
    _, best = jax.lax.top_k(allowed, min(TOP_K, num_classes))
    hits = jnp.take_along_axis(own, best, axis=-1)
    right = jax.nn.logsumexp(jnp.where(own, allowed, -jnp.inf), axis=-1)
    counts = own.any(-1) & (labels >= 0)
    return Judgement(jax.nn.logsumexp(allowed, axis=-1) - right, hits, counts)


class Answers(NamedTuple):
    """One entry for each image that counts, in order."""

    index: Array  # int32 [N], in the source
    label: Array  # int32 [N], or targets [N, K]
    prediction: Array  # int32 [N]; -1: a class that the data does not have
    probability: Array  # float32 [N], of the prediction
    margin: Array  # float32 [N]: the right class's probability less the likeliest other's
    scores: Array  # float32 [N, K], with targets; else [N, 0]


def answers(
    logits: jax.Array, batch: dict[str, jax.Array], loss: str, groups: ClassGroups | None = None
) -> Answers:
    """The answers to a whole batch, padding included; arguments as for `judge`, the loss by name."""
    labels, several = batch["label"], batch["label"].ndim == 2
    if groups is not None:
        allowed = groups.allowed(logits)
        every = jax.nn.softmax(allowed, axis=-1)
        probabilities = groups.merge(every)
        prediction = jnp.asarray(groups.owner)[allowed.argmax(-1)]
        strangers = jnp.where(groups.owner == NONE, every, 0).max(-1)
        known = jnp.take_along_axis(probabilities, prediction[:, None], axis=-1)[:, 0]
        probability = jnp.where(prediction == NONE, strangers, known)
    else:
        turn = jax.nn.softmax if loss == "softmax" else jax.nn.sigmoid
        probabilities = turn(logits)
        prediction, probability = logits.argmax(-1).astype(jnp.int32), probabilities.max(-1)
        strangers = jnp.zeros(len(logits))
    targets = make_targets(labels, probabilities.shape[-1]) > 0
    right = jnp.where(targets, probabilities, 0).max(-1)
    other = jnp.maximum(jnp.where(targets, 0, probabilities).max(-1), strangers)
    scores = logits if several else jnp.zeros((len(logits), 0))
    return Answers(batch["index"], labels, prediction, probability, right - other, scores)
