"""The base of evaluators that fit something to the features of a frozen model."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from vit_jax.data.sources.examples import Source
from vit_jax.errors import ConfigError, DataError
from vit_jax.evaluators.base import Evaluator, Measure, Results, Setting
from vit_jax.evaluators.features import Array, Features


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureEvaluator(Evaluator):
    """The base of protocols that fit something to the features of a frozen model.

    They take any source, whatever its classes: these are the source's own, not the model's.
    """

    NEEDS_HEAD: ClassVar[bool] = False

    def score(self, train: Features, test: Features) -> dict[str, float]:
        """The numbers, by name."""
        raise NotImplementedError

    def check(self, train: Source) -> None:
        """Raises DataError if the protocol cannot work on these training examples."""

    def bind(self, setting: Setting) -> Measure:
        """See `Evaluator.bind`."""
        own = setting.data.config.train_split
        if not (train_split := self.train_split or own):
            raise ConfigError(f"{self.prefix}: name the split to fit to, as train_split='train'.")
        train = setting.features.open(self.source, train_split, training=True)
        test = setting.features.open(self.source, self.split, training=False)
        self.check(setting.data.examples(self.source, train_split, training=True))

        def measure(params: dict, frozen: dict) -> Results:
            del frozen
            fitted, measured = train(params), test(params)
            skipped = fitted.skipped + measured.skipped
            numbers = {"skipped": skipped} if skipped else {}
            return Results({**self.score(fitted.features, measured.features), **numbers})

        return measure


def check_nonempty_classes(train: Array, test: Array) -> None:
    """Raises DataError if images to measure on have a class that none to fit to has."""
    lacking = np.setdiff1d(test, train)
    if len(lacking):
        raise DataError(
            f"class {lacking[0]} has 0 training images, and images to measure on: fit to a split "
            "that has all classes."
        )
