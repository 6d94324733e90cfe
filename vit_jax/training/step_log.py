"""Reports of the training loop: each step's metrics, read late, so that no device waits."""

import logging
import math
import os
from collections import deque
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from vit_jax.config import resolved
from vit_jax.console import Console, format_line, python_command
from vit_jax.devices import hardware
from vit_jax.errors import DataError, NonFiniteLossError
from vit_jax.training import clock as clocks
from vit_jax.training.clock import STEPS_IN_FLIGHT, Clock, Kind, Throughput
from vit_jax.training.experiment import Experiment
from vit_jax.training.metrics_files import MetricsWriter
from vit_jax.writers import Writers, open_writers

logger = logging.getLogger(__name__)

SLOW_DATA = 0.25  # Share of the time spent waiting for data from which on advice is given.


def open_log(
    experiment: Experiment, directory: str | os.PathLike[str], start_step: int
) -> "StepLog":
    """The log of a run in its workdir, which goes on after `start_step` updates."""
    config, dataset = experiment.config, experiment.dataset
    names = config.log.writers if jax.process_index() == 0 else ()
    trackers = open_writers(names, directory, config.log.project, resolved(config))
    return StepLog(
        directory,
        start_step=start_step,
        total_steps=experiment.durations.total,
        every_steps=config.log_every_steps,
        batch_size=config.batch_size,
        num_train_examples=dataset.num_examples,
        flops_per_image=experiment.flops_per_image,
        max_skipped=config.data.max_skipped if dataset.skipping else None,
        trackers=trackers,
    )


