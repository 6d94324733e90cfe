"""Where the values of a Parquet column lie, so that one is read without the row group around it.

A column of bytes is a row of pages. In a page that is not compressed a value is its length, 4 bytes,
and itself: it is read alone. A compressed page is read and decompressed whole. PyArrow reads whole
row groups, so the pages' headers are read here; the format is https://parquet.apache.org/docs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vit_jax import storage
from vit_jax.data.sources.record_index import Arrays, Forward, extents
from vit_jax.errors import DataError

PREFIX = 4  # Bytes of a value's length before it.
ABSENT = -1  # The unit of a row without a value.

_DATA, _DICTIONARY, _DATA_2 = 0, 2, 3  # Types of pages; 1 is an index.
_PLAIN, _BY_DICTIONARY = 0, (2, 8)  # Encodings.
_DELTA = (6, 7)  # Encodings of whole pages: a value lies nowhere by itself.
_UNCOMPRESSED = "UNCOMPRESSED"
_BYTES = "BYTE_ARRAY"

Read = Callable[[int, int], bytes]  # The bytes from `start` to `stop`.


def open_parquet(path: str) -> pq.ParquetFile:
    """A Parquet file, local or a URL, of which the footer is read; raises DataError if it is none."""
    try:
        file = storage.open_remote(path) if storage.is_remote(path) else path
        return pq.ParquetFile(file)
    except (OSError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{path} cannot be read as a Parquet file ({reason}).") from error


class Chunk(NamedTuple):
    """The values of the column in one row group."""

    start: int  # byte of its first page
    stop: int
    num_values: int
    codec: str  # as Parquet calls it
    highest_level: int  # of definition: that of a value which is there; 0: all are


class Page(NamedTuple):
    """A page, by its header."""

    kind: int
    num_values: int
    encoding: int
    start: int  # byte of its content
    stop: int
    size: int  # of the content, decompressed
    levels: tuple[int, int]  # of the second version: bytes of repetition and of definition levels
    is_compressed: bool


class Values(NamedTuple):
    """Values of a page: the unit that is read for each, and the bytes in it that are the value."""

    unit: np.ndarray  # int64 [N]
    offset: np.ndarray  # int64 [N]
    length: np.ndarray  # int64 [N]

    def take(self, indices: np.ndarray) -> Values:
        """Those at `indices`."""
        return Values(*(each[indices] for each in self))


@dataclasses.dataclass(frozen=True)
class PageScan:
    """Finds the values of a column of bytes in one file, as `open_index` asks for.

    Attributes:
      column: its path in the schema, such as "image.bytes".

    What it finds is, of the U units that are read (a value or a compressed page), what `extents`
    returns and size: uint32 [U], decompressed, 0 for a value; codec: uint8, its name; of the N rows
    unit: int32 [N], `ABSENT` for none; offset, bytes: uint32 [N], of the value in its unit.
    """

    column: str

    @property
    def stamp(self) -> str:
        """The mark of an index of this kind."""
        return f"{__name__} {self.column}"

    def __call__(self, file: Forward) -> Arrays:
        """Raises DataError if the file or column is of another kind, or damaged."""
        parquet = open_parquet(file.path)
        chunks = list(_chunks(parquet, self.column, file.path))
        units, found = Units(), []
        for chunk in chunks:
            try:
                found.append(_rows(file, chunk, units))
            except (DataError, OSError):
                raise
            except Exception as error:  # Damaged bytes are met with errors of many kinds.
                raise DataError(
                    f"{file.path}: the pages of {self.column} from byte {chunk.start:,} on are "
                    f"damaged ({error})."
                ) from error
        parts = [
            np.concatenate([np.empty(0, np.int64), *part]) for part in zip(*found, strict=True)
        ]
        unit, offset, length = parts or [np.empty(0, np.int64)] * 3
        codec = next((chunk.codec for chunk in chunks), _UNCOMPRESSED)
        return {
            **extents(units.starts, units.stops, file.path),
            "size": np.array(units.sizes, np.uint32),
            "codec": np.frombuffer(codec.encode(), np.uint8),
            "unit": unit.astype(np.int32),
            "offset": offset.astype(np.uint32),
            "bytes": length.astype(np.uint32),
        }


@dataclasses.dataclass
class Units:
    """The parts of a file that are read as wholes, in the making."""

    starts: list[int] = dataclasses.field(default_factory=list)
    stops: list[int] = dataclasses.field(default_factory=list)
    sizes: list[int] = dataclasses.field(default_factory=list)

    def add(self, start: int, stop: int, size: int = 0) -> int:
        """The number of a new one."""
        self.starts.append(start)
        self.stops.append(stop)
        self.sizes.append(size)
        return len(self.starts) - 1


def _chunks(parquet: pq.ParquetFile, column: str, path: str) -> Iterator[Chunk]:
    schema, metadata = parquet.schema, parquet.metadata
    columns = [schema.column(number).path for number in range(len(schema.names))]
    other_kind = f"{path}: column {column} holds no bytes of one image a row."
    if column not in columns:
        if any(each.startswith(f"{column}.") for each in columns):  # Of a list, or a record.
            raise DataError(other_kind)
        raise DataError(f"{path} has no column {column}, as the other files have.")
    number = columns.index(column)
    described = schema.column(number)
    if described.physical_type != _BYTES or described.max_repetition_level:
        raise DataError(other_kind)
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(number)
        start = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
        stop = start + chunk.total_compressed_size
        yield Chunk(
            start, stop, chunk.num_values, chunk.compression, described.max_definition_level
        )


def _rows(file: Forward, chunk: Chunk, units: Units) -> Values:
    """The values of a row group, in order."""
    found = [Values(*[np.empty(0, np.int64)] * 3)]  # A row group may be empty.
    dictionary = None
    for page in _pages(file, chunk):
        if page.kind == _DICTIONARY:
            read, unit = _content(file, chunk, page, units)
            dictionary = _plain(read, 0, page.num_values, unit, page.start, units)
        elif page.kind in (_DATA, _DATA_2):
            found.append(_page_rows(file, chunk, page, units, dictionary))
    return Values(*map(np.concatenate, zip(*found, strict=True)))


def _pages(file: Forward, chunk: Chunk) -> Iterator[Page]:
    """The pages of a row group; their contents lie between the headers."""
    position, num_values = chunk.start, 0
    while num_values < chunk.num_values:
        if position >= chunk.stop:
            raise ValueError(f"they hold {num_values:,} values of {chunk.num_values:,}")
        header, start = read_struct(file.read, position)
        kind, size, stored = header[1], header[2], header[3]
        file.require(start, start + stored, "the page")
        fields = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_2: 8}.get(kind, 0), {})
        second = kind == _DATA_2
        levels = (fields[6], fields[5]) if second else (0, 0)
        compressed = chunk.codec != _UNCOMPRESSED and fields.get(7, True)
        encoding = fields.get(4 if second else 2, _PLAIN)
        yield Page(
            kind, fields.get(1, 0), encoding, start, start + stored, size, levels, compressed
        )
        num_values += fields.get(1, 0) if kind != _DICTIONARY else 0
        position = start + stored


def _content(file: Forward, chunk: Chunk, page: Page, units: Units) -> tuple[Read, int | None]:
    """Reads a page's content from its first value or level on, and the unit that all of it is."""
    before = sum(page.levels)  # These are never compressed.
    start = page.start + before
    if not page.is_compressed:
        return lambda a, b: file.read(start + a, start + b), None
    size = page.size - before
    data = decompress(file.read(start, page.stop), chunk.codec, size)
    return lambda a, b: data[a:b], units.add(start, page.stop, size)


