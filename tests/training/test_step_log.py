"""Metrics are reported late, in order, and a loss that is not finite ends the run."""

import json
import logging
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.calls import recorded
from vit_jax.config import default_config
from vit_jax.errors import DataError, NonFiniteLossError
from vit_jax.training import step_log
from vit_jax.training.clock import STEPS_IN_FLIGHT, Kind
from vit_jax.training.step_log import StepLog, open_log


@pytest.fixture
def opened(tmp_path):
    """A function that opens the log of `tmp_path`; all are closed at the end."""
    logs = []

    def open_log(start_step=0, total_steps=10, every_steps=1, max_skipped=None):
        logs.append(
            StepLog(
                tmp_path,
                start_step=start_step,
                total_steps=total_steps,
                every_steps=every_steps,
                batch_size=32,
                num_train_examples=64,
                flops_per_image=6_000_000,
                max_skipped=max_skipped,
            )
        )
        return logs[-1]

    yield open_log
    for log in logs:
        log.close()


def metrics_of(loss, grad_norm=1.0, skipped=0):
    """What the trainer's step returns."""
    values = {"loss": loss, "grad_norm": grad_norm, "learning_rate": 0.1}
    arrays = {name: jnp.float32(value) for name, value in values.items()}
    return {**arrays, "skipped": jnp.int32(skipped)}


def records(tmp_path):
    return [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]


def test_a_step_is_reported_two_steps_later(opened, caplog):
    log = opened()
    with caplog.at_level(logging.INFO, logger="vit_jax"):
        for step in range(1, 6):
            log.add(step, metrics_of(step))
            reported = [record.getMessage().split(" | ")[0] for record in caplog.records]
            assert len(reported) == max(0, step - STEPS_IN_FLIGHT)
        assert reported == ["step  1/10", "step  2/10", "step  3/10"]
        log.drain()
    assert len(caplog.records) == 5


def test_records_hold_each_steps_own_values(opened, tmp_path):
    log = opened()
    losses = np.float32([2.5, 1 / 3, 0.1])
    for step, loss in enumerate(losses, start=1):
        log.add(step, metrics_of(loss))
    log.drain()
    log.flush()
    found = records(tmp_path)
    assert [record["step"] for record in found] == [1, 2, 3]
    np.testing.assert_array_equal(np.float32([r["train/loss"] for r in found]), losses)
    assert [record["train/epoch"] for record in found] == [0.5, 1.0, 1.5]
    assert [record["train/examples"] for record in found] == [32, 64, 96]
    # Forward and backward: 6 FLOPs a multiply-accumulate.
    assert found[2]["train/exaflops"] == pytest.approx(96 * 6e6 / 1e18)
    assert log.last_record.items() <= found[2].items()


def test_intervals_the_first_and_the_last_step_are_recorded(opened, tmp_path):
    log = opened(total_steps=11, every_steps=4)
    for step in range(1, 12):
        log.add(step, metrics_of(1.0))
    log.drain()
    log.flush()
    assert [record["step"] for record in records(tmp_path)] == [1, 4, 8, 11]


def test_an_evaluation_joins_the_record_of_its_step(opened, tmp_path, caplog):
    log = opened(every_steps=2)
    log.add(1, metrics_of(1.0))
    log.add(2, metrics_of(1.0))
    log.drain()
    with caplog.at_level(logging.INFO, logger="vit_jax"):
        log.write(2, {"eval/accuracy": 0.5, "eval/count": 7})
    assert "step 2: eval/accuracy 0.5  eval/count 7" in caplog.text
    log.add(3, metrics_of(1.0))
    log.drain()
    log.write(3, {"eval/accuracy": 0.6})  # A step without a line of its own.
    log.flush()
    first, second, third = records(tmp_path)
    assert "eval/accuracy" not in first
    assert (second["eval/accuracy"], second["eval/count"]) == (0.5, 7)
    assert second["train/loss"] == 1.0
    numbers = {key: value for key, value in third.items() if not key.startswith("time/")}
    assert numbers == {"step": 3, "eval/accuracy": 0.6}
    assert log.last_record == third
    assert third["time/start"] > 0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("which", ["loss", "grad_norm"])
