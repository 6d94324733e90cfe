"""The rows of batches on the host, in chunks that threads and workers load side by side."""

from __future__ import annotations

import dataclasses
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from vit_jax.data.loading.order import Order, RowGenerator
from vit_jax.data.loading.read_ahead import ReadAhead
from vit_jax.data.sources.examples import Example, Source
from vit_jax.errors import DataError

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Skipping:
    """The row that stands for an example that cannot be read: its mask is False.

    Its name and the reason are logged once.
    """

    image: np.ndarray  # [H, W, C], of the type that the others have
    label: int | np.ndarray  # 0, or float32 [K]: of the form that the others have
    reported: set[str] = dataclasses.field(default_factory=set)

    @classmethod
    def of(
        cls,
        source: Source,
        image_shape: tuple[int, int, int],
        num_classes: int,
        dtype: str = "uint8",
    ) -> Skipping:
        """Black images without a class, for what `source` cannot read."""
        label = np.zeros(num_classes, np.float32) if source.multi_label or source.numeric else 0
        return cls(np.zeros(image_shape, dtype), label)

    def report(self, unread: list[tuple[str, str]]) -> None:
        """Logs the names, with reasons, that are new."""
        for name, reason in unread:
            if name not in self.reported:
                self.reported.add(name)
                logger.warning("Left out: %s: %s", name, reason)


class Buffers:
    """The images of batches in the making: threads write their rows where they will stay."""

    def __init__(self, num_rows: int):
        self._num_rows = num_rows
        self._lock = threading.Lock()
        self._images: dict[int, np.ndarray] = {}

    def of(self, batch: int, like: np.ndarray) -> np.ndarray:
        """The batch's array, [rows, ...] of images such as `like`; made by who comes first."""
        with self._lock:
            if batch not in self._images:
                self._images[batch] = np.empty((self._num_rows, *like.shape), like.dtype)
            return self._images[batch]

    def take(self, batch: int) -> np.ndarray:
        """The batch's array, which is finished."""
        with self._lock:
            return self._images.pop(batch)


@dataclasses.dataclass(frozen=True)
class Loading:
    """All that says how the examples of a source become batches.

    Attributes:
        source: the examples.
        transform: of (image, Generator) if the order has a seed, of (image) if not; picklable.
        order: which example stands where; its seed is that of the transform's random numbers, too.
            Without a seed every example comes once, and the last batch is filled up with rows whose
            mask is False.
        batch_size: B, rows of the global batch.
        copies: of each example in a batch, each transformed with random numbers of its own.
        skipping: what stands for examples that cannot be read; None: they are errors.
        num_threads: that load and transform, in each worker process if there are any; 0: the
            machine's cores.
        num_workers: worker processes besides; 0: threads of this process only; -1: by the number
            of cores.
    """

    source: Source
    transform: Callable[..., np.ndarray]
    order: Order
    batch_size: int
    copies: int = 1
    skipping: Skipping | None = None
    num_threads: int = 0
    num_workers: int = 0

    @functools.cached_property
    def num_distinct(self) -> int:
        """The number of different examples in a batch."""
        return num_distinct_rows(self.batch_size, self.copies)


