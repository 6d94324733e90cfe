"""Files that data lies in: local ones by path, others by URL (`gs://`, `s3://`, ...) through fsspec."""

from __future__ import annotations

import contextlib
import errno
import glob as globbing
import json
import math
import os
import shutil
import stat
import sys
import threading
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from vit_jax import stores
from vit_jax.errors import DataError, UserError

PROBE_SECONDS = 30.0
STREAMS = {"/dev/stdout": 1, "/dev/stderr": 2}  # Their descriptors.


class Entry(NamedTuple):
    """A file or folder in a folder."""

    name: str
    is_folder: bool


class Version(NamedTuple):
    """A file's size in bytes, and when or as what it was written: one changes when the file does."""

    size: int
    written: str


def is_remote(path: str) -> bool:
    """Whether `path` is a URL."""
    return "://" in path


def expand(path: str) -> str:
    """A path with its leading `~` and its environment variables replaced; a URL's variables too."""
    path = os.path.expandvars(path)
    return path if is_remote(path) else os.path.expanduser(path)


def expand_source(source: str) -> str:
    """The same of what follows the kind of a data source, as in `folder:~/photos`."""
    kind, separator, location = source.partition(":")
    return kind + separator + expand(location)


def protocol_of(path: str) -> str:
    """The "gs" of a URL, "" of a local path; of a URL that leads through others, "zip::https"."""
    if not is_remote(path):
        return ""
    return "::".join(part.partition("://")[0].lower() for part in path.split("::"))


def join(folder: str, *names: str) -> str:
    """A path below `folder`, by "/" in URLs."""
    if is_remote(folder):
        return "/".join([folder.rstrip("/"), *names])
    return os.path.join(folder, *names)


def probe(path: str, key: str, seconds: float = PROBE_SECONDS) -> bool:
    """Whether there is anything at `path`; asked in a thread, for a dead file server answers never.

    Args:
        path: local, or a URL.
        key: the config's key that names it, for messages.
        seconds: to wait for an answer.

    Raises:
        DataError: no answer in time, no right to ask, or no support for such a URL.
    """
    answer: list[Any] = []

    def ask() -> None:
        try:
            answer.append(exists(path))
        except Exception as error:  # Told to the thread that waits.
            answer.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    if not answer:
        raise DataError(
            f"{key}: {path} does not answer within {seconds:.0f} s: check the network, the mount and "
            "the name of the server or bucket."
        )
    if isinstance(answer[0], DataError):
        raise DataError(f"{key}: {answer[0]}") from answer[0]
    if isinstance(answer[0], Exception):
        raise DataError(f"{key}: {path} cannot be reached ({answer[0]}).") from answer[0]
    return answer[0]


def exists(path: str) -> bool:
    """Whether there is a file or folder at `path`."""
    if not is_remote(path):
        return os.path.exists(path)
    with stores.named_errors(path):
        return stores.filesystem_of(path).exists(path)


def is_folder(path: str) -> bool:
    """Whether `path` is a folder; in a bucket, whether names go on below it."""
    if not is_remote(path):
        return os.path.isdir(path)
    with stores.named_errors(path):
        return stores.filesystem_of(path).isdir(path)


def list_folder(path: str) -> Iterator[Entry]:
    """The files and folders in a folder, in any order.

    Raises:
        DataError: it cannot be listed.
    """
    try:
        yield from _list_remote(path) if is_remote(path) else _list_local(path)
    except DataError:
        raise
    except Exception as error:  # Each store has its own.
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: this folder cannot be listed ({reason})") from error


def _list_local(path: str) -> Iterator[Entry]:
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                is_folder = entry.is_dir()
            except OSError:  # A link that leads to itself, or where one may not look.
                yield Entry(entry.name, False)
                continue
            # Not pipes and devices: to read one may wait for ever.
            if is_folder or entry.is_file() or entry.is_symlink():
                yield Entry(entry.name, is_folder)


