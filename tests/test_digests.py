"""Digests of checkpoints' files: whose they are, what they miss, and how to go on without a checkpoint."""

import hashlib
import json

import numpy as np
import pytest
from etils import epath

from vit_jax import digests
from vit_jax.errors import CheckpointError


def write(directory, step, files, processes=(0,)):
    """A checkpoint of so many files, with the digests of some processes."""
    folder = epath.Path(directory) / str(step)
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"{name} {step}")
    for process in processes:
        digests.write(folder, process)
    return folder


FILES = ("format", "params/a", "params/ocdbt.process_1/d/b", "optimizer/c", "params/process_10/x")


@pytest.mark.parametrize(
    ("name", "process"),
    [
        ("params/ocdbt.process_1/d/0", 1),
        ("params/process_12/a", 12),
        ("process_3", 3),
        ("params/ocdbt.process_4", 4),
        ("params/a", 0),
        ("params/xprocess_5/a", 0),
        ("params/process_5a/a", 0),
    ],
)
def test_who_wrote_a_file(name, process):
    assert digests.writer_of(name) == process


def test_each_process_writes_the_digests_of_its_files(tmp_path):
    folder = write(tmp_path, 7, FILES, processes=(0, 1))
    found = [json.loads((folder / f"digests.process_{n}.json").read_text()) for n in (0, 1)]
    assert [sorted(each) for each in found] == [
        ["format", "optimizer/c", "params/a"],
        ["params/ocdbt.process_1/d/b"],
    ]
    expected = hashlib.blake2b(b"format 7", digest_size=16).hexdigest()
    assert found[0]["format"] == expected == digests.digest(folder / "format")
    assert digests.check(tmp_path, 7)
    (folder / "digests.process_2.json.tmp").write_text("{")  # Half a file of another program's.
    assert digests.check(tmp_path, 7)


def test_large_files_are_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(digests, "CHUNK_BYTES", 4)
    (tmp_path / "a").write_bytes(b"0123456789")
    expected = hashlib.blake2b(b"0123456789", digest_size=16).hexdigest()
    assert digests.digest(epath.Path(tmp_path / "a")) == expected


@pytest.mark.parametrize(
    ("damage", "items", "reason"),
    [
        (lambda folder: (folder / "params/a").write_text("x"), None, "params/a is not what was"),
        (lambda folder: (folder / "params/a").unlink(), ("params",), "params/a is missing"),
        (lambda folder: (folder / "params/a").unlink(), ("optimizer", "format"), ""),
        (
            lambda folder: (folder / "digests.process_0.json").write_text("{"),
            ("format",),
            "its digests cannot be read",
        ),
        (
            lambda folder: (folder / "digests.process_1.json").write_text("{}"),
            None,
            "digests.process_1.json holds none",
        ),
        (
            lambda folder: (folder / "digests.process_1.json").write_text("[1]"),
            None,
            "holds none",
        ),
    ],
)
def test_what_is_not_as_it_was_saved(damage, items, reason, tmp_path):
    folder = write(tmp_path, 7, FILES, processes=(0, 1, 10))
    damage(folder)
    assert digests.is_whole(epath.Path(tmp_path), 7) == (not reason and items is None)
    if not reason:
        assert digests.check(tmp_path, 7, items)
        return
    with pytest.raises(CheckpointError, match=rf"7 is damaged \(.*{reason}"):
        digests.check(tmp_path, 7, items)


def test_without_digests_nothing_is_known(tmp_path):
    write(tmp_path, 7, FILES, processes=())
    assert not digests.check(tmp_path, 7)
    assert digests.is_whole(epath.Path(tmp_path), 7)


