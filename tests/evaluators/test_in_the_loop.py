"""Several evaluators in one run: when they measure, what they share, and what a kill leaves."""

import collections
import time

import pytest

from tests import tiny
from tests.runs import LIMIT_SECONDS, read_metrics, rewound, start_command, start_processes
from tests.states import ITEMS, assert_equal
from vit_jax import train
from vit_jax.checkpoint import Checkpoints
from vit_jax.data.evaluation_data import Split
from vit_jax.records import read_records

EVALUATORS = " | ".join(
    [
        "classification",
        "classification(name='few', split='test[:100]', every_steps={few})",
        "fewshot(shots=(1, 5), seeds=2, every_steps={fewshot}, train_split='train[:300]')",
        "knn(k=5, every_steps={knn}, train_split='train[:300]')",
    ]
)
TIMED = ("images_per_second", "data_wait", "eta_seconds", "device_hours", "mfu", "memory_bytes")


def without_times(records):
    return [
        {
            name: value
            for name, value in record.items()
            if not name.endswith(TIMED) and not name.startswith("time/") and name != "seconds"
        }
        for record in records
    ]


def saved(workdir, step):
    checkpoints = Checkpoints(workdir, read_only=True)
    try:
        return {item: checkpoints.restore_item(step, item) for item in ITEMS[:2]}
    finally:
        checkpoints.close()


def assert_same_run(workdir, expected, step):
    """Equal to the bit, and every record once."""
    metrics = read_metrics(workdir)
    assert without_times(metrics) == without_times(read_metrics(expected))
    steps = [record["step"] for record in metrics]
    assert steps == sorted(set(steps))
    results = read_records(str(workdir / "results.jsonl"))
    assert without_times(results) == without_times(read_records(str(expected / "results.jsonl")))
    assert_equal(saved(workdir, step), saved(expected, step))
    return results


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of 12 updates, saved every 4: its workdir, its config, and how often splits were read."""
    passes = collections.Counter()
    config = tiny.get_config()
    config.total_steps, config.checkpoint_every_steps, config.eval_every_steps = 12, 4, 4
    config.keep_checkpoints = 10
    config.evaluators = EVALUATORS.format(few=3, fewshot=6, knn=6)
    workdir = tmp_path_factory.mktemp("run")
    batches = Split.batches
    with pytest.MonkeyPatch.context() as patch:

        def counted(split):
            passes[len(split)] += 1
            return batches(split)

        patch.setattr(Split, "batches", counted)
        train.run(config, workdir)
    return workdir, config, passes


def test_each_measures_as_often_as_it_says_and_at_the_end(run):
    workdir, *_ = run
    steps = collections.defaultdict(list)
    for record in read_metrics(workdir):
        for name in record:
            steps[name].append(record["step"])
    assert steps["eval/accuracy"] == [4, 8, 12]
    assert steps["few/accuracy"] == [3, 6, 9, 12]
    for name in ("fewshot/1_shot", "fewshot/5_shot", "fewshot/5_shot_std", "knn/accuracy"):
        assert steps[name] == [6, 12]
    last = read_metrics(workdir)[-1]
    assert (last["eval/count"], last["few/count"]) == (360, 100)
    assert 0.1 < last["fewshot/5_shot"] <= 1


def test_features_are_computed_once_for_all_that_use_them(run):
    *_, passes = run
    assert passes[300] == 2, "at each of two evaluations, for two protocols"
    assert passes[360] == 2 + 3, "and the classifier's own three"


def test_every_result_is_recorded_with_its_time_and_protocol(run):
    workdir, *_ = run
    results = read_records(str(workdir / "results.jsonl"))
    metrics = {record["step"]: record for record in read_metrics(workdir)}
    assert len(results) == 3 + 4 + 2 + 2
    for record in results:
        assert record["seconds"] >= 0
        for name, value in record["numbers"].items():
            assert metrics[record["step"]][f"{record['name']}/{name}"] == value
    last = {record["name"]: record for record in results if record["step"] == 12}
    assert (last["few"]["source"], last["few"]["split"]) == ("digits", "test[:100]")
    assert (last["knn"]["protocol"], last["knn"]["version"]) == ("NearestNeighbors", 1)
    assert last["knn"]["arguments"]["k"] == 5


def test_a_run_that_lost_its_last_updates_does_them_again_to_the_bit(run, tmp_path):
    workdir, config, _ = run
    again = tmp_path / "again"
    rewound(workdir, 4, again)
    with open(again / "results.jsonl", "ab") as file:
        file.write(b'{"step": 12, "na')  # Half a line, as a kill leaves it.
    train.run(config, again)
    assert_same_run(again, workdir, 12)


@pytest.mark.slow
def test_two_processes_measure_what_one_does(run, tmp_path):
    workdir, *_ = run
    processes = start_processes(
        2,
        "--config=tests/tiny.py",
        "--config.total_steps=12",
        "--config.eval_every_steps=4",
        f"--config.evaluators={EVALUATORS.format(few=3, fewshot=6, knn=6)}",
        f"--workdir={tmp_path}/run",
    )
    outputs = [process.communicate(timeout=LIMIT_SECONDS)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    found, expected = (
        read_records(str(path / "results.jsonl")) for path in (tmp_path / "run", workdir)
    )
    assert [(r["step"], r["name"]) for r in found] == [(r["step"], r["name"]) for r in expected]
    for one, other in zip(found, expected, strict=True):
        assert one["numbers"] == pytest.approx(other["numbers"], abs=1e-5)


@pytest.mark.slow
def test_a_killed_run_of_200_updates_ends_in_the_same_bits(tmp_path):
    """Killed in the middle of its work, wherever that is."""

    def begin(workdir):
        return start_command(
            "--config=configs/digits.py",
            "--config.total_steps=200",
            "--config.checkpoint_every_steps=40",
            "--config.eval_every_steps=50",
            f"--config.evaluators={EVALUATORS.format(few=30, fewshot=70, knn=40)}",
            f"--workdir={workdir}",
        )

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    output, _ = begin(whole).communicate(timeout=LIMIT_SECONDS)
    assert (whole / "checkpoints/200").exists(), output
    process = begin(killed)
    while process.poll() is None and not (killed / "checkpoints/80").exists():
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert not (killed / "checkpoints/200").exists()
    output, _ = begin(killed).communicate(timeout=LIMIT_SECONDS)
    results = assert_same_run(killed, whole, 200)
    assert len(results) == 4 + 7 + 3 + 5
