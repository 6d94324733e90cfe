"""Files of records, a JSON object a line: `metrics.jsonl` and `results.jsonl` of a run."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from vit_jax import storage

logger = logging.getLogger(__name__)


def read_records(path: str) -> list[dict[str, Any]]:
    """The records of a file, none if there is no file; a line that is no whole one is left out."""
    records = []
    content = storage.read(path) if storage.exists(path) else b""
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict) and isinstance(record.get("step"), int | None):
            records.append(record)
        else:
            logger.warning("Left out of %s a line that is no whole record: %.60r", path, line)
    return records


def write_records(path: str, records: list[dict[str, Any]]) -> None:
    """Writes a file of records, whole or not at all; raises OSError if it cannot."""
    storage.write(path, b"".join(map(_line, records)))


def append_record(path: str, record: dict[str, Any]) -> None:
    """Adds a record, which is on disk when this returns; raises OSError if it cannot.

    Stores cannot append: there the file is written anew.
    """
    if storage.is_remote(path):
        write_records(path, [*read_records(path), record])
        return
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        line, size = _line(record), os.fstat(descriptor).st_size
        if size and os.pread(descriptor, 1, size - 1) != b"\n":  # A kill cut the last one.
            line = b"\n" + line
        os.write(descriptor, line)  # One call: a kill cuts one line at most.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _line(record: dict[str, Any]) -> bytes:
    return json.dumps(storage.without_nan(record)).encode() + b"\n"
