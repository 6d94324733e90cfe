"""A run that is killed and started again ends in the same bits as one that is not."""

import random
import signal
import time
import types

import jax
import numpy as np
import pytest

from tests import tiny
from tests.runs import EVERYTHING, LIMIT_SECONDS, read_metrics, rewound, start_command
from tests.shared_programs import shared_programs  # noqa: F401
from tests.states import ITEMS, ONE
from vit_jax import main, train
from vit_jax.checkpoint import Checkpoints, find_checkpoint
from vit_jax.errors import PreemptedError

pytestmark = pytest.mark.usefixtures("shared_programs")
TOTAL_STEPS = 40
SEQUENCES = [
    ("SIGKILL",),
    ("SIGKILL", "SIGTERM"),
    ("SIGTERM", "SIGKILL"),
    ("SIGTERM",) * 3,
    ("SIGKILL",) * 3,
]


def arguments(workdir, *, steps=TOTAL_STEPS, save=7, measure=25):
    """Those of the command: saved every seven steps."""
    return (
        "--config=tests/tiny.py",
        f"--workdir={workdir}",
        f"--config.total_steps={steps}",
        f"--config.checkpoint_every_steps={save}",
        f"--config.eval_every_steps={measure}",
        *EVERYTHING,
    )


ONE_OF_A_KIND = (
    "--config.model.dropout_rate=0",
    "--config.objective.mixing.cutmix_alpha=0",
    "--config.optimizer.accumulation_steps=1",
    "--config.keep_checkpoints=3",
)


def start_run(workdir):
    return start_command(*arguments(workdir))


def finish(process) -> str:
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    return output


def records_file(workdir) -> int | None:
    """What identifies the file of records, which every process makes anew when it starts."""
    path = workdir / "metrics.jsonl"
    return path.stat().st_ino if path.exists() else None


def last_step(workdir) -> int:
    try:
        return read_metrics(workdir)[-1]["step"]
    except (ValueError, IndexError):  # Its last line is half written, or there is none yet.
        return 0


def is_past(workdir, step) -> bool:
    """Whether it is time to end the run: resuming needs a checkpoint."""
    saved = any((workdir / "checkpoints").glob("[0-9]*[0-9]"))
    return saved and last_step(workdir) >= step


def saved_arrays(workdir) -> dict:
    checkpoints = Checkpoints(workdir, read_only=True)
    try:
        return {item: checkpoints.restore_item(checkpoints.latest_step, item) for item in ITEMS}
    finally:
        checkpoints.close()


def assert_equal_runs(workdir, uninterrupted, steps):
    """Every record that follows from the config, and every array, to the bit."""
    records, expected = read_metrics(workdir), read_metrics(uninterrupted)
    assert [record["step"] for record in records] == list(range(1, steps + 1))
    for key in ("train/loss", "train/grad_norm", "train/learning_rate", "train/examples"):
        assert [r[key] for r in records] == [r[key] for r in expected], key
    assert [r.get("eval/loss") for r in records] == [r.get("eval/loss") for r in expected]
    jax.tree.map(np.testing.assert_array_equal, saved_arrays(workdir), saved_arrays(uninterrupted))


def test_what_a_kill_leaves_goes_on_to_the_same_bits(tmp_path, capsys, monkeypatch):
    """Of a run with nearly everything: a checkpoint of the sixth update, and records beyond it.

    One of each kind of randomness, by which the rest is drawn too: it is slow to compile.
    """
    monkeypatch.setattr(train.sharding, "build_mesh", lambda config: ONE)
    lengths = {"steps": 9, "save": 3, "measure": 4}

    def run(workdir):
        return main.main((*arguments(workdir, **lengths), *ONE_OF_A_KIND))

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert run(whole) == 0
    rewound(whole, 6, killed)
    assert len(read_metrics(killed)) == 9
    assert run(killed) == 0
    assert "Resuming after step 6" in capsys.readouterr().err
    assert_equal_runs(killed, whole, 9)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("uninterrupted")
    process = start_run(workdir)
    output = finish(process)
    assert process.returncode == 0, output
    return workdir


def stop_run(workdir, kind, at_step):
    """Starts the run, or goes on with it, and ends it with a signal at about a step."""
    before = records_file(workdir)
    process = start_run(workdir)
    while process.poll() is None and (
        records_file(workdir) == before or not is_past(workdir, at_step)
    ):
        time.sleep(0.02)
    process.send_signal(signal.Signals[kind])
    output = finish(process)
    expected_code = {"SIGKILL": -signal.SIGKILL, "SIGTERM": 75}[kind]
    assert process.returncode == expected_code, output


@pytest.mark.slow  # In the fast tests: above, `test_main.py` and `test_multiprocess.py`.
@pytest.mark.parametrize("kinds", SEQUENCES, ids="-".join)
def test_killed_and_resumed_equals_uninterrupted(uninterrupted, tmp_path, kinds):
    stops = sorted(random.sample(range(10, TOTAL_STEPS - 10), len(kinds)))
    for kind, at_step in zip(kinds, stops, strict=True):
        stop_run(tmp_path, kind, at_step)
    process = start_run(tmp_path)
    output = finish(process)
    assert process.returncode == 0, (stops, output)
    assert "Resuming after step" in output
    assert_equal_runs(tmp_path, uninterrupted, TOTAL_STEPS)


def test_a_run_that_stops_when_an_evaluation_is_due_has_made_it(tmp_path):
    config = tiny.get_config()
    config.model.depth, config.total_steps, config.eval_every_steps = 1, 5, 3
    answers = iter([False, False, True])  # The loop asks once a step.
    stop = types.SimpleNamespace(is_set=lambda: next(answers))
    with pytest.raises(PreemptedError, match="after step 3"):
        train.run(config, tmp_path, stop=stop)
    evaluated = [record["step"] for record in read_metrics(tmp_path) if "eval/loss" in record]
    assert evaluated == [find_checkpoint(tmp_path, "best")[0]] == [3]

    answers = iter([False, True])  # Asked to stop when it is done anyway.
    train.run(config, tmp_path, stop=stop)
    records = read_metrics(tmp_path)
    assert [record["step"] for record in records] == [1, 2, 3, 4, 5]
    assert [record["step"] for record in records if "eval/loss" in record] == [3, 5]