def _page_rows(
    file: Forward, chunk: Chunk, page: Page, units: Units, dictionary: Values | None
) -> Values:
    """The values of a data page, `ABSENT` where there are none."""
    read, unit = _content(file, chunk, page, units)
    start, levels = page.start + sum(page.levels), b""
    position = 0  # In what `read` reads.
    if page.kind == _DATA_2:
        levels = file.read(page.start + page.levels[0], start)
    elif chunk.highest_level:
        position = PREFIX + int.from_bytes(read(0, PREFIX), "little")
        levels = read(PREFIX, position)
    present = np.ones(page.num_values, bool)
    if highest := chunk.highest_level:
        present = read_runs(levels, highest.bit_length(), page.num_values) == highest
    count = int(present.sum())
    if page.encoding in _DELTA:
        raise DataError(
            f"{file.path}: the pages from byte {chunk.start:,} on are in encoding {page.encoding}, of "
            "which no single image can be read: write the file again without column_encoding."
        )
    if page.encoding == _PLAIN:
        values = _plain(read, position, count, unit, start, units)
    elif page.encoding in _BY_DICTIONARY and dictionary is not None:
        end = (page.size if page.is_compressed else page.stop - page.start) - sum(page.levels)
        width = read(position, position + 1)[0] if count else 0
        values = dictionary.take(read_runs(read(position + 1, end), width, count))
    else:
        raise ValueError(f"they are in encoding {page.encoding}, without a dictionary before them")
    rows = Values(*(np.full(page.num_values, ABSENT, np.int64) for _ in Values._fields))
    for row, value in zip(rows, values, strict=True):
        row[present] = value
    return rows


