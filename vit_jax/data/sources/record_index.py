"""Indices of the records in shards: made once, and kept in files.

A kind of shard, TFRecord or tar, is a `scan` that finds the records of one file. What it finds is
kept in a file per shard, so an interrupted index is completed, and only what changed is made anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import random
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import TypeVar

import numpy as np
import safetensors.numpy

from vit_jax import storage
from vit_jax.errors import DataError

logger = logging.getLogger(__name__)

# Of one shard: start int64 [N], length uint32 [N] in bytes, and what the kind adds.
Arrays = dict[str, np.ndarray]

_ON_DEMAND = {"name", "name_end"}  # What is seldom asked for, and would fill the memory.
_FORMAT = 1  # Of the index files; another one is made anew.
_THREADS = 16  # They wait for the disk or the network.
_LOCAL_BLOCK = 1 << 12  # Most of a file is between headers: it need not be read.
_REMOTE_BLOCK = 1 << 23  # A request takes as long as reading some megabytes.
_LOG_SECONDS = 10.0
_LARGEST = (1 << 32) - 1  # uint32.

Value = TypeVar("Value")


class Forward:
    """A file that is read from front to back, a block at a time.

    Attributes:
        path: local, or a URL.
        size: in bytes.
    """

    def __init__(self, path: str, size: int):
        self.path, self.size = path, size
        self._least = _REMOTE_BLOCK if storage.is_remote(path) else _LOCAL_BLOCK
        self._start, self._block = 0, b""

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from `start` to `stop`.

        Raises:
            DataError: the file ends before.
        """
        if not self._start <= start <= stop <= self._start + len(self._block):
            self.require(start, stop, "what begins")
            block = storage.read(self.path, start, min(self.size, max(stop, start + self._least)))
            self._start, self._block = start, block
            if len(block) < stop - start:
                raise DataError(f"{self.path} became shorter while it was read: start again.")
        return self._block[start - self._start : stop - self._start]

    def require(self, start: int, stop: int, what: str) -> None:
        """Raises DataError unless what lies from `start` to `stop` ends within the file."""
        if stop > self.size:
            raise DataError(
                f"{self.path} is cut short or damaged: {what} at byte {start:,} would end at byte "
                f"{stop:,}, but the file has {self.size:,} bytes; copy it again."
            )


Scan = Callable[[Forward], Arrays]


def extents(starts: Sequence[int], stops: Sequence[int], path: str) -> Arrays:
    """The arrays that each kind has; raises DataError if a record is longer than 4 GiB."""
    start, stop = np.array(starts, np.int64), np.array(stops, np.int64)
    length = stop - start
    if length.max(initial=0) > _LARGEST:
        begins = start[np.argmax(length)]
        raise DataError(f"{path}: the record at byte {begins:,} is longer than 4 GiB.")
    return {"start": start, "length": length.astype(np.uint32)}


@dataclasses.dataclass(frozen=True)
class Index:
    """The extents of the records in some shards.

    Pickled, it is the names of its files, where these have all of it.
    """

    paths: tuple[str, ...]
    versions: tuple[storage.Version, ...]
    scan: Scan
    directory: str
    shards: tuple[Arrays, ...]  # What is in memory of each.
    unkept: frozenset[int]  # The shards of which all is in memory, as no file has it.

    def all_of(self, shard: int) -> Arrays:
        """All arrays of a shard, with those of names."""
        if shard in self.unkept:
            return self.shards[shard]
        arguments = self.paths[shard], self.versions[shard], self.scan, self.directory
        return _load(*arguments) or _make(*arguments)[0]

    def reduced(self, *names: str) -> Index:
        """The same with no more than the arrays `names` in memory, where files have the others."""
        shards = (
            arrays if shard in self.unkept else {name: arrays[name] for name in names}
            for shard, arrays in enumerate(self.shards)
        )
        return dataclasses.replace(self, shards=tuple(shards))

    def __reduce__(self) -> tuple:
        arguments = self.paths, self.versions, self.scan, self.directory
        if self.unkept:
            return Index, (*arguments, self.shards, self.unkept)
        return _open_index, arguments


def open_index(paths: Sequence[str], scan: Scan, directory: str) -> Index:
    """Finds the records of `paths` by `scan`, where `directory` does not have them already.

    Several processes may do so at once: each takes the shards in an order of its own, and leaves
    out those that another one has finished.

    Args:
        paths: of the shards, local or URLs.
        scan: a function of a module, or what is called as one and has a `stamp` that tells its kind.
        directory: for the index files, local or a URL; empty, or one that cannot be written: none.

    Raises:
        DataError: a shard is missing, cannot be read, or is damaged.
    """
    with _threads() as threads:
        versions = tuple(threads.map(_version, paths))
    return _open_index(tuple(paths), versions, scan, os.path.expanduser(directory))


