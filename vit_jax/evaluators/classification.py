"""Accuracy and loss over a whole split, each example once."""

import math
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp

from vit_jax.objectives.losses import make_targets

Forward = Callable[[dict, jax.Array], jax.Array]
Loss = Callable[[jax.Array, jax.Array], jax.Array]

TOP_K = 5  # Reported where there are more classes than this.


class ClassificationEvaluator:
    """Measures a classifier on batches whose padding is masked."""

    def __init__(self, forward: Forward, loss: Loss):
        """Compiles nothing yet.

        Args:
          forward: (params, images uint8 [B, H, W, C]) -> logits [B, K] float32.
          loss: (logits [B, K], targets [B, K]) -> [B].
        """

        def sums(params: dict, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            logits, labels = forward(params, batch["image"]), batch["label"]
            num_classes = logits.shape[-1]
            targets = make_targets(labels, num_classes)
            mask = batch["mask"]
            _, best = jax.lax.top_k(logits, min(TOP_K, num_classes))
            hits = jnp.take_along_axis(targets, best, axis=-1) > 0
            totals = {
                "loss": jnp.sum(loss(logits, targets), where=mask),
                "accuracy": jnp.sum(hits[:, 0], where=mask),
                "count": jnp.sum(mask),
            }
            if num_classes > TOP_K:
                totals["top5_accuracy"] = jnp.sum(hits.any(-1), where=mask)
            return totals

        self._sums = jax.jit(sums)

    def __call__(self, params: dict, batches: Iterable[dict[str, jax.Array]]) -> dict[str, float]:
        """Means over all examples in `batches`.

        Args:
          params: of the model.
          batches: dicts of `image`, `label` and `mask` [B] bool, False for what does not count.
            Labels are int [B], or targets [B, K], where any class above 0 is right.

        Returns:
          `loss`, `accuracy`, `top5_accuracy` (above five classes), each in its mean, and `count`;
          means of nothing are NaN.
        """
        totals: dict[str, float] = {}
        pending = None  # Read one batch late, so that the device never waits for the host.
        for batch in batches:
            latest = self._sums(params, batch)
            _add(totals, pending)
            pending = latest
        _add(totals, pending)
        count = totals.pop("count")
        means = {name: total / count if count else math.nan for name, total in totals.items()}
        return {**means, "count": int(count)}


def _add(totals: dict[str, float], sums: dict[str, jax.Array] | None) -> None:
    for name, value in jax.device_get(sums or {}).items():
        totals[name] = totals.get(name, 0.0) + float(value)
