"""Shards in the making: which images are in which, and the tar file of each.

The images are shuffled once, by a seed, and cut into shards of equally many. So a shard is a
function of its number: any process may make it, again and again, with the same bytes.
"""

from __future__ import annotations

import dataclasses
import io
import json
import multiprocessing
import signal
import tarfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from typing import Any, NamedTuple

import numpy as np

from vit_jax import storage
from vit_jax.data.loading.order import Order
from vit_jax.data.loading.pipeline import end_with_parent
from vit_jax.data.sources.examples import Example, Source
from vit_jax.errors import DataError
from vit_jax.prepare.images import Rewriting

RECORDS = "records"  # The folder beside the shards with what is in each.
_SEED = 0
_AT_ONCE = 32  # Images that are asked for together.
_HEADER = 512  # Bytes before each file in a tar, which fills whole blocks of as many.


@dataclasses.dataclass(frozen=True)
class Part:
    """One split, to be written as shards.

    Attributes:
      name: of the split.
      source: its examples.
      shard_size: images in each shard but the last.
    """

    name: str
    source: Source
    shard_size: int

    @property
    def num_shards(self) -> int:
        """How many there are."""
        return -(-len(self.source) // self.shard_size)

    def shard_name(self, number: int) -> str:
        """The name of a shard's file, such as train-00000-of-00147.tar."""
        return f"{self.name}-{number:05}-of-{self.num_shards:05}.tar"

    def positions(self, number: int) -> range:
        """The images of a shard, by their positions in the shuffled order."""
        start = number * self.shard_size
        return range(start, min(start + self.shard_size, len(self.source)))


class Making(NamedTuple):
    """How shards are made."""

    parts: Sequence[Part]
    folder: str  # path or URL, which they are written to
    rewriting: Rewriting
    skip: bool  # whether images that cannot be read are left out; else they are an error


class Record(NamedTuple):
    """What is in a shard."""

    name: str
    num_images: int
    num_bytes: int
    unreadable: dict[str, str]  # images that were left out -> the reason


def shuffled(source: Source, positions: range) -> np.ndarray:
    """The images at some positions of the shuffled order: int64 [N]."""
    return Order(len(source), _SEED).indices(np.arange(positions.start, positions.stop))


class Sample(NamedTuple):
    """An image as a shard has it."""

    position: int
    name: str
    files: dict[str, bytes]  # extension -> content

    @property
    def num_bytes(self) -> int:
        """In a tar file."""
        return sum(_HEADER + -(-len(each) // _HEADER) * _HEADER for each in self.files.values())


def samples(
    source: Source, positions: range, rewriting: Rewriting
) -> Iterator[Sample | tuple[str, Exception]]:
    """The images at some positions, in their order; what cannot be read is its name and the error."""
    for start in range(positions.start, positions.stop, _AT_ONCE):
        chunk = range(start, min(start + _AT_ONCE, positions.stop))
        indices = shuffled(source, chunk).tolist()
        examples = source.fetch(indices)
        for position, index, example in zip(chunk, indices, examples, strict=True):
            try:
                if isinstance(example, Exception):
                    raise example
                image = rewriting(example.image)
            except (DataError, OSError) as error:
                yield source.name_of(index), error
                continue
            files = {image.extension: image.content, **_label_file(example)}
            yield Sample(position, example.name, files)


def _label_file(example: Example) -> dict[str, bytes]:
    if np.ndim(example.label) == 0:
        return {".cls": str(int(example.label)).encode()}
    return {".json": json.dumps({"label": np.flatnonzero(example.label).tolist()}).encode()}


def make_shard(making: Making, part: Part, number: int) -> Record:
    """Writes one shard, whole or not at all, and then its record.

    Raises:
      DataError: an image cannot be read, and such are not left out.
      OSError: the shard cannot be written.
    """
    content, names, unreadable = io.BytesIO(), [], {}
    with tarfile.open(fileobj=content, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for sample in samples(part.source, part.positions(number), making.rewriting):
            if not isinstance(sample, Sample):
                name, error = sample
                if not making.skip:
                    raise DataError(
                        f"{part.name}: {name} cannot be read: {error}. Mend it, or leave such images "
                        "out with --on_error=skip."
                    )
                unreadable[name] = str(error)
                continue
            names.append(sample.name)
            for extension, file in sample.files.items():
                # Without a time, an owner or anything else that differs from run to run.
                member = tarfile.TarInfo(f"{sample.position:08}{extension}")
                member.size = len(file)
                archive.addfile(member, io.BytesIO(file))
    shard = part.shard_name(number)
    storage.write(storage.join(making.folder, shard), content.getvalue())
    record = Record(shard, len(names), content.tell(), unreadable)
    described = {**record._asdict(), "names": names}
    storage.write_json(_record_file(making.folder, shard), described)
    return record


def _record_file(folder: str, shard: str) -> str:
    return storage.join(folder, RECORDS, f"{shard}.json")


def read_record(folder: str, shard: str) -> Record | None:
    """The record of a shard that is finished; None of one that is not."""
    try:
        found = json.loads(storage.read(_record_file(folder, shard)))
        record = Record(*(found[field] for field in Record._fields))
        size = storage.version_of(storage.join(folder, shard)).size
    except (OSError, DataError, ValueError, KeyError, TypeError):
        return None
    return record if size == record.num_bytes else None


# ------------------------------------------------------------------------------ worker processes

_making: list[Any] = []  # Of this worker process.


def _begin(making: Making) -> None:
    _making[:] = [making]
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # A terminal interrupts workers, too: no traceback.
    end_with_parent()


def _make_in_worker(part: int, number: int) -> Record:
    return make_shard(_making[0], _making[0].parts[part], number)


def make_shards(
    making: Making, wanted: Sequence[tuple[int, int]], num_workers: int
) -> Iterator[Record]:
    """Makes shards, given as (number of the part, number of the shard), in any order.

    Args:
      making: how.
      wanted: which.
      num_workers: processes; with one, it is this one.

    Raises:
      DataError, OSError: as of `make_shard`; a worker process died.
    """
    if num_workers == 1:
        for part, number in wanted:
            yield make_shard(making, making.parts[part], number)
        return
    pool = ProcessPoolExecutor(
        min(num_workers, max(1, len(wanted))),
        multiprocessing.get_context("spawn"),
        initializer=_begin,
        initargs=(making,),
    )
    try:
        tasks = [pool.submit(_make_in_worker, part, number) for part, number in wanted]
        for task in as_completed(tasks):
            yield task.result()
    except BrokenProcessPool as error:
        raise DataError(
            "A worker process died, for want of memory perhaps: set fewer --num_workers or a smaller "
            "--shard_mib, and start the same command again: what is finished stays."
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.terminate()
