"""Classification: logits against labels, with label smoothing, mixup and CutMix."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import numpy as np

from vit_jax.errors import ConfigError
from vit_jax.kinds import Fraction, one_of
from vit_jax.network import Network
from vit_jax.objectives import mixing
from vit_jax.objectives.base import Auxiliary, Batch, Labels, Objective
from vit_jax.objectives.losses import LOSSES, make_targets


class Classification(Objective):
    """Logits against labels, by one of `vit_jax.objectives.losses`."""

    WEIGHS_CLASSES = True

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The objective's keys of `config.objective`."""

        loss: one_of(*LOSSES) = "softmax"  # sigmoid: summed over classes; binary: DeiT-III's
        label_smoothing: Fraction = 0.0  # Share of the training targets spread over all classes.
        mixing: mixing.Mixing = mixing.Mixing()

        def __post_init__(self) -> None:
            if self.loss == "binary" and self.label_smoothing:
                raise ConfigError(
                    "config.objective.label_smoothing: the binary loss counts any target above 0 "
                    "as 1; set it to 0."
                )

    def __init__(self, options: Options, network: Network, labels: Labels, teacher: str = ""):
        super().__init__(options, network, labels, teacher)
        if labels.numeric:
            raise ConfigError(
                "config.objective.name=classification needs classes, and the data has numbers: set "
                "--config.objective.name=regression."
            )
        if labels.several and options.loss == "softmax":
            raise ConfigError(
                "config.objective.loss=softmax expects one class an image, and the data has images "
                "with several: set --config.objective.loss=sigmoid."
            )
        unknown = labels.num_classes - len(labels.weights)  # Classes that the data does not have.
        self._weights = np.array([*labels.weights, *([1.0] * unknown)], np.float32)
        self._encode = functools.partial(make_targets, num_classes=labels.num_classes)

    def prepare(self, batch: Batch, seed: int, step: jax.Array | int) -> Batch:
        """Finds each row's partner in the whole batch."""
        return mixing.pair(batch, step, seed, self.options.mixing)

    def loss(
        self, params: dict, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Auxiliary]:
        """The loss of mixed images against mixed targets, times their classes' weights."""
        del frozen
        outputs = self.network.outputs(params, mixing.mixed_images(batch), key)
        encode = functools.partial(self._encode, smoothing=self.options.label_smoothing)
        targets = mixing.mixed_targets(batch, encode)
        losses = LOSSES[self.options.loss](outputs["logits"], targets)
        if self.labels.weights:
            losses *= mixing.mixed_targets(batch, self._encode) @ self._weights
        return losses, self.network.statistics(outputs)

    def show(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The mixed images, and their targets [B, K] before smoothing."""
        return mixing.mixed_images(batch), mixing.mixed_targets(batch, self._encode)

    @property
    def evaluation_loss(self) -> str:
        """The loss that is trained with."""
        return self.options.loss

    def describe(self) -> Sequence[str]:
        """The loss, and the smoothing if there is any."""
        smoothing = self.options.label_smoothing
        parts = [self.options.loss, *([f"label smoothing {smoothing}"] if smoothing else [])]
        return [*parts, "times the weights of classes"] if self.labels.weights else parts

    def describe_images(self) -> Sequence[str]:
        """A line for each kind of mixing."""
        return mixing.describe(self.options.mixing)
