"""The sweep: one run a rate, the best one trains on everything, and nothing is done twice."""

import json
import math
import threading

import pytest

from tests import tiny
from tests.runs import read_metrics
from vit_jax import sweep, train
from vit_jax.errors import ConfigError, NonFiniteLossError, PreemptedError


@pytest.fixture
def config():
    config = tiny.get_config()
    config.data.train_split = "train[:320]"
    config.data.eval_split = "test[:64]"
    config.sweep.learning_rates = (1e-5, 3e-3)
    config.sweep.train_split = "train[:256]"
    config.sweep.eval_split = "train[256:320]"
    config.total_steps = 4
    config.warmup_steps = 0
    return config


@pytest.fixture
def runs(monkeypatch):
    """Records the runs, and stands in for those whose rate is in the table: what they come to."""
    made, outcomes, train_run = [], {}, train.run
    monkeypatch.setattr(sweep, "given", [], raising=False)

    def run(config, directory, **arguments):
        sweep.given.append(arguments)
        rate, data = config.optimizer.learning_rate, config.data
        made.append((directory.rpartition("/")[2], rate, data.train_split, data.eval_split))
        if rate not in outcomes:
            return train_run(config, directory, **arguments)
        if isinstance(outcomes[rate], Exception):
            raise outcomes[rate]
        # The other metric would choose another rate.
        return {"step": 4, "eval/accuracy": outcomes[rate], "eval/loss": 1 - outcomes[rate]}

    monkeypatch.setattr(train, "run", run)
    return made, outcomes


@pytest.mark.slow
def test_each_rate_trains_on_a_part_and_the_best_one_on_everything(config, tmp_path, caplog):
    with caplog.at_level("INFO", logger="vit_jax"):
        results = sweep.sweep(config, str(tmp_path))
    logs = {path: path.read_text() for path in tmp_path.rglob("metrics.jsonl")}
    assert sweep.sweep(config, str(tmp_path)) == results
    assert {path: path.read_text() for path in logs} == logs  # Nothing is done twice.
    measures = {}
    for name in ("learning_rate_1e-05", "learning_rate_0.003"):
        record = read_metrics(tmp_path / name)[-1]
        assert record["eval/count"] == 64
        stored = json.loads((tmp_path / name / "config.json").read_text())
        assert stored["config"]["data"]["train_split"] == "train[:256]"
        measures[name.removeprefix("learning_rate_")] = record["eval/accuracy"]
    written = json.loads((tmp_path / "sweep.json").read_text())
    assert written["measures"] == {
        "1e-05": measures["1e-05"],
        "0.003": measures["0.003"],
    }
    best = max(measures, key=measures.get)
    assert written["best"] == float(best)
    final = json.loads((tmp_path / "best" / "config.json").read_text())["config"]
    assert final["optimizer"]["learning_rate"] == float(best)
    assert final["data"]["train_split"] == "train[:320]"
    assert results == read_metrics(tmp_path / "best")[-1]
    assert "<- best" in caplog.text


def test_a_rate_that_diverges_does_not_stop_the_others(config, tmp_path, runs, caplog):
    made, outcomes = runs
    config.sweep.learning_rates = (0.1, 1.0, 10.0)
    outcomes |= {0.1: 0.5} | dict.fromkeys((1.0, 10.0), NonFiniteLossError("Loss is nan."))
    with caplog.at_level("INFO", logger="vit_jax"):
        assert sweep.sweep(config, str(tmp_path))["eval/accuracy"] == 0.5
    assert [name for name, *_ in made] == [
        *("learning_rate_0.1", "learning_rate_1", "learning_rate_10", "best")
    ]
    assert "diverged" in caplog.text
    written = json.loads((tmp_path / "sweep.json").read_text())
    assert written["measures"] == {"0.1": 0.5, "1.0": None, "10.0": None}