def _open_index(
    paths: tuple[str, ...], versions: tuple[storage.Version, ...], scan: Scan, directory: str
) -> Index:
    shards: dict[int, Arrays] = {}
    unkept: set[int] = set()
    with _threads() as threads:
        tasks = {
            threads.submit(_complete, paths[shard], versions[shard], scan, directory): shard
            for shard in random.sample(range(len(paths)), len(paths))
        }
        for task in _with_progress(as_completed(tasks), len(tasks)):
            shard = tasks.pop(task)
            shards[shard], is_kept = task.result()
            if not is_kept:
                unkept.add(shard)
    if directory and unkept:
        logger.warning(
            "config.data.index_dir: %s cannot be written; the index of %d shards stays in memory, "
            "and is made again at the next start.",
            directory,
            len(unkept),
        )
    ordered = tuple(shards[shard] for shard in range(len(paths)))
    return Index(paths, versions, scan, directory, ordered, frozenset(unkept))


def _complete(
    path: str, version: storage.Version, scan: Scan, directory: str
) -> tuple[Arrays, bool]:
    """A shard's index, made unless it is there, and whether it is kept in `directory`."""
    arrays, is_kept = _load(path, version, scan, directory), True
    if arrays is None:
        arrays, is_kept = _make(path, version, scan, directory)
    if is_kept:
        arrays = {name: array for name, array in arrays.items() if name not in _ON_DEMAND}
    return arrays, is_kept


def _version(path: str) -> storage.Version:
    try:
        return storage.version_of(path)
    except OSError as error:
        raise DataError(
            f"{path}: this shard cannot be read ({storage.reason_of(error)})."
        ) from error


def _load(path: str, version: storage.Version, scan: Scan, directory: str) -> Arrays | None:
    """A shard's index; None where there is none, or none of this version."""
    if not directory:
        return None
    file = _index_file(path, directory)
    try:
        content = storage.read(file)
    except (OSError, DataError):
        return None
    if content[:4] != _checksum(content[4:]):
        logger.warning("%s is damaged: %s is indexed again.", file, path)
        return None
    arrays = safetensors.numpy.load(content[4:])
    if arrays.pop("stamp").tobytes() == _stamp(version, scan):
        return arrays
    logger.info("%s has changed since it was indexed: it is indexed again.", path)
    return None


def _make(path: str, version: storage.Version, scan: Scan, directory: str) -> tuple[Arrays, bool]:
    """A shard's index, and whether it could be written to `directory`."""
    try:
        arrays = scan(Forward(path, version.size))
    except OSError as error:
        raise DataError(f"{path} cannot be read ({storage.reason_of(error)}).") from error
    if not directory:
        return arrays, False
    stamp = np.frombuffer(_stamp(version, scan), np.uint8)
    content = safetensors.numpy.save({**arrays, "stamp": stamp})
    try:
        storage.write(_index_file(path, directory), _checksum(content) + content)
    except OSError:
        return arrays, False
    return arrays, True


def _checksum(content: bytes) -> bytes:
    """The first bytes of an index file; safetensors has no checksum."""
    return zlib.crc32(content).to_bytes(4, "little")


def _stamp(version: storage.Version, scan: Scan) -> bytes:
    """The mark of an index file that is of use for this version."""
    kind = getattr(scan, "stamp", None) or f"{scan.__module__}.{scan.__qualname__}"
    return f"{_FORMAT} {kind} {version.size} {version.written}".encode()


def _index_file(path: str, directory: str) -> str:
    """The file that keeps the index of the shard at `path`."""
    path = path if storage.is_remote(path) else os.path.abspath(path)
    digest = hashlib.blake2b(os.fsencode(path), digest_size=12).hexdigest()
    return storage.join(directory, f"{digest}.index")


@contextlib.contextmanager
def _threads() -> Iterator[ThreadPoolExecutor]:
    """Threads that wait for a disk or a network; what has not begun is given up at an error."""
    threads = ThreadPoolExecutor(_THREADS)
    try:
        yield threads
    finally:
        threads.shutdown(cancel_futures=True)


def _with_progress(done: Iterator[Value], total: int) -> Iterator[Value]:
    """The same, with a line in the log every ten seconds."""
    last = time.monotonic()
    for count, value in enumerate(done, 1):
        yield value
        if time.monotonic() - last > _LOG_SECONDS:
            last = time.monotonic()
            logger.info("Indexed %d of %d shards.", count, total)