@dataclasses.dataclass(frozen=True)
class Chunks:
    """Random access to the rows of the batches, a few rows at a time.

    Chunk k holds the rows `parts[k % P]`, of P parts, of batch `start + k // P`; its images lie in
    `buffers` if there are any, and its files are read by `ahead` if there is one. A chunk with an
    unreadable example is a `DataError`, unless such are skipped: returned, for a raised one loses its
    type on its way from a worker process.
    """

    loading: Loading
    parts: tuple[np.ndarray, ...]
    start: int
    stop: int
    buffers: Buffers | None
    ahead: ReadAhead | None = None

    def __len__(self) -> int:
        return (self.stop - self.start) * len(self.parts)

    def __getitem__(self, chunk: int) -> dict[str, Any] | DataError:
        chunk = int(chunk)
        positions, indices, mask, loaded = self._rows(chunk)
        draws = self._generators(positions[loaded].tolist())
        images, labels, unread = None, {}, []
        try:
            if self.ahead is None:
                examples = self.loading.source.fetch(indices[loaded].tolist())
            else:
                examples = self.ahead.take(chunk, self._read)
            for row, example, rng in zip(loaded.tolist(), examples, draws, strict=True):
                image, labels[row], failure = self._load(example, rng, indices[row], positions[row])
                if images is None:
                    images = self._allocate(chunk, image)
                images[row] = image
                if failure:
                    unread.append(failure)
                    mask[row] = False
        except DataError as error:
            return error
        last = loaded[-1]
        images[len(loaded) :] = images[last]  # type: ignore[index]  # One is loaded at least.
        targets = np.asarray([labels.get(row, labels[last]) for row in range(len(mask))])
        return {
            "image": images,
            "label": targets.astype(np.int32 if targets.ndim == 1 else np.float32),
            "index": indices.astype(np.int32),
            "mask": mask,
            "unread": unread,
        }

    def _rows(self, chunk: int) -> tuple[np.ndarray, ...]:
        """A chunk's positions in the data, indices and mask, [rows], and its rows that are loaded."""
        number, part = divmod(chunk, len(self.parts))
        batch, rows = self.start + number, self.parts[part]
        order, num_distinct = self.loading.order, self.loading.num_distinct
        positions = batch * self.loading.batch_size + rows
        indices = order.indices(batch * num_distinct + rows % num_distinct)
        mask = (positions < order.num_examples) | (order.seed is not None)
        # Padding repeats a row; where there is nothing else, it is loaded all the same.
        loaded = np.flatnonzero(mask) if mask.any() else np.zeros(1, int)
        return positions, indices, mask, loaded

    def _read(self, chunk: int) -> list[Example | Exception]:
        """The examples of a chunk that are loaded."""
        _, indices, _, loaded = self._rows(chunk)
        return list(self.loading.source.fetch(indices[loaded].tolist()))

    def _generators(self, positions: list[int]) -> Iterator[tuple[np.random.Generator, ...]]:
        """The arguments of the transform besides the image, for each position."""
        seed = self.loading.order.seed
        generator = None if seed is None else RowGenerator(seed)
        for position in positions:
            yield () if generator is None else (generator.at(position),)

    def _load(
        self,
        example: Example | Exception,
        rng: tuple[np.random.Generator, ...],
        index: int,
        position: int,
    ) -> tuple[np.ndarray, int | np.ndarray, tuple[str, str] | None]:
        """The image, the label, and the name and reason of what was skipped."""
        try:
            if isinstance(example, Exception):
                raise example
            return self.loading.transform(example.image, *rng), example.label, None
        except (DataError, OSError) as error:
            name = self.loading.source.name_of(int(index))
            reason = str(error).removeprefix(f"{name}: ").rstrip(".")
            if skipping := self.loading.skipping:
                return skipping.image, skipping.label, (name, reason)
            raise DataError(
                f"Cannot read {name} (index {index}, position {position}, batch "
                f"{position // self.loading.batch_size}): {reason}. Repair or remove it and start again, or "
                "leave it out with --config.data.on_error=skip."
            ) from error

    def _allocate(self, chunk: int, like: np.ndarray) -> np.ndarray:
        """The array for the images of a chunk, [rows, ...] of images such as `like`."""
        number, part = divmod(chunk, len(self.parts))
        rows = len(self.parts[part])
        if self.buffers is None:
            return np.empty((rows, *like.shape), like.dtype)
        first = sum(len(others) for others in self.parts[:part])
        return self.buffers.of(number, like)[first : first + rows]


def num_distinct_rows(batch_size: int, copies: int) -> int:
    """The number of different examples in a batch in which each stands up to `copies` times.

    Row i holds the example that row i modulo this number holds, so that copies lie far apart. No
    row has the example of its neighbour, the first and the last being neighbours too: mixup mixes
    neighbours. For that, some batches have fewer copies than they could.
    """
    least = -(-batch_size // copies)
    candidates = range(least, batch_size)
    return next((number for number in candidates if (batch_size - 1) % number), batch_size)
