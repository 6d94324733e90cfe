"""A run whose data is loaded by worker processes: none is left behind, none ends it too early."""

import os
import pathlib
import re
import signal
import sys
import time

import pytest

from tests.runs import LIMIT_SECONDS, read_metrics, start_command

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc"),
]


def children(process: int) -> list[int]:
    """The processes that this one started."""
    return [
        int(child)
        for task in pathlib.Path(f"/proc/{process}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def is_alive(process: int) -> bool:
    try:
        status = pathlib.Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


@pytest.fixture
def run(tmp_path):
    """A run in progress, as a process group of its own, and its worker processes."""
    process = start_command(
        "--config=tests/tiny.py",
        "--config.total_steps=1000000",
        "--config.data.num_workers=2",
        f"--workdir={tmp_path}",
        group=True,
    )
    try:
        while not (tmp_path / "metrics.jsonl").exists() or not read_metrics(tmp_path):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.1)
        workers = [child for child in children(process.pid) if b"spawn_main" in command_of(child)]
        assert len(workers) == 2
        yield process, workers
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def command_of(process: int) -> bytes:
    return pathlib.Path(f"/proc/{process}/cmdline").read_bytes()


def wait_for_end(processes):
    deadline = time.monotonic() + LIMIT_SECONDS
    while any(map(is_alive, processes)):
        assert time.monotonic() < deadline, "worker processes are left behind"
        time.sleep(0.1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_all_stops_in_order(run, number):
    process, workers = run
    os.killpg(process.pid, number)  # As a terminal and Slurm do.
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 75, output
    assert "which is saved" in output
    assert not re.search("Traceback|leaked", output), output
    wait_for_end(workers)


def test_workers_end_with_a_run_that_is_killed(run):
    process, workers = run
    process.kill()
    wait_for_end(workers)


def test_the_death_of_one_ends_the_run_with_a_message(run):
    process, workers = run
    os.kill(workers[0], signal.SIGKILL)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 2, output
    assert "A worker process that loads data died" in output
    assert "Traceback" not in output  # Python says that it frees the dead one's shared memory.
    wait_for_end(workers)
