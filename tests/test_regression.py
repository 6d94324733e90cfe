"""Numbers to predict, from a manifest to training, evaluation and use."""

import csv
import json
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from PIL import Image
from sklearn import metrics

import vit_jax
from tests import tiny
from tests.evaluators.settings import make_setting
from tests.runs import read_metrics
from tests.shared_programs import shared_programs  # noqa: F401
from tests.stages import Setup, mesh_of
from vit_jax import evaluate, predict, train
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import ConfigError, DataError
from vit_jax.evaluators import read_evaluators
from vit_jax.evaluators.regression import errors
from vit_jax.model_file import read_model_file
from vit_jax.objectives.base import Labels
from vit_jax.objectives.regression import REGRESSION_LOSSES, Regression
from vit_jax.training.overview import describe_run

pytestmark = pytest.mark.usefixtures("on_one_device", "shared_programs")


def write_manifest(folder, rows, name="list.jsonl"):
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"manifest:{folder / name}"


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """80 grey images: how bright they are on the left and on the right, from -1 to 1."""
    folder, rows = tmp_path_factory.mktemp("data"), []
    for index in range(80):
        brightness = np.random.default_rng(index).integers(0, 256, 2)
        image = np.repeat(np.repeat([brightness], 4, axis=1), 8, axis=0).astype(np.uint8)
        Image.fromarray(image).save(folder / f"{index}.png")
        levels = (brightness / 127.5 - 1).tolist()
        split = "train" if index < 56 else "test"
        rows.append({"path": f"{index}.png", "brightness": levels, "split": split})
    return write_manifest(folder, rows)


def config_of(source, **keys):
    config = tiny.get_config()
    config.data.source, config.data.columns = source, "targets=brightness"
    config.data.flip, config.data.train_crop = False, "resize"
    config.objective.name = "regression"
    config.schedule.name, config.optimizer.learning_rate = "constant", 1e-2
    config.total_steps, config.warmup_steps = 60, 5
    config.eval_every_steps = config.log_every_steps = 30
    config.update_from_flattened_dict(keys)
    return config


@pytest.fixture(scope="module")
def run(source, tmp_path_factory):
    """Its workdir."""
    workdir = tmp_path_factory.mktemp("run")
    train.run(
        config_of(source, **{"objective.loss": "huber", "objective.huber_delta": 0.5}), workdir
    )
    return workdir


@pytest.mark.parametrize("token", [False, True], ids=["", "with a distillation token"])
def test_outputs_begin_at_the_means_of_the_training_targets(source, token):
    config = config_of(source, **{"model.distillation_token": token})
    setup = Setup(config, mesh_of(1))
    rows = open_source(config.data, "train", image_size=(8, 8), channels=1, num_classes=0)
    means = np.mean([example.label for example in rows.fetch(range(len(rows)))], axis=0)
    assert np.abs(means).min() > 0.01
    images = next(setup.batches())["image"]
    outputs = jax.jit(setup.experiment.network)(setup.state.params, images)
    np.testing.assert_allclose(outputs, np.tile(means, (len(outputs), 1)), rtol=1e-5)
    assert f"outputs begin at {means[0]:.4g}, {means[1]:.4g}" in describe_run(setup.experiment)


def test_its_key_drops_out(source):
    setup = Setup(config_of(source, **{"model.dropout_rate": 0.5}), mesh_of(1))
    batch = next(setup.batches())
    rng = np.random.default_rng(0)  # A new head has zeros, and one of ones sees no features.
    params = jax.tree.map(lambda x: x + np.float32(rng.normal(0, 0.1, x.shape)), setup.state.params)
    loss = jax.jit(lambda key: setup.experiment.objective.loss(params, {}, batch, key)[0])
    losses = [loss(jax.random.key(seed)) for seed in (0, 0, 1)]
    np.testing.assert_array_equal(losses[0], losses[1])
    assert np.all(losses[0] != losses[2])


def test_two_numbers_are_learned(run):
    first, last = (record for record in read_metrics(run) if "eval/r2" in record)
    assert last["eval/r2"] > 0.8
    assert last["eval/rmse"] < first["eval/rmse"]
    assert last["eval/count"] == 24
    model_file = read_model_file(run)
    assert (model_file.loss, model_file.class_names) == ("huber", ("brightness_0", "brightness_1"))
    assert sorted(int(path.name) for path in (run / "checkpoints").iterdir()) == [60]


def assert_six_digits(texts, numbers):
    """Another batch's last bits may turn the sixth."""
    assert [f"{float(text):.6g}" for text in texts] == list(texts)
    np.testing.assert_allclose([float(text) for text in texts], numbers, rtol=1e-5)


