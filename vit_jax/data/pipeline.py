"""From examples to batches on the devices.

The position in the data is the step: row i of batch s is position s·B + i of the order, on any
number of processes, threads and workers. So there is no iterator state to save, and a run resumes
anywhere at no cost.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
from collections.abc import Callable, Iterator

import grain
import jax
import numpy as np
from absl import flags

from vit_jax.data.sources import Source
from vit_jax.errors import ConfigError, DataError

Batch = dict[str, np.ndarray]  # image uint8 [R, H, W, C]; label, index int32 [R]; mask bool [R]

_ENDLESS = 1 << 40  # Batches of a training run without `stop`.
_PREFETCHED_BATCHES = 2
_MAX_CHUNK_ROWS = 32  # Amortises what an element costs in Grain, some 50 µs.


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of examples: a pure function of (seed, epoch), in O(1) memory.

    With a seed, position p is example π(p mod n), where epoch p // n has its own permutation π.
    Without one, positions are examples; those from n on are padding and repeat the last example.
    """

    num_examples: int
    seed: int | None

    def indices(self, positions: np.ndarray) -> np.ndarray:
        """Maps positions int64 [R] to source indices int64 [R]."""
        if self.seed is None:
            return np.minimum(positions, self.num_examples - 1)
        epochs, offsets = np.divmod(positions, self.num_examples)
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            rows = epochs == epoch
            indices[rows] = permute(offsets[rows], self.num_examples, (self.seed, epoch))
        return indices


def permute(values: np.ndarray, size: int, seed: tuple[int, ...]) -> np.ndarray:
    """Maps `values` in [0, size), size < 2**48, by a random permutation of that range.

    A small range's permutation is drawn once and cached. For a large one, a Feistel network
    permutes just enough bits, again and again until the value falls inside the range. (Grain's
    `index_shuffle` does so at all sizes, and takes milliseconds a value at small ones.)
    """
    if size <= 1 << 16:
        return _small_permutation(size, seed)[values]
    bits = (size - 1).bit_length()
    low_bits = bits // 2
    masks = [np.uint64((1 << width) - 1) for width in (bits - low_bits, low_bits)]
    result = values.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        halves = [result[outside] >> np.uint64(low_bits), result[outside] & masks[1]]
        for number, (factor, summand) in enumerate(_round_keys(seed)):
            # Multiply-add-shift: a strongly universal hash of the other half.
            hashed = (halves[1 - number % 2] * factor + summand) >> np.uint64(40)
            halves[number % 2] ^= hashed & masks[number % 2]
        result[outside] = halves[0] << np.uint64(low_bits) | halves[1]
        outside = outside[result[outside] >= size]
    return result.astype(np.int64)


@functools.lru_cache(maxsize=8)
def _small_permutation(size: int, seed: tuple[int, ...]) -> np.ndarray:
    # Raw bits: NumPy promises never to change them, as it may `Generator.permutation`.
    return np.argsort(np.random.Philox(np.random.SeedSequence(seed)).random_raw(size))


@functools.lru_cache(maxsize=8)
def _round_keys(seed: tuple[int, ...]) -> np.ndarray:
    return np.random.SeedSequence(seed).generate_state(16, np.uint64).reshape(8, 2)


class _RowGenerator:
    """One NumPy Generator, moved to the stream of any position: 4 µs against 30 for a new one."""

    def __init__(self, seed: int):
        self._bits = np.random.Philox(key=seed)
        self._state = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def at(self, position: int) -> np.random.Generator:
        # Philox is counter-based: this counter leaves 2^128 draws between two positions.
        self._state["state"]["counter"] = np.array([0, 0, position, 0], np.uint64)
        self._bits.state = self._state
        return self._generator


