"""Errors of a model whose outputs are numbers, over a whole split, each example once."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import ClassVar

import jax
import numpy as np

from vit_jax.devices import sharding
from vit_jax.errors import ConfigError
from vit_jax.evaluators.base import Evaluator, Measure, Results, Setting


@dataclasses.dataclass(frozen=True, kw_only=True)
class Regression(Evaluator):
    """Mean absolute error, root of the mean squared error, and R²; of several targets their mean."""

    NAME: ClassVar[str] = "eval"

    def metrics(self, setting: Setting) -> tuple[str, ...]:
        """See `Evaluator.metrics`."""
        return ("mae", "rmse", "r2", "count")

    def bind(self, setting: Setting) -> Measure:
        """See `Evaluator.bind`."""
        split = setting.data.open(self.source, self.split)
        if not split.source.numeric:
            raise ConfigError(
                f"The evaluator {self.prefix} (regression) needs numbers, and "
                f"{self.source or setting.data.config.source} has classes."
            )
        everywhere = sharding.replicated(setting.network.mesh)

        @jax.jit(out_shardings=everywhere)
        def outputs(params: dict, batch: dict[str, jax.Array]) -> tuple[jax.Array, ...]:
            return setting.network(params, batch["image"]), batch["label"], batch["mask"]

        def measure(params: dict, frozen: dict) -> Results:
            del frozen
            found, wanted = [], []
            with contextlib.closing(split.batches()) as batches:
                for batch in batches:
                    values, targets, mask = jax.device_get(outputs(params, batch))
                    found.append(values[mask])
                    wanted.append(targets[mask])
            numbers = errors(np.concatenate(found), np.concatenate(wanted))
            return Results({**numbers, **split.count_skipped(int(numbers["count"]))})

        return measure


def errors(found: np.ndarray, wanted: np.ndarray) -> dict[str, float]:
    """`mae`, `rmse`, `r2` and `count` of numbers [N, D] against others, each the mean over D.

    R² is 1 - the squared errors over the squares of the deviations from the mean; NaN where all
    that is wanted is one number. Without any, all are NaN.
    """
    count = len(wanted)
    if not count:
        return {"mae": math.nan, "rmse": math.nan, "r2": math.nan, "count": 0}
    wanted = wanted.astype(np.float64)
    difference = found - wanted
    squares = np.sum(difference**2, axis=0)
    spread = np.sum((wanted - wanted.mean(0)) ** 2, axis=0)
    explained = 1 - np.divide(squares, spread, out=np.full_like(spread, math.nan), where=spread > 0)
    return {
        "mae": float(np.abs(difference).mean()),
        "rmse": float(np.sqrt(squares / count).mean()),
        "r2": float(explained.mean()),
        "count": count,
    }
