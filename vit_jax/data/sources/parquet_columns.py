"""Which columns of Parquet files are the images and labels, and the small ones of them, read whole.

Hugging Face's `datasets` describes columns in the schema's metadata: images, and labels with the
names of their classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import ml_collections
import numpy as np
import pyarrow as pa

from vit_jax import storage
from vit_jax.data.sources.columns import read_columns
from vit_jax.data.sources.parquet_pages import open_parquet
from vit_jax.data.sources.splits import abbreviate
from vit_jax.errors import ConfigError, DataError
from vit_jax.kinds import shown

_METADATA = b"huggingface"  # The key in a schema's metadata.
_IMAGES = ("image", "img", "jpg", "png")  # Where the metadata does not say which it is.
_LABELS = ("label", "labels", "class", "cls")
_THREADS = 16  # They wait for a disk or a store.


class Layout(NamedTuple):
    """The columns that are read."""

    image: str  # its path in the schema: of files' contents, or of their names
    label: str
    class_names: tuple[str, ...]  # as the metadata has them; empty: it has none
    holds_paths: bool  # whether `image` holds the names of files


class Labels(NamedTuple):
    """The labels of some rows, as they are written."""

    values: np.ndarray  # int64 [labels]: numbers of classes, or of `words`
    counts: np.ndarray | None  # int64 [rows], how many each row has; None: one
    words: tuple[str, ...]  # empty: `values` are numbers of classes

    @property
    def highest(self) -> int:
        """The highest of `values`; -1: there are none."""
        return int(self.values.max(initial=-1))


def layout_of(paths: Sequence[str], columns: str) -> Layout:
    """The columns of the first of some files.

    Args:
        paths: of the files.
        columns: `config.data.columns`: what they are called, "" for what is found.

    Raises:
        ConfigError: `columns` names a kind that Parquet files have not.
        DataError: there is none that can be meant, or several.
    """
    file = open_parquet(paths[0])
    schema, named = file.schema_arrow, read_columns(columns)
    if "split" in named:
        raise ConfigError(
            f"config.data.columns={columns!r}: the splits of Parquet files go by the files' names."
        )
    if others := sorted(named.keys() - {"path", "label", "labels"}):
        raise ConfigError(
            f"config.data.columns={columns!r}: {others[0]} is of manifests; name path and label."
        )
    features = _features(schema)
    image = named.get("path") or _find(paths[0], "path", schema, _kinds(features, "Image"), _IMAGES)
    label = named.get("label") or named.get("labels")
    label = label or _find(paths[0], "label", schema, _kinds(features, "ClassLabel"), _LABELS)
    kind = _type_at(schema, image, paths[0])
    holds_paths = _is_text(kind)
    if pa.types.is_struct(kind):  # {bytes, path}, of which one is there.
        inside = "path" if _all_absent(file, f"{image}.bytes") else "bytes"
        image, holds_paths = f"{image}.{inside}", inside == "path"
        kind = _type_at(schema, image, paths[0])
    if not (_is_text(kind) if holds_paths else _is_binary(kind)):
        raise DataError(
            f"{paths[0]}: column {image} is {kind}; expected the bytes of image files, or their paths. "
            "Name another with --config.data.columns=path=COLUMN."
        )
    _type_at(schema, label, paths[0])
    return Layout(image, label, _class_names(features.get(label)), holds_paths)


def read_labels(paths: Sequence[str], layout: Layout) -> Labels:
    """The labels of all rows of some files; raises DataError for what is none."""
    import pyarrow.compute as pc  # Takes a fifth of a second, and few commands need it.

    words: dict[str, int] = {}
    parts, counts = [], []
    first: pa.DataType | None = None
    for path, column in zip(paths, _read_columns(paths, layout.label), strict=True):
        where = f"{path}: column {layout.label}"
        if column.null_count:
            row = int(np.flatnonzero(column.is_null())[0])
            raise DataError(f"{path}: row {row:,} has no label in column {layout.label}.")
        first = column.type if first is None else first
        if _form(column.type) != _form(first):
            raise DataError(f"{where} is {column.type}, but {first} in {paths[0]}.")
        if _form(column.type)[0]:
            counts.append(np.asarray(pc.list_value_length(column)).astype(np.int64))
            column = pc.list_flatten(column)
            if column.null_count:
                label = int(np.flatnonzero(column.is_null())[0])
                row = int(np.searchsorted(np.cumsum(counts[-1]), label, side="right"))
                raise DataError(f"{path}: row {row:,} has a label that is none in {layout.label}.")
        parts.append(_numbers(column, words, where))
    values = np.concatenate([np.empty(0, np.int64), *parts])
    return Labels(values, np.concatenate(counts) if counts else None, tuple(words))


def _form(kind: pa.DataType) -> tuple[bool, bool]:
    """Whether a column has lists, and whether it or they have text."""
    several = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    inner = kind.value_type if several else kind
    inner = inner.value_type if pa.types.is_dictionary(inner) else inner
    return several, _is_text(inner)


def _numbers(column: pa.Array, words: dict[str, int], where: str) -> np.ndarray:
    """A column of whole numbers, or of text by the numbers of `words`, which grows: int64 [N]."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type):
        return np.asarray(column.cast(pa.int64()))
    if not _is_text(column.type):
        raise DataError(
            f"{where} is {column.type}; expected whole numbers, text, or lists of them."
        )
    encoded = column.dictionary_encode()
    numbers = [words.setdefault(word, len(words)) for word in encoded.dictionary.to_pylist()]
    return np.array(numbers, np.int64)[np.asarray(encoded.indices)]


