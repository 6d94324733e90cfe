"""What is said of paths, and of what libraries raise while they read and write."""

import contextlib
import logging
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import jax
import orbax.checkpoint as ocp
import pytest
from etils import epath

from vit_jax import checkpoint_errors
from vit_jax.checkpoint_errors import check_path, readable, without_warnings, written
from vit_jax.errors import CheckpointError

FOLDER = epath.Path("/nothing/checkpoints")


@pytest.mark.parametrize("character", ["\\", "*", "?", "[", "]", "\udcff"])
@pytest.mark.parametrize("read_only", [True, False])
def test_paths_that_orbax_takes_for_patterns(character, read_only):
    path = f"/data/a{character}b"
    if read_only and character in "*?[]":
        check_path(path, read_only=True)
        return
    what = "bytes that are no text" if character > "\x7f" else f"the characters \\{character}"
    end = "cannot be read: rename it" if read_only else "cannot be saved: name another"
    with pytest.raises(CheckpointError, match=f"has {what} in it, .* {end}"):
        check_path(path, read_only=read_only)
    check_path("/data/äö (1)", read_only=read_only)


def test_the_first_line_of_a_librarys_error_is_the_reason():
    with pytest.raises(CheckpointError, match=r"5 is damaged \(first\)"), readable(FOLDER, 5):
        raise ValueError("first\nsecond")
    with (
        pytest.raises(CheckpointError, match=r"5 is damaged \(KeyError\(\)\)"),
        readable(FOLDER, 5),
    ):
        raise KeyError
    with pytest.raises(CheckpointError, match=f"damaged \\({'x' * 150}\\)"), readable(FOLDER, 5):
        raise OSError("x" * 200)
    with (
        pytest.raises(
            CheckpointError,
            match=r"^/nothing/checkpoints/5 could not be saved \(first\)\. Earlier checkpoints are "
            r"whole: make room, or mend the file system, and start the same command again\.$",
        ),
        written(FOLDER, 5),
    ):
        raise OSError("first\nsecond")
    with pytest.raises(CheckpointError, match=f"saved \\({'x' * 300}\\)"), written(FOLDER, 5):
        raise ValueError("x" * 400)


@pytest.mark.parametrize("context", [readable, written])
def test_our_own_words_stay(context):
    with pytest.raises(CheckpointError, match=r"^mine$"), context(FOLDER, 5):
        raise CheckpointError("mine")


def test_another_process_that_died_is_not_ours_to_explain():
    with pytest.raises(jax.errors.JaxRuntimeError), written(FOLDER, 5):
        raise jax.errors.JaxRuntimeError("gone")


def test_warnings_come_back():
    absl = logging.getLogger("absl")
    level = absl.level
    try:
        absl.setLevel(logging.INFO)
        with without_warnings():
            assert absl.level == logging.ERROR
        assert absl.level == logging.INFO
    finally:
        absl.setLevel(level)


@contextlib.contextmanager
def coroutine_of(file):
    """A coroutine whose code stands in such a file."""
    namespace = {}
    exec(compile("async def write(): pass", file, "exec"), namespace)
    with contextlib.closing(namespace["write"]()) as coroutine:
        yield coroutine


def test_what_is_kept_from_being_printed_is_what_a_save_leaves_behind(monkeypatch):
    """Of the loggers and of what nobody can catch; all else is printed as before."""
    names, printed = ("absl", "asyncio", "vit_jax"), []
    for name in names:  # What another test's command added stays out, and so does what this adds.
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    monkeypatch.setattr(sys, "unraisablehook", printed.append)
    monkeypatch.setattr(checkpoint_errors, "being_written", threading.Event())
    checkpoint_errors.being_written.set()
    checkpoint_errors.tell_once.__wrapped__()

    def passing(path):
        records = [logging.LogRecord(n, logging.ERROR, path, 1, "text", (), None) for n in names]
        return [each.name for each in records if logging.getLogger(each.name).filter(each)]

    assert passing(f"{checkpoint_errors.ORBAX}_src/futures.py") == ["vit_jax"]
    assert passing("ours.py") == ["absl", "vit_jax"]
    with coroutine_of(f"{checkpoint_errors.ORBAX}_src/futures.py") as theirs:
        hidden = [(None, RuntimeError("Event loop is closed")), (theirs, KeyError("theirs"))]
        for place, error in (*hidden, (None, KeyError("ours"))):
            sys.unraisablehook(types.SimpleNamespace(object=place, exc_value=error))
    assert [str(each.exc_value) for each in printed] == ["'ours'"]


@pytest.mark.parametrize(
    ("file", "is_theirs"), [(f"{checkpoint_errors.ORBAX}_src/x.py", True), ("ours.py", False)]
)
def test_a_coroutine_of_a_save_is_told_by_its_file(file, is_theirs, monkeypatch):
    monkeypatch.setattr(checkpoint_errors, "being_written", threading.Event())
    with coroutine_of(file) as coroutine:
        assert not checkpoint_errors.is_left_behind(coroutine, KeyError())
        checkpoint_errors.being_written.set()
        assert checkpoint_errors.is_left_behind(coroutine, KeyError()) == is_theirs


@pytest.fixture
def met(monkeypatch):
    """The keys of the barriers at which this process waited."""
    keys = []

    def barrier():
        return lambda *, key, timeout_ms: keys.append((key, timeout_ms))

    monkeypatch.setattr(ocp.multihost, "get_barrier_sync_fn", barrier)
    return keys


def in_a_thread(function):
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(function).result()


def failing_before_it_meets():
    try:
        raise OSError("no room")
    finally:
        checkpoint_errors.meet(key="saved", timeout_ms=5)


def test_a_process_whose_part_failed_says_so_rather_than_wait_for_the_others(met):
    with pytest.raises(OSError, match="no room"):
        in_a_thread(failing_before_it_meets)
    assert met == []
    in_a_thread(lambda: checkpoint_errors.meet(key="saved", timeout_ms=5))
    assert met == [("saved", 5)]


def test_a_save_because_of_an_error_meets_the_others(met):
    """As of an evaluation that fails: the state is saved before that is told."""
    with pytest.raises(OSError, match="no room"):
        failing_before_it_meets()
    assert met == [("saved", 5)]
