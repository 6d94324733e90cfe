"""Stores that are reached by URL, through fsspec: their file systems, and reading that does not give up."""

from __future__ import annotations

import collections
import contextlib
import errno
import functools
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import fsspec

from vit_jax.errors import DataError

READ_SECONDS = 60.0  # For one file or part of it, from a store.
RETRY_SECONDS = (1.0, 4.0, 16.0)  # To wait before it is asked again.
MAX_REQUESTS = 64  # To stores, at a time.
_OPTIONS = {  # That let so many be on their way; others do anyway.
    "s3": {"config_kwargs": {"max_pool_connections": MAX_REQUESTS}}
}
_LASTING = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
# What may pass, where it is no OSError: HTTP's codes, and errors of a connection by the names of their classes.
_PASSING_CODES = {str(code) for code in (408, 429, 500, 502, 503, 504)}
_PASSING_KINDS = {
    *("ClientConnectionError", "ClientPayloadError"),  # aiohttp
    *("ConnectionError", "HTTPClientError"),  # botocore
    *("ServiceRequestError", "ServiceResponseError"),  # azure.core
    *("TransportError", "IncompleteRead"),  # google.auth, http.client
}

_warned: set[str] = set()  # Protocols.

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")


def read(path: str, start: int, stop: int | None) -> bytes:
    """Reads from a store, some times where it fails for a reason that may pass."""
    filesystem = filesystem_of(path)  # What is not installed will not be in a second.
    for wait in RETRY_SECONDS:
        try:
            return _read_remote(filesystem, path, start, stop)
        except (DataError, OSError) as error:
            if not may_pass(error):
                raise
            _warn_of_failures(path, error)
            time.sleep(wait)
    return _read_remote(filesystem, path, start, stop)


def may_pass(error: BaseException) -> bool:
    """Whether asking again may help: not where a file, a right, a credential or a setting is missing."""
    if isinstance(error, DataError):  # Of `named_errors`, for a store's own.
        return error.__cause__ is not None and may_pass(error.__cause__)
    codes = {str(getattr(error, name, "")) for name in ("code", "status", "status_code")}
    if codes & _PASSING_CODES:
        return True
    if isinstance(error, OSError):
        return not isinstance(error, _LASTING)
    return not _PASSING_KINDS.isdisjoint(kind.__name__ for kind in type(error).__mro__)


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


def side_by_side(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """`function` of each item, in order, computed by `readers`, up to `MAX_REQUESTS` ahead."""
    ahead: collections.deque[Future[Result]] = collections.deque()
    try:
        for item in items:
            if len(ahead) == MAX_REQUESTS:
                yield ahead.popleft().result()
            ahead.append(readers().submit(function, item))
        while ahead:
            yield ahead.popleft().result()
    finally:
        for future in ahead:
            future.cancel()


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


def locate(path: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The file system of a URL, as of `filesystem_of`, and what it calls the file or folder."""
    filesystem = filesystem_of(path)
    if "::" in path:  # Each part of a chain names a file in what the next one leads to.
        return filesystem, fsspec.core.url_to_fs(path)[1]
    return filesystem, filesystem._strip_protocol(path)


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
