"""An experiment passes on what its config says: to evaluators, to batches, to `model.json`."""

import dataclasses
import re
import types

import jax
import numpy as np
import pytest

from tests.stages import Setup, config_with, mesh_of
from vit_jax.devices import sharding
from vit_jax.durations import durations
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.training import experiment as module
from vit_jax.training.execution import Choice
from vit_jax.training.experiment import build_schedule, labels_of, preprocessing_for

# Off their defaults, and no two numbers alike.
VALUES = {
    **{"model.image_size": (8, 12), "model.attention": "joint", "batch_size": 48},
    **{"data.dtype": "float32", "data.mean": (0.4,), "data.std": (0.3,), "data.max_image_gib": 0.5},
    **{"data.interpolation": "bicubic", "data.eval_crop": "center", "data.eval_resize": 19},
    **{"objective.loss": "sigmoid", "optimizer.sharpness.rho": 0.1},
}


@pytest.fixture(scope="module")
def experiment():
    return Setup(config_with(**VALUES), mesh_of(1)).experiment


def test_evaluators_see_images_as_the_run_does(experiment, monkeypatch):
    made = []
    monkeypatch.setattr(module, "eval_transform", lambda *given: made.append(given))
    data = experiment.config.data.copy_and_resolve_references()
    data.max_image_gib = 0.25
    setting = experiment.setting(data)
    assert made == [(experiment.preprocessing, (8, 12), 1, 0.25)]
    assert (setting.network, setting.objective) == (experiment.network, experiment.objective)
    assert setting.loss == "sigmoid"
    found = setting.data
    assert found.config is data
    assert (found.image_shape, found.dtype) == ((8, 12, 1), "float32")
    assert (found.num_classes, found.batch_size) == (10, 48)
    assert found.class_names == experiment.dataset.class_names
    assert found.rows == sharding.batch_sharding(experiment.mesh)


def test_a_batch_has_the_datas_types_and_the_models_sizes(experiment):
    assert {name: (leaf.shape, str(leaf.dtype)) for name, leaf in experiment.batch.items()} == {
        "image": ((48, 8, 12, 1), "float32"),
        "label": ((48,), "int32"),
        "index": ((48,), "int32"),
        "mask": ((48,), "bool"),
    }
    rows = sharding.batch_sharding(experiment.mesh)
    assert {leaf.sharding for leaf in experiment.batch.values()} == {rows}


@pytest.mark.parametrize("kind", ["several_labels", "numeric"])
def test_labels_are_arrays_where_there_are_several_or_numbers(experiment, kind):
    dataset = types.SimpleNamespace(several_labels=False, numeric=False, num_classes=7)
    setattr(dataset, kind, True)
    label = dataclasses.replace(experiment, dataset=dataset).batch["label"]
    assert (label.shape, label.dtype) == ((48, 7), np.float32)


@pytest.mark.parametrize(("stop", "expected"), [(None, 10), (0, 0), (6, 6)])
def test_batches_are_those_of_the_updates_asked_for(experiment, monkeypatch, stop, expected):
    given = []
    monkeypatch.setattr(
        module, "train_batches", lambda *what, **bounds: given.append((what, bounds))
    )
    experiment.batches(4, stop)
    rows = sharding.batch_sharding(experiment.mesh)
    what = (experiment.config, experiment.dataset, rows)
    assert given == [(what, {"start": 4, "stop": expected})]


def test_the_description_of_the_model_is_for_any_machine(experiment):
    found = experiment.model_file
    assert found.options["attention"] == "auto"
    assert found.options["image_size"] == (8, 12)
    assert (found.name, found.loss) == ("ViT-Ti/2", "sigmoid")
    assert found.class_names == experiment.dataset.class_names
    assert found.preprocessing == experiment.preprocessing


def test_what_goes_into_a_run_besides_its_config(experiment, monkeypatch):
    monkeypatch.setattr(type(experiment.objective), "digest", lambda self: "of the teacher")
    found = experiment.inputs
    assert found.num_train_examples == 1_437
    assert found.data_digest == module.digest_of(experiment.dataset.examples)
    assert found.objective_digest == "of the teacher"
    assert found.execution == {name: one.value for name, one in experiment.execution.items()}
    assert experiment.execution["attention"] == Choice("joint")


def test_sharpness_takes_two_gradients(experiment):
    assert experiment.flops_per_image == 2 * experiment.objective.training_flops()
    config = config_with()
    plain = dataclasses.replace(experiment, config=config)
    assert plain.flops_per_image == experiment.objective.training_flops()


def test_an_objective_learns_of_the_data_what_it_has_to_know():
    dataset = types.SimpleNamespace(
        class_names=("a", "b"),
        num_classes=3,
        several_labels=True,
        balance=types.SimpleNamespace(weights=(0.5, 2.0)),
        numeric=False,
        means=(0.25,),
    )
    found = labels_of(dataset)
    assert (found.names, found.num_classes, found.several) == (("a", "b"), 3, True)
    assert (found.weights, found.numeric, found.means) == ((0.5, 2.0), False, (0.25,))
    dataset.balance, dataset.several_labels, dataset.numeric = None, False, True
    found = labels_of(dataset)
    assert (found.weights, found.several, found.numeric) == ((), False, True)


def test_the_mean_and_deviation_alone_are_those_of_the_weights():
    own = preprocessing_for(config_with(**VALUES), None)
    assert (own.mean, own.std, own.crop, own.resize) == ((0.4,), (0.3,), "center", 19)
    other = Preprocessing(mean=(0.1,), std=(0.2,), crop="resize", resize=7)
    found = preprocessing_for(config_with(**VALUES), ModelFile("ViT-Ti/2", {}, other))
    assert found == dataclasses.replace(own, mean=(0.1,), std=(0.2,))


def test_the_rate_is_that_of_the_config():
    config = config_with(
        total_steps=20, warmup_steps=4, cooldown_steps=5, **{"schedule.warmup_start": 0.1}
    )
    config.update_from_flattened_dict({"schedule.name": "linear", "schedule.end": 0.06})
    config.optimizer.learning_rate = 0.3
    schedule = build_schedule(config, durations(config, 1000))
    expected = {0: 0.1, 1: 0.75 * 0.1 + 0.25 * 0.3, 4: 0.3, 8: 0.06 + 0.24 * 0.75}
    expected |= {15: 0.06 + 0.24 * 5 / 16, 18: (0.06 + 0.24 * 2 / 16) * 2 / 5}
    assert jax.device_get({step: schedule(step) for step in expected}) == pytest.approx(expected)


def test_what_is_said_of_a_rate_that_never_rises(caplog):
    config = config_with(total_steps=1200, warmup_steps=1500, cooldown_steps=7)
    config.optimizer.learning_rate = 0.0
    build_schedule(config, durations(config, 1000))
    no_room, no_rate = caplog.messages
    assert re.search("1,?200 steps .* warm-up of 1,?500 and cooldown of 7: .* never peaks", no_room)
    assert re.search(
        r"all 1,200 updates is 0 \(config\.optimizer\.learning_rate=0, .* 1,500 updates begins at 0",
        no_rate,
    )
