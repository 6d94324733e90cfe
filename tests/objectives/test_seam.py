"""An objective of its own file (brightness.py) trains, resumes, shards, plans and exports."""

import ast
import json
import pathlib
import re

import jax
import numpy as np
import pytest

import vit_jax
from tests import tiny
from tests.objectives.brightness import Brightness
from tests.runs import read_metrics, rewound
from tests.stages import Setup
from tests.states import mesh_of
from vit_jax import train
from vit_jax.checkpoint import Checkpoints, restore_params
from vit_jax.config import declare_options
from vit_jax.config_file import load_config
from vit_jax.devices.topology import open_topology
from vit_jax.errors import ConfigError
from vit_jax.evaluate import main as evaluate
from vit_jax.training import planning
from vit_jax.weights.loading import fit_weights, read_initial_weights

ROOT = pathlib.Path(__file__).parents[2]
NAME = "tests.objectives.brightness:Brightness"


def make_config():
    """Six updates of the tiny model, an evaluation after every second."""
    config = tiny.get_config()
    declare_options(config, NAME)
    config.objective.name, config.objective.scale = NAME, 3.0
    config.total_steps, config.ema_decay, config.schedule.name = 6, 0.9, "constant"
    config.eval_every_steps = 2
    config.checkpoint_every_steps, config.keep_checkpoints = 3, 3  # The scored ones are kept too.
    return config


