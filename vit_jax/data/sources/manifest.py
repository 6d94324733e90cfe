"""The source `manifest:FILE`: image files and their labels in a table, CSV or JSON lines.

    path      relative to the manifest, or absolute, or a URL
    label     the class, by name or by number
    labels    instead of it: any number of classes; in CSV joined by ";", in JSON a list
    target    instead of it: a number to predict
    targets   instead of it: several numbers; in CSV joined by ";", in JSON a list
    split     optional: train, validation, test or another name in `split_names`; without
              it a fraction is held out

Other columns are ignored. `config.data.columns` says which they are where they have other names.
"""

from __future__ import annotations

import array
import csv
import dataclasses
import functools
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TextIO

import ml_collections
import numpy as np

from vit_jax import storage
from vit_jax.data.sources.columns import ANSWERS, NAMES, read_columns, renamed
from vit_jax.data.sources.examples import LabelSets, Source, Targets
from vit_jax.data.sources.holding_out import Pool, held_out, hold_out
from vit_jax.data.sources.listing import natural_order
from vit_jax.data.sources.names import ImageFiles, Names
from vit_jax.data.sources.split_names import SPLITS, find_by_purpose
from vit_jax.data.sources.splits import (
    Shape,
    Splits,
    abbreviate,
    uniform_hash,
    with_synonyms,
)
from vit_jax.data.sources.targets import (
    read_target,
    read_targets,
    same_length,
    target_names,
)
from vit_jax.data.sources.views import Subset
from vit_jax.errors import ConfigError, DataError
from vit_jax.kinds import shown

LISTS = {"labels", "targets"}  # Columns that CSV joins by ";".
TARGETS = ("target", "targets")
_MOST_CLASSES = 1 << 20  # A number beyond it is an identifier rather than a class's number.


class Row(NamedTuple):
    """An image in a manifest."""

    line: int
    path: str
    labels: Sequence[str]
    split: str | None
    single: bool  # whether the column is `label`
    targets: Sequence[float] = ()  # numbers to predict instead of labels


@dataclasses.dataclass(frozen=True)
class Table:
    """A manifest as arrays, in the order of its paths' hashes, so that any slice is a fair sample."""

    file: str
    paths: Names  # [N]
    hashes: np.ndarray  # float64 [N], `uniform_hash` of the paths
    lines: np.ndarray  # int64 [N]
    splits: np.ndarray  # int8 [N], by the order of `SPLITS`; -1: there is no such column
    labels: LabelSets  # [N], numbers of `words`
    words: tuple[str, ...]  # the labels as they are written
    single: bool  # whether the column is `label`
    protocols: dict[str, int]  # of the paths -> the first line with each
    targets: np.ndarray  # float32 [N, D], numbers to predict instead of labels; D is 0 where none