def _plain(
    read: Read, position: int, count: int, unit: int | None, start: int, units: Units
) -> Values:
    """Values one after another, from `position` on, each after its length.

    Where they are no part of a unit, each becomes one: its length and itself, so that whoever reads
    it sees whether it is still there.
    """
    found = np.empty((3, count), np.int64)
    for number in range(count):
        length = int.from_bytes(read(position, position + PREFIX), "little")
        stop = position + PREFIX + length
        if unit is None:
            found[:, number] = units.add(start + position, start + stop), PREFIX, length
        else:
            found[:, number] = unit, position + PREFIX, length
        position = stop
    return Values(*found)


def decompress(content: bytes, codec: str, size: int) -> bytes:
    """Decompresses a page; raises ValueError or pyarrow's errors where it is damaged."""
    name = {"LZ4": "lz4_raw", "LZ4_RAW": "lz4_raw"}.get(codec, codec.lower())
    data = pa.decompress(content, size, name, asbytes=True)
    if len(data) != size:
        raise ValueError(f"{len(data):,} bytes where the header says {size:,}")
    return data


def read_runs(data: bytes, width: int, count: int) -> np.ndarray:
    """`count` numbers of `width` bits, in runs that are packed or repeated: int64 [count]."""
    if not width:
        return np.zeros(count, np.int64)
    parts, found, position = [np.empty(0, np.int64)], 0, 0
    while found < count:
        header, position = _varint(data, position)
        if header & 1:  # Groups of eight numbers, bit by bit.
            size = (header >> 1) * width
            packed = np.frombuffer(data, np.uint8, size, position)
            bits = np.unpackbits(packed, bitorder="little").reshape(-1, width)
            parts.append(bits.astype(np.int64) @ (1 << np.arange(width)))
        else:
            size = -(-width // 8)
            value = int.from_bytes(data[position : position + size], "little")
            parts.append(np.full(min(header >> 1, count - found), value, np.int64))
        position += size
        found += len(parts[-1])
    return np.concatenate(parts)[:count]


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """The number of 7 bits a byte at `position`, and where it ends."""
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if byte < 0x80:
            return value, position


# --------------------------------------------------------------------- Thrift's compact protocol

_TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _STRUCT = 1, 2, 3, 7, 8, 12
_INTEGERS, _LISTS = (4, 5, 6), (9, 10)


def read_struct(read: Read, position: int) -> tuple[dict[int, Any], int]:
    """The fields by number of the struct at byte `position`, and where it ends."""
    reader = _Thrift(read, position)
    return reader.value(_STRUCT), reader.position


class _Thrift:
    """Reads values from a byte on."""

    def __init__(self, read: Read, position: int):
        self._read, self.position = read, position

    def bytes(self, count: int) -> bytes:
        self.position += count
        return self._read(self.position - count, self.position)

    def number(self) -> int:
        value = shift = 0
        while True:
            (byte,) = self.bytes(1)
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def signed(self) -> int:
        value = self.number()
        return value >> 1 ^ -(value & 1)

    def value(self, kind: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind in _INTEGERS:
            return self.signed()
        if kind == _BINARY:
            return self.bytes(self.number())
        if kind == _STRUCT:
            return self.fields()
        if kind in _LISTS:
            (header,) = self.bytes(1)
            count = header >> 4 if header >> 4 != 15 else self.number()
            return [self.value(header & 15) for _ in range(count)]
        if kind in (_BYTE, _DOUBLE):
            return self.bytes(1 if kind == _BYTE else 8)
        raise ValueError(f"a header with a field of type {kind}")

    def fields(self) -> dict[int, Any]:
        found, name = {}, 0
        while header := self.bytes(1)[0]:
            name = name + (header >> 4) if header >> 4 else self.signed()
            found[name] = self.value(header & 15)
        return found
