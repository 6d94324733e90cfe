"""Stores that are reached by URL, through fsspec: their file systems, and reading that does not give up."""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import fsspec

from vit_jax.errors import DataError

READ_SECONDS = 60.0  # For one file or part of it, from a store.
RETRY_SECONDS = (1.0, 4.0, 16.0)  # To wait before it is asked again.
MAX_REQUESTS = 64  # To stores, at a time.
_OPTIONS = {  # That let so many be on their way; others do anyway.
    "s3": {"config_kwargs": {"max_pool_connections": MAX_REQUESTS}}
}
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError)  # Not to be asked again.

_warned: set[str] = set()  # Protocols.

logger = logging.getLogger(__name__)


def read(path: str, start: int, stop: int | None) -> bytes:
    """Reads from a store, some times where it fails for a reason that may pass."""
    filesystem = filesystem_of(path)  # What is not installed will not be in a second.
    for wait in RETRY_SECONDS:
        try:
            return _read_remote(filesystem, path, start, stop)
        except _LASTING:
            raise
        except (DataError, OSError) as error:
            _warn_of_failures(path, error)
            time.sleep(wait)
    return _read_remote(filesystem, path, start, stop)


def _read_remote(
    filesystem: fsspec.AbstractFileSystem, path: str, start: int, stop: int | None
) -> bytes:
    limit = {"timeout": READ_SECONDS} if filesystem.async_impl else {}
    with named_errors(path):
        try:
            return filesystem.cat_file(path, start=start or None, end=stop, **limit)
        except TimeoutError as error:
            reason = f"no answer within {READ_SECONDS:.0f} s"
            raise OSError(errno.ETIMEDOUT, reason, path) from error


def _warn_of_failures(path: str, error: Exception) -> None:
    """Says once for each kind of store that reading fails: thousands of reads may meet it."""
    protocol = _protocol_of(path)
    if protocol not in _warned:
        _warned.add(protocol)
        logger.warning("Reading from %s:// fails, and is tried again: %s", protocol, error)


@functools.cache
def readers() -> ThreadPoolExecutor:
    """The threads of this process that wait for stores."""
    return ThreadPoolExecutor(MAX_REQUESTS, thread_name_prefix="storage")


@contextlib.contextmanager
def named_errors(path: str) -> Iterator[None]:
    """Makes a DataError of what is neither that nor an OSError: each store has errors of its own."""
    try:
        yield
    except (DataError, OSError):
        raise
    except Exception as error:
        raise DataError(f"{path} cannot be read ({error})") from error


def filesystem_of(path: str) -> fsspec.AbstractFileSystem:
    """The file system of a URL.

    fsspec keeps one for each store and thread. Those that wait in a thread of their own are shared, with
    their connections.
    """
    try:
        if "::" in path or not fsspec.get_filesystem_class(_protocol_of(path)).async_impl:
            return fsspec.core.url_to_fs(path)[0]
        return _shared_filesystem(os.getpid(), "/".join(path.split("/", 3)[:3]))
    except (ImportError, ValueError) as error:
        raise DataError(
            f"{path}: this kind of URL needs a package that is not installed ({error}); for gs:// "
            "install gcsfs, for s3:// s3fs, for az:// adlfs."
        ) from error


@functools.cache
def _shared_filesystem(process: int, root: str) -> fsspec.AbstractFileSystem:
    """The file system of the URLs that begin with `root`, in a process."""
    del process  # A fork has connections of its own.
    protocol = _protocol_of(root)
    given = fsspec.config.conf.get(protocol, {})
    options = {key: value for key, value in _OPTIONS.get(protocol, {}).items() if key not in given}
    return fsspec.core.url_to_fs(f"{root}/", **options)[0]


def _protocol_of(path: str) -> str:
    return path.partition("://")[0].lower()
