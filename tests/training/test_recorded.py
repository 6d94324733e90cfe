"""A run's objective, from what its workdir recorded."""

import json
import types

import jax
import numpy as np
import pytest

from tests.stages import mesh_of
from vit_jax.config import default_config
from vit_jax.errors import ConfigError
from vit_jax.evaluators.base import Setting
from vit_jax.objectives.base import Labels
from vit_jax.training import recorded
from vit_jax.training.recorded import recorded_name, recorded_objective, with_objective


def record(folder, **values):
    config = default_config()
    config.update_from_flattened_dict(values)
    content = {"config": json.loads(config.to_json_best_effort())}
    (folder / "config.json").write_text(json.dumps(content))


def test_its_options_and_its_teacher_are_the_recorded_ones(tmp_path, monkeypatch):
    values = {"objective.name": "distillation", "objective.temperature": 3.0, "init_teacher": "T"}
    record(tmp_path, **values, batch_size=7)
    made = []
    monkeypatch.setattr(recorded.objectives, "make_objective", lambda *given: made.append(given))
    recorded_objective(str(tmp_path), "network", "labels")
    ((section, *rest),) = made
    assert (section.name, section.temperature, section.kind) == ("distillation", 3.0, None)
    assert rest == ["network", "labels", "T"]
    assert recorded_name(str(tmp_path)) == "distillation"


@pytest.mark.parametrize(
    "content", [None, "{", "{}", "[1]", '{"config": {"objective": {"loss": 3}}}']
)
def test_a_record_that_cannot_be_read_is_named(tmp_path, content):
    if content:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ConfigError) as error:
        recorded_objective(str(tmp_path), None, None)
    assert str(error.value).startswith(
        f"{tmp_path}/config.json: the run's objective cannot be read ("
    )


@pytest.mark.parametrize("ema", [False, True])
@pytest.mark.parametrize(("own", "state"), [(True, False), (False, True), (False, False)])
def test_its_parameters_and_what_it_keeps_are_the_checkpoints(monkeypatch, ema, own, state):
    """Asked for only where the objective has some."""
    objective = types.SimpleNamespace(
        frozen=lambda: {"teacher": np.float32(1)},
        init=lambda key: {"mask": jax.numpy.zeros(2)} if own else {},
        state=lambda params: {"center": params["kernel"]} if state else {},
    )
    asked, opened, closed = [], [], []
    items = {"params": {"objective": {"mask": 2}}, "ema": {"objective": {"mask": 3}}}
    items["objective"] = {"center": np.float32(4)}

    def restore_item(step, item):
        asked.append((step, item))
        return items[item]

    def open_checkpoints(workdir, **options):
        opened.append((workdir, options))
        return types.SimpleNamespace(restore_item=restore_item, close=lambda: closed.append(1))

    monkeypatch.setattr(recorded, "Checkpoints", open_checkpoints)
    made = []
    monkeypatch.setattr(
        recorded, "recorded_objective", lambda *given: made.append(given) or objective
    )
    network = types.SimpleNamespace(mesh=mesh_of(1))
    data = types.SimpleNamespace(class_names=("a", "b"), num_classes=2)
    setting = Setting(network, data, loss="huber" if state else "softmax")
    params = {"kernel": np.float32([5])}
    found, params, frozen = with_objective(setting, params, "run", 9, ema=ema)
    assert made == [("run", network, Labels(("a", "b"), 2, numeric=state))]
    assert found.objective is objective
    assert opened == [("run", {"read_only": True})]
    assert closed == [1]
    assert asked == [(9, "ema" if ema else "params")] * own + [(9, "objective")] * state
    assert params == {"kernel": np.float32([5])} | ({"objective": {"mask": 2 + ema}} if own else {})
    assert frozen == {"teacher": 1} | ({"center": 4} if state else {})
