"""`config.evaluators`: its text, names and metrics, and what becomes of a run whose evaluator fails."""

import dataclasses
import re
import types

import jax
import jax.numpy as jnp
import pytest

from tests import tiny
from tests.runs import read_metrics
from tests.stages import Setup, mesh_of
from vit_jax import evaluate, train
from vit_jax.checkpoint import find_checkpoint
from vit_jax.errors import ConfigError, NonFiniteLossError
from vit_jax.evaluators import EVALUATORS, check_head, read_evaluators
from vit_jax.evaluators.base import Evaluator, Results


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "classification | classification()",
            "two evaluators would write under 'eval'; tell them apart by name='...'",
        ),
        ("classification(name='a') | classification(name='a')", "write under 'a'"),
        ("classification(name='train')", "cannot be an evaluator's name"),
        (
            "classification(name='data')",
            "'data' cannot be an evaluator's name; the run's own metrics stand under train/ and "
            "data/, those of averages under NAME_ema/.",
        ),
        ("classification(name='a/b')", "cannot be an evaluator's name"),
        ("classification(name='a_ema')", "cannot be an evaluator's name"),
        ("clasification", "the nearest: classification"),
        ("classification(every_steps=-1)", "every_steps of classification must be"),
        ("classification(split=3)", "split of classification must be text"),
        ("classification(shots=5)", "shots"),
        ("classification,", "expected NAME or NAME"),
    ],
)
def test_texts_that_cannot_be_meant_are_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        read_evaluators(text)


@pytest.mark.parametrize(
    ("name", "option", "value"),
    [
        ("classification", "worst", "-1"),
        ("classification", "detailed", "1"),
        ("classification", "classes", "None"),
        ("fewshot", "shots", "(0,)"),
        ("fewshot", "seeds", "0"),
        ("fewshot", "l2", "0"),
        ("knn", "k", "0"),
        ("knn", "weights", "'none'"),
        ("knn", "temperature", "0"),
        ("objective", "seed", "-1"),
        ("probe", "l2", "0"),
        ("probe", "max_iterations", "0"),
    ],
)
def test_options_that_cannot_work_are_refused(name, option, value):
    with pytest.raises(ConfigError, match=f"{option} of {name} must be"):
        read_evaluators(f"{name}({option}={value})")


@pytest.mark.parametrize("text", ["knnn", "knn(kk=3)", "knn | knn", "knn("])
def test_messages_name_the_key_or_the_flag(text):
    with pytest.raises(ConfigError, match=r"^config\.evaluators='knn"):
        read_evaluators(text)
    flags = evaluate.parse_flags(["run", f"--evaluators={text}"])
    with pytest.raises(ConfigError, match=r"^--evaluators='knn"):
        evaluate.asked_evaluators(flags)


def test_what_measures_classes_needs_a_head():
    headless = types.SimpleNamespace(num_classes=0)
    check_head(read_evaluators("knn | probe | fewshot | objective"), headless)
    check_head(read_evaluators("classification | knn"), types.SimpleNamespace(num_classes=1))
    with pytest.raises(ConfigError, match=r"^the evaluator 'a' needs a classifier") as error:
        check_head(read_evaluators("knn | imagenet_a(name='a')"), headless)
    (named,) = re.findall(r"choose among (.*)\.$", str(error.value))
    assert {"knn", "probe"} < {*named.split(", ")}
    check_head(read_evaluators(named.replace(", ", " | ")), headless)


def test_each_evaluator_is_of_its_own_name():
    """What it is called by, and what its results stand under where no name is set."""
    found = {text: read_evaluators(text)[0].prefix for text in EVALUATORS}
    shared = dict.fromkeys(("classification", "regression", "objective"), "eval")
    assert found == {name: name for name in EVALUATORS} | shared


def test_a_text_is_read_in_its_order():
    first, second = read_evaluators("classification | classification(name='v2', every_steps=7)")
    assert (first.prefix, first.every_steps) == ("eval", 0)
    assert (second.prefix, second.every_steps, second.split) == ("v2", 7, "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fragile(Evaluator):
    """Uses arrays as people do, and fails at its third measure."""

    NAME = "fragile"

    def metrics(self, setting):
        return ("sum",)

    def bind(self, setting):
        calls = []

        def measure(params, frozen):
            calls.append(1)
            if len(calls) == 3:
                raise RuntimeError("it broke")
            return Results({"sum": float(jnp.zeros(3).sum() + params["head"]["bias"].sum())})

        return measure


@pytest.fixture
def config(monkeypatch):
    monkeypatch.setitem(EVALUATORS, "fragile", Fragile)
    config = tiny.get_config()
    config.total_steps, config.evaluators = 5, "fragile(every_steps=1)"
    return config


def test_an_evaluator_may_use_arrays_freely_and_its_failure_loses_no_update(config, tmp_path):
    with pytest.raises(RuntimeError, match="it broke"):
        train.run(config, tmp_path)
    assert [record["step"] for record in read_metrics(tmp_path)] == [1, 2, 3]
    assert find_checkpoint(tmp_path, "latest") == (3, False)


def test_a_model_that_answers_with_no_numbers_is_not_saved(config, monkeypatch, tmp_path):
    def refuse(evaluator, setting):
        def measure(params, frozen):
            raise NonFiniteLossError("the logits of 1 of 2 images are not finite numbers")

        return measure

    monkeypatch.setattr(Fragile, "bind", refuse)
    with pytest.raises(NonFiniteLossError, match="not finite numbers"):
        train.run(config, tmp_path)
    assert not any((tmp_path / "checkpoints").glob("[0-9]*"))


@pytest.mark.parametrize("metric", ["eval/accuracy", "fragile/mean", "fragile_ema/sum", "-"])
def test_a_best_metric_that_nobody_measures_fails_at_the_start(config, metric, tmp_path):
    config.best_metric = metric
    with pytest.raises(ConfigError, match=r"is not measured in this run.*fragile/sum"):
        train.run(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Precise:
    """An objective that notes the precision that it is asked for."""

    values = ()

    def __init__(self):
        self.seen = []

    def prepare(self, batch, seed, step):
        return batch

    def loss(self, params, frozen, batch, key):
        self.seen.append(jax.config.jax_default_matmul_precision)
        return jnp.zeros(len(batch["mask"])), {}

    def pictures(self, params, frozen, batch):
        return self.loss(params, frozen, batch, None)[1].get("none")


def test_an_objective_is_measured_in_the_precision_that_it_is_trained_in():
    experiment = Setup(tiny.get_config(), mesh_of(1)).experiment
    setting = experiment.setting(experiment.config.data)
    (evaluator,) = read_evaluators("objective")
    objective = Precise()
    measured = evaluator.bind(dataclasses.replace(setting, objective=objective))({}, {})
    assert measured.numbers == {"loss": 0.0, "count": 360}
    assert objective.seen == ["highest", "highest"]  # The loss's program, and the pictures'.
