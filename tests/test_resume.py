"""A run that is killed and started again ends in the same bits as one that is not."""

import random
import signal
import time

import jax
import numpy as np
import pytest

from tests.runs import EVERYTHING, read_metrics, start_command
from vit_jax.checkpoint import ARRAY_ITEMS, Checkpoints

TOTAL_STEPS = 60
KINDS = [
    pytest.param(kind, repeat, marks=[pytest.mark.slow] if repeat else [], id=f"{kind}-{repeat}")
    for repeat in range(3)
    for kind in ("SIGKILL", "SIGTERM")
]


def start_run(workdir):
    """Saved every seven steps."""
    return start_command(
        "--config=tests/tiny.py",
        f"--workdir={workdir}",
        f"--config.total_steps={TOTAL_STEPS}",
        "--config.checkpoint_every_steps=7",
        "--config.eval_every_steps=25",
        *EVERYTHING,
    )


def finish(process) -> str:
    output, _ = process.communicate(timeout=300)
    return output


def last_step(workdir) -> int:
    try:
        return read_metrics(workdir)[-1]["step"]
    except (OSError, ValueError, IndexError):  # Not there yet, or its last line half written.
        return 0


def saved_arrays(workdir) -> dict:
    checkpoints = Checkpoints(workdir, read_only=True)
    try:
        return {item: checkpoints.restore_item(TOTAL_STEPS, item) for item in ARRAY_ITEMS}
    finally:
        checkpoints.close()


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted")
    process = start_run(workdir)
    output = finish(process)
    assert process.returncode == 0, output
    return workdir


@pytest.mark.parametrize(("kind", "repeat"), KINDS)
def test_killed_and_resumed_equals_uninterrupted(uninterrupted, tmp_path, kind, repeat):
    kill_after = random.randrange(10, TOTAL_STEPS - 10)  # After the first checkpoint.
    process = start_run(tmp_path)
    while process.poll() is None and not (
        last_step(tmp_path) >= kill_after and any((tmp_path / "checkpoints").glob("[0-9]*[0-9]"))
    ):
        time.sleep(0.002)
    process.send_signal(signal.Signals[kind])
    output = finish(process)
    expected_code = {"SIGKILL": -signal.SIGKILL, "SIGTERM": 75}[kind]
    assert process.returncode == expected_code, (kill_after, output)

    process = start_run(tmp_path)
    output = finish(process)
    assert process.returncode == 0, (kill_after, output)
    assert "Resuming after step" in output

    records, expected = read_metrics(tmp_path), read_metrics(uninterrupted)
    assert [record["step"] for record in records] == list(range(1, TOTAL_STEPS + 1))
    for key in ("train/loss", "train/grad_norm", "train/learning_rate", "train/examples"):
        assert [r[key] for r in records] == [r[key] for r in expected], (key, kill_after)
    assert [r.get("eval/loss") for r in records] == [r.get("eval/loss") for r in expected]
    jax.tree.map(np.testing.assert_array_equal, saved_arrays(tmp_path), saved_arrays(uninterrupted))
