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
_CHANGED = ": it has changed since it was indexed; start again"

Value = TypeVar("Value")


class Place(NamedTuple):
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
        parse: makes of a record's bytes what is wanted; raises DataError if they are not a record.
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

    def place(self, index: int) -> Place:
        """Where a record lies."""
        shard, row = self.locate(index)
        start = int(self._arrays[shard]["start"][row])
        length = int(self._arrays[shard]["length"][row])
        return Place(shard, self._paths[shard], start, start + length)

    def fetch(self, indices: Sequence[int]) -> list[Value | DataError]:
        """Reads several records, with neighbours in one request; what fails stands for itself."""
        wanted = [self.place(index) for index in indices]
        found: dict[Place, Value | DataError] = {}
        for group in _neighbours(sorted(set(wanted))):
            data = attempt(_read, group[0]._replace(stop=max(place.stop for place in group)))
            found |= {place: attempt(self._part, data, place, group[0].start) for place in group}
        return [found[place] for place in wanted]

    def _part(self, data: bytes, place: Place, start: int) -> Value:
        """The record at `place`, of bytes that begin at byte `start` of the file."""
        part = data[place.start - start : place.stop - start]
        if len(part) < place.stop - place.start:
            raise DataError(f"{place.path} ends before byte {place.stop:,}{_CHANGED}")
        try:
            return self._parse(part)
        except DataError as error:
            raise DataError(f"{place.path}, byte {place.start:,}: {error}{_CHANGED}") from error


def attempt(function: Callable[..., Value], value: Any, *arguments: Any) -> Value | DataError:
    """`function(value, *arguments)`, or its DataError; that of `value`, if it is one."""
    if isinstance(value, DataError):
        return value
    try:
        return function(value, *arguments)
    except DataError as error:
        return error


def _neighbours(places_: Sequence[Place]) -> Iterator[list[Place]]:
    """Groups sorted places that are best read at once."""
    group: list[Place] = []
    for place in places_:
        gap = _GAP if storage.is_remote(place.path) else 0
        if group and (
            place.shard != group[-1].shard
            or place.start > group[-1].stop + gap
            or place.stop > group[0].start + _LARGEST_REQUEST
        ):
            yield group
            group = []
        group.append(place)
    if group:
        yield group


def _read(place: Place) -> bytes:
    try:
        return storage.read(place.path, place.start, place.stop)
    except OSError as error:
        raise DataError(f"{place.path} cannot be read ({reason_of(error)})") from error
