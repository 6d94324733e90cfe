"""The chaos campaign's faults and moments, and what it takes for the same."""

import signal
import sys

import numpy as np
import pytest

from tests.campaigns import chaos, faults
from tests.runs import LIMIT_SECONDS, start

WRITING = """
import os, sys
from tests.campaigns.faults import kill_before
kill_before(int(sys.argv[1]), sys.argv[2])
for number in range(3):
    open(os.path.join(sys.argv[3], str(number)), "w").close()
os.rename(os.path.join(sys.argv[3], "0"), os.path.join(sys.argv[3], "renamed"))
"""


@pytest.mark.parametrize(
    ("number", "expected"),
    [(1, []), (3, ["0", "1"]), (4, ["0", "1", "2"]), (5, ["1", "2", "renamed"])],
)
def test_a_process_is_killed_before_a_change(number, expected, tmp_path):
    process = start(sys.executable, "-c", WRITING, str(number), str(tmp_path), str(tmp_path))
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == (-signal.SIGKILL if number < 5 else 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == expected


def test_changes_elsewhere_do_not_count(tmp_path):
    (other := tmp_path / "other").mkdir()
    process = start(sys.executable, "-c", WRITING, "1", str(tmp_path / "workdir"), str(other))
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 0


@pytest.mark.skipif(not faults.may_mount(), reason="needs the right to mount")
def test_a_disk_is_full_until_it_is_enlarged(tmp_path):
    with faults.disk(tmp_path, 64):
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "x").write_bytes(bytes(1 << 20))
        faults.resize(tmp_path, 4096)
        (tmp_path / "x").write_bytes(bytes(1 << 20))
    assert not list(tmp_path.iterdir())


def test_what_a_run_has_written_so_far(tmp_path):
    run = chaos.Run(tmp_path)
    assert (run.step(), run.steps_saved(), run.saving()) == (0, set(), False)
    (tmp_path / "metrics.jsonl").write_text('{"step": 7, "a": 1}\n{"step": 12, "a": 1}\n')
    for step in (4, 8):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    (tmp_path / "checkpoints" / "4" / "commit_success.txt").touch()
    assert (run.step(), run.steps_saved(), run.saving()) == (12, {4}, True)


def test_nested_arrays_are_the_same_or_not():
    first = {"a": {"b": np.arange(3)}, "c": np.float32(1)}
    assert chaos.is_same(first, {"a": {"b": np.arange(3)}, "c": np.float32(1)})
    assert not chaos.is_same(first, {"a": {"b": np.arange(3)}})
    assert not chaos.is_same(first, {"a": {"b": np.array([0, 1, 3])}, "c": np.float32(1)})
