"""Which evaluators are due, what they are given, and under which names their results stand."""

import dataclasses
import functools
import types

import jax
import numpy as np
import pytest

from tests.stages import Setup, config_with, mesh_of
from vit_jax.checkpoint import TrainState
from vit_jax.config import default_config
from vit_jax.durations import durations
from vit_jax.errors import ConfigError, NonFiniteLossError
from vit_jax.evaluators.base import Results
from vit_jax.evaluators.classification import Classification
from vit_jax.records import read_records, write_records
from vit_jax.training import evaluation as evaluation_module
from vit_jax.training.evaluation import (
    Evaluation,
    measured_metric,
    open_evaluation,
    saved_if_it_fails,
    wanted_metric,
)


def evaluation_of(measure, *, every_steps=0, total_steps=10, **evaluators):
    """Evaluators by name, with their own `every_steps`."""
    pairs = [(Classification(name=n, every_steps=e), measure) for n, e in evaluators.items()]
    return Evaluation(tuple(pairs), total_steps, every_steps, best_metric="", data=None)


@functools.cache
def made():
    return Setup(config_with(), mesh_of(1)).experiment


def experiment_with(**values):
    """That of the tiny config, with other evaluations."""
    config, lengths = config_with(**values), durations(config_with(**values), 1_437)
    return dataclasses.replace(made(), config=config, durations=lengths)


@pytest.mark.parametrize(
    ("every_steps", "own", "expected"),
    [
        (0, 0, [10]),  # At the end only.
        (4, 0, [4, 8, 10]),
        (0, 3, [3, 6, 9, 10]),
        (4, 3, [3, 6, 9, 10]),  # Its own goes before the run's.
        (2, 5, [5, 10]),
    ],
)
def test_an_evaluator_is_due_as_often_as_it_says_and_at_the_end(every_steps, own, expected):
    evaluation = evaluation_of(None, every_steps=every_steps, v2=own)
    assert [step for step in range(1, 11) if evaluation.due(step)] == expected


@pytest.mark.parametrize(
    "values",
    [{"eval_every_epochs": 0.5}, {"eval_every_examples": 719}],
    ids=lambda values: next(iter(values)),
)
def test_the_runs_own_frequency_is_given_in_any_unit(values):
    """Half an epoch of the digits' 1,437 is 22 batches of 32."""
    experiment = experiment_with(**values)
    evaluation = open_evaluation(experiment, experiment.config.data)
    assert (evaluation.every_steps, evaluation.total_steps) == (22, 10)


def test_only_those_that_are_due_measure():
    evaluation = evaluation_of(lambda params, known: Results({"x": 1.0}), eval=0, v2=3)
    state = TrainState(3, {}, (), None)
    assert evaluation.measure(3, state, {}).numbers == {"v2/x": 1.0}
    assert evaluation.measure(10, state, {}).numbers == {"eval/x": 1.0, "v2/x": 1.0}


def test_they_see_the_averages_too_and_all_that_the_objective_keeps(monkeypatch):
    seen, written = [], []
    monkeypatch.setattr(
        evaluation_module,
        "describe_result",
        lambda evaluator, data, numbers, *, step, averaged, seconds: (step, averaged, numbers),
    )

    def measure(params, known):
        seen.append((params, known))
        return Results({"error": params["value"]}, {"map": np.full((1, 1, 3), params["value"])})

    state = TrainState(10, {"value": 1.0}, (), {"value": 2.0}, {"teacher": 3})
    evaluation = dataclasses.replace(
        evaluation_of(measure, eval=0),
        data=types.SimpleNamespace(config=None),
        file=types.SimpleNamespace(append=written.append),
    )
    results = evaluation.measure(10, state, {"frozen": 4})
    assert written == [(10, False, {"error": 1.0}), (10, True, {"error": 2.0})]
    assert results.numbers == {"eval/error": 1.0, "eval_ema/error": 2.0}
    assert {name: image.max() for name, image in results.pictures.items()} == {
        "eval/map": 1.0,
        "eval_ema/map": 2.0,
    }
    assert [known for _, known in seen] == [{"teacher": 3, "frozen": 4}] * 2


@pytest.mark.parametrize("process", [0, 1])
def test_process_0_alone_records_what_was_measured(tmp_path, monkeypatch, process):
    """And cuts what came after the step that the run goes on after."""
    path = tmp_path / "results.jsonl"
    write_records(str(path), [{"step": step} for step in (3, 5, 6)])
    monkeypatch.setattr(jax, "process_index", lambda: process)
    ticks = iter([10.0, 12.5])
    clock = types.SimpleNamespace(monotonic=lambda: next(ticks))
    monkeypatch.setattr(evaluation_module, "time", clock)
    config = types.SimpleNamespace(source="digits", eval_split="test")
    evaluation = dataclasses.replace(
        evaluation_of(lambda params, known: Results({"x": 0.25}), v2=0, total_steps=7),
        data=types.SimpleNamespace(config=config),
    ).recorded_in(tmp_path, 5)
    evaluation.measure(7, TrainState(7, {}, (), None), {})
    found = read_records(str(path))
    assert [record["step"] for record in found] == ([3, 5, 6] if process else [3, 5, 7])
    if not process:
        shown = {"name": "v2", "averaged": False, "seconds": 2.5, "numbers": {"x": 0.25}}
        assert found[-1].items() >= {**shown, "source": "digits", "split": "test"}.items()