class StepLog:
    """Checks every step's loss, and reports each interval's to console and files."""

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        start_step: int,
        total_steps: int,
        every_steps: int,
        batch_size: int,
        num_train_examples: int,
        flops_per_image: int,
        max_skipped: float | None = None,
        trackers: Writers | None = None,
    ):
        """Opens the files.

        Args:
          directory: the workdir.
          start_step: completed updates; 0 for a new run.
          total_steps: when the run ends.
          every_steps: how often to report.
          batch_size: images per update.
          num_train_examples: that make an epoch.
          flops_per_image: of an update.
          max_skipped: share of the examples that may be unreadable; None: they are errors anyway.
          trackers: get the same metrics and pictures as the files; of process 0 alone.
        """
        is_writer = jax.process_index() == 0
        self._writer = MetricsWriter(
            directory, start_step=start_step, is_writer=is_writer, trackers=trackers
        )
        self._console = Console(total_steps, start_step, is_writer)
        before = clocks.spent_before(self._writer.last_values, self._writer.cut_values)
        self.clock = Clock(since=clocks.free_since(), before=before)
        self._throughput = Throughput(
            clock=self.clock,
            batch_size=batch_size,
            total_steps=total_steps,
            num_devices=jax.device_count(),
            flops_per_image=flops_per_image,
            peak_flops=hardware.peak_flops(jax.devices()[0]),
            device_hours=self._writer.last_values.get("train/device_hours") or 0.0,
        )
        self._total_steps, self._every_steps = total_steps, every_steps
        self._batch_size, self._num_train_examples = batch_size, num_train_examples
        self._max_skipped = max_skipped
        self._num_skipped = int(self._writer.last_values.get("data/skipped") or 0)
        self._advised = False
        self._in_flight: deque[tuple[int, dict[str, jax.Array]]] = deque()
        self.last_record: dict[str, Any] = dict(self._writer.last_record)

    def start(self, step: int) -> None:
        """Measures speed from here: `step` updates are done, and the program is compiled."""
        self.clock.begin(Kind.STEPS)
        self._throughput.start(step)

    def add(self, step: int, metrics: dict[str, jax.Array]) -> None:
        """Takes the metrics of the step just dispatched, and reports those of an earlier one.

        Raises NonFiniteLossError, naming the step, if that one's loss or gradient is not finite;
        DataError if more examples were skipped by then than may be.
        """
        self._in_flight.append((step, metrics))
        if len(self._in_flight) > STEPS_IN_FLIGHT:
            self._report(*self._in_flight.popleft())
        self._writer.complete_before(step)  # No evaluation joins an earlier step's record any more.

    def drain(self) -> None:
        """Reports every step so far: after it, all their losses are known to be finite."""
        while self._in_flight:
            self._report(*self._in_flight.popleft())

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds an evaluation's metrics to the record of `step`."""
        self._record(step, metrics)
        numbers = "  ".join(f"{name} {value:.5g}" for name, value in metrics.items())
        self._console.line(f"step {step}: {numbers}")

    def write_image(self, step: int, name: str, image: np.ndarray) -> None:
        """Writes an image, uint8 [H, W, C], to TensorBoard and, as a PNG file, to the workdir."""
        self._writer.write_image(step, name, image)

    def flush(self) -> None:
        """Returns when everything reported is on disk."""
        self._writer.flush()

    def spending(self, kind: Kind) -> AbstractContextManager[None]:
        """The time inside is of this kind; see `Clock`."""
        return self.clock.spending(kind)

    def close(self) -> None:
        """Closes the files, and says what the run's time was spent on."""
        self._console.close()
        clocks.end_of_run()
        logger.info("%s", clocks.describe(self.clock.metrics()))
        self._writer.close()

    def _report(self, step: int, metrics: dict[str, jax.Array]) -> None:
        values = {f"train/{name}": value.item() for name, value in jax.device_get(metrics).items()}
        loss, grad_norm = values["train/loss"], values["train/grad_norm"]
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            raise NonFiniteLossError(
                f"The loss of step {step} is {loss}, its gradient's norm {grad_norm}. Starting again "
                "from the last checkpoint with a lower config.optimizer.learning_rate, a longer "
                "warm-up or config.optimizer.grad_clip_norm=1 usually helps."
            )
        self._count_skipped(step, values.pop("train/skipped"))
        self._console.update(step)
        if step % self._every_steps and step not in (1, self._total_steps):
            return
        values["train/epoch"] = step * self._batch_size / self._num_train_examples
        memory = hardware.device_memory_bytes(jax.local_devices()[0])
        if memory is not None:
            values["train/device_memory_bytes"] = memory
        values.update(self._throughput.metrics(step))
        if self._max_skipped is not None:
            values["data/skipped"] = self._num_skipped
        self._record(step, values)
        self._console.line(format_line(step, self._total_steps, values))
        self._advise(values.get("train/data_wait", 0.0))

    def _count_skipped(self, step: int, count: int) -> None:
        """Adds to the examples that could not be read; every process has the same count."""
        self._num_skipped += count
        epochs = math.ceil(step * self._batch_size / self._num_train_examples)
        seen = epochs * self._num_train_examples
        if self._max_skipped is not None and self._num_skipped > self._max_skipped * seen:
            raise DataError(
                f"{self._num_skipped:,} examples could not be read up to step {step}, more than "
                f"config.data.max_skipped={self._max_skipped} of {seen:,}: the log names each. Repair "
                "them, or allow more."
            )

    def _advise(self, data_wait: float) -> None:
        """Says once what helps where the devices wait for data."""
        if data_wait > SLOW_DATA and not self._advised:
            self._advised = True
            logger.warning(
                "%.0f %% of the time since the last line went into waiting for data. `%s` with this "
                "run's --config and keys shows where it goes; more cores, --config.data.num_workers, "
                "--config.data.cache_gib, smaller files (`vit_jax.prepare`) or fewer augmentations help.",
                100 * data_wait,
                python_command("-m", "vit_jax.benchmark", "input"),
            )

    def _record(self, step: int, metrics: Mapping[str, float]) -> None:
        """Writes metrics, with what all time so far was spent on."""
        metrics = {**metrics, **self.clock.metrics()}
        self._writer.write(step, metrics)
        if self.last_record.get("step") != step:
            self.last_record = {"step": step}
        self.last_record.update(metrics)
