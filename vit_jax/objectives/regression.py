"""Regression: the model's outputs against numbers, such as an age or coordinates."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.errors import ConfigError
from vit_jax.kinds import Positive, one_of
from vit_jax.network import Network
from vit_jax.objectives.base import Auxiliary, Batch, Labels, Objective


def squared_error(errors: jax.Array, delta: float) -> jax.Array:
    """The mean of the squared errors [B, D]: [B]."""
    del delta
    return jnp.mean(errors**2, axis=-1)


def huber(errors: jax.Array, delta: float) -> jax.Array:
    """The mean of Huber's loss (1964) of errors [B, D]: half the square up to `delta`, then a line."""
    size = jnp.abs(errors)
    near = jnp.minimum(size, delta)
    return jnp.mean(near * (size - near / 2), axis=-1)


REGRESSION_LOSSES: dict[str, Callable[[jax.Array, float], jax.Array]] = {
    "l2": squared_error,
    "huber": huber,
}


class Regression(Objective):
    """The model's outputs against the numbers of a manifest's `target` or `targets`."""

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The objective's keys of `config.objective`."""

        loss: one_of(*REGRESSION_LOSSES) = "l2"  # Squared; huber: a line from huber_delta on.
        huber_delta: Positive = 1.0  # In the targets' unit.

    EVALUATORS = "regression"
    BEST_METRIC = "-eval/rmse"

    def __init__(self, options: Options, network: Network, labels: Labels, teacher: str = ""):
        super().__init__(options, network, labels, teacher)
        if labels.names and not labels.numeric:
            raise ConfigError(
                "config.objective.name=regression needs numbers, and the data has classes: name a "
                "manifest with a column target (or targets), or the column with "
                "--config.data.columns=target=COLUMN."
            )

    @property
    def head_bias(self) -> tuple[float, ...]:
        """The targets' means, from which outputs begin: a rate of 1e-3 would take long to get there."""
        return self.labels.means

    def loss(
        self, params: dict, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Auxiliary]:
        """The loss of each image's outputs."""
        del frozen
        outputs = self.network.outputs(params, batch["image"], key)
        losses = REGRESSION_LOSSES[self.options.loss](
            outputs["logits"] - batch["label"], self.options.huber_delta
        )
        return losses, self.network.statistics(outputs)

    def captions(self, values: np.ndarray) -> list[list[str]]:
        """Each target, by name."""
        return [
            [f"{self.labels.name(index)} {value:.4g}" for index, value in enumerate(row)]
            for row in values
        ]

    @property
    def evaluation_loss(self) -> str:
        """The loss that is trained with: it says that outputs are numbers."""
        return self.options.loss

    def describe(self) -> Sequence[str]:
        """The loss."""
        delta = f" from {self.options.huber_delta:g} on" if self.options.loss == "huber" else ""
        means = [f"{mean:.4g}" for mean in self.labels.means]
        return [f"{self.options.loss}{delta}", f"outputs begin at {', '.join(means) or 0}"]