def manifest(location: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """The splits of the manifest `location`, a path or URL; the training split's classes serve them all.

    Labels that are whole numbers, all of them, are classes' numbers, below the model's number of
    classes if that is known. Others are names, and the classes are in natural order.

    Raises:
        ConfigError: the file is neither .csv nor .jsonl.
        DataError: it cannot be read or understood, or names a URL of a kind that
            `data.protocols` lacks; the message names the line.
    """
    key = f"config.data.source=manifest:{location}"
    suffix = os.path.splitext(location)[1].lower()
    if suffix not in _READERS:
        raise ConfigError(f"{key}: expected a file that ends in {' or '.join(_READERS)}.")
    file = os.path.expanduser(location)
    if not storage.probe(file, key) or storage.is_folder(file):
        raise DataError(f"{key}: no such file.")
    table = _read_table(file, storage.version_of(file), data.columns)
    _check_protocols(table, data.protocols)
    if table.targets.shape[1]:
        return _splits_of_targets(table, data)
    training = _training_images(table, data)
    classes, numbers = _classes(table, training, shape.num_classes)
    least = 2 if table.single else 1
    if _training_split(table) is not None and len(classes) < least:
        raise DataError(
            f"{file}: for training, need images of at least {least} classes, found only "
            f"{', '.join(classes) or 'none'}."
        )
    labels: np.ndarray | LabelSets = numbers[table.labels.classes]
    if not table.single:
        labels = LabelSets(labels, table.labels.ends, len(classes))
    images = ImageFiles(os.path.dirname(file), table.paths, labels, classes)

    def open_part(indices: np.ndarray) -> Source:
        _check_classes(table, indices, classes, numbers)
        return Subset(images, indices)

    return _splits(table, open_part, data)


def _splits_of_targets(table: Table, data: ml_collections.ConfigDict) -> Splits:
    """The splits of a manifest with numbers to predict."""
    columns, count = read_columns(data.columns), table.targets.shape[1]
    column = next((columns[name] for name in TARGETS if name in columns), "target")
    names, targets = target_names(column, count), Targets(table.targets)
    images = ImageFiles(os.path.dirname(table.file), table.paths, targets, names)
    return _splits(table, lambda indices: Subset(images, indices), data)


def _splits(
    table: Table, open_part: Callable[[np.ndarray], Source], data: ml_collections.ConfigDict
) -> Splits:
    """The splits that the lines name, or those that some images are held out for."""
    if table.splits[0] < 0:
        splits = hold_out(lambda: _pool(table), open_part, data, table.file)
    else:
        splits = {
            SPLITS[number]: functools.partial(open_part, np.flatnonzero(table.splits == number))
            for number in np.unique(table.splits)
        }
    return with_synonyms(splits)


def _pool(table: Table) -> Pool:
    return Pool(table.hashes, table.labels.classes if table.single else table.labels, table.words)


def _training_images(table: Table, data: ml_collections.ConfigDict) -> np.ndarray:
    """The images, by index, whose classes are the model's: all, where none is for training."""
    if table.splits[0] < 0:
        return np.flatnonzero(~held_out(_pool(table), data))
    split = _training_split(table)
    return np.arange(len(table.paths)) if split is None else np.flatnonzero(table.splits == split)


def _training_split(table: Table) -> int | None:
    """The number of the split for training, -1 where no line names one; None: all are for another."""
    if table.splits[0] < 0:
        return -1
    name = find_by_purpose([SPLITS[number] for number in np.unique(table.splits)], "train")
    return SPLITS.index(name) if name else None


# ------------------------------------------------------------------------------------- classes


def _classes(
    table: Table, training: np.ndarray, num_classes: int
) -> tuple[tuple[str, ...], np.ndarray]:
    """The classes of the images at `training`, and the class of each word, -1 for none of them."""
    known = np.unique(table.labels.take(training).classes)
    if not all(re.fullmatch(r"0|-?[1-9]\d*", word) for word in table.words):
        classes = tuple(sorted((table.words[word] for word in known), key=natural_order))
        known_names = {name: number for number, name in enumerate(classes)}
        return classes, np.array([known_names.get(word, -1) for word in table.words], np.int32)
    # Of a number without end, its first digits say enough.
    values = np.array([min(int(word[:20]), _MOST_CLASSES) for word in table.words])
    if bad := [word for word, value in enumerate(values) if not 0 <= value < _MOST_CLASSES]:
        raise DataError(
            f"{_where(table, bad[0])}: label {table.words[bad[0]]} is no class number: all labels are "
            f"numbers here, so they must lie between 0 and {_MOST_CLASSES:,}. Name the classes by text."
        )
    count = num_classes or int(values[known].max(initial=-1)) + 1
    numbers = np.where(values < count, values, -1).astype(np.int32)
    return tuple(map(str, range(count))), numbers


def _check_classes(
    table: Table, members: np.ndarray, classes: tuple[str, ...], numbers: np.ndarray
) -> None:
    """Raises DataError if an image of a split has a class that the training split lacks."""
    words = np.unique(table.labels.take(members).classes)
    if len(unknown := words[numbers[words] < 0]):
        raise DataError(
            f"{_where(table, unknown[0])}: the class {table.words[unknown[0]]!r} is none of the "
            f"{len(classes):,} classes of the training split: {abbreviate(classes)}."
        )


def _check_protocols(table: Table, allowed: Sequence[str]) -> None:
    """Raises DataError for a URL of another kind: the manifest may be of somebody else."""
    for protocol, line in table.protocols.items():
        if protocol not in ("", *allowed):
            raise DataError(
                f"{table.file}:{line}: a URL of {shown(protocol)}: beside local files a manifest may "
                f"name URLs of {', '.join(allowed) or 'no kind'}. If you trust it, add to "
                "config.data.protocols."
            )


def _where(table: Table, word: int) -> str:
    """The file and the first line with a word."""
    found = np.flatnonzero(table.labels.classes == word)
    rows = np.searchsorted(table.labels.ends, found, side="right")
    return f"{table.file}:{table.lines[rows].min()}"


# ------------------------------------------------------------------------------------- reading


@functools.lru_cache(maxsize=1)  # A run opens two splits of it.
def _read_table(file: str, version: storage.Version, columns: str) -> Table:
    del version  # Only tells one content from another.
    words: dict[str, int] = {}
    labels, ends, lines = array.array("i"), array.array("q"), array.array("q")
    hashes, splits, single = array.array("d"), array.array("b"), array.array("b")
    protocols: dict[str, int] = {}
    targets, width = array.array("f"), 0

    def paths() -> Iterator[str]:
        nonlocal width
        for row in _read_rows(file, read_columns(columns)):
            width = same_length(row.targets, width, f"{file}:{row.line}")
            targets.extend(row.targets)
            labels.extend(words.setdefault(label, len(words)) for label in row.labels)
            ends.append(len(labels))
            lines.append(row.line)
            hashes.append(uniform_hash(row.path))
            splits.append(-1 if row.split is None else SPLITS.index(row.split))
            single.append(row.single)
            protocols.setdefault(storage.protocol_of(row.path), row.line)
            yield row.path

    names = Names.of(paths())
    if not names:
        raise DataError(f"{file} lists no images.")
    order = np.argsort(np.array(hashes), kind="stable")
    sets = LabelSets(np.array(labels, np.int32), np.array(ends, np.int64), len(words))
    table = Table(
        file,
        names.take(order),
        np.array(hashes)[order],
        np.array(lines, np.int64)[order],
        np.array(splits, np.int8)[order],
        sets.take(order),
        tuple(words),
        all(single),
        protocols,
        np.array(targets, np.float32).reshape(len(names), width)[order],
    )
    _check_unique(table)
    return table


def _check_unique(table: Table) -> None:
    for row in np.flatnonzero(np.diff(table.hashes) == 0).tolist():
        path = table.paths[row]
        if path == table.paths[row + 1]:
            first, second = table.lines[row : row + 2]
            raise DataError(
                f"{table.file}:{second}: {path} is on line {first} already: give each image one line."
            )


def _read_rows(file: str, columns: dict[str, str]) -> Iterator[Row]:
    try:
        content = storage.read(file)
    except OSError as error:
        raise DataError(f"{file} cannot be read ({storage.reason_of(error)}).") from error
    suffix = os.path.splitext(file)[1].lower()
    expected: dict[str, bool] = {}  # Which of the columns there are.
    try:
        with io.TextIOWrapper(io.BytesIO(content), "utf-8-sig", newline="") as text:
            for line, read in _READERS[suffix](text, file):
                where = f"{file}:{line}"
                cells = renamed(read, columns, where)
                for name in LISTS & cells.keys() if suffix == ".csv" else ():
                    cells[name] = [part for part in cells[name].split(";") if part.strip()]
                expected = expected or _columns(cells, where)
                yield _row(line, cells, expected, where)
    except UnicodeDecodeError:
        try:
            content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = content.count(b"\n", 0, error.start) + 1
            raise DataError(f"{file}:{line}: this is no UTF-8 text; save it as UTF-8.") from None


def _columns(cells: dict[str, Any], where: str) -> dict[str, bool]:
    found = {name: name in cells for name in NAMES}
    if found["label"] or found["labels"]:  # Then a column called target is one of the others.
        found |= {"target": False, "targets": False}
    if not found["path"] or sum(found[name] for name in ANSWERS) != 1:
        raise DataError(
            f"{where}: expected path, and one of {', '.join(ANSWERS)}, and perhaps split; there are "
            f"{', '.join(map(str, cells)) or 'none'}. Name them with config.data.columns, such as "
            "path=image,label=breed."
        )
    return found


def _row(line: int, cells: dict[str, Any], expected: dict[str, bool], where: str) -> Row:
    for name, there in expected.items():
        if (there and name not in cells) or (name in cells and not there and name not in TARGETS):
            raise DataError(f"{where}: {name!r} must be in every line or in none.")
    path, split = cells["path"], cells.get("split")
    if not isinstance(path, str) or not path or "\0" in path:
        raise DataError(f"{where}: path is {path!r}, expected the name of a file.")
    try:
        os.fsencode(path)
    except UnicodeEncodeError:  # JSON can spell halves of characters.
        raise DataError(f"{where}: path is {path!r}, which is no text.") from None
    if expected["split"]:
        split = _split(split, where)
    if expected["label"]:
        return Row(line, path, (_word(cells["label"], where),), split, True)
    if expected["target"]:
        return Row(line, path, (), split, False, (read_target(cells["target"], where),))
    if expected["targets"]:
        return Row(line, path, (), split, False, read_targets(cells["targets"], where))
    if not isinstance(cells["labels"], list):
        raise DataError(f"{where}: labels is {cells['labels']!r}, expected a list.")
    labels = dict.fromkeys(_word(label, where) for label in cells["labels"])
    return Row(line, path, tuple(labels), split, False)


def _split(split: Any, where: str) -> str:
    name = split.strip().casefold() if isinstance(split, str) else ""
    if name not in SPLITS:
        raise DataError(f"{where}: split is {split!r}, expected one of {', '.join(SPLITS)}.")
    return name


def _word(label: Any, where: str) -> str:
    if isinstance(label, int) and not isinstance(label, bool):
        return str(label)
    if not isinstance(label, str) or not label.strip():
        raise DataError(f"{where}: label is {label!r}, expected a class's name or number.")
    return label.strip()


def _read_csv(text: TextIO, file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(text, strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        for row in reader:
            if not row:
                continue
            if len(row) != len(header):
                raise DataError(
                    f"{file}:{reader.line_num}: {len(row)} fields, but the first line has "
                    f"{len(header)}; a field with a comma in it must be in quotes."
                )
            cells = dict(zip(header, row, strict=True))
            yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(f"{file}:{reader.line_num}: cannot be read as CSV ({error}).") from error


def _read_jsonl(text: TextIO, file: str) -> Iterator[tuple[int, dict[str, Any]]]:
    for line, content in enumerate(text, start=1):
        if not content.strip():
            continue
        try:
            cells = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{file}:{line}: cannot be read as JSON ({error}).") from error
        if not isinstance(cells, dict):
            raise DataError(
                f'{file}:{line}: expected an object, {{"path": "1.jpg", "label": "cat"}} say.'
            )
        yield line, cells


_READERS: dict[str, Callable[[TextIO, str], Iterator[tuple[int, dict[str, Any]]]]] = {
    ".csv": _read_csv,
    ".jsonl": _read_jsonl,
}
