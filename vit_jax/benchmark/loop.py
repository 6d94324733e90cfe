"""The training loop, with its input, its metrics and its log; nothing is evaluated or saved."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Generator, Mapping
from contextlib import closing
from typing import Any, cast

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax.benchmark.speed import SYNTHETIC, Speed, Timing, compile_program, grouped
from vit_jax.benchmark.step import open_experiment, speed_of, synthetic_batch
from vit_jax.checkpoint import Checkpoints
from vit_jax.data.dataset import Batch
from vit_jax.records import read_records
from vit_jax.train import Tools, train
from vit_jax.training.clock import STEPS_IN_FLIGHT, TIME, Clock, Kind
from vit_jax.training.early_stopping import Patience
from vit_jax.training.evaluation import Evaluation
from vit_jax.training.experiment import Experiment
from vit_jax.training.profiling import Profiler
from vit_jax.training.state import initial_state, load_frozen
from vit_jax.training.step import TrainStep
from vit_jax.training.step_log import open_log

UNLIMITED = 10**9  # Updates: time ends the loop.
WAITING = f"{TIME}{Kind.DATA_WAIT}"
TRAINING = (f"{TIME}{Kind.STEPS}", WAITING)


class SyntheticExperiment(Experiment):
    """A run whose batches are one and the same, on the devices already."""

    def batches(self, start: int, stop: int | None = None) -> Generator[Batch]:
        """See `Experiment.batches`."""
        batch = synthetic_batch(self)
        while True:
            yield batch


@dataclasses.dataclass(frozen=True)
class Ready:
    """A step that is compiled before the loop asks for it."""

    compiled: jax.stages.Compiled

    def lower(self, *arguments: Any) -> Ready:
        """As of a jitted function."""
        return self

    def compile(self) -> jax.stages.Compiled:
        """As of a lowered one."""
        return self.compiled


class NoCheckpoints:
    """Takes the loop's checkpoints, and saves none."""

    latest_step = 0

    def is_best(self, numbers: Mapping[str, float]) -> bool:
        """None is."""
        return False

    def save(self, *arguments: Any) -> None:
        """Nothing."""


class NoEvaluation:
    """Evaluates nothing."""

    def due(self, step: int) -> list:
        """None is."""
        return []


@dataclasses.dataclass
class UntilMeasured:
    """Ends the loop once it has trained for long enough, and has written enough records."""

    clock: Clock
    seconds: float
    steps: int
    over: bool = False

    def see(self, step: int, numbers: Mapping[str, float]) -> None:
        """Called after every update."""
        self.over = step >= self.steps and self.clock.seconds >= self.seconds


def endless(experiment: Experiment, data: str) -> Experiment:
    """The run without an end, on its data or on a synthetic batch."""
    made = SyntheticExperiment if data == SYNTHETIC else Experiment
    fields = {field.name: getattr(experiment, field.name) for field in dataclasses.fields(made)}
    durations = dataclasses.replace(experiment.durations, total=UNLIMITED)
    return made(**{**fields, "durations": durations})


def speeds_of(records: list[dict[str, Any]], repeats: int) -> tuple[tuple[float, ...], float]:
    """Images/s of intervals between records, joined to so many, and the share of waiting for data.

    The first two records, of the first step and of the interval in which the loop got going, only
    begin the others.
    """
    marks = records[1:]
    images = np.diff([record["train/examples"] for record in marks])
    seconds = np.diff([sum(record[name] for name in TRAINING) for record in marks])
    waiting = np.diff([record[WAITING] for record in marks])
    speeds = grouped(images.tolist(), seconds.tolist(), repeats)
    return speeds, float(waiting.sum() / seconds.sum())


def measure_loop(config: ConfigDict, data: str, timing: Timing) -> Speed:
    """Trains as `vit_jax.main` does; the repeats are intervals between records.

    Raises:
      UserError: the config or its data cannot be used.
    """
    experiment = endless(open_experiment(config, data), data)
    state = initial_state(experiment.initialize, config.seed, experiment.state)
    frozen = load_frozen(experiment.objective, experiment.frozen)
    compiled, program = compile_program(experiment.step, state, frozen, experiment.batch)
    experiment = dataclasses.replace(experiment, step=cast(TrainStep, Ready(compiled)))
    with tempfile.TemporaryDirectory() as directory:
        with closing(open_log(experiment, directory, 0)) as log:
            steps = config.log_every_steps * (timing.repeats + 1) + STEPS_IN_FLIGHT + 1
            tools = Tools(
                cast(Evaluation, NoEvaluation()),
                cast(Checkpoints, NoCheckpoints()),
                log,
                Profiler(config.profile, directory),
                cast(Patience, UntilMeasured(log.clock, timing.seconds, steps)),
                lambda: False,
            )
            train(experiment, state, frozen, tools)
        records = read_records(os.path.join(directory, "metrics.jsonl"))
    repeats, waiting = speeds_of(records, timing.repeats)
    return speed_of(
        experiment,
        what="train",
        data=data,
        repeats=repeats,
        first_step_seconds=sum(records[0][f"{TIME}{kind}"] for kind in Kind),
        program=program,
        flops_per_image=experiment.flops_per_image,
        data_wait=waiting,
    )
