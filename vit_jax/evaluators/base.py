"""The base of every evaluator: a name, a frequency, data, and a measure of parameters."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np

from vit_jax.data.evaluation_data import EvaluationData
from vit_jax.evaluators.features import FeatureStore
from vit_jax.kinds import Count, Text
from vit_jax.network import Network


@dataclasses.dataclass(frozen=True)
class Setting:
    """The means of evaluators, the same in the loop and in `python -m vit_jax.evaluate`.

    Attributes:
      network: the model, as a function of its parameters.
      data: opens the splits that evaluators name.
      loss: of `vit_jax.objectives.losses`, where an evaluator measures one.
      objective: the run's `vit_jax.objectives.base.Objective`; None outside a run, and where no
        evaluator needs it.
    """

    network: Network
    data: EvaluationData
    loss: str = "softmax"
    objective: Any = None

    @functools.cached_property
    def features(self) -> FeatureStore:
        """Features of splits, which several evaluators share."""
        return FeatureStore(self.network, self.data)


class Results(NamedTuple):
    """Numbers and pictures, uint8 [H, W, 3], by name, as in "accuracy"."""

    numbers: dict[str, float]
    pictures: dict[str, np.ndarray] = {}  # noqa: RUF012  Nobody adds to it.


Measure = Callable[[dict, dict], Results]  # (params, frozen arrays of the objective) -> Results


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Measures parameters. One subclass, in a file of its own, is a new evaluator.

    Its fields, annotated with `vit_jax.kinds`, are what `config.evaluators` may set.

    Attributes:
      name: results stand under `<name>/…`, those of averaged parameters under `<name>_ema/…`.
      source: as `config.data.source`; empty: the run's own.
      train_split: of protocols that fit something to features; empty: the run's own.
      split: to measure on; empty: the source's evaluation split.
      every_steps: how often, in updates, besides the end; 0: as `config.eval_every_steps` says.

    Subclasses set:
      NAME: of the results, where none is set.
      VERSION: of the protocol: another one may give other numbers.
      NEEDS_HEAD: whether the model must be a classifier.
      NEEDS_OBJECTIVE: whether `setting.objective` is looked at, and so must be had after a run too.
    """

    NAME: ClassVar[str] = ""
    VERSION: ClassVar[int] = 1
    NEEDS_HEAD: ClassVar[bool] = True
    NEEDS_OBJECTIVE: ClassVar[bool] = False

    name: Text = ""
    source: Text = ""
    train_split: Text = ""
    split: Text = ""
    every_steps: Count = 0

    @property
    def prefix(self) -> str:
        """The name that its results stand under."""
        return self.name or self.NAME

    def metrics(self, setting: Setting) -> tuple[str, ...]:
        """The names of the numbers that it measures."""
        raise NotImplementedError

    def bind(self, setting: Setting) -> Measure:
        """The measure itself; opens the data that it takes, and compiles nothing yet.

        Raises UserError if the data cannot be used.
        """
        raise NotImplementedError
