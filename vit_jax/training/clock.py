"""A run's time: what it was spent on, and how fast training goes."""

import enum
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vit_jax.console import format_duration

STEPS_IN_FLIGHT = 2  # The host dispatches so many steps ahead of the metrics that it reads.
TIME = "time/"  # Of metrics that are seconds of wall time, by `Kind`, over all starts of the run.


class Kind(enum.StrEnum):
    """Everything that a run's wall time is spent on: each moment is of one kind."""

    START = "start"  # From the process's start: imports, meeting peers, data, the state.
    COMPILE = "compile"
    STEPS = "steps"
    DATA_WAIT = "data_wait"  # The next batch was not there yet.
    EVALUATION = "evaluation"
    SAVING = "saving"  # While training waits for it.
    LOST = "lost"  # To restarts: what was recorded after the checkpoint that the run went on from.


class Clock:
    """The wall time of a run by kind, in seconds; it begins as `Kind.START`.

    Steps run asynchronously: block on the last step's result before another kind begins, or its
    time is counted as that.
    """

    def __init__(
        self,
        now: Callable[[], float] = time.monotonic,
        *,
        since: float | None = None,
        before: Mapping[Kind, float] | None = None,
    ):
        """`since`: its beginning, by default now; `before`: what earlier starts of the run took."""
        self._now = now
        self._kind, self.changed = Kind.START, now() if since is None else since
        self._spent = dict.fromkeys(Kind, 0.0)
        self._before = {**self._spent, **(before or {})}

    def begin(self, kind: Kind) -> None:
        """From here on, time is of this kind. Each call is a sign of life: see `changed`."""
        now = self._now()
        self._spent[self._kind] += now - self.changed
        self._kind, self.changed = kind, now

    @contextmanager
    def spending(self, kind: Kind) -> Iterator[None]:
        """The time inside is of this kind, whatever it is around it."""
        around = self._kind
        self.begin(kind)
        try:
            yield
        finally:
            self.begin(around)

    def spent(self, kind: Kind) -> float:
        """The seconds of one kind since this start."""
        running = self._now() - self.changed if kind == self._kind else 0.0
        return self._spent[kind] + running

    @property
    def seconds(self) -> float:
        """Of training since this start: steps, and waiting for their data."""
        return self.spent(Kind.STEPS) + self.spent(Kind.DATA_WAIT)

    def metrics(self) -> dict[str, float]:
        """The seconds of each kind over all starts of the run, as "time/steps"."""
        return {f"{TIME}{kind}": self._before[kind] + self.spent(kind) for kind in Kind}


def spent_before(kept: Mapping[str, float], cut: Mapping[str, float]) -> dict[Kind, float]:
    """What earlier starts of a run took.

    Args:
      kept: the last values of the records up to the checkpoint that it goes on from.
      cut: the same with those that came after it, which are lost.
    """
    before = {kind: kept.get(f"{TIME}{kind}") or 0.0 for kind in Kind}
    seconds_cut = sum(cut.get(f"{TIME}{kind}") or 0.0 for kind in Kind)
    before[Kind.LOST] += max(0.0, seconds_cut - sum(before.values()))
    return before


def describe(metrics: Mapping[str, float]) -> str:
    """`Clock.metrics` in a line, the largest first."""
    total = sum(metrics.values())
    largest_first = sorted(metrics.items(), key=lambda item: -item[1])
    parts = [
        f"{name.removeprefix(TIME).replace('_', ' ')} {seconds / total:.1%}"
        for name, seconds in largest_first
        if seconds >= 0.0005 * total > 0
    ]
    return f"Wall time {format_duration(total)}: {', '.join(parts) or 'none'}."


_last_end = 0.0


def free_since() -> float:
    """When this process started, or its last run ended, on the clock of `time.monotonic`."""
    return max(time.monotonic() - _process_age(), _last_end)


def end_of_run() -> None:
    """What comes now is the time of this process's next run, as in a sweep."""
    global _last_end
    _last_end = time.monotonic()


def _process_age() -> float:
    """Seconds since this process was started; 0 where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # After the boot.
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - start)
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0


@dataclass(kw_only=True)
class Throughput:
    """Speed between log lines, and cost since step 1."""

    clock: Clock
    batch_size: int  # Images per update, over all processes.
    total_steps: int
    num_devices: int  # Of all processes.
    flops_per_image: float  # Forward and backward, nothing recomputed.
    peak_flops: float | None = None  # Of one device (`hardware.peak_flops`); None: no MFU.
    device_hours: float = 0.0  # Spent before this start (`MetricsWriter.last_values`).
    _mark: tuple[int, float, float] | None = field(default=None, init=False)

    def start(self, step: int) -> None:
        """Measures speed from here: `step` is done."""
        self._mark = step, self.clock.seconds, self.clock.spent(Kind.DATA_WAIT)

    def metrics(self, step: int) -> dict[str, float]:
        """Metrics at the end of `step`, with speeds since the last call.

        Speeds are left out where none was measured: before `start`, or at its step.
        """
        seconds, data_wait = self.clock.seconds, self.clock.spent(Kind.DATA_WAIT)
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