@pytest.mark.parametrize("every_steps", [1, 100])
def test_a_value_that_is_not_finite_names_its_step(opened, tmp_path, bad, which, every_steps):
    log = opened(every_steps=every_steps)
    log.add(1, metrics_of(1.0))
    log.add(2, metrics_of(1.0))
    log.add(3, metrics_of(**{"loss": 1.0, which: bad}))
    log.add(4, metrics_of(bad))
    with pytest.raises(NonFiniteLossError, match=r"step 3 .*learning_rate") as error:
        log.add(5, metrics_of(bad))
    assert str(bad) in str(error.value)
    log.flush()
    assert {record["step"] for record in records(tmp_path)} <= {1, 2}


def test_drain_finds_a_loss_that_is_not_finite(opened):
    log = opened(every_steps=100)
    log.add(1, metrics_of(float("nan")))
    with pytest.raises(NonFiniteLossError, match="step 1 "):
        log.drain()


def test_a_resumed_log_goes_on_where_the_checkpoint_was(opened, tmp_path):
    first = opened()
    for step in range(1, 6):
        first.add(step, metrics_of(step))
    first.drain()
    first.flush()
    second = opened(start_step=3)
    assert second.last_record["step"] == 3
    spent = second.last_record["train/device_hours"]
    for step in range(4, 7):
        second.add(step, metrics_of(10 * step))
    second.drain()
    second.flush()
    found = records(tmp_path)
    assert [record["train/loss"] for record in found] == [1, 2, 3, 40, 50, 60]
    assert found[3]["train/device_hours"] >= spent


def test_speed_is_measured_from_the_start_of_the_steps(opened, tmp_path):
    log = opened()
    log.start(0)
    for step in (1, 2):
        with log.spending(Kind.DATA_WAIT):
            pass
        log.add(step, metrics_of(1.0))
    log.drain()
    log.flush()
    for record in records(tmp_path):
        assert record["train/images_per_second"] > 0
        assert 0 <= record["train/data_wait"] < 1
    assert records(tmp_path)[-1]["train/eta_seconds"] > 0


def test_skipped_examples_are_added_up_over_resumes(opened, tmp_path):
    log = opened(every_steps=2, max_skipped=0.1)
    for step, skipped in enumerate((1, 0, 2, 1), 1):
        log.add(step, metrics_of(1.0, skipped=skipped))
    log.drain()
    log.flush()
    log = opened(start_step=4, max_skipped=0.1)
    log.add(5, metrics_of(1.0, skipped=2))
    log.drain()
    log.flush()
    assert [record["data/skipped"] for record in records(tmp_path)] == [1, 1, 4, 6]
    assert not any("train/skipped" in record for record in records(tmp_path))


def test_without_skipping_nothing_is_said_of_it(opened, tmp_path):
    log = opened()
    log.add(1, metrics_of(1.0))
    log.drain()
    log.flush()
    assert "data/skipped" not in records(tmp_path)[0]


def test_the_hours_of_earlier_starts_are_added(opened, tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "train/device_hours": 5.0}\n')
    log = opened(start_step=3)
    log.add(4, metrics_of(1.0))
    log.drain()
    log.flush()
    assert records(tmp_path)[-1]["train/device_hours"] >= 5.0


def test_too_many_skipped_examples_end_the_run(opened):
    exactly = opened(max_skipped=0.125)
    exactly.add(1, metrics_of(1.0, skipped=8))
    exactly.drain()
    log = opened(max_skipped=0.1)  # Of 64 examples in the first epoch: 6.
    log.add(1, metrics_of(1.0, skipped=6))
    log.drain()
    log.add(2, metrics_of(1.0, skipped=1))
    with pytest.raises(DataError, match=r"7 examples .* up to step 2, .*max_skipped=0\.1 of 64"):
        log.drain()


def test_slow_data_is_advised_on_once(opened, caplog, monkeypatch):
    log = opened(every_steps=1)
    waits = iter((0.1, 0.6, 0.7))
    monkeypatch.setattr(log._throughput, "metrics", lambda step: {"train/data_wait": next(waits)})
    for step in (1, 2, 3):
        log.add(step, metrics_of(1.0))
    log.drain()
    advice = [text for r in caplog.records if "waiting for data" in (text := r.getMessage())]
    assert len(advice) == 1
    assert advice[0].startswith("60 % of the time")
    assert "vit_jax.benchmark input" in advice[0]


def test_data_may_wait_for_a_quarter_of_the_time(opened, caplog):
    log = opened()
    for share, said in ((0.25, 0), (0.26, 1), (0.9, 1)):
        log._advise(share)
        assert len(caplog.messages) == said