config = pytest.fixture(make_config)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The workdir of a whole run."""
    folder = tmp_path_factory.mktemp("whole")
    train.run(make_config(), folder)
    return folder


@pytest.fixture(scope="module")
def alone():
    """What a run on one device begins with, parameters and frozen arrays, and what it comes to."""
    setup = Setup(make_config(), mesh_of(1))
    before = jax.device_get((setup.state.params, setup.frozen))
    return before, setup.run(), setup.frozen


def test_it_is_the_listing_of_the_docs():
    page = (ROOT / "docs/objectives.md").read_text()
    listing = re.search(r"```python\n(class Brightness.*?)```", page, re.DOTALL)[1]
    ours = ast.parse((ROOT / "tests/objectives/brightness.py").read_text()).body
    (ours,) = (node for node in ours if getattr(node, "name", "") == "Brightness")
    assert ast.dump(ast.parse(listing).body[0]) == ast.dump(ours)


def test_it_trains_and_its_values_are_logged(whole):
    records = {record["step"]: record for record in read_metrics(whole)}
    for record in records.values():
        # The mean of squares is at least the square of the mean.
        assert record["train/loss"] >= 3 * record["train/error"] ** 2
    assert records[6]["train/loss"] < records[1]["train/loss"]
    measured = [step for step, record in records.items() if "brightness/error" in record]
    assert measured == [2, 4, 6]
    assert records[6]["brightness_ema/error"] != records[6]["brightness/error"]
    assert not any("accuracy" in key for key in records[6])


def test_its_best_checkpoint_has_the_lowest_error_of_the_averages(whole):
    records = {record["step"]: record for record in read_metrics(whole)}
    errors = {step: r["brightness_ema/error"] for step, r in records.items() if step % 2 == 0}
    assert Checkpoints(whole, read_only=True).step_of("best") == min(errors, key=errors.get)


@pytest.mark.slow  # As do distillation, with frozen arrays, and self-distillation, with its own.
def test_it_resumes_bit_for_bit(config, whole, tmp_path):
    rewound(whole, 3, tmp_path)
    train.run(config, tmp_path)
    jax.tree.map(
        np.testing.assert_array_equal, restore_params(tmp_path, 6), restore_params(whole, 6)
    )
    last = read_metrics(tmp_path)[-1]
    for key, value in read_metrics(whole)[-1].items():
        if key.partition("/")[0] in ("brightness", "brightness_ema") or key == "train/loss":
            assert last[key] == value


def test_its_parameters_are_trained_and_its_frozen_arrays_are_not(alone):
    (before, frozen), (_, _, state), frozen_after = alone
    assert (state.params["objective"]["kernel"] != before["objective"]["kernel"]).any()
    jax.tree.map(np.testing.assert_array_equal, frozen_after, frozen)


@pytest.mark.parametrize("accumulation", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_every_mesh_trains_alike(config, alone, accumulation):
    _, (expected, _, one), _ = alone
    config.optimizer.accumulation_steps = accumulation
    config.model.dropout_rate = 0.0
    losses, _, state = Setup(config, mesh_of(8, fsdp=4)).run()
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(
        state.params["objective"]["kernel"], one.params["objective"]["kernel"], atol=1e-5
    )


def test_a_plan_counts_the_frozen_arrays(config, monkeypatch):
    """By their shapes: nothing is compiled."""
    monkeypatch.setattr(planning, "try_to_compile", lambda *arguments: (None, "refused"))
    plan = planning.make_plan(config, open_topology("gpu:8"))
    assert plan.memory.objective == 8 * 8 * 4


def test_a_classifier_made_of_it_does_not_have_its_parameters(config, whole, tmp_path, caplog):
    model = vit_jax.load_model(whole)
    assert "skipped  objective/kernel" in caplog.text
    vit_jax.save_model(model, tmp_path / "model.npz")
    assert not any("objective" in name for name in np.load(tmp_path / "model.npz"))

    weights = read_initial_weights(whole, model.options)
    setup = Setup(tiny.get_config(), mesh_of(1))
    params, report = fit_weights(weights, model.options, setup.abstract.params)
    assert "objective" not in params
    assert [row.name for row in report.rows if row.status == "skipped"] == ["objective/kernel"]


def test_the_model_starts_as_with_any_objective(alone):
    (ours, _), *_ = alone
    usual = Setup(tiny.get_config(), mesh_of(1)).state.params
    assert ours.keys() - usual.keys() == {"objective"}
    assert ours["objective"].keys() == {"kernel"}
    for name, values in usual.items():
        jax.tree.map(np.testing.assert_array_equal, ours[name], values)


def test_its_options_are_keys_of_the_command_line():
    overrides = ["objective.scale=0.5", f"objective.name={NAME}"]
    assert load_config("tests/tiny.py", overrides).objective.scale == 0.5


def test_a_config_file_may_name_it_and_set_its_options(tmp_path):
    file = tmp_path / "bright.py"
    file.write_text(
        "from tests import tiny\n"
        "from vit_jax.config import declare_options\n"
        "def get_config():\n"
        "  config = tiny.get_config()\n"
        f"  config.objective.name = '{NAME}'\n"
        "  return config\n"
    )
    config = load_config(str(file), ["objective.scale=2"])
    assert (config.objective.name, config.objective.scale) == (NAME, 2.0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("brightnes", "must be one of"),
        (":Brightness", "Empty module name"),
        ("tests.objectives.nothing:X", "No module named"),
        ("tests.objectives.brightness:Nothing", "no attribute"),
        ("json:JSONDecoder", "no vit_jax.objectives.base.Objective"),
    ],
)
def test_names_that_are_no_objective_are_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        load_config("tests/tiny.py", [f"objective.name={name}"])


@pytest.mark.parametrize("value", ["loss", "skipped", "grad_norm"])
def test_a_value_cannot_take_the_trainers_names(config, value, monkeypatch):
    plain = Brightness.loss

    def loss(self, *arguments):
        losses, values = plain(self, *arguments)
        return losses, {value: values["error"]}

    monkeypatch.setattr(Brightness, "loss", loss)
    setup = Setup(config, mesh_of(1))
    with pytest.raises(ConfigError, match=f"{value}.* are the trainer's own"):
        jax.eval_shape(setup.step, setup.abstract, next(setup.batches()))


def test_values_are_means_over_the_rows_that_count(config):
    setup = Setup(config, mesh_of(1))
    batch, counts = next(setup.batches()), np.arange(32) % 4 != 0
    batch = {**batch, "mask": jax.device_put(counts, batch["mask"].sharding)}
    objective = setup.experiment.objective
    losses, values = jax.jit(objective.loss)(setup.state.params, setup.frozen, batch, None)
    _, metrics = setup.step(setup.state, batch)
    np.testing.assert_allclose(metrics["error"], values["error"][counts].mean(), rtol=1e-5)
    np.testing.assert_allclose(metrics["loss"], losses[counts].mean(), rtol=1e-5)


@pytest.mark.parametrize("flags", [(), ("--ema",)])
def test_its_evaluator_measures_the_same_outside_the_run(whole, tmp_path, flags):
    output = tmp_path / "results.json"
    command = [str(whole), "--evaluators=brightness | classification", f"--json={output}", *flags]
    assert evaluate(command) == 0
    (result,) = json.loads(output.read_text())
    last = read_metrics(whole)[-1]
    expected = last["brightness_ema/error" if flags else "brightness/error"]
    assert result["metrics"]["brightness/error"] == pytest.approx(expected, rel=1e-5)
