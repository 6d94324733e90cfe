"""Random access to the values of a column of bytes in Parquet files.

What is small is held in memory. Of what is large, `parquet_pages` says where each value lies.
"""

from __future__ import annotations

import bisect
import itertools
import logging
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from vit_jax.data.sources.parquet_columns import read_column
from vit_jax.data.sources.parquet_pages import ABSENT, PREFIX, PageScan, decompress, open_parquet
from vit_jax.data.sources.record_index import Index, open_index
from vit_jax.data.sources.records import CHANGED, Records, attempt
from vit_jax.errors import DataError

IN_MEMORY = 1 << 28  # Bytes of a split's images, decompressed, that are held in each process.
_LARGE_PAGE = 1 << 21  # Bytes: to decompress them takes as long as decoding an image.

logger = logging.getLogger(__name__)


class Column(Protocol):
    """The values of some files, one file after another; picklable."""

    @property
    def remote(self) -> bool:
        """Whether reading waits for a store."""

    def locate(self, index: int) -> tuple[str, int]:
        """The file of a value, and its row there."""

    def fetch(self, indices: Sequence[int]) -> list[bytes | DataError]:
        """The values at `indices`; what cannot be read stands for itself."""


def open_column(paths: Sequence[str], column: str, index_dir: str) -> Column:
    """The values of a column of bytes.

    Args:
        paths: of the files, local or URLs.
        column: its path in the schema.
        index_dir: where the index of what is large is kept, made once.

    Raises:
        DataError: a file cannot be read, is damaged, or has no such column.
    """
    if sum(_size(path, column) for path in paths) <= IN_MEMORY:
        return ColumnInMemory(tuple(paths), column)
    index = open_index(paths, PageScan(column), index_dir)
    sizes = [size for shard in index.shards if (size := shard["size"].max(initial=0))]
    if sizes and max(sizes) > _LARGE_PAGE:
        logger.warning(
            "%s and others: images lie compressed in pages of up to %.0f MB, and to read one is to "
            "decompress its page. Set --config.data.shuffle=blocks, which reads neighbours together; "
            "or write the data anew with `python -m vit_jax.prepare`.",
            *(paths[0], max(sizes) / 1e6),
        )
    return ColumnInPages(index, column)


def _size(path: str, column: str) -> int:
    """The bytes of a column of a file, decompressed, as its footer says."""
    metadata = open_parquet(path).metadata
    return sum(
        chunk.total_uncompressed_size
        for group in range(metadata.num_row_groups)
        for number in range(metadata.num_columns)
        if (chunk := metadata.row_group(group).column(number)).path_in_schema == column
    )


class _Files:
    """Rows of files by their numbers in all."""

    def __init__(self, paths: Sequence[str], counts: Sequence[int]):
        self._paths = paths
        self._ends = list(itertools.accumulate(counts))

    def locate(self, index: int) -> tuple[int, int]:
        """The number of the file of a row, and its row there."""
        if not 0 <= index < (self._ends or [0])[-1]:
            raise IndexError(index)
        file = bisect.bisect_right(self._ends, index)
        return file, index - (self._ends[file - 1] if file else 0)

    def missing(self, index: int) -> DataError:
        """The error of a row without a value."""
        file, row = self.locate(index)
        return DataError(f"{self._paths[file]}: row {row:,} has no image")


class ColumnInMemory:
    """Values that are all held; pickled, the files' paths. See `Column`."""

    remote = False

    def __init__(self, paths: tuple[str, ...], column: str):
        self._paths, self._column = paths, column
        self._values = [read_column(path, column).cast(pa.large_binary()) for path in paths]
        pa.default_memory_pool().release_unused()  # Reading takes three times as much.
        self._files = _Files(paths, list(map(len, self._values)))

    def locate(self, index: int) -> tuple[str, int]:
        """See `Column`."""
        file, row = self._files.locate(index)
        return self._paths[file], row

    def fetch(self, indices: Sequence[int]) -> list[bytes | DataError]:
        """See `Column`."""
        return [self._value(index) for index in indices]

    def _value(self, index: int) -> bytes | DataError:
        file, row = self._files.locate(index)
        value = self._values[file][row].as_py()
        return self._files.missing(index) if value is None else value

    def __reduce__(self) -> tuple:
        return ColumnInMemory, (self._paths, self._column)


class ColumnInPages:
    """Values that are read where an index says they lie. See `Column`."""

    def __init__(self, index: Index, column: str):
        self._index, self._column = index, column
        self._units = Records(index.paths, index.shards, bytes)
        counts = [len(shard["start"]) for shard in index.shards]
        self._first = np.cumsum([0, *counts[:-1]])  # Units of each file, in all.
        self._files = _Files(index.paths, [len(shard["unit"]) for shard in index.shards])

    @property
    def remote(self) -> bool:
        """Whether the files are a store's."""
        return self._units.remote

    def locate(self, index: int) -> tuple[str, int]:
        """See `Column`."""
        file, row = self._files.locate(index)
        return self._index.paths[file], row

    def fetch(self, indices: Sequence[int]) -> list[bytes | DataError]:
        """See `Column`. Of compressed pages one is held at a time."""
        by_unit: dict[int, list[int]] = {}
        for index in sorted(set(indices)):
            by_unit.setdefault(self._unit(index), []).append(index)
        found = {index: self._files.missing(index) for index in by_unit.pop(ABSENT, ())}
        units = list(by_unit)
        for unit, record in zip(units, self._units.fetch(units), strict=True):
            if self._page_size(unit):
                page = attempt(self._decompressed, record, unit)
                found |= {index: attempt(self._cut, page, index) for index in by_unit[unit]}
            else:
                found |= {index: attempt(self._checked, record, index) for index in by_unit[unit]}
        return [found[index] for index in indices]

    def _unit(self, index: int) -> int:
        """The number of the unit, in all files, that a value lies in."""
        file, row = self._files.locate(index)
        unit = int(self._index.shards[file]["unit"][row])
        return unit if unit == ABSENT else int(self._first[file]) + unit

    def _page_size(self, unit: int) -> int:
        """Bytes of a unit that is a compressed page, decompressed; 0 of others."""
        file, row = self._units.locate(unit)
        return int(self._index.shards[file]["size"][row])

    def _decompressed(self, content: bytes, unit: int) -> bytes:
        file, _ = self._units.locate(unit)
        codec = self._index.shards[file]["codec"].tobytes().decode()
        try:
            return decompress(content, codec, self._page_size(unit))
        except (ValueError, OSError, pa.ArrowException) as error:
            raise DataError(f"{self._changed(file)} ({error})") from error

    def _checked(self, record: bytes, index: int) -> bytes:
        """The value that a record is, after its length."""
        if int.from_bytes(record[:PREFIX], "little") != len(record) - PREFIX:
            raise DataError(self._changed(self._files.locate(index)[0]))
        return record[PREFIX:]

    def _cut(self, page: bytes, index: int) -> bytes:
        file, row = self._files.locate(index)
        start = int(self._index.shards[file]["offset"][row])
        return page[start : start + int(self._index.shards[file]["bytes"][row])]

    def _changed(self, file: int) -> str:
        return f"{self._index.paths[file]}: {CHANGED}"

    def __reduce__(self) -> tuple:
        return ColumnInPages, (self._index, self._column)
