"""From examples to batches on the devices.

The position in the data is the step: row i of batch s is position s·B + i of the order, on any
number of processes, threads and workers. So there is no iterator state to save, and a run resumes
anywhere at no cost.
"""

from __future__ import annotations

import contextlib
import errno
import gc
import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Generator
from typing import Any

import grain
import jax
import numpy as np
from absl import flags

from vit_jax.data.loading.chunks import Buffers, Chunks, Loading, Skipping
from vit_jax.data.loading.read_ahead import ReadAhead, chunks_ahead
from vit_jax.devices.distributed import processes_on_host
from vit_jax.errors import ConfigError, DataError

# image uint8 [R, H, W, C]; label int32 [R], or targets float32 [R, K]; index int32, mask bool [R]
Batch = dict[str, np.ndarray]

_ENDLESS = 1 << 40  # Batches of a training run without `stop`.
PREFETCHED_BATCHES = 2
_MAX_CHUNK_ROWS = 32  # Amortises what an element costs in Grain, some 50 µs.
# What worker processes run out of -> what helps.
_SHORTAGES = {
    errno.ENOSPC: "/dev/shm is too small; give the machine or container more (--shm-size of docker)",
    errno.EMFILE: "allow more open files (ulimit -n)",
    errno.ENFILE: "allow the machine more open files (sysctl fs.file-max)",
}
_CORES_PER_WORKER = 8  # That threads of one process keep busy, under one interpreter lock.


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
    loading: Loading, rows: np.ndarray, start: int = 0, stop: int | None = None
) -> Generator[Batch]:
    """Loads the rows `rows` [R] of the global batches `start`, `start` + 1, … in the background.

    Arguments and errors as in `batches`. Yields image uint8 [R, H, W, C], label int32 [R] or float32
    [R, K], index int32 [R] and mask bool [R], in the order of `rows`.
    """
    if stop is None:
        one_epoch = -(-len(loading.source) // loading.batch_size)
        stop = one_epoch if loading.order.seed is None else _ENDLESS
    num_workers = default_workers() if loading.num_workers < 0 else loading.num_workers
    num_processes = max(1, num_workers)
    num_threads = num_threads_of(loading, num_processes)
    num_parts = num_chunks(len(rows), num_threads * num_processes)
    buffers = None if num_workers else Buffers(len(rows))
    parts = tuple(np.array_split(rows, num_parts))
    stop = max(start, stop)
    ahead = None
    if loading.source.remote:
        most = chunks_ahead(num_cores() // num_processes)
        ahead = ReadAhead(most, stride=num_processes, stop=(stop - start) * num_parts)
    chunks = Chunks(loading, parts, start, stop, buffers, ahead)
    buffered = max(PREFETCHED_BATCHES * num_parts // num_processes, num_threads)
    dataset = grain.MapDataset.source(chunks).to_iter_dataset(
        grain.ReadOptions(num_threads=num_threads, prefetch_buffer_size=buffered)
    )
    if num_workers:
        if not flags.FLAGS.is_parsed():  # Grain's workers ask, even outside an absl program.
            flags.FLAGS.mark_as_parsed()
        dataset = dataset.mp_prefetch(
            grain.MultiprocessingOptions(num_workers=num_workers), worker_init_fn=_start_worker
        )
    return _closing(ahead, _gather(iter(dataset), num_parts, loading.skipping, buffers))


def _closing(ahead: ReadAhead | None, loaded: Generator[Batch]) -> Generator[Batch]:
    """The batches; reading ahead ends with them."""
    with (
        contextlib.closing(ahead) if ahead else contextlib.nullcontext(),
        contextlib.closing(loaded),
    ):
        yield from loaded


def num_threads_of(loading: Loading, num_processes: int) -> int:
    """Threads of each process that decode: one a core."""
    return loading.num_threads or max(2, num_cores() // num_processes)


def num_chunks(num_rows: int, num_threads: int) -> int:
    """The chunks of a batch's rows: one for each of all threads, more where they would be large."""
    return max(-(-num_rows // _MAX_CHUNK_ROWS), min(num_threads, num_rows))


def num_cores() -> int:
    """The cores that this process may use, where the system says (Slurm, taskset).

    Else its share of the host's, for the processes of one run; all of them have to ask.
    """
    sharing = processes_on_host()  # Before anything that may differ by host: all must come here.
    present = os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else present
    return allowed if allowed < present else max(1, present // sharing)


def default_workers() -> int:
    """Worker processes for this many cores: none for a few, for threads suffice and start at once."""
    cores = num_cores()
    return cores // _CORES_PER_WORKER if cores > 2 * _CORES_PER_WORKER else 0


def _start_worker(index: int, count: int) -> None:
    """Makes a worker process live just as long as the one that it loads for."""
    del index, count
    # A terminal and Slurm signal all processes; the run still needs batches to stop in order.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent()


def end_with_parent() -> None:
    """Ends this worker process once the one that started it is no more."""

    def watch() -> None:
        multiprocessing.parent_process().join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _gather(
    chunks: Generator[Any],  # Parts of batches, or the DataError of one.
    num_parts: int,
    skipping: Skipping | None,
    buffers: Buffers | None,
) -> Generator[Batch]:
    """Joins each `num_parts` chunks to a batch; closing the generator stops the threads."""
    try:
        for number in itertools.count():
            parts = list(itertools.islice(chunks, num_parts))
            if not parts:
                return
            if failure := next((part for part in parts if isinstance(part, DataError)), None):
                raise failure
            if skipping:
                skipping.report([one for part in parts for one in part["unread"]])
            yield _join(parts, None if buffers is None else buffers.take(number))
    except RuntimeError as error:
        if "Worker process" not in str(error):
            raise
        raise DataError(
            "A worker process that loads data died, for want of memory or of room in /dev/shm perhaps: "
            f"set fewer --config.data.num_workers. Grain says: {error}"
        ) from error
    except FileNotFoundError as error:  # Worker processes map the list of files anew.
        raise DataError(
            f"{error.filename} has been removed since the run began, and a worker process needs it: "
            "leave config.data.index_dir alone, and start again."
        ) from error
    except OSError as error:
        if error.errno not in _SHORTAGES:
            raise
        raise DataError(
            f"Worker processes cannot hand over images ({error.strerror}): "
            f"{_SHORTAGES[error.errno]}, or set fewer --config.data.num_workers, 0 for none."
        ) from error
    finally:
        chunks.close()
        if buffers is None:
            gc.collect()  # Grain's cycles hold shared memory, of which Python would warn at the end.


def _join(parts: list[dict[str, Any]], images: np.ndarray | None) -> Batch:
    """One batch of its parts; `images` is where theirs lie already, if anywhere."""
    keys = ("label", "index", "mask") if images is not None else ("image", "label", "index", "mask")
    # From worker processes always a copy: theirs is shared memory, which they take back.
    batch = {key: np.concatenate([np.asarray(part[key]) for part in parts]) for key in keys}
    parts.clear()
    return batch if images is None else {**batch, "image": images}


def to_global(
    batch: Batch, rows: np.ndarray, sharding: jax.sharding.Sharding, batch_size: int
) -> dict[str, jax.Array]:
    """Starts the transfer of this process's rows, as its part of arrays [batch_size, ...]."""

    def put(values: np.ndarray) -> jax.Array:
        def shard(index: Any) -> np.ndarray:
            start, stop, _ = index[0].indices(batch_size)
            first = np.searchsorted(rows, start)
            return values[first : first + stop - start]

        return jax.make_array_from_callback((batch_size, *values.shape[1:]), sharding, shard)

    with jax.transfer_guard_host_to_device("allow"):  # This one is meant.
        return {key: put(values) for key, values in batch.items()}


def batches(
    loading: Loading, sharding: jax.sharding.Sharding, start: int = 0, stop: int | None = None
) -> Generator[dict[str, jax.Array]]:
    """Yields global batches, on the devices, the same for every layout of processes and threads.

    Args:
        loading: the examples, and how they become batches.
        sharding: of the rows over the devices; each process loads the rows that its devices hold.
        start: the first batch, that is, the number of completed updates.
        stop: the batch to stop before; None: never with a seed, after ceil(n / B) without.

    Returns:
        A generator of dictionaries of arrays: image uint8 [B, H, W, C], label int32 [B] or float32
        [B, K], index int32 [B] (of the example in the source) and mask bool [B]. At most two batches,
        or a chunk of up to 32 rows for each thread, are held ready; of a store's, besides, up to 64
        chunks or 256 MiB of files not yet decoded. Close it to stop the threads.

    Raises:
        ConfigError: B does not divide over the devices.
        DataError: at `next`: an example cannot be read, and such are not skipped; the message names
            it, its position and the reason. Or a worker process died.
    """
    rows = local_rows(sharding, loading.batch_size)
    return _transferred(
        host_batches(loading, rows, start, stop), rows, sharding, loading.batch_size
    )


def _transferred(
    loaded: Generator[Batch], rows: np.ndarray, sharding: jax.sharding.Sharding, batch_size: int
) -> Generator[dict[str, jax.Array]]:
    with contextlib.closing(loaded):
        for batch in loaded:
            yield to_global(batch, rows, sharding, batch_size)