@pytest.mark.parametrize("index", range(3))
def test_several_processes_share_the_work_and_the_answer(index, tmp_path, monkeypatch):
    """Each third file is looked at here; who finds nothing learns who does."""
    folder = write(tmp_path, 7, [f"params/{letter}" for letter in "abcdefg"])
    monkeypatch.setattr(digests.jax, "process_index", lambda: index)
    monkeypatch.setattr(digests.jax, "process_count", lambda: 3)
    looked = []
    digest = digests.digest
    monkeypatch.setattr(digests, "digest", lambda path: looked.append(path.name) or digest(path))
    told = []

    def gather(value):
        told.append(value)
        return digests.distributed.np.array([False, value, False])

    monkeypatch.setattr(digests.distributed, "gather", gather)
    assert digests.check(tmp_path, 7, shared=True)
    assert looked == list("abcdefg")[index::3]
    monkeypatch.setattr(
        digests.distributed, "gather", lambda value: digests.distributed.np.array([0, 0, 1]) > 0
    )
    with pytest.raises(CheckpointError, match="process 2 names the file"):
        digests.check(tmp_path, 7, shared=True)
    (folder / "params/b").write_text("x")
    reason = "params/b is not" if index == 1 else "process 2 names"
    with pytest.raises(CheckpointError, match=reason):
        digests.check(tmp_path, 7, shared=True)
    assert told == [False]
    digests.check(tmp_path, 7, ("format",))  # Alone it asks nobody.


def test_two_processes_are_several(tmp_path, monkeypatch):
    write(tmp_path, 7, ["params/a"])
    monkeypatch.setattr(digests.jax, "process_count", lambda: 2)
    monkeypatch.setattr(digests.distributed, "gather", lambda value: np.array([value, True]))
    with pytest.raises(CheckpointError, match="process 1 names the file"):
        digests.check(tmp_path, 7, shared=True)


def test_a_file_that_cannot_be_read_is_told_from_one_that_is_missing(tmp_path):
    folder = write(tmp_path, 7, FILES)
    (folder / "format").unlink()
    (folder / "format").mkdir()
    with pytest.raises(CheckpointError, match=r"\(format cannot be read: Is a directory\)"):
        digests.check(tmp_path, 7)


def test_steps_are_in_the_order_of_numbers(tmp_path):
    assert digests.steps(epath.Path(tmp_path) / "nothing") == []
    for name in ("9", "10", "100", "2.damaged", "x", "3.tmp"):
        (tmp_path / name).mkdir()
    assert digests.steps(epath.Path(tmp_path)) == [9, 10, 100]


@pytest.mark.parametrize(
    ("step", "advice"),
    [
        (9, "rename it to 9.damaged"),
        (20, "rename it to 20.damaged"),
        # 20 is damaged itself; of 9 and 10 the newer one.
        (
            100,
            "Checkpoint 10 is whole: --checkpoint=10 goes on from it, and renames later ones to 100",
        ),
    ],
)
def test_how_to_go_on(step, advice, tmp_path):
    for other in (9, 10, 20, 100):
        write(tmp_path, other, ["format"])
    for other in (step, 20):
        (tmp_path / str(other) / "format").write_text("x")
    message = str(digests.damaged(epath.Path(tmp_path), step, "why"))
    assert message.startswith(f"{tmp_path}/{step} is damaged (why). ")
    assert advice in message


def test_where_none_is_whole(tmp_path):
    write(tmp_path, 9, ["format"])
    message = str(digests.damaged(epath.Path(tmp_path), 9, "why"))
    assert "no older one that is whole" in message


@pytest.mark.parametrize("process", [0, 1])
def test_one_process_renames_between_all_have_read_and_any_goes_on(process, tmp_path, monkeypatch):
    folder, seen = tmp_path / "checkpoints", []
    for step in (9, 20):
        write(folder, step, ["format"])
    monkeypatch.setattr(digests.jax, "process_index", lambda: process)
    monkeypatch.setattr(
        digests.distributed, "gather", lambda value: seen.append((folder / "20").exists())
    )
    digests.go_back(tmp_path, 9)
    assert seen == [True, process == 1]


def test_going_back_renames_what_is_later(tmp_path, caplog):
    folder = tmp_path / "checkpoints"
    for step in (9, 10, 20):
        write(folder, step, ["format"])
    (folder / "20.damaged").mkdir()
    (folder / "20.damaged.damaged").mkdir()
    digests.go_back(tmp_path, 9)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("10.damaged", "20.damaged", "20.damaged.damaged", "20.damaged.damaged.damaged", "9")
    ]
    assert caplog.messages == [
        f"{folder}/10 is now 10.damaged.",
        f"{folder}/20 is now 20.damaged.damaged.damaged.",
    ]
    with pytest.raises(CheckpointError, match=r"--checkpoint=10: .* no such checkpoint; it has: 9"):
        digests.go_back(tmp_path, 10)
    (folder / "9" / "format").write_text("x")
    with pytest.raises(CheckpointError, match="9 is damaged"):
        digests.go_back(tmp_path, 9)
