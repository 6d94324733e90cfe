"""Reading records where an index says they lie."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from vit_jax import storage
from vit_jax.data.sources.record_index import Arrays
from vit_jax.errors import DataError
from vit_jax.storage import Part

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

    @property
    def remote(self) -> bool:
        """Whether the shards are a store's."""
        return any(map(storage.is_remote, self._paths[:1]))

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

        Each is read when it is asked for, a store's up to `stores.MAX_REQUESTS` requests ahead, and
        forgotten: of many large ones few are in memory together.
        """
        wanted = [self.extent(index) for index in indices]
        last = {extent: position for position, extent in enumerate(wanted)}
        group_of = {extent: group for group in _neighbours(sorted(last)) for extent in group}
        groups = list({group[0]: group for group in map(group_of.__getitem__, wanted)}.values())
        requests = [
            Part(group[0].path, group[0].start, max(extent.stop for extent in group))
            for group in groups
        ]
        answers = zip(groups, storage.read_many(requests), strict=True)
        found: dict[Extent, Value | DataError] = {}
        for position, extent in enumerate(wanted):
            while extent not in found:
                group, data = next(answers)
                found |= self._parts(group, data)
            yield found.pop(extent) if last[extent] == position else found[extent]

    def _parts(
        self, group: Sequence[Extent], data: bytes | DataError | OSError
    ) -> dict[Extent, Value | DataError]:
        """The records of a group of neighbours, of the bytes that were read at once."""
        if isinstance(data, OSError):
            data = DataError(f"{group[0].path} cannot be read ({storage.reason_of(data)})")
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
