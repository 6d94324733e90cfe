"""Reading records where an index says they lie."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from vit_jax import storage
from vit_jax.data.sources.record_index import Arrays, reason_of
from vit_jax.errors import DataError

_GAP = 1 << 20  # Bytes that are read through rather than asked around.
_LARGEST_REQUEST = 1 << 26
CHANGED = "it has changed since it was indexed; start again"

Value = TypeVar("Value")


class Extent(NamedTuple):
    """The bytes of a record: the number of its shard, its file, and from where to where."""

    shard: int
    path: str
    start: int
    stop: int


class Records(Generic[Value]):
    """Random access to records in shards, in the order of the shards.

    Args:
        paths: of the shards.
        arrays: of each: `start` and `length`.
        parse: makes of a record's bytes what is wanted; raises DataError if they are none.
    """

    def __init__(
        self, paths: Sequence[str], arrays: Sequence[Arrays], parse: Callable[[bytes], Value]
    ):
        self._paths, self._arrays, self._parse = paths, arrays, parse
        self._ends = list(itertools.accumulate(len(shard["start"]) for shard in arrays))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def locate(self, index: int) -> tuple[int, int]:
        """The number of a record's shard, and its own in that."""
        if not 0 <= index < len(self):
            raise IndexError(index)
        shard = bisect.bisect_right(self._ends, index)
        return shard, index - self._ends[shard] + len(self._arrays[shard]["start"])

    def extent(self, index: int) -> Extent:
        """The bytes of a record."""
        shard, row = self.locate(index)
        start = int(self._arrays[shard]["start"][row])
        length = int(self._arrays[shard]["length"][row])
        return Extent(shard, self._paths[shard], start, start + length)

    def fetch(self, indices: Sequence[int]) -> Iterator[Value | DataError]:
        """Reads several records, with neighbours in one request; what fails stands for itself.

        Each is read when it is asked for, and forgotten: large ones need not be in memory together.
        """
        wanted = [self.extent(index) for index in indices]
        last = {extent: position for position, extent in enumerate(wanted)}
        group_of = {extent: group for group in _neighbours(sorted(last)) for extent in group}
        found: dict[Extent, Value | DataError] = {}
        for position, extent in enumerate(wanted):
            if extent not in found:
                found |= self._read(group_of[extent])
            yield found.pop(extent) if last[extent] == position else found[extent]

    def _read(self, group: Sequence[Extent]) -> dict[Extent, Value | DataError]:
        """The records of a group of neighbours."""
        data = attempt(_read, group[0]._replace(stop=max(extent.stop for extent in group)))
        return {extent: attempt(self._part, data, extent, group[0].start) for extent in group}

    def _part(self, data: bytes, extent: Extent, start: int) -> Value:
        """The record at `extent`, of bytes that begin at byte `start` of the file."""
        part = data[extent.start - start : extent.stop - start]
        if len(part) < extent.stop - extent.start:
            raise DataError(f"{extent.path} ends before byte {extent.stop:,}: {CHANGED}")
        try:
            return self._parse(part)
        except DataError as error:
            raise DataError(f"{extent.path}, byte {extent.start:,}: {error}") from error


def attempt(function: Callable[..., Value], value: Any, *arguments: Any) -> Value | DataError:
    """`function(value, *arguments)`, or its DataError; that of `value`, if it is one."""
    if isinstance(value, DataError):
        return value
    try:
        return function(value, *arguments)
    except DataError as error:
        return error


def _neighbours(extents: Sequence[Extent]) -> Iterator[list[Extent]]:
    """Groups sorted extents that are best read at once."""
    group: list[Extent] = []
    for extent in extents:
        gap = _GAP if storage.is_remote(extent.path) else 0
        if group and (
            extent.shard != group[-1].shard
            or extent.start > group[-1].stop + gap
            or extent.stop > group[0].start + _LARGEST_REQUEST
        ):
            yield group
            group = []
        group.append(extent)
    if group:
        yield group


def _read(extent: Extent) -> bytes:
    try:
        return storage.read(extent.path, extent.start, extent.stop)
    except OSError as error:
        raise DataError(f"{extent.path} cannot be read ({reason_of(error)})") from error
