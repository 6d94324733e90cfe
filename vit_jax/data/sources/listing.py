"""The image files in class folders: listed once, kept in an index, listed again after a change.

An index is a folder of NumPy files in `config.data.index_dir`. Its name holds the format, the folder
that it is of, and what it was made from, so an index never changes: who maps it into memory keeps
what it has, and several processes may write it at the same time. (Those of `record_index` are read
whole and checked, which would take half a second for each million files.)
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import pathlib
import re
import shutil
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from vit_jax import storage
from vit_jax.data.sources.contents import UNWATCHED, Walk, is_system, status_of
from vit_jax.data.sources.names import Names
from vit_jax.data.sources.splits import uniform_hash

logger = logging.getLogger(__name__)

_FORMAT = 2
_THREADS = 16  # Stores and file servers answer several questions at once.
_SETTLED_SECONDS = 2.0  # A file added as shortly after another may leave the same time behind.
_ARRAYS = ("labels", "hashes", "modified")
_NAMES = ("files", "class_names", "directories")

_UNUSABLE = (OSError, EOFError, ValueError, IndexError)  # What NumPy raises for damaged files.

_in_memory: dict[tuple[str, str], Listing] = {}  # By the index's folder and name.


@dataclasses.dataclass(frozen=True)
class Listing:
    """The image files in the class folders of one folder, in the order of their names' hashes."""

    files: Names  # [N], relative to the root
    labels: np.ndarray  # int32 [N]
    hashes: np.ndarray  # float64 [N], `uniform_hash` of the names relative to the folder listed
    class_names: Sequence[str]
    directories: Names  # [D], all that were listed, relative to the root
    modified: np.ndarray  # int64 [D], when, in nanoseconds; 0 where a store does not say


def list_classes(root: str, prefix: str, index_dir: str) -> Listing:
    """All images in the class folders in `root`/`prefix`, from an index where there is a current one.

    The index of a local folder is current while no directory below it has been modified, that is,
    while no file was added, removed or renamed. Object stores have no such times: there it is current
    while the class folders are the same.

    Args:
        root: a path or URL.
        prefix: a folder below it, with "/" at its end; or empty.
        index_dir: where indices lie; empty: in memory only.

    Raises:
        DataError: a folder cannot be listed.
    """
    where = storage.join(root, prefix)
    index_dir = "" if storage.is_remote(index_dir) else index_dir  # What is mapped must be local.
    key = hashlib.blake2b(
        f"{_full(root)}\n{prefix}".encode(errors="surrogateescape"), digest_size=8
    )
    name = f"folder-v{_FORMAT}-{key.hexdigest()}"
    known = _in_memory.get((index_dir, name)) or _read_index(index_dir, name)
    if known and _is_current(root, prefix, known):
        if (index_dir, name) not in _in_memory:
            logger.info(
                "%s: %s images, by the index in %s.", where, f"{len(known.files):,}", index_dir
            )
            if storage.is_remote(root):
                logger.info("Remove that folder after adding images to a class.")
        _in_memory[index_dir, name] = known
        return known
    if known:
        logger.info("%s has changed since its index was made: it is listed again.", where)
    started = time.time()
    listing = _scan(root, prefix)
    logger.info(
        "%s: %s images in %d class folders listed in %.1f s.",
        where,
        f"{len(listing.files):,}",
        len(listing.class_names),
        time.time() - started,
    )
    # Before a folder has settled, a change might go unnoticed.
    if listing.files and max(listing.modified) < (started - _SETTLED_SECONDS) * 1e9:
        listing = _write_index(index_dir, name, listing)
        _in_memory[index_dir, name] = listing
    return listing


def natural_order(name: str) -> tuple[list[str | int], str]:
    """A sort key: numbers by value and letters without case; ties by the exact name."""
    parts: list[str | int] = list(re.split(r"(\d+)", name.casefold()))
    parts[1::2] = map(int, parts[1::2])
    return parts, name


def folders_in(path: str) -> list[str]:
    """The names of the folders in a folder, in natural order, without hidden ones and systems' own."""
    entries = storage.list_folder(path)
    return sorted(
        (name for name, is_folder in entries if is_folder and not is_system(name)),
        key=natural_order,
    )


