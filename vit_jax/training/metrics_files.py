"""A run's metrics files.

`metrics.jsonl` and the TensorBoard events hold the same numbers. Both survive a kill at any
moment: a run that resumes from step *s* cuts what came after *s*, so no step appears twice.
"""

import io
import json
import logging
import math
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from PIL import Image
from tensorboardX import summary
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from vit_jax import storage
from vit_jax.writers import Writers

EVENTS = "tensorboard"  # In the workdir.
FLUSH_SECONDS = 30.0  # After the last flush, a record is brought to the disk at once.

logger = logging.getLogger(__name__)


class MetricsWriter:
    """Writes a run's metrics to `metrics.jsonl` and to TensorBoard events in its workdir.

    A step's metrics make one record, however many calls of `write` bring them: the record is
    written when a later step's metrics arrive, or at `flush`. Values keep their full precision
    (a float32 read back compares equal); JSON has no NaN or infinity, so these become `null`
    there, and stay themselves in TensorBoard.

    Args:
        workdir: the run's directory, local or on an object store (`gs://…`). Object stores
            cannot append: there `metrics.jsonl` is rewritten at each `flush`, and with the first
            record after `FLUSH_SECONDS`.
        start_step: the step that the run starts or resumes from. Records of later steps, and a
            half-written last line, are cut; at 0 the file starts empty.
        is_writer: whether this process writes; others only read the last records.
        trackers: get the same metrics and pictures; closed with the files.

    Attributes:
        last_record: the last record up to `start_step`; empty for a new run.
        last_values: the last value of every metric, from which cumulative ones go on.
        cut_values: the same with the records that were cut.
    """

    def __init__(
        self,
        workdir: str | os.PathLike[str],
        *,
        start_step: int,
        is_writer: bool = True,
        trackers: Writers | None = None,
    ):
        self._is_writer = is_writer
        self._trackers = trackers or Writers({})
        self._record: dict[str, Any] = {}
        self._flushed = -math.inf
        self._workdir = os.fspath(workdir)
        path = storage.join(self._workdir, "metrics.jsonl")
        self.last_record: dict[str, Any] = {}
        self.last_values: dict[str, Any] = {}
        self.cut_values: dict[str, Any] = {}
        lines = []
        for line, record in read_records(path):
            self.cut_values |= record
            if record["step"] <= start_step:
                lines.append(line)
                self.last_record = record
                self.last_values |= record
        if not is_writer:
            return
        self._next_step = self.last_record.get("step", -1) + 1
        self._lines = _LinesFile(path, lines)
        self._events = _open_events(storage.join(self._workdir, EVENTS), start_step)

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

    def complete_before(self, step: int) -> None:
        """Writes the current record to the file if it is of an earlier step than this."""
        if self._is_writer and self._record.get("step", step) < step:
            self._write_record()

    def write_image(self, step: int, name: str, image: np.ndarray) -> None:
        """Writes `image`, uint8 [H, W, C], to TensorBoard, and to the workdir as a PNG file.

        The file of "train/batch" is `batch.png`.
        """
        if not self._is_writer:
            return
        self._write_event(step, summary.image(name, image, dataformats="HWC"))
        self._trackers.image(step, name, image)
        png = io.BytesIO()
        Image.fromarray(image).save(png, "PNG")
        file = f"{name.rpartition('/')[2]}.png"
        storage.write(storage.join(self._workdir, file), png.getvalue())

    def write_text(self, step: int, name: str, text: str) -> None:
        """Writes `text` (Markdown) to TensorBoard."""
        if self._is_writer:
            self._write_event(step, summary.text(name, text))

    def flush(self) -> None:
        """Completes the current record and returns when all records are on disk."""
        if not self._is_writer:
            return
        self._write_record()
        self._flush()

    def close(self) -> None:
        """Flushes and closes the files."""
        if not self._is_writer:
            return
        self.flush()
        self._lines.close()
        self._events.close()
        self._trackers.close()

    def _write_record(self) -> None:
        if not self._record:
            return
        record, self._record = self._record, {}
        values = {n: v if math.isfinite(v) else None for n, v in record.items()}
        self._lines.append(json.dumps(values).encode() + b"\n")
        step = record.pop("step")
        self._next_step = step + 1
        scalars = [Summary.Value(tag=n, simple_value=v) for n, v in record.items()]
        self._write_event(step, Summary(value=scalars))
        self._trackers.scalars(step, record)
        if time.monotonic() - self._flushed > FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        self._lines.flush()
        with storage.naming(storage.join(self._workdir, EVENTS)):
            self._events.flush()
        self._flushed = time.monotonic()

    def _write_event(self, step: int, value: Summary) -> None:
        self._events.write_event(Event(step=step, wall_time=time.time(), summary=value))


def _as_number(value: Any) -> float | int:
    """A Python number of equal value from a scalar of Python, NumPy or JAX."""
    return value.item() if hasattr(value, "item") else value


def read_records(path: str) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """The lines of `path` that are whole records, with these; none if there is no such file."""
    content = storage.read(path) if storage.exists(path) else b""
    for line in content.splitlines():
        try:
            record = json.loads(line)
            record["step"] + 0
        except (ValueError, KeyError, TypeError):
            logger.warning("Dropped from %s a line that is no whole record: %.60r", path, line)
            continue
        yield line + b"\n", record


class _LinesFile:
    """A text file that grows by lines; made anew, atomically, with `lines`."""

    def __init__(self, path: str, lines: list[bytes]):
        self._path = path
        self._remote_lines = lines
        self._descriptor = None
        storage.write(path, b"".join(lines))
        if not storage.is_remote(path):
            self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)

    def append(self, line: bytes) -> None:
        if self._descriptor is None:
            self._remote_lines.append(line)
            return
        with storage.naming(self._path):
            while line:  # One call; where it could not write all, the next one raises the reason.
                line = line[os.write(self._descriptor, line) :]

    def flush(self) -> None:
        if self._descriptor is None:
            storage.write(self._path, b"".join(self._remote_lines))
            return
        with storage.naming(self._path):
            os.fsync(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)


def _open_events(directory: str, start_step: int) -> EventsWriter:
    """A new event file that tells TensorBoard to drop older files' events after `start_step`.

    tensorboardX's `SummaryWriter` writes from a queue that its `flush` does not wait for; its
    `EventsWriter` writes at once.
    """
    if not storage.is_remote(directory):
        os.makedirs(directory, exist_ok=True)
    # Names carry whole seconds, and a name used twice would overwrite the first file.
    writer = EventsWriter(os.path.join(directory, "events"), f".{time.time_ns()}")
    purge_step = start_step + 1 if start_step else 0
    start = SessionLog(status=SessionLog.START)
    writer.write_event(Event(step=purge_step, wall_time=time.time(), session_log=start))
    return writer
