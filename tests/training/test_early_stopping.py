import json
import re
import threading
import types

import pytest

from tests import tiny
from tests.runs import read_metrics
from vit_jax import train
from vit_jax.errors import ConfigError, PreemptedError
from vit_jax.training.early_stopping import Patience, open_patience


def seen(metric, stop_after, values):
    """How many of the values are taken before it is over, at most all."""
    patience = Patience(metric, stop_after)
    for count, value in enumerate(values, 1):
        patience.see(10 * count, {"eval/count": 7, metric.removeprefix("-"): value})
        if patience.over:
            return count
    return len(values)


@pytest.mark.parametrize(
    ("metric", "stop_after", "values", "expected"),
    [
        ("eval/accuracy", 2, [0.1, 0.2, 0.2, 0.1, 0.9], 4),  # An equal one is no better.
        ("eval/accuracy", 2, [0.1, 0.0, 0.2, 0.1, 0.3, 0.4], 6),
        ("-eval/loss", 1, [3.0, 2.0, 2.5, 1.0], 3),
        ("eval/accuracy", 3, [0.5, None, float("nan"), 0.4, 0.9], 4),
        ("eval/accuracy", 0, [0.5, 0.4, 0.3], 3),
        ("-eval/loss", 1, [3.0, None, 2.0], 2),  # What was not finite is no better than any.
    ],
)
def test_it_is_over_after_so_many_that_are_no_better(metric, stop_after, values, expected):
    assert seen(metric, stop_after, values) == expected


def test_evaluations_without_the_metric_do_not_count(caplog):
    patience = Patience("eval/accuracy", 1)
    patience.see(1, {"eval/accuracy": 0.5})
    for step in (2, 3):
        patience.see(step, {"other/accuracy": 0.1})
    assert not patience.over


def test_the_end_is_told_with_the_best_update_and_the_last(caplog):
    patience = Patience("-eval/loss", 2)
    with caplog.at_level("INFO", logger="vit_jax"):
        for step, value in ((1_000, 3.5), (2_000, 2.5), (3_000, 2.5), (4_000, 2.75)):
            assert not patience.over
            patience.see(step, {"eval/loss": value})
    assert patience.over
    (message,) = caplog.messages
    assert re.match(
        r"eval/loss .* since update 2,000: .* 4,000, .*config\.stop_after=2\.$", message
    )


@pytest.mark.parametrize(
    ("stop_after", "start", "over"), [(2, 30, True), (2, 29, False), (3, 30, False), (0, 30, False)]
)
def test_records_up_to_the_step_that_a_run_goes_on_after_are_counted(
    tmp_path, stop_after, start, over
):
    records = [
        {"step": 10, "eval/loss": 1.0},
        {"step": 20, "eval/loss": 2.0},
        {"step": 25, "eval/accuracy": 0.5},  # Does not count.
        {"step": 30, "eval/loss": 1.5},
        {"step": 40, "eval/loss": 0.5},  # Comes after the checkpoint.
    ]
    lines = [json.dumps(record) + "\n" for record in records]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    assert open_patience(tmp_path, "-eval/loss", stop_after, start).over == over
    assert not open_patience(tmp_path, "-eval/loss", stop_after, 0).over


@pytest.fixture
def config():
    """Nothing is learned, so the first evaluation is the best."""
    config = tiny.get_config()
    config.total_steps, config.eval_every_steps, config.warmup_steps = 9, 1, 0
    config.model.depth, config.optimizer.learning_rate, config.stop_after = 1, 0.0, 2
    return config


def test_a_run_that_is_resumed_stops_where_it_would_have_stopped(config, tmp_path, caplog):
    answers = iter([False, True])  # A signal comes during the second update.
    with pytest.raises(PreemptedError, match="after step 2"):
        train.run(config, tmp_path, stop=types.SimpleNamespace(is_set=lambda: next(answers)))
    stop = threading.Event()
    for _ in range(2):  # The second time there is nothing more to do.
        last = train.run(config, tmp_path, stop=stop)
        assert last["step"] == 3
        assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3]
    for stop_after, over in ((2, True), (0, False)):
        assert open_patience(tmp_path, "eval/accuracy", stop_after, 3).over == over


@pytest.mark.parametrize("change", [{"eval_every_steps": 0}, {"best_metric": ""}])
def test_it_needs_evaluations_and_a_metric(config, tmp_path, change):
    config.update(change)
    with pytest.raises(ConfigError, match=r"config\.stop_after=2 counts evaluations"):
        train.run(config, tmp_path)