def _scan(root: str, prefix: str) -> Listing:
    """Lists the class folders, several at a time."""
    where = storage.join(root, prefix)
    modified = 0 if storage.is_remote(where) else status_of(where).st_mtime_ns
    labels = folders_in(where)
    _warn_of_stray_files(where)

    def scan_class(label: str) -> tuple[Names, np.ndarray, Walk]:
        walk = Walk(root)
        files = sorted(walk.images_below(f"{prefix}{label}"))
        hashes = np.array([uniform_hash(file) for file in files])
        return Names.of(files), hashes, walk

    with ThreadPoolExecutor(_THREADS) as threads:
        parts = list(threads.map(scan_class, labels))
    walk = Walk(root, [(prefix, modified)]).joined([part[2] for part in parts])
    walk.report(where)
    if empty := [label for label, part in zip(labels, parts, strict=True) if not part[0]]:
        logger.warning("%s: folders without images, ignored: %s", where, ", ".join(empty))
    parts = [part for part in parts if part[0]]
    files = Names.joined([part[0] for part in parts])
    hashes = np.concatenate([np.empty(0), *(part[1] for part in parts)])
    order = np.argsort(hashes, kind="stable")
    files, hashes = files.take(order), hashes[order]
    if prefix:
        hashes = np.fromiter((uniform_hash(name.removeprefix(prefix)) for name in files), float)
    return Listing(
        files,
        np.repeat(np.arange(len(parts), dtype=np.int32), [len(part[0]) for part in parts])[order],
        hashes,
        Names.of(label for label in labels if label not in empty),
        Names.of(path for path, _ in walk.directories),
        np.array([time for _, time in walk.directories], np.int64),
    )


def _warn_of_stray_files(where: str) -> None:
    entries = storage.list_folder(where)
    stray = sum(not is_folder and not is_system(name) for name, is_folder in entries)
    if stray:
        logger.warning("%s: %s files beside the class folders are of no class", where, f"{stray:,}")


# ---------------------------------------------------------------------------------------- index


def _full(root: str) -> str:
    return root if storage.is_remote(root) else os.path.abspath(root)


def _is_current(root: str, prefix: str, listing: Listing) -> bool:
    where = storage.join(root, prefix)
    if storage.is_remote(where):
        below = (path.removeprefix(prefix) for path in listing.directories)
        return folders_in(where) == sorted(
            {path for path in below if path and "/" not in path}, key=natural_order
        )
    try:
        return all(
            modified == UNWATCHED or os.stat(storage.join(root, path)).st_mtime_ns == modified
            for path, modified in zip(listing.directories, listing.modified, strict=True)
        )
    except OSError:
        return False


def _read_index(index_dir: str, name: str) -> Listing | None:
    """The index of that name, whichever it was made from; None if there is none, or it is damaged."""
    if not index_dir:
        return None
    for path in _indices(index_dir, name):
        try:
            return _open_index(path)
        except _UNUSABLE as error:
            logger.warning("%s is damaged (%s): it is made anew.", path, error)
            shutil.rmtree(path, ignore_errors=True)
    return None


def _indices(index_dir: str, name: str) -> list[pathlib.Path]:
    """The indices of that name in a folder."""
    try:
        return [
            path for path in pathlib.Path(index_dir).iterdir() if path.name.startswith(f"{name}-")
        ]
    except OSError:  # Writing one will say why.
        return []


def _open_index(path: pathlib.Path) -> Listing:
    arrays: dict[str, Any] = {
        name: np.load(path / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in _ARRAYS
    }
    names: dict[str, Any] = {name: Names.open(str(path / name)) for name in _NAMES}
    listing = Listing(**{name: np.asarray(array) for name, array in arrays.items()}, **names)
    sizes = {len(listing.files), len(listing.labels), len(listing.hashes)}
    if len(sizes) > 1 or len(listing.directories) != len(listing.modified):
        raise ValueError("its files do not fit each other")
    if listing.labels.max(initial=-1) >= len(listing.class_names):
        raise ValueError("it has labels that are no class")
    return listing


def _write_index(index_dir: str, name: str, listing: Listing) -> Listing:
    """Writes an index and returns it mapped; where that cannot be, warns and returns `listing`."""
    if not index_dir:
        return listing
    content = "\n".join(listing.directories).encode(errors="surrogateescape")
    content += listing.modified.tobytes() + len(listing.files).to_bytes(8)
    mark = hashlib.blake2b(content, digest_size=8).hexdigest()
    path = pathlib.Path(index_dir) / f"{name}-{mark}"
    try:
        old = [other for other in _indices(index_dir, name) if other != path]
        try:
            with storage.replacing(path) as temporary:
                os.mkdir(temporary)
                for array in _ARRAYS:
                    np.save(os.path.join(temporary, f"{array}.npy"), getattr(listing, array))
                for names in _NAMES:
                    getattr(listing, names).save(os.path.join(temporary, names))
        except OSError:
            if not path.is_dir():  # Else another process was faster.
                raise
        for other in old:
            shutil.rmtree(other, ignore_errors=True)
        return _open_index(path)
    except _UNUSABLE as error:
        logger.warning("No index can be written to %s (%s): it stays in memory.", index_dir, error)
        return listing