@pytest.mark.parametrize("metric", ["eval/accuracy", "eval/loss", "-eval/loss"])
def test_rates_are_compared_on_the_held_out_part_and_the_best_trains_on_everything(
    config, tmp_path, runs, metric, caplog
):
    made, outcomes = runs
    config.sweep.learning_rates, config.best_metric = (0.1, 1.0, 10.0), metric
    outcomes |= {0.1: 0.4, 1.0: 0.6, 10.0: 0.5}
    best = 0.1 if metric == "eval/loss" else 1.0  # The highest of either, or the lowest loss.
    stop = threading.Event()
    with caplog.at_level("INFO", logger="vit_jax"):
        sweep.sweep(config, str(tmp_path), stop=stop, chosen=("seed",))
    assert sweep.given == [{"stop": stop, "chosen": {"seed", "optimizer.learning_rate"}}] * 4
    assert f"{metric.removeprefix('-')} on train[256:320]\n" in caplog.text
    assert caplog.messages[:3] == [f"Learning rate {rate}:" for rate in ("0.1", "1", "10")]
    held_out, everything = ("train[:256]", "train[256:320]"), ("train[:320]", "test[:64]")
    assert made == [
        ("learning_rate_0.1", 0.1, *held_out),
        ("learning_rate_1", 1.0, *held_out),
        ("learning_rate_10", 10.0, *held_out),
        ("best", best, *everything),
    ]
    written = json.loads((tmp_path / "sweep.json").read_text())
    assert (written["metric"], written["best"]) == (metric.removeprefix("-"), best)
    assert config.data.eval_split == "test[:64]", "the caller's config is left alone"


def test_a_metric_that_no_run_measures_ends_the_sweep(config, tmp_path, runs):
    made, outcomes = runs
    config.best_metric = "eval/top5"
    outcomes |= {1e-5: 0.5}
    measured = r"'eval/top5': eval/top5 is not measured, but step, eval/accuracy, eval/loss; name"
    with pytest.raises(ConfigError, match=measured):
        sweep.sweep(config, str(tmp_path))
    assert len(made) == 1


def test_one_process_writes_what_came_of_it(config, tmp_path, runs, monkeypatch):
    _, outcomes = runs
    outcomes |= {1e-5: 0.5, 3e-3: 0.6}
    monkeypatch.setattr(sweep.jax, "process_index", lambda: 1)
    sweep.sweep(config, str(tmp_path))
    assert not (tmp_path / "sweep.json").exists()
    assert sweep.given == [{"stop": None, "chosen": None}] * 3


def test_a_table_says_which_rate_is_best():
    measures = {0.001: 0.123456, 0.01: 0.9876543, 3.0: math.nan}
    assert sweep.table(measures, 0.01, "eval/accuracy", "train[90%:]").splitlines() == [
        "The sweep:",
        "  learning rate  eval/accuracy on train[90%:]",
        "          0.001  0.12346",
        "           0.01  0.98765  <- best",
        "              3  diverged",
    ]


def test_a_dry_run_is_that_of_the_first_rate(config, runs):
    made, outcomes = runs
    outcomes |= {1e-5: 0.5, 3e-3: 0.6}
    sweep.sweep(config, "DIR", dry_run=True)
    assert made == [("", 1e-5, "train[:256]", "train[256:320]")]
    assert sweep.given == [{"dry_run": True}]


def test_an_interruption_ends_the_sweep_without_a_choice(config, tmp_path, runs):
    made, outcomes = runs
    outcomes |= {1e-5: 0.5, 3e-3: PreemptedError("Stopped after step 2.")}
    with pytest.raises(PreemptedError):
        sweep.sweep(config, str(tmp_path))
    assert [name for name, *_ in made] == ["learning_rate_1e-05", "learning_rate_0.003"]
    assert not (tmp_path / "sweep.json").exists()


def test_nothing_is_best_where_every_rate_diverges(config, tmp_path, runs):
    _, outcomes = runs
    outcomes |= dict.fromkeys(config.sweep.learning_rates, NonFiniteLossError("Loss is nan."))
    with pytest.raises(NonFiniteLossError, match="every learning rate diverged"):
        sweep.sweep(config, str(tmp_path))


@pytest.mark.parametrize("key", ["learning_rates", "train_split", "eval_split"])
def test_what_to_compare_has_to_be_said(config, tmp_path, key):
    config.sweep[key] = type(config.sweep[key])()
    with pytest.raises(ConfigError, match=rf"config\.sweep\.{key} is empty"):
        sweep.sweep(config, str(tmp_path))


def test_an_objective_that_names_no_metric_is_refused_before_any_rate_is_tried(config, tmp_path):
    config.objective.name = "self_distillation"
    with pytest.raises(ConfigError, match=r"'auto' names no metric .*'self_distillation'"):
        sweep.sweep(config, str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_a_dry_run_describes_the_first_trial(capsys):
    arguments = ["--config=tests/tiny.py", "--dry_run", "--config.sweep.learning_rates=(0.1,0.2)"]
    splits = ["--config.sweep.train_split=train[:90%]", "--config.sweep.eval_split=train[90%:]"]
    assert sweep.main([*arguments, *splits]) == 0
    assert "0.1, 0.2" in capsys.readouterr().err
    assert sweep.main(arguments) == 2
    assert "config.sweep.train_split is empty" in capsys.readouterr().err