def test_it_is_evaluated_and_predicts(run, source, tmp_path, capsys):
    last = read_metrics(run)[-1]
    assert evaluate.main([str(run), f"--json={tmp_path / 'results.json'}"]) == 0
    assert "eval/rmse" in capsys.readouterr().out
    (result,) = json.loads((tmp_path / "results.json").read_text())
    assert (result["accuracy"], result["count"]) == (None, 24)
    for name in ("mae", "rmse", "r2"):
        assert result["metrics"][f"eval/{name}"] == pytest.approx(last[f"eval/{name}"], rel=1e-4)

    model, picture = (
        vit_jax.load_model(run),
        source.removeprefix("manifest:").replace("list.jsonl", "7.png"),
    )
    expected = np.asarray(model(predict.load_images(model, picture)))[0]
    (answer,) = predict.predict(model, picture)
    np.testing.assert_allclose([value for _, value in answer.values], expected, rtol=1e-5)
    missing = str(tmp_path / "missing.png")
    for ending in ("txt", "csv", "jsonl"):
        (tmp_path / "missing.png").write_text("no image")
        output = tmp_path / f"answers.{ending}"
        assert predict.main([str(run), picture, missing, f"--output={output}"]) == 1
    first, second = (tmp_path / "answers.txt").read_text().splitlines()
    told = re.fullmatch(f"{re.escape(picture)}: brightness_0 (.+), brightness_1 (.+)", first)
    assert_six_digits(told.groups(), expected)
    assert second.startswith(f"{missing}: error")
    header, row, failed = csv.reader((tmp_path / "answers.csv").open())
    assert header == ["path", "error", "brightness_0", "brightness_1"]
    assert row[:2] == [picture, ""]
    assert_six_digits(row[2:], expected)
    assert failed[2:] == ["", ""]
    model.loss = "softmax"  # As of a file that does not say it.
    vit_jax.save_model(model, tmp_path / "untold", "vit_jax")
    output = tmp_path / "told.csv"
    flags = ("--loss=l2", f"--output={output}")
    assert predict.main([str(tmp_path / "untold"), picture, *flags]) == 0
    told_header, told = csv.reader(output.open())
    assert (told_header, told[:2]) == (header, row[:2])
    assert_six_digits(told[2:], expected)
    first, second = map(json.loads, (tmp_path / "answers.jsonl").read_text().splitlines())
    assert first["values"] == pytest.approx(
        {"brightness_0": expected[0], "brightness_1": expected[1]}, rel=1e-5
    )
    assert (second["values"], bool(second["error"])) == ({}, True)


def test_losses_are_optax():
    rng = np.random.default_rng(0)
    found, wanted = rng.normal(0, 2, (2, 16, 3)).astype(np.float32)
    for name, delta, reference in (
        ("l2", 1.0, optax.squared_error(found, wanted)),
        ("huber", 1.5, optax.huber_loss(found, wanted, delta=1.5)),
    ):
        loss = REGRESSION_LOSSES[name](jnp.asarray(found - wanted), delta)
        np.testing.assert_allclose(loss, reference.mean(-1), rtol=1e-5)


def test_errors_are_scikit_learns():
    rng = np.random.default_rng(0)
    found, wanted = rng.normal(1000, 2, (2, 50, 3)).astype(np.float32)
    result = errors(found, wanted)
    assert result["mae"] == pytest.approx(metrics.mean_absolute_error(wanted, found), rel=1e-6)
    assert result["rmse"] == pytest.approx(metrics.root_mean_squared_error(wanted, found), rel=1e-6)
    assert result["r2"] == pytest.approx(metrics.r2_score(np.float64(wanted), found), rel=1e-6)
    assert np.isnan(errors(found[:, :1], np.ones((50, 1)))["r2"])
    assert errors(found[:0], wanted[:0])["count"] == 0


