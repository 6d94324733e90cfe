"""The classes of examples that say theirs only when they are read, as TFDS's records do."""

from __future__ import annotations

import hashlib
import itertools
import logging
import time
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from vit_jax import storage
from vit_jax.data.sources.examples import Example, Source, digest_of
from vit_jax.errors import DataError

_THREADS = 16  # They wait for the disk or the network.
_AT_ONCE = 64  # Neighbours in one request.
_COMPARED = 32  # Kept labels that are read again: other data at the same path differs in most.
_LOG_SECONDS = 10.0

logger = logging.getLogger(__name__)


def read_labels(source: Source, location: str, directory: str) -> np.ndarray:
    """The label of each example, int32 [N]; reads all of them, unless that was done before.

    Args:
        source: of examples with one class each.
        location: of the data, to tell what is kept of others.
        directory: where labels are kept, local or a URL; "": nowhere.

    Raises:
        DataError: an example cannot be read, or has no class or several.
    """
    digest = hashlib.blake2b(f"{location}\0{digest_of(source)}".encode(), digest_size=12)
    path = storage.join(directory, f"{digest.hexdigest()}.labels") if directory else ""
    if path and (kept := _load(path)) is not None and _is_of(source, kept):
        return kept
    logger.info(
        "%s: classes stand in the %s examples themselves, which are read for them once.",
        location,
        f"{len(source):,}",
    )
    labels = np.fromiter(_with_progress(_read(source, range(len(source))), len(source)), np.int32)
    if path:
        content = labels.astype("<i4").tobytes()
        try:
            storage.write(path, zlib.crc32(content).to_bytes(4, "little") + content)
        except OSError as error:
            logger.warning("config.data.index_dir: %s: they are read again next time.", error)
    return labels


def _load(path: str) -> np.ndarray | None:
    """What was kept; None if nothing was, or it is damaged."""
    try:
        content = storage.read(path)
    except (OSError, DataError):
        return None
    if zlib.crc32(content[4:]).to_bytes(4, "little") != content[:4]:
        logger.warning("%s is damaged: it is made again.", path)
        return None
    return np.frombuffer(content[4:], "<i4").astype(np.int32)


def _is_of(source: Source, labels: np.ndarray) -> bool:
    """Whether labels are those of a source, as far as a few of its examples tell."""
    if len(labels) != len(source):
        return False
    indices = np.linspace(0, len(source) - 1, min(_COMPARED, len(source))).astype(int).tolist()
    return list(_read(source, indices)) == labels[indices].tolist()


def _read(source: Source, indices: Sequence[int]) -> Iterator[int]:
    """The labels of some examples; raises DataError for the first that has none."""

    def read(batch: Sequence[int]) -> list[int]:
        return [_label_of(example) for example in source.fetch(batch)]

    with ThreadPoolExecutor(_THREADS) as threads:
        for start in range(0, len(indices), _THREADS * _AT_ONCE):
            group = indices[start : start + _THREADS * _AT_ONCE]
            batches = [group[first : first + _AT_ONCE] for first in range(0, len(group), _AT_ONCE)]
            yield from itertools.chain.from_iterable(threads.map(read, batches))


def _label_of(example: Example | Exception) -> int:
    if isinstance(example, Exception):
        raise DataError(str(example)) from example
    if np.ndim(example.label):
        raise DataError(f"{example.name} has several")
    return int(example.label)


def _with_progress(labels: Iterator[int], total: int) -> Iterator[int]:
    """The same, with a line in the log every ten seconds."""
    last = time.monotonic()
    for count, label in enumerate(labels, 1):
        yield label
        if time.monotonic() - last > _LOG_SECONDS:
            last = time.monotonic()
            logger.info("Read the classes of %s of %s examples.", f"{count:,}", f"{total:,}")
