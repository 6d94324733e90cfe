"""Accuracy and loss over a whole split, each example once."""

import math
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp

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
            mask = batch["mask"] & (labels >= 0)
            num_classes = logits.shape[-1]
            losses = loss(logits, jax.nn.one_hot(labels, num_classes))
            totals = {
                "loss": jnp.sum(losses, where=mask),
                "accuracy": jnp.sum(logits.argmax(-1) == labels, where=mask),
                "count": jnp.sum(mask),
            }
            if num_classes > TOP_K:
                _, best = jax.lax.top_k(logits, TOP_K)
                hits = (best == labels[:, None]).any(-1)
                totals["top5_accuracy"] = jnp.sum(hits, where=mask)
            return totals

        self._sums = jax.jit(sums)

    def __call__(self, params: dict, batches: Iterable[dict[str, jax.Array]]) -> dict[str, float]:
        """Means over all examples in `batches`.

        Args:
          params: of the model.
          batches: dicts of `image`, `label` [B] int and `mask` [B] bool, False for padding; what
            has a negative label is not counted either.

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
