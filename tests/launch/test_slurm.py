"""launch/slurm.sbatch under a real Slurm: to the end, and through a requeue."""

import contextlib
import os
import re
import subprocess
import sys
import time

import pytest

from tests.launch.slurm_cluster import cluster, missing
from tests.runs import LIMIT_SECONDS, ROOT, read_metrics

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing()), reason=missing() or "none"),
]
TOTAL_STEPS = 200
ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": "2",
    "PYTHON": sys.executable,
}


class Slurm:
    """Slurm's commands, with what they need to find the cluster."""

    def __init__(self, variables):
        self._environment = {**os.environ, **ENVIRONMENT, **variables}

    def __call__(self, *command):
        done = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def submit(self, directory, *flags):
        """Queues a run in `directory`, with two tasks; returns its number."""
        return self(
            *("sbatch", "--parsable", "--ntasks-per-node=2", f"--output={directory}/job.log"),
            *(*flags, "launch/slurm.sbatch", "--"),
            *("--config=tests/tiny.py", f"--workdir={directory}/run"),
            *(f"--config.total_steps={TOTAL_STEPS}", "--config.model.dropout_rate=0.1"),
        ).strip()

    def state(self, job):
        """Such as RUNNING or COMPLETED."""
        return re.search(r"JobState=(\w+)", self("scontrol", "show", "job", job))[1]


@pytest.fixture(scope="module")
def slurm():
    with cluster() as variables:
        yield Slurm(variables)


def wait_until(happened, log):
    deadline = time.monotonic() + LIMIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def wait_for_the_end(slurm, job, directory):
    unfinished = ("PENDING", "RUNNING", "COMPLETING")
    wait_until(lambda: slurm.state(job) not in unfinished, directory / "job.log")
    log = (directory / "job.log").read_text()
    assert slurm.state(job) == "COMPLETED", log
    return log


@pytest.fixture(scope="module")
def uninterrupted(slurm, tmp_path_factory):
    """The folder and the log of a job that nothing disturbed."""
    directory = tmp_path_factory.mktemp("uninterrupted")
    return directory, wait_for_the_end(slurm, slurm.submit(directory), directory)


def test_two_tasks_train_to_the_end(uninterrupted):
    directory, log = uninterrupted
    assert read_metrics(directory / "run")[-1]["step"] == TOTAL_STEPS
    assert "4 cpu devices (data=4" in log, "two of each task"
    assert re.search(r"^0: .*Done after 200 updates", log, re.MULTILINE)


def test_a_stopped_job_goes_back_to_the_queue_and_ends_as_if_nothing_had_been(
    slurm, uninterrupted, tmp_path
):
    job = slurm.submit(tmp_path)

    def has_trained():
        with contextlib.suppress(OSError, ValueError, IndexError):
            return read_metrics(tmp_path / "run")[-1]["step"] >= 3

    wait_until(has_trained, tmp_path / "job.log")
    slurm("scancel", "--signal=TERM", job)  # To the tasks, as before the time is up.
    wait_until(lambda: slurm.state(job) == "PENDING", tmp_path / "job.log")
    slurm("scontrol", "update", f"JobId={job}", "StartTime=now")  # Not in two minutes.
    log = wait_for_the_end(slurm, job, tmp_path)
    assert "start 0, on" in log
    assert "start 1, on" in log
    stopped = {int(step) for step in re.findall(r"Stopped after step (\d+)", log)}
    assert len(stopped) == 1
    assert stopped.pop() < TOTAL_STEPS
    records, expected = (read_metrics(d / "run") for d in (tmp_path, uninterrupted[0]))
    for key in ("step", "train/loss"):
        assert [r[key] for r in records] == [r[key] for r in expected]


TRAINING = """#!/bin/bash
echo training
trap 'exit 75' TERM
for _ in {1..1000}; do sleep 0.1; done
"""


def test_a_cancelled_job_does_not_come_back(slurm, tmp_path):
    python = tmp_path / "python"
    python.write_text(TRAINING)
    python.chmod(0o755)
    job = slurm.submit(tmp_path, f"--export=ALL,PYTHON={python}")
    log = tmp_path / "job.log"
    wait_until(lambda: log.exists() and log.read_text().count("training") == 2, log)
    slurm("scancel", job)
    wait_until(lambda: slurm.state(job) not in ("RUNNING", "COMPLETING"), log)
    assert slurm.state(job) == "CANCELLED"
    assert "stopped with its state saved\n" in log.read_text()
