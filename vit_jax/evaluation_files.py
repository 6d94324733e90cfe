"""The results of `python -m vit_jax.evaluate`: a row of its table, and its files."""

import contextlib
import csv
import dataclasses
import io
import json
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from PIL import Image

from vit_jax import storage
from vit_jax.errors import ConfigError
from vit_jax.escaping import csv_row, printable
from vit_jax.evaluators.base import Results
from vit_jax.evaluators.results import FILE_NAME
from vit_jax.records import append_record

logger = logging.getLogger("vit_jax")

COLUMNS = ("model", "checkpoint", "data", "images", "accuracy", "top-5", "loss", "images/s")


@dataclasses.dataclass(frozen=True)
class Result:
    """The measures of one model on one source; a row of the table and of the CSV file."""

    model: str
    checkpoint: int | None  # the step; None if `model` is no workdir
    ema: bool
    parameters: int
    image_size: str  # height x width
    source: str
    split: str  # empty: the source's own evaluation split
    count: int | None  # of readable images; None, as the next three, where others were measured
    unreadable: int
    accuracy: float | None
    top5_accuracy: float | None  # None with five classes or fewer
    loss: float | None
    images_per_second: float
    metrics: dict[str, float]  # every evaluator's: "eval/accuracy", ...; not in the CSV file

    @property
    def origin(self) -> str:
        """The source, and the split if it is not the source's own."""
        return f"{self.source} {self.split}".strip()


def as_percent(value: float | None) -> str:
    """A share for the table."""
    return "–" if value is None else f"{value:.2%}"


def table_row(models: Sequence[str], origins: Sequence[str]) -> str:
    """The format of the table's rows, as wide as the names in it."""
    width = max(len(printable(model)) for model in models)
    data_width = max(len(printable(origin)) for origin in origins)
    return f"{{:{width}}}  {{:14}}  {{:{data_width}}}" + "  {:>8}" * 5


def cells(result: Result) -> tuple[str, ...]:
    """A row of the table."""
    return (
        printable(result.model),
        f"{result.checkpoint or '–'}{' average' * result.ema}",
        printable(result.origin),
        "–" if result.count is None else f"{result.count:,}",
        as_percent(result.accuracy),
        as_percent(result.top5_accuracy),
        "–" if result.loss is None else f"{result.loss:.4f}",
        f"{result.images_per_second:,.0f}",
    )


def write_json(path: str, results: Sequence[Result]) -> None:
    """Writes a list of objects; what is not a number is null."""
    rows = storage.without_nan([*map(vars, results)])
    storage.write(path, f"{json.dumps(rows, indent=2)}\n".encode())


def write_csv(path: str, results: Sequence[Result]) -> None:
    """Writes a row for each result under a header."""
    names = [field.name for field in dataclasses.fields(Result) if field.name != "metrics"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(csv_row(getattr(each, name) for name in names) for each in results)
    storage.write(path, text.getvalue().encode("utf-8", "surrogateescape"))


def write_results(results: Sequence[Result], json_file: str, csv_file: str) -> None:
    """Writes the files asked for; raises ConfigError if one cannot be."""
    for flag, path, write in (("json", json_file, write_json), ("csv", csv_file, write_csv)):
        if path:
            with _naming(flag, path):
                write(path, results)


def check_results(json_file: str, csv_file: str) -> None:
    """Raises ConfigError if a file could not be written; one that is there stays as it is."""
    for flag, path in (("json", json_file), ("csv", csv_file)):
        if path:
            with _naming(flag, path):
                storage.check_writable(path)


@contextlib.contextmanager
def _naming(flag: str, path: str) -> Iterator[None]:
    """Has an error of the system name the flag that names the file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"--{flag}={path} cannot be written: {error.strerror or error}."
        ) from error


def append_to_run(workdir: str, record: dict[str, Any]) -> None:
    """Adds a result to a run's own; where that cannot be written, says so."""
    try:
        append_record(storage.join(workdir, FILE_NAME), record)
    except OSError as error:
        logger.warning("%s keeps no record of this: %s.", workdir, error.strerror or error)


def write_pictures(folder: str, prefix: str, results: Results) -> None:
    """Writes an evaluator's pictures as PREFIX_NAME.png; raises ConfigError if it cannot."""
    for name, picture in results.pictures.items() if folder else ():
        png = io.BytesIO()
        Image.fromarray(picture).save(png, "PNG")
        try:
            storage.write(storage.join(folder, f"{prefix}_{name}.png"), png.getvalue())
        except OSError as error:
            raise ConfigError(
                f"--pictures={folder} cannot be written: {error.strerror or error}."
            ) from error
