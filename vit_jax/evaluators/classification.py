"""Accuracy and loss over a whole split, each example once."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import ClassVar

import jax
import jax.numpy as jnp

from vit_jax.evaluators.base import Evaluator, Measure, Results, Setting
from vit_jax.objectives.losses import LOSSES, make_targets

Logits = Callable[[dict, jax.Array], jax.Array]
Loss = Callable[[jax.Array, jax.Array], jax.Array]

TOP_K = 5  # Reported where there are more classes than this.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Classification(Evaluator):
    """Accuracy, top-5 accuracy and loss of a classifier."""

    NAME: ClassVar[str] = "eval"

    def metrics(self, setting: Setting) -> tuple[str, ...]:
        """See `Evaluator.metrics`."""
        top5 = ("top5_accuracy",) if setting.data.num_classes > TOP_K else ()
        return ("loss", "accuracy", *top5, "count")

    def bind(self, setting: Setting) -> Measure:
        """See `Evaluator.bind`."""
        split = setting.data.open(self.source, self.split)
        means = ClassificationMeans(setting.network, LOSSES[setting.loss])

        def measure(params: dict, frozen: dict) -> Results:
            del frozen
            with contextlib.closing(split.batches()) as batches:
                numbers = means(params, batches)
            return Results({**numbers, **split.count_skipped(int(numbers["count"]))})

        return measure


class ClassificationMeans:
    """Means of a classifier's hits and losses over batches whose padding is masked."""

    def __init__(self, logits_of: Logits, loss: Loss):
        """Compiles nothing yet.

        Args:
          logits_of: (params, images uint8 [B, H, W, C]) -> logits [B, K] float32.
          loss: (logits [B, K], targets [B, K]) -> [B].
        """

        def sums(params: dict, batch: dict[str, jax.Array]) -> dict[str, jax.Array]:
            logits, labels = logits_of(params, batch["image"]), batch["label"]
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