def read_paths(
    paths: Sequence[str], layout: Layout, data: ml_collections.ConfigDict
) -> Iterator[str]:
    """The image files that the rows of some Parquet files name, relative to each file's folder.

    Raises DataError for a URL of a kind that `data.protocols` lacks: the data may be of others.
    """
    for path, column in zip(paths, _read_columns(paths, layout.image), strict=True):
        folder = path.rpartition("/")[0]
        for row, name in enumerate(column.to_pylist()):
            protocol = storage.protocol_of(name or "")
            if not name or protocol not in ("", *data.protocols):
                problem = f"a URL of {shown(protocol)}" if name else "no path"
                raise DataError(
                    f"{path}: row {row:,} has {problem} in column {layout.image}; expected an image "
                    f"file, or a URL of {', '.join(data.protocols)} (config.data.protocols)."
                )
            yield name if protocol or name.startswith("/") else storage.join(folder, name)


def _read_columns(paths: Sequence[str], column: str) -> Iterator[pa.Array]:
    """A column of each file."""
    with ThreadPoolExecutor(_THREADS) as threads:
        yield from threads.map(lambda path: read_column(path, column), paths)


def read_column(path: str, column: str) -> pa.Array:
    """All values of a column of a file; `column` is its path in the schema."""
    import pyarrow.compute as pc  # As above.

    file = open_parquet(path)
    _type_at(file.schema_arrow, column, path)
    try:
        name, *inside = _steps(file.schema_arrow, column)
        values = file.read(columns=[column])[name].combine_chunks()
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: column {column} cannot be read ({error}).") from error
    for field in inside:
        values = pc.struct_field(values, field)
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


# ------------------------------------------------------------------------------- what is meant


def _features(schema: pa.Schema) -> dict[str, Any]:
    """What `datasets` says of each column; empty if it did not write the file."""
    try:
        return json.loads((schema.metadata or {})[_METADATA])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return {}


def _kinds(features: dict[str, Any], kind: str) -> list[str]:
    """The columns of one kind, or with lists of it."""
    return [name for name, feature in features.items() if _inner(feature).get("_type") == kind]


def _inner(feature: Any) -> dict[str, Any]:
    """The description of a column's values, or of those in its lists."""
    if isinstance(feature, list) and feature:
        return _inner(feature[0])
    if not isinstance(feature, dict):
        return {}
    return _inner(feature["feature"]) if "feature" in feature else feature


def _class_names(feature: Any) -> tuple[str, ...]:
    names = _inner(feature).get("names")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def _find(
    path: str, name: str, schema: pa.Schema, described: Sequence[str], usual: Sequence[str]
) -> str:
    """The only column that the metadata describes so, else the first of the usual names."""
    candidates = list(described)
    if len(candidates) == 1:
        return candidates[0]
    for known in usual:
        if known in (candidates or schema.names):
            return known
    raise DataError(
        f"{path}: which column is the {'image' if name == 'path' else 'label'}? There are "
        f"{abbreviate(candidates or schema.names, 20)}: name it with "
        f"--config.data.columns={name}=COLUMN."
    )


def _type_at(schema: pa.Schema, column: str, path: str) -> pa.DataType:
    """The type of a column by its path; raises DataError if there is none."""
    kind: Any = pa.struct(list(schema))
    for name in _steps(schema, column):
        if not pa.types.is_struct(kind) or kind.get_field_index(name) < 0:
            raise DataError(
                f"{path} has no column {column}; there are {abbreviate(schema.names, 20)}."
            )
        kind = kind.field(name).type
    return kind


def _steps(schema: pa.Schema, column: str) -> list[str]:
    """A column's path as names: the schema's, which may have dots in it, and those inside of it."""
    parts = column.split(".")
    for count in range(len(parts), 0, -1):
        if (name := ".".join(parts[:count])) in schema.names:
            return [name, *parts[count:]]
    return parts


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _is_binary(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _all_absent(file: Any, column: str) -> bool:
    """Whether no row of a file has a value in a column, as its footer says."""
    names = [file.schema.column(number).path for number in range(len(file.schema.names))]
    if column not in names:
        return True
    groups = range(file.metadata.num_row_groups)
    chunks = [file.metadata.row_group(group).column(names.index(column)) for group in groups]
    return all(
        chunk.statistics is not None and chunk.statistics.null_count == chunk.num_values
        for chunk in chunks
    )