@pytest.mark.parametrize(("process", "skipping"), [(0, True), (0, False), (1, True)])
def test_a_log_is_opened_as_the_config_says(tmp_path, monkeypatch, process, skipping):
    """Trackers are of process 0 alone."""
    config = default_config()
    config.log.writers, config.log.project = ("wandb",), "mine"
    config.batch_size, config.log_every_steps, config.data.max_skipped = 48, 7, 0.25
    experiment = types.SimpleNamespace(
        config=config,
        dataset=types.SimpleNamespace(num_examples=640, skipping=skipping or None),
        durations=types.SimpleNamespace(total=90),
        flops_per_image=123,
    )
    monkeypatch.setattr(step_log.jax, "process_index", lambda: process)
    trackers = recorded(monkeypatch, step_log, "open_writers", "trackers")
    logs = recorded(monkeypatch, step_log, "StepLog", "log")
    assert open_log(experiment, tmp_path, 5) == "log"
    names = () if process else ("wandb",)
    assert trackers == [((names, tmp_path, "mine", step_log.resolved(config)), {})]
    ((places, options),) = logs
    assert places == (tmp_path,)
    assert options == {
        "start_step": 5,
        "total_steps": 90,
        "every_steps": 7,
        "batch_size": 48,
        "num_train_examples": 640,
        "flops_per_image": 123,
        "max_skipped": 0.25 if skipping else None,
        "trackers": "trackers",
    }


@pytest.mark.parametrize("process", [0, 1])
def test_process_0_alone_writes_and_prints(tmp_path, monkeypatch, process, opened):
    monkeypatch.setattr(step_log.jax, "process_index", lambda: process)
    consoles = recorded(monkeypatch, step_log, "Console", types.SimpleNamespace(close=lambda: None))
    opened(start_step=3)
    assert consoles == [((10, 3, process == 0), {})]
    assert (tmp_path / "metrics.jsonl").exists() == (process == 0)


def test_the_models_flops_are_counted_against_the_peak_of_all_devices(
    opened, tmp_path, monkeypatch
):
    monkeypatch.setattr(step_log.hardware, "peak_flops", lambda device: 1e12)
    log = opened()
    log.start(0)
    log.add(1, metrics_of(1.0))
    log.drain()
    log.flush()
    (record,) = records(tmp_path)
    expected = record["train/images_per_second"] * 6_000_000 / (jax.device_count() * 1e12)
    assert record["train/mfu"] == pytest.approx(expected)


def test_the_devices_memory_is_recorded_where_it_is_known(opened, tmp_path, monkeypatch):
    log = opened()
    for step, memory in ((1, None), (2, 0), (3, 77)):
        monkeypatch.setattr(
            step_log.hardware, "device_memory_bytes", lambda device, memory=memory: memory
        )
        log.add(step, metrics_of(1.0))
        log.drain()
    log.flush()
    found = [record.get("train/device_memory_bytes") for record in records(tmp_path)]
    assert found == [None, 0, 77]


def test_the_end_says_what_the_time_was_spent_on(opened, caplog, monkeypatch):
    ended = recorded(monkeypatch, step_log.clocks, "end_of_run", None)
    log = opened()
    with caplog.at_level(logging.INFO, logger="vit_jax"):
        log.close()
    log.close = lambda: None  # Once is enough.
    assert caplog.messages[-1].startswith("Wall time ")
    assert "start 100.0%" in caplog.messages[-1]
    assert len(ended) == 1, "what comes now is the next run's"


def test_a_record_is_in_the_file_when_it_is_printed(opened, tmp_path):
    log = opened(every_steps=1000)
    for step in range(1, STEPS_IN_FLIGHT + 2):  # The first is reported.
        log.add(step, metrics_of(1.0))
    (line,) = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(line)["step"] == 1


def test_time_goes_on_over_restarts_and_what_was_lost_is_told(opened, tmp_path):
    def train(log, *steps):
        log.start(steps[0] - 1)
        for step in steps:
            log.add(step, metrics_of(step))
        log.drain()

    first = opened()
    train(first, 1, 2, 3, 4, 5)
    first.flush()
    third, last = records(tmp_path)[2], records(tmp_path)[4]
    second = opened(start_step=3)
    train(second, 4)
    second.flush()
    fourth = records(tmp_path)[3]
    total, before = (sum(v for k, v in r.items() if k.startswith("time/")) for r in (last, third))
    assert fourth["time/lost"] == pytest.approx(total - before, rel=1e-6)
    assert fourth["time/start"] > third["time/start"]