@dataclasses.dataclass(frozen=True)
class _Chunks:
    """Random access to the rows of the batches, a few rows at a time.

    Chunk k holds the rows `parts[k % P]`, of P parts, of batch `start + k // P`. A chunk with an
    unreadable example is a `DataError`: returned, for a raised one loses its type on its way from
    a worker process.
    """

    source: Source
    transform: Callable[..., np.ndarray]
    order: Order
    batch_size: int
    num_distinct: int
    parts: tuple[np.ndarray, ...]
    start: int
    stop: int

    def __len__(self) -> int:
        return (self.stop - self.start) * len(self.parts)

    def __getitem__(self, chunk: int) -> Batch | DataError:
        batch, part = divmod(int(chunk), len(self.parts))
        batch, rows = self.start + batch, self.parts[part]
        positions = batch * self.batch_size + rows
        indices = self.order.indices(batch * self.num_distinct + rows % self.num_distinct)
        try:
            images, labels = self._load(positions.tolist(), indices.tolist())
        except DataError as error:
            return error
        training = self.order.seed is not None
        return {
            "image": np.stack(images),
            "label": np.array(labels, np.int32),
            "index": indices.astype(np.int32),
            "mask": np.full(len(positions), training) | (positions < self.order.num_examples),
        }

    def _load(self, positions: list[int], indices: list[int]) -> tuple[list, list]:
        generator = None if self.order.seed is None else _RowGenerator(self.order.seed)
        images, labels = [], []
        for position, index in zip(positions, indices, strict=True):
            if generator is None and position >= self.order.num_examples and images:
                images.append(images[-1])
                labels.append(labels[-1])
                continue
            rng = () if generator is None else (generator.at(position),)
            image, label = self._load_row(index, position, rng)
            images.append(image)
            labels.append(label)
        return images, labels

    def _load_row(
        self, index: int, position: int, rng: tuple[np.random.Generator, ...]
    ) -> tuple[np.ndarray, int]:
        name = ""
        try:
            image, label, name = self.source[index]
            return self.transform(image, *rng), label
        except (DataError, OSError) as error:
            raise DataError(
                f"Cannot read example {name or index} (index {index}, position {position}, batch "
                f"{position // self.batch_size}): {error}. Repair or remove it and start again."
            ) from error


