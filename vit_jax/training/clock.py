"""A run's time: what of it is training, and how fast that goes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


class Clock:
    """Training time: wall time less what passes inside `paused`.

    Steps run asynchronously: block on the last step's result before pausing, or its time is lost.
    """

    def __init__(self, now: Callable[[], float] = time.monotonic):
        self._now = now
        self._start = now()
        self._paused = 0.0
        self.data_wait = 0.0  # Seconds of the training time spent inside `waiting_for_data`.

    @property
    def seconds(self) -> float:
        """Training seconds so far."""
        return self._now() - self._start - self._paused

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leaves out the time inside: compilation, evaluation, checkpoints. Not to be nested."""
        start = self._now()
        try:
            yield
        finally:
            self._paused += self._now() - start

    @contextmanager
    def waiting_for_data(self) -> Iterator[None]:
        """Counts the time inside as training time spent waiting for the next batch."""
        start = self._now()
        try:
            yield
        finally:
            self.data_wait += self._now() - start


@dataclass(kw_only=True)
class Throughput:
    """Speed between log lines, and cost since step 1."""

    clock: Clock
    batch_size: int  # Images per update, over all processes.
    total_steps: int
    num_devices: int  # Of all processes.
    flops_per_image: float  # Forward and backward: 6 × multiply-accumulates of the forward pass.
    peak_flops: float | None = None  # Of one device (`hardware.peak_flops`); None: no MFU.
    device_hours: float = 0.0  # Spent before this start (`MetricsWriter.last_values`).
    _mark: tuple[int, float, float] | None = field(default=None, init=False)

    def start(self, step: int) -> None:
        """Measures speed from here: `step` is done, and its compilation was left out."""
        self._mark = step, self.clock.seconds, self.clock.data_wait

    def metrics(self, step: int) -> dict[str, float]:
        """Metrics at the end of `step`, with speeds since the last call.

        Speeds are left out where none was measured: before `start`, or at its step.
        """
        seconds, data_wait = self.clock.seconds, self.clock.data_wait
        images = step * self.batch_size
        metrics = {
            "train/examples": images,
            "train/device_hours": self.device_hours + seconds * self.num_devices / 3600,
            "train/exaflops": images * self.flops_per_image / 1e18,
        }
        last_step, last_seconds, last_wait = self._mark or (step, seconds, data_wait)
        self.start(step)
        elapsed, steps = seconds - last_seconds, step - last_step
        if steps <= 0 or elapsed <= 0:
            return metrics
        speed = steps * self.batch_size / elapsed
        metrics["train/images_per_second"] = speed
        metrics["train/data_wait"] = (data_wait - last_wait) / elapsed
        metrics["train/eta_seconds"] = (self.total_steps - step) * elapsed / steps
        if self.peak_flops:
            peak = self.peak_flops * self.num_devices
            metrics["train/mfu"] = speed * self.flops_per_image / peak
        return metrics
