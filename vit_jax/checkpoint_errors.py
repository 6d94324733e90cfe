"""Whatever Orbax and file systems say of a checkpoint, as one message."""

import contextlib
import functools
import inspect
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import jax
import orbax.checkpoint
from etils import epath

from vit_jax import digests
from vit_jax.errors import CheckpointError

ORBAX = os.path.join(os.path.dirname(orbax.checkpoint.__file__), "")  # Its source files lie there.
# Set while a checkpoint is being written, and on from there if that failed: threads end later.
being_written = threading.Event()


def check_path(workdir: str | os.PathLike[str], *, read_only: bool = False) -> None:
    """Raises CheckpointError if Orbax could not save to, or read from, such a path.

    It looks for what it has written by patterns, and knows neither backslashes nor names that are
    no Unicode text.
    """
    path = os.fspath(epath.Path(workdir).absolute())
    unsafe = sorted(set(path) & set("\\" if read_only else "\\*?[]"))
    is_text = not any("\ud800" <= character <= "\udfff" for character in path)
    if unsafe or not is_text:
        what = f"the characters {' '.join(unsafe)}" if unsafe else "bytes that are no text"
        raise CheckpointError(
            f"{path!r} has {what} in it, with which checkpoints cannot be "
            f"{'read' if read_only else 'saved'}: {'rename it' if read_only else 'name another'}."
        )


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Keeps Orbax from warning, through absl, of what was asked for: not to write."""
    absl = logging.getLogger("absl")
    level = absl.level
    absl.setLevel(logging.ERROR)
    try:
        yield
    finally:
        absl.setLevel(level)


@functools.cache
def tell_once() -> None:
    """From here on a program does not print what is left over where a save fails.

    Each of Orbax's threads would add a traceback, some long after the error was told: what they log
    as an error is raised as well. At other times, and of others, everything is printed.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).addFilter(lambda record: not is_left_over(record))
    others = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if not is_left_behind(unraisable.object, unraisable.exc_value):
            others(unraisable)

    sys.unraisablehook = hook


def is_left_over(record: logging.LogRecord) -> bool:
    """Whether it is an error of Orbax, or of the event loops that it writes with, during a save."""
    of_writer = record.name == "asyncio" or record.pathname.startswith(ORBAX)
    return being_written.is_set() and of_writer and record.levelno == logging.ERROR


def is_left_behind(where: Any, error: BaseException | None) -> bool:
    """Whether an error that nobody can catch is of a coroutine or an event loop of a save."""
    of_writer = inspect.iscoroutine(where) and where.cr_code.co_filename.startswith(ORBAX)
    return being_written.is_set() and (of_writer or str(error) == "Event loop is closed")


def meet(*, key: str, timeout_ms: int) -> None:
    """Waits for the other processes, unless this one's part of a checkpoint failed: that is raised.

    Orbax's threads would wait for them first, and they for this one: for 20 minutes nobody would say
    anything. The thread that trains may save because of an error of its own, and does wait.
    """
    failure = sys.exc_info()[1]
    if failure is not None and threading.current_thread() is not threading.main_thread():
        raise failure
    orbax.checkpoint.multihost.get_barrier_sync_fn()(key=key, timeout_ms=timeout_ms)


@contextlib.contextmanager
def readable(directory: epath.Path, step: int) -> Iterator[None]:
    """Turns whatever libraries raise at damaged files into one message."""
    try:
        yield
    except CheckpointError:
        raise
    except Exception as error:  # KeyError, ValueError, OSError, AttributeError, zarr's, ...
        reason = (str(error) or repr(error)).splitlines()[0][:150]
        raise digests.damaged(directory, step, reason) from error


@contextlib.contextmanager
def written(directory: epath.Path, step: int) -> Iterator[None]:
    """Turns whatever libraries raise where nothing more can be written into one message."""
    try:
        yield
    except (CheckpointError, jax.errors.JaxRuntimeError):  # The latter: another process died.
        raise
    except Exception as error:  # OSError, or TensorStore's ValueError.
        reason = (str(error) or repr(error)).splitlines()[0][:300]
        raise CheckpointError(
            f"{directory}/{step} could not be saved ({reason}). Earlier checkpoints are whole: make "
            "room, or mend the file system, and start the same command again."
        ) from error