def num_distinct_rows(batch_size: int, copies: int) -> int:
    """How many different examples make a batch in which each stands up to `copies` times.

    Row i holds the example that row i modulo this number holds, so that copies lie far apart. No
    row has the example of its neighbour, the first and the last being neighbours too: mixup mixes
    neighbours. For that, some batches have fewer copies than they could.
    """
    least = -(-batch_size // copies)
    candidates = range(least, batch_size)
    return next((number for number in candidates if (batch_size - 1) % number), batch_size)


def local_rows(sharding: jax.sharding.Sharding, batch_size: int) -> np.ndarray:
    """The rows of a global batch that this process's devices hold: int64, sorted, each once.

    Raises:
        ConfigError: the devices cannot share `batch_size` rows equally.
    """
    try:
        slices = sharding.addressable_devices_indices_map((batch_size,)).values()
    except ValueError as error:
        raise ConfigError(
            f"config.batch_size={batch_size} cannot be split equally over the mesh: {error}"
        ) from error
    rows = np.arange(batch_size)
    return np.unique(np.concatenate([rows[index] for (index,) in slices]))


def host_batches(
    source: Source,
    transform: Callable[..., np.ndarray],
    rows: np.ndarray,
    *,
    batch_size: int,
    seed: int | None,
    copies: int = 1,
    start: int = 0,
    stop: int | None = None,
    num_threads: int = 0,
    num_workers: int = 0,
) -> Iterator[Batch]:
    """Loads the rows `rows` [R] of the global batches `start`, `start` + 1, … in the background.

    Arguments and errors as in `batches`. Yields image uint8 [R, H, W, C], label int32 [R], index
    int32 [R] and mask bool [R], in the order of `rows`.
    """
    if stop is None:
        stop = _ENDLESS if seed is not None else -(-len(source) // batch_size)
    num_processes = max(1, num_workers)
    num_threads = num_threads or max(2, _num_cores() // num_processes)
    num_parts = max(-(-len(rows) // _MAX_CHUNK_ROWS), min(num_threads * num_processes, len(rows)))
    parts = tuple(np.array_split(rows, num_parts))
    order, distinct = Order(len(source), seed), num_distinct_rows(batch_size, copies)
    chunks = _Chunks(source, transform, order, batch_size, distinct, parts, start, max(start, stop))
    buffered = max(_PREFETCHED_BATCHES * num_parts // num_processes, num_threads)
    dataset = grain.MapDataset.source(chunks).to_iter_dataset(
        grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=buffered)
    )
    if num_workers:
        if not flags.FLAGS.is_parsed():  # Grain's workers ask, even outside an absl program.
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(grain.MultiprocessingOptions(num_workers=num_workers))
    return _gather(iter(dataset), num_parts)


def _num_cores() -> int:
    """The cores that this process may use, where the system says (Slurm, taskset), or has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _gather(chunks: Iterator[Batch | DataError], num_parts: int) -> Iterator[Batch]:
    """Joins each `num_parts` chunks to a batch; closing the generator stops the threads."""
    try:
        while parts := list(itertools.islice(chunks, num_parts)):
            for part in parts:
                if isinstance(part, DataError):
                    raise part
            # Always a copy: what worker processes send is shared memory, which they take back.
            yield {
                key: np.concatenate([np.asarray(part[key]) for part in parts]) for key in parts[0]
            }
    except RuntimeError as error:
        if "Worker process" not in str(error):
            raise
        raise DataError(
            "A worker process that loads data died, for want of memory perhaps: set fewer "
            f"--config.data.num_workers. Grain says: {error}"
        ) from error
    finally:
        chunks.close()


def to_global(
    batch: Batch, rows: np.ndarray, sharding: jax.sharding.Sharding, batch_size: int
) -> dict[str, jax.Array]:
    """Starts the transfer of this process's rows, as its part of arrays [batch_size, ...]."""

    def put(values: np.ndarray) -> jax.Array:
        def shard(index: tuple[slice, ...]) -> np.ndarray:
            start, stop, _ = index[0].indices(batch_size)
            first = np.searchsorted(rows, start)
            return values[first : first + stop - start]

        return jax.make_array_from_callback((batch_size, *values.shape[1:]), sharding, shard)

    with jax.transfer_guard_host_to_device("allow"):  # This one is meant.
        return {key: put(values) for key, values in batch.items()}


def batches(
    source: Source,
    transform: Callable[..., np.ndarray],
    *,
    batch_size: int,
    sharding: jax.sharding.Sharding,
    seed: int | None,
    copies: int = 1,
    start: int = 0,
    stop: int | None = None,
    num_threads: int = 0,
    num_workers: int = 0,
) -> Iterator[dict[str, jax.Array]]:
    """Yields global batches, on the devices, the same for every layout of processes and threads.

    Args:
        source: the examples.
        transform: of (image, Generator) with a seed, of (image) without; picklable.
        batch_size: B, rows of the global batch.
        sharding: of the rows over the devices; each process loads the rows that its devices hold.
        seed: of order and augmentation. None: every example once, in the source's order, the last
            batch filled up with rows whose mask is False.
        copies: of each example in a batch, each transformed with random numbers of its own.
        start: the first batch, that is, the number of completed updates.
        stop: the batch to stop before; None: never with a seed, after ceil(n / B) without.
        num_threads: that load and transform, in each worker process if there are any; 0: the
            machine's cores.
        num_workers: worker processes besides; 0: threads of this process only.

    Returns:
        A generator of dictionaries of arrays: image uint8 [B, H, W, C], label int32 [B], index
        int32 [B] (of the example in the source) and mask bool [B]. At most two batches, or a chunk
        of up to 32 rows for each thread, are held ready. Close it to stop the threads.

    Raises:
        ConfigError: `batch_size` does not divide over the devices.
        DataError: at `next`: an example cannot be read; the message names it and the reason.
    """
    rows = local_rows(sharding, batch_size)
    loaded = host_batches(
        source,
        transform,
        rows,
        batch_size=batch_size,
        seed=seed,
        copies=copies,
        start=start,
        stop=stop,
        num_threads=num_threads,
        num_workers=num_workers,
    )

    def transfer() -> Iterator[dict[str, jax.Array]]:
        with contextlib.closing(loaded):
            for batch in loaded:
                yield to_global(batch, rows, sharding, batch_size)

    return transfer()