def _list_remote(path: str) -> Iterator[Entry]:
    filesystem, folder = stores.locate(path)
    for entry in filesystem.ls(folder, detail=True):
        name = entry["name"].rstrip("/")
        if name != folder.rstrip("/"):  # Some stores have an object for the folder itself.
            yield Entry(name.rpartition("/")[2], entry["type"] == "directory")


def glob(pattern: str) -> list[str]:
    """The paths that a pattern with *, ? and [] matches; "**" spans folders.

    Local folders at its beginning that are there as they are written are no patterns: "runs [v1]/*".
    """
    if not is_remote(pattern):
        folder = os.path.dirname(pattern)
        while folder and not os.path.isdir(folder):
            folder = os.path.dirname(folder)
        literal = globbing.escape(folder) + pattern[len(folder) :]
        return globbing.glob(literal, recursive=True)
    filesystem = stores.filesystem_of(pattern)
    with stores.named_errors(pattern):
        return [filesystem.unstrip_protocol(path) for path in filesystem.glob(pattern)]


def version_of(path: str) -> Version:
    """The version of the file at `path`; raises OSError if there is none, as `read` does."""
    if not is_remote(path):
        status = os.stat(path)
        return Version(status.st_size, str(status.st_mtime_ns))
    with stores.named_errors(path):
        information = stores.filesystem_of(path).info(path)
    marks = ("etag", "ETag", "md5Hash", "generation", "mtime", "LastModified", "updated", "created")
    written = next((str(information[mark]) for mark in marks if information.get(mark)), "")
    return Version(information["size"], written)


def read_lines(path: str, key: str, expected: str, error: type[UserError]) -> list[str]:
    """The lines of a text file; bytes that are no UTF-8, as in names of files, are kept.

    Args:
        path: local, or a URL.
        key: what names the file, and its path, for messages.
        expected: what the file should hold.
        error: what is raised if there is no such file, or it cannot be read or is no text.
    """
    file = expand(path)
    if not probe(file, key) or is_folder(file):
        raise error(f"{key}: no such file.")
    try:
        content = read(file)
    except OSError as reason:
        raise error(f"{key} cannot be read ({reason_of(reason)}).") from reason
    if b"\0" in content:
        raise error(f"{key} is no text file; expected {expected}.")
    text = content.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape")
    return [line.removesuffix("\r") for line in text.split("\n")]


def reason_of(error: OSError) -> str:
    """Why a file cannot be read, without its name, which remote stores leave as the whole reason."""
    missing = "No such file" if isinstance(error, FileNotFoundError) else ""
    return error.strerror or missing or str(error)


def read(path: str, start: int = 0, stop: int | None = None) -> bytes:
    """The bytes `start` to `stop` of a file, default all; fewer where the file ends before.

    Raises:
        OSError: it cannot be read; remote stores' own errors come as DataError.
    """
    if is_remote(path):
        return stores.read(path, start, stop)
    if stop is None:
        with open(path, "rb", opener=open_file) as file:
            file.seek(start)
            return file.read()
    descriptor = open_file(path)
    try:
        parts = []
        while start < stop and (part := os.pread(descriptor, stop - start, start)):
            parts.append(part)  # One in all but the rarest cases.
            start += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
    finally:
        os.close(descriptor)


class Part(NamedTuple):
    """A file, or its bytes from `start` to `stop`."""

    path: str
    start: int = 0
    stop: int | None = None


def read_many(parts: Sequence[Part]) -> Iterator[bytes | DataError | OSError]:
    """Reads several files, in order: local ones as they are asked for, a store's some ahead, side by side.

    What cannot be read stands for itself, as the error of `read`.
    """
    if parts and is_remote(parts[0].path):
        yield from stores.side_by_side(_read_part, parts)
    else:
        yield from map(_read_part, parts)


def _read_part(part: Part) -> bytes | DataError | OSError:
    try:
        return read(*part)
    except (DataError, OSError) as error:
        return error


def open_remote(path: str) -> Any:
    """A file at a URL, to be read in any order by a library that wants a Python file.

    Raises:
        OSError: it cannot be read; remote stores' own errors come as DataError.
    """
    with stores.named_errors(path):
        return stores.filesystem_of(path).open(path, "rb")


