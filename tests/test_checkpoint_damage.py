"""Damage of any file of a checkpoint is found before anything is made of it."""

import json
import logging
import re
import resource
import shutil
import sys
import threading

import pytest
from etils import epath

from tests.runs import LIMIT_SECONDS, start
from tests.states import abstract, assert_equal, make_state
from vit_jax import checkpoint_errors, digests
from vit_jax.checkpoint import Checkpoints, restore_params
from vit_jax.checkpoint_errors import is_left_behind, is_left_over
from vit_jax.errors import CheckpointError

# For a thread that has nothing left to do; Orbax's own limit is three times that.
WRITER_SECONDS = 100


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)


DAMAGES = {
    "flipped": flip,
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "emptied": lambda path: path.write_bytes(b""),
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "deleted": lambda path: path.unlink(),
}


@pytest.fixture(scope="module")
def saved_once(tmp_path_factory):
    """Checkpoints 1 and 2, both evaluated, with averaged parameters."""
    workdir = tmp_path_factory.mktemp("saved")
    checkpoints = Checkpoints(workdir, keep=2, best_metric="eval/accuracy")
    for step in (1, 2):
        checkpoints.save(step, make_state(step, ema=True), {"eval/accuracy": step / 10})
    checkpoints.close()
    return workdir


@pytest.fixture
def saved(saved_once, tmp_path):
    workdir = tmp_path / "run"
    shutil.copytree(saved_once, workdir)
    return workdir


