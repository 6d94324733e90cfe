"""A row for each image, as CSV or Parquet, and the worst images as a picture."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vit_jax import storage
from vit_jax.data.images import sheet
from vit_jax.data.sources.examples import Example, Source
from vit_jax.errors import ConfigError
from vit_jax.escaping import csv_row, six_digits
from vit_jax.evaluators.judgements import Answers

SEVERAL = "|"  # Between the classes of an image that has several.


def check_ending(path: str) -> None:
    """Raises ConfigError unless a file's name says a format that can be written."""
    if path and _ending(path) not in WRITERS:
        raise ConfigError(f"rows={path!r}: name it NAME.csv or NAME.parquet.")


def write_answers(path: str, found: Answers, source: Source, names: Sequence[str]) -> None:
    """Writes path, label, prediction, probability and margin of each image.

    Args:
      path: ends in .csv or .parquet.
      found: the answers.
      source: of the images, which names them.
      names: of the classes of labels and predictions.

    Raises ConfigError if it cannot be written.
    """
    columns = {
        "path": [source.name_of(index) for index in found.index.tolist()],
        "label": [describe_label(label, names) for label in found.label],
        "prediction": [_name(prediction, names) for prediction in found.prediction.tolist()],
        "probability": found.probability,
        "margin": found.margin,
    }
    try:
        storage.write(storage.expand(path), WRITERS[_ending(path)](columns))
    except OSError as error:
        raise ConfigError(f"rows={path!r} cannot be written: {error.strerror or error}.") from error


def _csv(columns: dict[str, Any]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    shown = {name: _rounded(values) for name, values in columns.items()}
    writer.writerows(csv_row(row) for row in zip(*shown.values(), strict=True))
    return text.getvalue().encode("utf-8", "surrogateescape")


def _rounded(values: Any) -> Any:
    return [*map(six_digits, values)] if isinstance(values, np.ndarray) else values


def _parquet(columns: dict[str, Any]) -> bytes:
    import pyarrow  # Takes half a second.
    from pyarrow import parquet

    def readable(values: Any) -> Any:  # Arrow's texts are UTF-8; names of files may not be.
        if isinstance(values, np.ndarray):
            return values
        return [text.encode("utf-8", "backslashreplace").decode() for text in values]

    content = io.BytesIO()
    table = pyarrow.table({name: readable(values) for name, values in columns.items()})
    parquet.write_table(table, content)
    return content.getvalue()


WRITERS: dict[str, Callable[[dict[str, Any]], bytes]] = {".csv": _csv, ".parquet": _parquet}


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lower()


def draw_worst(
    found: Answers,
    count: int,
    source: Source,
    names: Sequence[str],
    transform: Callable[[Any], np.ndarray],
) -> np.ndarray:
    """The images with the smallest margins, worst first, each over label, prediction, probability.

    Args:
      found: the answers.
      count: so many images, fewer where there are not as many.
      source: of the images.
      names: of the classes.
      transform: (encoded file or uint8 [H, W, C]) -> [h, w, C] in 0 … 255.
    """
    worst = np.argsort(found.margin, kind="stable")[:count]
    examples = source.fetch(found.index[worst].tolist())
    images, captions = [], []
    for row, example in zip(worst.tolist(), examples, strict=True):
        if not isinstance(example, Example):
            continue
        images.append(transform(example.image))
        captions.append(
            [
                describe_label(found.label[row], names),
                f"{found.probability[row]:.0%} {_name(int(found.prediction[row]), names)}",
            ]
        )
    return sheet.draw(sheet.as_pixels(np.stack(images)), captions)


def describe_label(label: np.ndarray, names: Sequence[str]) -> str:
    """The name of an image's class, or of all that it has."""
    numbers = np.flatnonzero(label).tolist() if np.ndim(label) else [int(label)]
    return SEVERAL.join(_name(number, names) for number in numbers)


def _name(number: int, names: Sequence[str]) -> str:
    """A class's name; empty for one that the data does not have."""
    return names[number] if number >= 0 else ""