def test_errors_are_of_the_images_that_can_be_read(tmp_path):
    brightness, targets = [0, 40, 80, 120, 160], [1.0, 2.0, 3.0, 4.0, 5.0]
    rows = [
        {"path": f"{n}.png", "target": target, "split": "test"} for n, target in enumerate(targets)
    ]
    for number, value in enumerate(brightness):
        Image.fromarray(np.full((4, 4), value, np.uint8)).save(tmp_path / f"{number}.png")
    (tmp_path / "1.png").write_bytes(b"torn")
    keys = {"on_error": "skip", "max_skipped": 1.0, "batch_size": 3}
    setting, params = make_setting(write_manifest(tmp_path, rows), (), num_classes=1, **keys)
    (evaluator,) = read_evaluators("regression")
    numbers = evaluator.bind(setting)(params, {}).numbers
    kept = [0, 2, 3, 4]
    outputs = -np.square(np.array(brightness)[kept] / 20)[:, None]
    expected = errors(outputs, np.array(targets)[kept, None])
    assert expected["count"] == 4
    assert numbers == pytest.approx({**expected, "skipped": 1}, rel=1e-5)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"objective.name": "classification"}, ConfigError, "set --config.objective.name=regression"),
        ({"data.source": "digits"}, ConfigError, "regression needs numbers, and the data has classes"),
        ({"evaluators": "classification(source='digits', name='d')"}, DataError, "numbers|classes"),
        ({"evaluators": "regression(source='digits')"}, (ConfigError, DataError), "classes"),
        ({"model.num_classes": 3}, ConfigError, "targets for the 2 of"),
        ({"data.class_weights": "balanced"}, ConfigError, "one class each"),
        ({"data.classes": ("a", "b")}, DataError, "has numbers to predict, no classes"),
        ({"objective.loss": "softmax"}, ConfigError, "objective.loss='softmax': must be one of l2"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(source, tmp_path, keys, error, message):
    with pytest.raises(error, match=message):
        train.run(config_of(source, **keys), tmp_path)


# ------------------------------------------------------------------------------------- manifests


def read(tmp_path, text, columns="", split="train", name="list.csv"):
    (tmp_path / name).write_text(text)
    data = tiny.get_config().data
    data.source, data.columns = f"manifest:{tmp_path / name}", columns
    return open_source(data, split, image_size=(8, 8), channels=1, num_classes=0, training=True)


def of(source):
    pairs = ((source.name_of(index), source.labels[index].tolist()) for index in range(len(source)))
    return dict(pairs)


def test_targets_of_every_form(tmp_path):
    table = "path,age,split\n1.png,4.5,train\n2.png,-1e2,train\n3.png,7,test\n"
    source = read(tmp_path, table, "target=age")
    assert (of(source), source.class_names) == ({"1.png": [4.5], "2.png": [-100]}, ("age",))
    assert of(read(tmp_path, table, "target=age", "test")) == {"3.png": [7]}
    assert of(read(tmp_path, "path,targets,split\na,1;2,train\nb,3;4.5,train")) == {
        "a": [1, 2],
        "b": [3, 4.5],
    }
    lines = '{"path": "a", "target": 3}\n{"path": "b", "target": 1.5}\n'
    assert set(of(read(tmp_path, lines, split="train[:100%]", name="x.jsonl"))) < {"a", "b"}, (
        "held out"
    )
    both = read(tmp_path, "path,label,target,split\na,cat,1,train\nb,dog,2,train")
    assert both.class_names == ("cat", "dog"), "a column called target was another one before"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,target,split\na,1,train\nb,x,train", "list.csv:3: target is 'x', expected a finite number"),
        ("path,target,split\na,nan,train", "target is 'nan'|target is nan"),
        ("path,target,split\na,1_0,train", "expected a finite number"),
        ("path,targets,split\na,1;2,train\nb,1,train", "list.csv:3: 1 targets, but 2 in the lines before"),
        ("path,targets,split\na,,train", "expected a list of numbers"),
        ("path,target,targets,split\na,1,2,train", "one of label, labels, target, targets"),
    ],
)  # fmt: skip
def test_bad_targets_name_their_line(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read(tmp_path, text)


@pytest.mark.parametrize("loss", ["l2", "huber"])
def test_the_loss_is_the_one_that_is_named(loss):
    outputs = {"logits": np.array([[1.0, 3.0], [0.0, -2.0]])}
    network = types.SimpleNamespace(
        outputs=lambda params, images, key: outputs, statistics=lambda outputs: {}
    )
    options = Regression.Options(loss=loss, huber_delta=0.5)
    objective = Regression(options, network, Labels((), 2, numeric=True, means=(0.0, 0.0)))
    batch = {"image": None, "label": np.array([[0.75, 1.0], [0.0, 0.0]])}
    losses, _ = objective.loss({}, {}, batch, None)
    errors = np.abs(outputs["logits"] - batch["label"])
    huber = np.where(errors < 0.5, errors**2 / 2, 0.5 * (errors - 0.25))
    expected = {"l2": errors**2, "huber": huber}[loss].mean(-1)
    np.testing.assert_allclose(losses, expected, rtol=1e-6)


def test_it_has_no_teacher():
    labels = Labels((), 1, numeric=True, means=(0.0,))
    with pytest.raises(ConfigError, match="init_teacher"):
        Regression(Regression.Options(), types.SimpleNamespace(), labels, "runs/teacher")
