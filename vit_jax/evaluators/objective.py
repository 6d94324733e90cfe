"""The run's own objective over a whole split, each example once: its loss, values and pictures."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.devices import sharding
from vit_jax.errors import ConfigError
from vit_jax.evaluators.base import Evaluator, Measure, Results, Setting
from vit_jax.kinds import Count

NUM_PICTURES = 8
SMALLEST = 96  # Height of a picture in pixels: smaller ones are enlarged by a whole number.


@dataclasses.dataclass(frozen=True, kw_only=True)
class ObjectiveLoss(Evaluator):
    """The objective's loss and values in evaluation mode, and pictures of the first examples.

    What is random in the objective follows from `seed` and the number of the batch, so it is the
    same at every evaluation.

    Attributes:
      seed: of what is random.
    """

    NAME: ClassVar[str] = "eval"
    NEEDS_HEAD: ClassVar[bool] = False
    NEEDS_OBJECTIVE: ClassVar[bool] = True

    seed: Count = 0

    def metrics(self, setting: Setting) -> tuple[str, ...]:
        """See `Evaluator.metrics`."""
        return ("loss", *setting.objective.values, "count")

    def bind(self, setting: Setting) -> Measure:
        """See `Evaluator.bind`; raises ConfigError outside a run."""
        objective = setting.objective
        if objective is None:
            raise ConfigError(
                "The evaluator 'objective' measures a run's own objective: give a workdir, "
                "not weights alone."
            )
        split = setting.data.open(self.source, self.split, own_classes=True)

        @jax.jit
        def sums(params: dict, frozen: dict, batch: dict, number: jax.Array) -> dict:
            batch = objective.prepare(batch, self.seed, number)
            with setting.network.options.in_precision():  # As in training.
                losses, auxiliary = objective.loss(params, frozen, batch, None)
            values = {"loss": losses, **{name: auxiliary[name] for name in objective.values}}
            mask = batch["mask"]
            totals = {name: jnp.sum(value, where=mask) for name, value in values.items()}
            return {**totals, "count": jnp.sum(mask)}

        @jax.jit
        def draw(params: dict, frozen: dict, batch: dict) -> jax.Array | None:
            prepared = objective.prepare(batch, self.seed, 0)
            first = jax.tree.map(lambda x: x[:NUM_PICTURES], prepared)
            with setting.network.options.in_precision():
                pictures = objective.pictures(params, frozen, first)
            replicated = sharding.replicated(setting.network.mesh)
            return (
                jax.lax.with_sharding_constraint(pictures, replicated)
                if pictures is not None
                else None
            )

        def measure(params: dict, frozen: dict) -> Results:
            totals: dict[str, float] = {}
            pictures: dict[str, np.ndarray] = {}
            with contextlib.closing(split.batches()) as batches:
                for number, batch in enumerate(batches):
                    found = jax.device_get(sums(params, frozen, batch, number))
                    totals = {name: totals.get(name, 0.0) + float(v) for name, v in found.items()}
                    if number == 0 and (drawn := draw(params, frozen, batch)) is not None:
                        pictures["pictures"] = column_of(jax.device_get(drawn))
            count = int(totals.pop("count"))
            means = {name: total / count if count else math.nan for name, total in totals.items()}
            return Results({**means, "count": count, **split.count_skipped(count)}, pictures)

        return measure


def column_of(pictures: np.ndarray) -> np.ndarray:
    """Pixels [N, H, W, C] in 0 … 255 one under the other, uint8 [N·h, w, 3]."""
    factor = math.ceil(SMALLEST / pictures.shape[1])
    column = np.concatenate(pictures.repeat(factor, axis=1).repeat(factor, axis=2))
    colored = column[..., :3] if column.shape[-1] >= 3 else column[..., :1].repeat(3, axis=-1)
    return np.rint(colored).astype(np.uint8)
