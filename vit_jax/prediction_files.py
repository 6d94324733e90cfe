"""Predictions, and the formats that they are written in."""

import contextlib
import csv
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Iterable
from typing import NamedTuple, TextIO

from vit_jax.data.sources.contents import IMAGE_EXTENSIONS
from vit_jax.errors import ConfigError
from vit_jax.escaping import csv_row, printable, six_digits


class RankedClass(NamedTuple):
    """One of a picture's most probable classes."""

    index: int  # type: ignore[assignment]  # Tuples have a method of that name.
    name: str  # the index, where the model names no classes
    probability: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A picture's classes, the most probable first, or its numbers; none, but an error, if it cannot
    be read."""

    path: str  # "[3]" of what has none, the fourth of all
    classes: tuple[RankedClass, ...]
    error: str = ""
    values: tuple[tuple[str, float], ...] = ()  # (name, number) of a model that predicts numbers


@dataclasses.dataclass(frozen=True)
class Columns:
    """What all predictions of a model have.

    Attributes:
      top_k: classes, at most.
      values: the names of numbers, of a model that predicts these.
    """

    top_k: int
    values: tuple[str, ...] = ()


def write_text(file: TextIO, predictions: Iterable[Prediction], columns: Columns) -> None:
    """Writes `PATH: CLASS (98.76%), ...` a line, or `PATH: NAME 1.234, ...`."""
    del columns
    for prediction in predictions:
        told = [f"{name} ({probability:.2%})" for _, name, probability in prediction.classes]
        told += [f"{name} {value:.6g}" for name, value in prediction.values]
        answer = f"error: {prediction.error}" if prediction.error else ", ".join(told) or "none"
        print(printable(f"{prediction.path}: {answer}"), file=file, flush=True)


def write_csv(file: TextIO, predictions: Iterable[Prediction], columns: Columns) -> None:
    """Writes a header, then a row for each file."""
    writer = csv.writer(file, lineterminator="\n")
    ranks = ((f"class_{n}", f"index_{n}", f"probability_{n}") for n in range(1, columns.top_k + 1))
    header = ["path", "error", *(columns.values or itertools.chain.from_iterable(ranks))]
    writer.writerow(csv_row(header))
    for prediction in predictions:
        ranked = ((name, index, six_digits(p)) for index, name, p in prediction.classes)
        cells = [prediction.path, prediction.error, *itertools.chain.from_iterable(ranked)]
        cells += [six_digits(value) for _, value in prediction.values]
        writer.writerow(csv_row(cells) + [""] * (len(header) - len(cells)))
        file.flush()


def write_jsonl(file: TextIO, predictions: Iterable[Prediction], columns: Columns) -> None:
    """Writes an object a line: path, error (null if there is none), classes or values."""
    for prediction in predictions:
        classes = [
            {"class": name, "index": index, "probability": float(f"{p:.6g}")}
            for index, name, p in prediction.classes
        ]
        values = {name: float(f"{value:.6g}") for name, value in prediction.values}
        told = {"values": values} if columns.values else {"classes": classes}
        row = {"path": prediction.path, "error": prediction.error or None, **told}
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
        print(printable(text), file=file, flush=True)  # It says the same to a JSON reader.


ENDINGS = {".txt": "text", ".csv": "csv", ".jsonl": "jsonl"}  # Of files -> their format.
FORMATS: dict[str, Callable[[TextIO, Iterable[Prediction], Columns], None]] = {
    "text": write_text,
    "csv": write_csv,
    "jsonl": write_jsonl,
}


def open_output(path: str | None) -> contextlib.AbstractContextManager[TextIO]:
    """The file to write, or standard output: as UTF-8, whatever bytes are in file names."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
        return contextlib.nullcontext(sys.stdout)
    if path.lower().endswith(IMAGE_EXTENSIONS):
        raise ConfigError(f"--output={path} would be taken for a picture: name it otherwise.")
    try:
        return open(path, "w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"--output={path} cannot be written: {error.strerror}.") from error