def test_processes_compare_the_examples_of_every_split(monkeypatch):
    compared = []
    monkeypatch.setattr(
        evaluation_module.distributed, "check_same", lambda *what: compared.append(what)
    )
    data = types.SimpleNamespace(
        opened={("", "val"): range(7), ("folder:v2", ""): range(9)},
        fitted={("digits", "train"): range(11)},
    )
    dataclasses.replace(evaluation_of(None), data=data).check_same()
    assert compared == [
        ("evaluation examples of val", 7),
        ("evaluation examples of folder:v2", 9),
        ("training examples of digits train", 11),
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"stop_after": 3}, r"config\.stop_after=3 counts evaluations .*eval_every_steps"),
        ({"stop_after": 3, "eval_every_steps": 2, "best_metric": ""}, "stop_after=3 counts"),
        (
            {"evaluators": "regression(name='mine')"},
            r"^The evaluator mine \(regression\) needs numbers, and digits has classes\.$",
        ),
        (
            {"evaluators": "regression(source='fake')", "data.num_eval_examples": 8},
            r"^The evaluator eval \(regression\) needs numbers, and fake has classes\.$",
        ),
        ({"best_metric": "eval_ema/loss"}, "'eval_ema/loss' is not measured in this run: .*auto"),
    ],
)
def test_evaluations_that_do_not_fit_the_run_are_refused(values, message):
    experiment = experiment_with(**values)
    with pytest.raises(ConfigError, match=message):
        open_evaluation(experiment, experiment.config.data)


def test_what_a_run_counts_and_measures_by(caplog):
    values = {
        "stop_after": 3,
        "eval_every_steps": 2,
        "ema_decay": 0.5,
        "data.eval_split": "test[:9]",
    }
    experiment = experiment_with(**values)
    found = open_evaluation(experiment, experiment.config.data)
    assert (found.best_metric, found.every_steps, found.total_steps) == ("eval_ema/accuracy", 2, 10)
    assert [len(split) for split in found.data.opened.values()] == [9]
    assert found.data.config is experiment.config.data
    experiment = experiment_with(evaluators="knn(k=3)", **{"data.train_split": "train[:30]"})
    with caplog.at_level("INFO", logger="vit_jax"):
        found = open_evaluation(experiment, experiment.config.data)
    assert found.best_metric == ""
    assert "No evaluator measures eval/accuracy: no best checkpoint is kept." in caplog.messages


@pytest.mark.parametrize(
    ("best_metric", "ema_decay", "expected"),
    [
        ("auto", 0.0, "eval/accuracy"),
        ("auto", 0.9, "eval_ema/accuracy"),
        ("-eval/loss", 0.9, "-eval/loss"),
        ("", 0.9, ""),
    ],
)
def test_the_best_metric_is_of_the_averages_if_there_are_any(best_metric, ema_decay, expected):
    config = default_config()
    config.best_metric, config.ema_decay = best_metric, ema_decay
    assert wanted_metric(config) == expected


@pytest.mark.parametrize("ema_decay", [0.0, 0.9])
def test_only_what_is_measured_can_be_the_best(ema_decay):
    """The averages are, where there are any."""
    config = default_config()
    config.ema_decay = ema_decay
    config.best_metric = "-v2/loss"
    evaluators = [
        types.SimpleNamespace(prefix=prefix, metrics=lambda setting: ("loss", "error"))
        for prefix in ("eval", "v2")
    ]
    assert measured_metric(config, None, evaluators) == "-v2/loss"
    config.best_metric = "eval_ema/error"
    if ema_decay:
        assert measured_metric(config, None, evaluators) == "eval_ema/error"
    else:
        with pytest.raises(
            ConfigError, match=r"not measured .* eval/loss, eval/error, v2/loss, v2"
        ):
            measured_metric(config, None, evaluators)
    config.best_metric = "auto"  # The accuracy, which these do not measure.
    assert measured_metric(config, None, evaluators) == ""


@pytest.mark.parametrize(("error", "saved"), [(RuntimeError, True), (NonFiniteLossError, False)])
def test_an_evaluators_error_saves_the_state_after_the_records(error, saved, caplog):
    done = []
    log = types.SimpleNamespace(flush=lambda: done.append("flush"))
    checkpoints = types.SimpleNamespace(save=lambda *what: done.append(what))

    def fail():
        with jax.transfer_guard("disallow"), saved_if_it_fails(7, "state", log, checkpoints):
            jax.numpy.zeros(2) + np.ones(2)  # An evaluator moves data as it likes.
            raise error("broken")

    with pytest.raises(error, match="broken"):
        fail()
    assert done == (["flush", (7, "state", {})] if saved else [])
    told = ["An evaluator failed: the state after step 7 is saved."]
    assert caplog.messages == (told if saved else [])