def open_file(path: str, flags: int = os.O_RDONLY) -> int:
    """Opens a file, not what may never answer or end; raises OSError."""
    # Without waiting for whoever writes to a pipe.
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode) or stat.S_ISDIR(mode):  # Of a folder, reading says what is wrong.
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is a pipe, a socket or a device, not a file", path)


def write(path: str | os.PathLike[str], content: bytes) -> None:
    """Writes a file, whole or not at all, with the folders above it; raises OSError if it cannot."""
    path = os.fspath(path)
    if is_remote(path):
        try:
            stores.filesystem_of(path).pipe_file(
                path, content
            )  # Stores show an object when it is whole.
        except Exception as error:  # Each has its own.
            raise OSError(f"{path} cannot be written ({error})") from error
    elif path in STREAMS:  # Where it is a file, that has what was printed before.
        sys.stdout.flush()
        with naming(path), open(os.dup(STREAMS[path]), "wb") as file:
            file.write(content)
    elif os.path.exists(path) and not os.path.isfile(path):  # A pipe, a device: none to replace.
        with naming(path), open(path, "wb") as file:
            file.write(content)
    else:
        with naming(path), replacing(path) as temporary, open(temporary, "wb") as file:
            file.write(content)


def check_writable(path: str) -> None:
    """Raises OSError where `write` would; a file that is there stays as it is.

    Folders above are made. In a store only writing tells: a file that is not there begins empty.
    """
    if is_remote(path):
        if not exists(path):
            write(path, b"")
    elif path in STREAMS:
        pass
    elif os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    elif os.path.isfile(path) or not os.path.exists(path):  # Not a pipe, whose reader would see it.
        folder = os.path.dirname(os.path.realpath(path))
        missing = contextlib.suppress(FileNotFoundError)
        with naming(path), _temporary(folder) as temporary, open(temporary, "wb"), missing:
            os.lstat(os.path.realpath(path))  # Its own name may be longer than names can be.


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Has an OSError name this file where it names none, as where a disk is full."""
    try:
        yield
    except OSError as error:
        if error.errno and error.filename is None:
            error.filename = path
        raise


def write_json(path: str | os.PathLike[str], content: Any) -> None:
    """Writes JSON as `write` does."""
    write(path, f"{json.dumps(without_nan(content), indent=2, sort_keys=True)}\n".encode())


def without_nan(value: Any) -> Any:
    """The same for JSON, which knows neither NaN nor infinity: null stands for them."""
    if isinstance(value, dict):
        return {key: without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[str]:
    """Gives the name of a file or folder to make, which becomes `path` where all goes well.

    It lies beside `path`, or what that links to; the folders above are made. Whoever looks at `path`
    sees what was there or all that is new, even after the machine fails. Raises OSError.
    """
    path = os.path.realpath(path)
    with _temporary(os.path.dirname(path)) as temporary:
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)


@contextlib.contextmanager
def _temporary(folder: str) -> Iterator[str]:
    """Gives a name in a folder, which is made, and removes at the end what has it then."""
    try:
        os.makedirs(folder, exist_ok=True)
    except FileExistsError as error:  # It is a file.
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder) from error
    # Others may be writing the same file, and its own name may be as long as names can be.
    temporary = os.path.join(folder, f".{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
    finally:
        with contextlib.suppress(OSError):  # It has gone, if all went well.
            shutil.rmtree(temporary) if os.path.isdir(temporary) else os.remove(temporary)


def _flush(path: str) -> None:
    """Returns when a file, or those in a folder, are on the disk."""
    files = [entry.path for entry in os.scandir(path)] if os.path.isdir(path) else [path]
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove(path: str) -> None:
    """Removes a file; raises OSError if there is none or it may not."""
    if not is_remote(path):
        os.remove(path)
        return
    with stores.named_errors(path):
        stores.filesystem_of(path).rm_file(path)