def files_of(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def flip_arrays(item):
    """Flips a bit in the largest file of a checkpoint's item."""
    flip(max((item / name for name in files_of(item)), key=lambda path: path.stat().st_size))


def resume(workdir):
    """What the trainer does to go on."""
    checkpoints = Checkpoints(workdir, keep=2, best_metric="eval/accuracy")
    try:
        return checkpoints.restore(checkpoints.latest_step, abstract(make_state(2, ema=True)))
    finally:
        checkpoints.close()


def outcomes(workdir, damage, names):
    """What a resumption says, or None, by the file of checkpoint 2 that is damaged alone."""
    latest, found = workdir / "checkpoints" / "2", {}
    backup = workdir.with_name("backup")
    shutil.copytree(latest, backup)
    for name in names:
        damage(latest / name)
        try:
            resume(workdir)
            found[name] = None
        except CheckpointError as error:
            found[name] = str(error)
        shutil.rmtree(latest)
        shutil.copytree(backup, latest)
    return found


@pytest.mark.parametrize("damage", DAMAGES)
def test_any_damage_of_any_file_is_named_with_the_older_checkpoint(saved, damage):
    latest = saved / "checkpoints" / "2"
    # Without its digests, a checkpoint is one whose process was killed before it wrote them.
    names = [n for n in files_of(latest) if damage != "deleted" or not n.startswith("digests.")]
    assert len(names) > 20
    if damage not in ("flipped", "deleted"):  # One of each kind: all take the same way.
        names = list({name.rpartition("/")[2][:8]: name for name in names}.values())
    for name, message in outcomes(saved, DAMAGES[damage], names).items():
        assert message, name
        assert "checkpoints/2 is damaged" in message
        assert "--checkpoint=1 goes on from it" in message


@pytest.mark.parametrize("damage", ["truncated", "emptied", "zeroed", "deleted"])
def test_without_digests_damage_is_one_message_all_the_same(saved, damage):
    """Flipped bits cannot be told there; what libraries raise must not reach the user."""
    latest = saved / "checkpoints" / "2"
    for path in latest.glob("digests.*"):
        path.unlink()
    names = [name for name in files_of(latest) if "_METADATA" in name or name.count("/") == 1]
    found = outcomes(saved, DAMAGES[damage], names)
    assert all("checkpoints/2" in message for message in found.values() if message)
    assert found["ema/_METADATA"]


def test_reading_for_use_compares_what_it_reads(saved):
    latest = saved / "checkpoints" / "2"
    flip_arrays(latest / "params")
    with pytest.raises(CheckpointError, match=r"2 is damaged \(params/.*--checkpoint=1"):
        restore_params(saved)
    assert_equal(restore_params(saved, ema=True), make_state(2, ema=True).ema)
    assert_equal(restore_params(saved, 1), make_state(1).params)
    for path in (latest / "format").rglob("*"):
        if path.is_file() and b'"ema"' in path.read_bytes():
            path.write_text(path.read_text().replace('"ema"', '"ami"'))
    with pytest.raises(CheckpointError, match=r"2 is damaged \(format/.* is not what was saved"):
        restore_params(saved, ema=True)


def test_only_older_checkpoints_that_are_whole_are_named(saved):
    for step in "12":
        flip_arrays(saved / "checkpoints" / step / "params")
    with pytest.raises(CheckpointError, match=r"2 is damaged .*no older one that is whole"):
        resume(saved)
    with pytest.raises(CheckpointError, match=r"1 is damaged .*rename it to 1\.damaged"):
        restore_params(saved, 1)


def test_a_checkpoint_without_digests_is_read_and_said_to_have_none_once(saved, caplog):
    with caplog.at_level(logging.WARNING, logger="vit_jax"):
        resume(saved)
        assert "has no digests" not in caplog.text
        for path in (saved / "checkpoints" / "2").glob("digests.*"):
            path.unlink()
        assert_equal(resume(saved), make_state(2, ema=True))
    assert len([text for text in caplog.messages if "has no digests" in text]) == 1


def test_a_lost_file_of_the_averages_does_not_restart_them(saved):
    shutil.rmtree(saved / "checkpoints" / "2" / "ema")
    with pytest.raises(CheckpointError, match=r"2 is damaged"):
        resume(saved)


def test_a_save_that_finds_no_room_is_one_message_and_leaves_the_last(saved):
    """A limit on the size of files stands for a full disk or a quota: writing fails alike."""
    checkpoints = Checkpoints(saved, keep=2, best_metric="eval/accuracy")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(
            CheckpointError, match=r"checkpoints/3 could not be saved \(.*make room"
        ):
            save_and_wait(checkpoints)
        checkpoints.close()  # Says nothing more.
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert_equal(resume(saved), make_state(2, ema=True))


def test_no_writer_waits_for_a_folder_that_could_not_be_made(saved):
    """It would keep the program from ending; a file in the way stands for a mount that vanished."""
    checkpoints = Checkpoints(saved, keep=2, best_metric="eval/accuracy")
    save_and_wait(checkpoints)
    before = set(threading.enumerate())
    (saved / "checkpoints").rename(saved / "mounted")
    (saved / "checkpoints").touch()
    with pytest.raises(CheckpointError, match=r"checkpoints/4 could not be saved \(.*Not a dir"):
        save_and_wait(checkpoints, 4)
    checkpoints.close()
    left = [t for t in threading.enumerate() if t not in before and not t.daemon]
    for thread in left:
        thread.join(WRITER_SECONDS)
    assert not [thread.name for thread in left if thread.is_alive()]


def test_what_other_processes_are_writing_just_now_has_no_digest(tmp_path):
    """It is gone a moment later: a checkpoint would be damaged that is whole."""
    directory = epath.Path(tmp_path)
    folder = directory / "1"
    (folder / "params").mkdir(parents=True)
    for name in ("format", "params/.zarray", ".0f3a.tmp"):
        (folder / name).write_text(name)
    digests.write(folder, 0)
    found = json.loads((folder / "digests.process_0.json").read_text())
    assert sorted(found) == ["format", "params/.zarray"]
    found[".0f3a.tmp"] = "0"  # As earlier versions may have written.
    (folder / "digests.process_0.json").write_text(json.dumps(found))
    (folder / ".0f3a.tmp").unlink()
    assert digests.check(directory, 1)


FULL = """
import resource, signal, sys
from absl import flags
from tests.states import make_state
from vit_jax.checkpoint import Checkpoints
from vit_jax.checkpoint_errors import tell_once
from vit_jax.command_line import run_command
flags.FLAGS.mark_as_parsed()

def save(arguments):
    tell_once()
    checkpoints, state = Checkpoints(sys.argv[1]), make_state(1)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    try:
        checkpoints.save(1, state, {})
    finally:
        checkpoints.close()

sys.exit(run_command(save, []))
"""


def test_it_is_one_message_of_a_program_with_all_that_its_threads_leave_behind(tmp_path):
    process = start(sys.executable, "-c", FULL, str(tmp_path), JAX_NUM_CPU_DEVICES="8")
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 2, output
    assert "could not be saved" in output
    assert not re.search("Traceback|Exception ignored|thread=", output), output


def test_only_what_a_save_leaves_behind_is_not_printed(monkeypatch):
    """A file of ours in a folder named orbax, and anything that is said while nothing is saved, is."""
    written = threading.Event()
    monkeypatch.setattr(checkpoint_errors, "being_written", written)

    def record(name, path, level=logging.ERROR):
        return logging.LogRecord(name, level, path, 1, "", (), None)

    theirs = record("absl", f"{checkpoint_errors.ORBAX}_src/futures/future.py")
    loop, closed = record("asyncio", "base_events.py"), RuntimeError("Event loop is closed")
    assert not is_left_over(theirs)
    assert not is_left_over(loop)
    assert not is_left_behind(None, closed)
    written.set()
    assert is_left_over(theirs)
    assert is_left_over(loop)
    assert is_left_behind(None, closed)
    assert not is_left_over(record("absl", theirs.pathname, logging.WARNING))
    assert not is_left_over(record("absl", "/home/orbax/input.py"))

    async def ours():
        pass

    coroutine = ours()
    assert not is_left_behind(coroutine, KeyError("x"))
    coroutine.close()


def test_a_save_is_over_when_the_checkpoint_is_whole(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    save_and_wait(checkpoints)
    checkpoints.close()
    assert not checkpoint_errors.being_written.is_set()


def save_and_wait(checkpoints, step=3):
    checkpoints.save(step, make_state(step, ema=True), {})
    checkpoints.wait()
