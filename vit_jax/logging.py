"""Everything a run writes besides checkpoints: metrics files, the console, and the time it took.

`metrics.jsonl` and the TensorBoard events hold the same numbers. Both survive a kill at any
moment: a run that resumes from step *s* cuts what came after *s*, so no step appears twice.
"""

import io
import json
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from etils import epath
from PIL import Image
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tqdm import tqdm

logger = logging.getLogger(__name__)


def setup_logging(process_index: int = 0) -> None:
    """Sends log messages to stderr: ours from INFO, other libraries' from WARNING.

    Processes other than 0 report warnings only, marked with their index. May be called again.
    """
    mark = f"[process {process_index}] " if process_index else ""
    handler = _ConsoleHandler()
    handler.setFormatter(
        logging.Formatter(f"%(levelname).1s %(asctime)s {mark}%(message)s", datefmt="%H:%M:%S")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax and Grain log through absl.
    level = logging.WARNING if process_index else logging.INFO
    logging.getLogger("vit_jax").setLevel(level)


class _ConsoleHandler(logging.Handler):
    """Writes to stderr, above the progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)


class Console:
    """A run's lines on the console, and a progress bar where stderr is a terminal."""

    def __init__(self, total_steps: int, start_step: int = 0, is_writer: bool = True):
        self._bar = tqdm(
            total=total_steps,
            initial=start_step,
            unit="step",
            dynamic_ncols=True,
            leave=False,
            disable=not (is_writer and sys.stderr.isatty()),
        )

    def line(self, text: str) -> None:
        """Logs one line at INFO; the bar stays below it."""
        logger.info(text)

    def update(self, step: int) -> None:
        """Moves the bar to `step`."""
        self._bar.update(step - self._bar.n)

    def close(self) -> None:
        """Removes the bar."""
        self._bar.close()


class MetricsWriter:
    """Writes a run's metrics to `metrics.jsonl` and to TensorBoard events in its workdir.

    A step's metrics make one record, however many calls of `write` bring them: the record is
    written when a later step's metrics arrive, or at `flush`. Values keep their full precision
    (a float32 read back compares equal); JSON has no NaN or infinity, so these become `null`
    there, and stay themselves in TensorBoard.

    Args:
        workdir: the run's directory, local or on an object store (`gs://…`). Object stores
            cannot append: there `metrics.jsonl` is rewritten at each `flush`.
        start_step: the step that the run starts or resumes from. Records of later steps, and a
            half-written last line, are cut; at 0 the file starts empty.
        is_writer: whether this process writes; others only read the last records.

    Attributes:
        last_record: the last record up to `start_step`; empty for a new run.
        last_values: the last value of every metric, from which cumulative ones go on.
    """

    def __init__(self, workdir: str | os.PathLike[str], *, start_step: int, is_writer: bool = True):
        self.last_record: dict[str, Any] = {}
        self.last_values: dict[str, Any] = {}
        self._is_writer = is_writer
        self._record: dict[str, Any] = {}
        self._workdir = workdir = epath.Path(workdir)
        path = workdir / "metrics.jsonl"
        lines, self.last_record, self.last_values = _read_up_to(path, start_step)
        if not is_writer:
            return
        self._next_step = self.last_record.get("step", -1) + 1
        self._lines = _LinesFile(path, lines)
        self._events = _open_events(workdir / "tensorboard", start_step)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Adds scalar `metrics` to the record of `step`.

        Raises:
            ValueError: the record of `step` or of a later one is written already.
        """
        if not self._is_writer:
            return
        open_step = self._record.get("step", self._next_step)
        if step < open_step:
            raise ValueError(
                f"Metrics of step {step} came after a record that cannot change any more: "
                f"expected step {open_step} or later."
            )
        if step > open_step:
            self._write_record()
        self._record["step"] = step
        self._record.update({name: _as_number(value) for name, value in metrics.items()})

    def write_image(self, step: int, name: str, image: np.ndarray) -> None:
        """Writes `image`, uint8 [H, W, C], to TensorBoard, and to the workdir as a PNG file.

        The file of "train/batch" is `batch.png`.
        """
        if not self._is_writer:
            return
        self._write_event(step, summary.image(name, image, dataformats="HWC"))
        png = io.BytesIO()
        Image.fromarray(image).save(png, "PNG")
        (self._workdir / f"{name.rpartition('/')[2]}.png").write_bytes(png.getvalue())

    def write_text(self, step: int, name: str, text: str) -> None:
        """Writes `text` (Markdown) to TensorBoard."""
        if self._is_writer:
            self._write_event(step, summary.text(name, text))

    def flush(self) -> None:
        """Completes the current record and returns when all records are on disk."""
        if not self._is_writer:
            return
        self._write_record()
        self._lines.flush()
        self._events.flush()

    def close(self) -> None:
        """Flushes and closes the files."""
        if not self._is_writer:
            return
        self.flush()
        self._lines.close()
        self._events.close()

    def _write_record(self) -> None:
        if not self._record:
            return
        values = {n: v if math.isfinite(v) else None for n, v in self._record.items()}
        self._lines.append(json.dumps(values).encode() + b"\n")
        step = self._record.pop("step")
        scalars = [Summary.Value(tag=n, simple_value=v) for n, v in self._record.items()]
        self._write_event(step, Summary(value=scalars))
        self._record, self._next_step = {}, step + 1

    def _write_event(self, step: int, value: Summary) -> None:
        self._events.write_event(Event(step=step, wall_time=time.time(), summary=value))


def _as_number(value: Any) -> float | int:
    """A Python number of equal value from a scalar of Python, NumPy or JAX."""
    return value.item() if hasattr(value, "item") else value


def _read_up_to(
    path: epath.Path, last_step: int
) -> tuple[list[bytes], dict[str, Any], dict[str, Any]]:
    """The lines of `path` that are whole records of steps to `last_step`.

    With them the last record, and the last value of every metric.
    """
    lines, last_record, last_values = [], {}, {}
    content = path.read_bytes() if last_step > 0 and path.exists() else b""
    for line in content.splitlines():
        try:
            record = json.loads(line)
            keep = record["step"] <= last_step
        except (ValueError, KeyError, TypeError):
            logger.warning("Dropped from %s a line that is no whole record: %.60r", path, line)
            continue
        if keep:
            lines.append(line + b"\n")
            last_record = record
            last_values |= record
    return lines, last_record, last_values


class _LinesFile:
    """A text file that grows by lines; made anew, atomically, with `lines`."""

    def __init__(self, path: epath.Path, lines: list[bytes]):
        self._path = path
        self._remote_lines = lines
        self._descriptor = None
        path.parent.mkdir(parents=True, exist_ok=True)
        if "://" in os.fspath(path):
            self.flush()
            return
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            file.write(b"".join(lines))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)

    def append(self, line: bytes) -> None:
        if self._descriptor is None:
            self._remote_lines.append(line)
        else:
            os.write(self._descriptor, line)  # One call: a kill cuts one line at most.

    def flush(self) -> None:
        if self._descriptor is None:
            self._path.write_bytes(b"".join(self._remote_lines))
        else:
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def _open_events(directory: epath.Path, start_step: int) -> EventsWriter:
    """A new event file that tells TensorBoard to drop older files' events after `start_step`.

    tensorboardX's `SummaryWriter` writes from a queue that its `flush` does not wait for; its
    `EventsWriter` writes at once.
    """
    directory.mkdir(parents=True, exist_ok=True)
    # Names carry whole seconds, and a name used twice would overwrite the first file.
    writer = EventsWriter(os.path.join(directory, "events"), f".{time.time_ns()}")
    purge_step = start_step + 1 if start_step else 0
    start = SessionLog(status=SessionLog.START)
    writer.write_event(Event(step=purge_step, wall_time=time.time(), session_log=start))
    return writer


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


def format_count(value: float) -> str:
    """Three digits and a suffix: 950, 1.23k, 45.6M, 7.89B."""
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * unit:  # What rounds to 1000 takes the next suffix.
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """The two largest units: 45s, 3m12s, 2h05m, 3d04h."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


# The console's columns in their order: metric -> text.
_COLUMNS: dict[str, Callable[[float], str]] = {
    "train/epoch": "epoch {:.2f}".format,
    "train/loss": "loss {:.4f}".format,
    "train/learning_rate": "lr {:.2e}".format,
    "train/grad_norm": "grad {:5.3g}".format,
    "train/images_per_second": lambda value: f"{format_count(value):>5} img/s",
    "train/mfu": "MFU {:5.1%}".format,
    "train/data_wait": "data wait {:5.1%}".format,
    "train/device_memory_bytes": lambda value: f"mem {value / 2**30:.1f} GiB",
    "train/examples": lambda value: f"{format_count(value):>5} examples",
    "train/device_hours": lambda value: f"{format_count(value)} device-h",
    "train/exaflops": lambda value: f"{format_count(value)} exaFLOPs",
    "train/eta_seconds": lambda value: f"ETA {format_duration(value)}",
}


def format_line(step: int, total_steps: int, metrics: Mapping[str, float]) -> str:
    """One console line: known metrics in a fixed order, then others as "name value"."""
    columns = [f"step {step:>{len(str(total_steps))}}/{total_steps}"]
    columns += [text(metrics[name]) for name, text in _COLUMNS.items() if name in metrics]
    columns += [f"{name} {metrics[name]:.4g}" for name in metrics if name not in _COLUMNS]
    return " | ".join(columns)


def parameter_overview(params: Mapping[str, Any]) -> str:
    """A table of parameters: name, shape, dtype, size, and the total.

    Args:
        params: nested dict of arrays or `jax.ShapeDtypeStruct`s. If all are float32 arrays that
            this process holds whole, the table has their mean and standard deviation too.
    """
    from clu import parameter_overview  # Slow to import.

    def has_stats(leaf: Any) -> bool:
        whole = isinstance(leaf, np.ndarray) or getattr(leaf, "is_fully_addressable", False)
        return whole and leaf.dtype == np.float32  # clu sums in the array's own precision.

    include_stats = all(map(has_stats, jax.tree.leaves(params)))
    return parameter_overview.get_parameter_overview(params, include_stats=include_stats)
