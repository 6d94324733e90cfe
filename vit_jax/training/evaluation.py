"""The run's evaluators: which are due, what they measure, and what makes a checkpoint the best."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax.checkpoint import AVERAGED, Checkpoints, TrainState
from vit_jax.data.evaluation_data import EvaluationData
from vit_jax.devices import distributed
from vit_jax.errors import ConfigError, NonFiniteLossError
from vit_jax.evaluators import Evaluator, check_head, read_evaluators
from vit_jax.evaluators.base import Measure, Results, Setting
from vit_jax.evaluators.results import ResultsFile, describe_result
from vit_jax.objectives import find_objective
from vit_jax.training.experiment import Experiment
from vit_jax.training.step_log import StepLog

logger = logging.getLogger(__name__)

AUTO = "auto"


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Evaluators with their data opened.

    Attributes:
      measures: each evaluator's, in their order.
      total_steps: when the run ends, and all are due.
      every_steps: how often those are due that do not say; 0: at the end only.
      best_metric: what the best checkpoint has most of; with "-" before it: least of; "": none.
      data: whose splits they measure on.
      file: where every result is recorded, with the time that it took; None: nowhere.
    """

    measures: tuple[tuple[Evaluator, Measure], ...]
    total_steps: int
    every_steps: int
    best_metric: str
    data: EvaluationData
    file: ResultsFile | None = None

    def recorded_in(self, directory: str | os.PathLike[str], start_step: int) -> Evaluation:
        """The same, with its results in a run's workdir, which goes on after `start_step`."""
        if jax.process_index():  # Process 0 writes.
            return self
        return dataclasses.replace(self, file=ResultsFile(directory, start_step))

    def check_same(self) -> None:
        """Raises DataError, in every process, unless all have equally many evaluation examples."""
        for kind, opened in (("evaluation", self.data.opened), ("training", self.data.fitted)):
            for names, examples in opened.items():
                what = f"{kind} examples of {' '.join(names).strip()}"
                distributed.check_same(what, len(examples))

    def due(self, step: int) -> list[tuple[Evaluator, Measure]]:
        """The evaluators that measure the state after update `step`."""

        def is_due(evaluator: Evaluator) -> bool:
            every = evaluator.every_steps or self.every_steps
            return step == self.total_steps or (every > 0 and step % every == 0)

        return [pair for pair in self.measures if is_due(pair[0])]

    def measure(self, step: int, state: TrainState, frozen: dict) -> Results:
        """The results of those due at `step`, for the parameters and for their averages if any."""
        numbers: dict[str, float] = {}
        pictures: dict[str, np.ndarray] = {}
        parts = {"": state.params} if state.ema is None else {"": state.params, AVERAGED: state.ema}
        known = {**frozen, **state.objective}
        for suffix, params in parts.items():  # So that features of one are kept, not of both.
            for evaluator, measure in self.due(step):
                start = time.monotonic()
                results = measure(params, known)
                self._record(evaluator, results.numbers, step, suffix, time.monotonic() - start)
                prefix = f"{evaluator.prefix}{suffix}"
                numbers |= {f"{prefix}/{name}": value for name, value in results.numbers.items()}
                pictures |= {f"{prefix}/{name}": image for name, image in results.pictures.items()}
        return Results(numbers, pictures)

    def _record(
        self,
        evaluator: Evaluator,
        numbers: dict[str, float],
        step: int,
        suffix: str,
        seconds: float,
    ) -> None:
        if self.file is not None:
            averaged, data = bool(suffix), self.data.config
            self.file.append(
                describe_result(
                    evaluator, data, numbers, step=step, averaged=averaged, seconds=seconds
                )
            )


def open_evaluation(experiment: Experiment, data: ConfigDict) -> Evaluation:
    """The evaluators that `config.evaluators` lists, by default the objective's own.

    Args:
      experiment: the run.
      data: its `config.data`, with a folder for indices.

    Raises:
      UserError: they cannot be read, their data cannot be used, or none measures the best metric.
    """
    config, setting = experiment.config, experiment.setting(data)
    evaluators = read_evaluators(config.evaluators or experiment.objective.EVALUATORS)
    check_head(evaluators, experiment.options)
    best_metric = measured_metric(config, setting, evaluators)
    if config.stop_after and not (best_metric and experiment.durations.eval_every):
        raise ConfigError(
            f"config.stop_after={config.stop_after} counts evaluations without a better best_metric: "
            "set config.eval_every_steps, and name one that is measured in config.best_metric."
        )
    return Evaluation(
        measures=tuple((evaluator, evaluator.bind(setting)) for evaluator in evaluators),
        total_steps=experiment.durations.total,
        every_steps=experiment.durations.eval_every,
        best_metric=best_metric,
        data=setting.data,
    )


def wanted_metric(config: ConfigDict) -> str:
    """The metric that `config.best_metric` asks for; with "-" before it, the lowest is best.

    "auto" is the objective's own, of the averages if there are any.
    """
    if config.best_metric != AUTO:
        return config.best_metric
    own, slash, name = find_objective(config.objective.name).BEST_METRIC.partition("/")
    return f"{own}{AVERAGED if config.ema_decay else ''}{slash}{name}"


def measured_metric(config: ConfigDict, setting: Setting, evaluators: Sequence[Evaluator]) -> str:
    """The metric by which a checkpoint is the best, as `wanted_metric`; "": none is.

    Raises ConfigError if no evaluator measures the metric that `config.best_metric` names.
    """
    measured = [
        f"{evaluator.prefix}{suffix}/{name}"
        for evaluator in evaluators
        for suffix in ("", AVERAGED)[: 2 if config.ema_decay else 1]
        for name in evaluator.metrics(setting)
    ]
    wanted = wanted_metric(config)
    if not wanted or wanted.removeprefix("-") in measured:
        return wanted
    if config.best_metric == AUTO:  # Other evaluators than the objective's were asked for.
        logger.info("No evaluator measures %s: no best checkpoint is kept.", wanted)
        return ""
    raise ConfigError(
        f"config.best_metric={wanted!r} is not measured in this run: choose auto, one of "
        f"{', '.join(measured)}, one of these with - before it for the lowest, or '' to keep no best "
        "checkpoint."
    )


@contextlib.contextmanager
def saved_if_it_fails(
    step: int, state: TrainState, log: StepLog, checkpoints: Checkpoints
) -> Iterator[None]:
    """Saves the state before an evaluator's error ends the run; lets evaluators move data freely."""
    try:
        with jax.transfer_guard("allow"):
            yield
    except NonFiniteLossError:  # Of a state that should not be gone on from.
        raise
    except Exception:
        logger.error("An evaluator failed: the state after step %d is saved.", step)
        log.flush()
        checkpoints.save(step, state, {})
        raise
