"""What is said of paths, and of what libraries raise while they read and write."""

import logging
import threading
import types

import jax
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


def test_what_is_kept_from_being_printed_is_what_a_save_leaves_behind(monkeypatch):
    """Of the loggers and of what nobody can catch; all else is printed as before."""
    printed = []
    hooked = types.SimpleNamespace(unraisablehook=printed.append)
    monkeypatch.setattr(checkpoint_errors, "sys", hooked)
    monkeypatch.setattr(checkpoint_errors, "is_left_behind", lambda where, error: where == "save")
    monkeypatch.setattr(checkpoint_errors, "is_left_over", lambda record: record == "save")
    filtered = {name: [] for name in ("absl", "asyncio", "vit_jax")}

    def logger(name):
        return types.SimpleNamespace(addFilter=filtered[name].append)

    monkeypatch.setattr(checkpoint_errors, "logging", types.SimpleNamespace(getLogger=logger))
    checkpoint_errors.tell_once.__wrapped__()
    for name in ("absl", "asyncio"):
        (is_printed,) = filtered[name]
        assert [is_printed(record) for record in ("save", "other")] == [False, True]
    assert not filtered["vit_jax"]
    hooks = [types.SimpleNamespace(object=place, exc_value=None) for place in ("save", "other")]
    for unraisable in hooks:
        hooked.unraisablehook(unraisable)
    assert printed == hooks[1:]


@pytest.mark.parametrize(("path", "is_theirs"), [("_src/x.py", True), ("", False)])
def test_a_coroutine_of_a_save_is_told_by_its_file(path, is_theirs, monkeypatch):
    monkeypatch.setattr(checkpoint_errors, "being_written", threading.Event())
    namespace = {}
    code = "async def write(): pass"
    exec(compile(code, checkpoint_errors.ORBAX + path if path else "ours.py", "exec"), namespace)
    coroutine = namespace["write"]()
    assert not checkpoint_errors.is_left_behind(coroutine, KeyError())
    checkpoint_errors.being_written.set()
    assert checkpoint_errors.is_left_behind(coroutine, KeyError()) == is_theirs
    coroutine.close()
