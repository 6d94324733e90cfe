"""The evaluation command: its figures against NumPy's, and what it says of models and data."""

import copy
import csv
import dataclasses
import json
import math
import re
import subprocess
import sys
import types

import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import tiny
from tests.published import logits, parameters, random_model
from tests.runs import ROOT, read_metrics
from tests.shared_programs import shared_programs  # noqa: F401
from tests.workdirs import CLASSES, TINY, write_workdir
from vit_jax import evaluate as command
from vit_jax import evaluation_files, inference, train
from vit_jax.averaging import Views
from vit_jax.config import default_config
from vit_jax.errors import ConfigError
from vit_jax.evaluators.base import Results
from vit_jax.evaluators.classification import Classification
from vit_jax.evaluators.regression import Regression
from vit_jax.model_file import Preprocessing
from vit_jax.predict import load_images
from vit_jax.records import read_records

pytestmark = pytest.mark.usefixtures("shared_programs")

PER_CLASS = 7
PREPROCESSING = Preprocessing(mean=(0.4,), std=(0.2,), crop="center", resize=20)


def write_images(folder, classes, per_class=PER_CLASS):
    """Colourful noise of various sizes; returns the paths and labels in `classes`."""
    generator = np.random.default_rng(0)
    paths, labels = [], []
    for label, name in enumerate(classes):
        (folder / name).mkdir(parents=True)
        for number in range(per_class):
            size = generator.integers(16, 40, 2)
            paths.append(folder / name / f"{number}.png")
            labels.append(label)
            Image.fromarray(generator.integers(0, 256, (*size, 3), np.uint8)).save(paths[-1])
    return paths, np.array(labels)


def make_model(num_classes=3, class_names=CLASSES, **options):
    model = random_model("ViT-Ti/8", num_classes=num_classes, **{**TINY, **options})
    model.preprocessing, model.class_names = PREPROCESSING, class_names
    return model


def expected_of(model, paths, labels, loss="softmax"):
    """The figures, by NumPy from the logits of all images at once."""
    values = np.float64(logits(model, load_images(model, paths)))
    own = values[np.arange(len(labels)), labels]
    ranks = (values > own[:, None]).sum(-1)
    shifted = values - values.max(-1, keepdims=True)
    losses = {
        "softmax": np.log(np.exp(shifted).sum(-1)) - (own - values.max(-1)),
        "sigmoid": np.logaddexp(0, values).sum(-1) - own,
    }[loss]
    figures = {"accuracy": (ranks == 0).mean(), "loss": losses.mean(), "count": len(labels)}
    if values.shape[1] > 5:
        figures["top5_accuracy"] = (ranks < 5).mean()
    return figures


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    paths, labels = write_images(root / "val", CLASSES)
    return root, paths, labels


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "export"
    made = make_model()
    vit_jax.save_model(made, path, "vit_jax")
    return path, made


def run(*arguments):
    return command.main([str(argument) for argument in arguments])


def results_of(tmp_path, *arguments, code=0):
    assert run(*arguments, f"--json={tmp_path}/results.json") == code
    return json.loads((tmp_path / "results.json").read_text())


# ------------------------------------------------------------------------------------ figures


@pytest.mark.parametrize("flags", [(), ("--batch_size=1",), ("--batch_size=13",)])
def test_the_figures_are_numpys_at_any_batch_size(model, images, tmp_path, flags):
    path, made = model
    root, *examples = images
    (result,) = results_of(tmp_path, path, f"--source=folder:{root}", *flags)
    expected = expected_of(made, *examples)
    assert {key: result[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    assert result["top5_accuracy"] is None, "three classes have no fifth"
    assert result["unreadable"] == 0
    assert result["images_per_second"] > 0


def test_top_5_another_size_and_the_other_loss(tmp_path):
    names = tuple("abcdefg")
    paths, labels = write_images(tmp_path / "data/val", names, per_class=3)
    made = make_model(7, names)
    made.loss = "sigmoid"  # As an export of a run says.
    made.preprocessing = dataclasses.replace(PREPROCESSING, crop="resize")
    vit_jax.save_model(made, tmp_path / "export", "vit_jax")
    flags = (f"--source=folder:{tmp_path}/data", "--option=image_size=(24,32)")
    (result,) = results_of(tmp_path, tmp_path / "export", *flags)
    resized = vit_jax.load_model(tmp_path / "export", image_size=(24, 32))
    expected = expected_of(resized, paths, labels, "sigmoid")
    assert {key: result[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    assert result["image_size"] == "24x32", "height first"
    (result,) = results_of(tmp_path, tmp_path / "export", *flags, "--resize=40")
    middle = {"crop": "center", "resize": 40}
    resized.preprocessing = dataclasses.replace(resized.preprocessing, **middle)
    expected = expected_of(resized, paths, labels, "sigmoid")
    assert {key: result[key] for key in expected} == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("flags", [(), ("--source=folder:DATA",), ("--source=folder:DATA/",)])
def test_a_run_of_an_earlier_version_is_measured_on_what_it_held_out(tmp_path, flags):
    data = default_config().data
    data.source = f"folder:{tmp_path}/data"
    recorded = {key: value for key, value in data.items() if key not in ("holding_out", "fold")}
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    config = {"data": recorded, "objective": {"loss": "softmax"}}
    (tmp_path / "run" / "config.json").write_text(json.dumps({"config": config}))
    flags = [flag.replace("DATA", f"{tmp_path}/data") for flag in flags]
    task = command.plan(str(tmp_path / "run"), command.parse_flags([str(tmp_path / "run"), *flags]))
    assert task.data.holding_out == "hash"
    other = command.plan(str(tmp_path / "run"), command.parse_flags(["x", "--source=folder:other"]))
    assert other.data.holding_out == "stratified"


def test_what_is_measured_is_the_runs_but_for_the_flags(tmp_path):
    config = default_config()
    recorded = {
        "source": "folder:DIR/data",
        "eval_split": "test",
        "train_split": "train[:9]",
        "data_dir": "DIR/prepared",
        "index_dir": "DIR/index",
        "held_out_fraction": 0.25,
        "holding_out": "hash",
        "fold": "2/3",
        "num_eval_examples": 70,
    }
    recorded = {
        key: value.replace("DIR", str(tmp_path)) if isinstance(value, str) else value
        for key, value in recorded.items()
    }
    config.data.update(recorded)
    config.objective.loss = "sigmoid"
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    config_file = {"config": json.loads(config.to_json_best_effort())}
    (tmp_path / "run/config.json").write_text(json.dumps(config_file))

    def plan(*flags):
        path = str(tmp_path / "run")
        task = command.plan(path, command.parse_flags([path, *flags]))
        return task, {key: task.data[key] for key in recorded}

    task, found = plan()
    assert (found, task.loss) == (recorded, "sigmoid")
    assert task.origin == f"folder:{tmp_path}/data test"
    task, found = plan("--split=val[:5]", "--loss=softmax", "--config.data.num_eval_examples=8")
    assert task.loss == "softmax"
    assert found == {**recorded, "eval_split": "val[:5]", "num_eval_examples": 8}
    own = {key: recorded[key] for key in ("source", "held_out_fraction", "holding_out", "fold")}
    index = {"index_dir": f"{tmp_path}/run/index"}
    defaults = {key: default_config().data[key] for key in recorded}
    for end in ("", "/"):
        _, found = plan(f"--source={recorded['source']}{end}")
        assert found == {**defaults, **own, "source": recorded["source"] + end, **index}
    _, found = plan("--source=fake", f"--data_dir={tmp_path}/other")
    assert found == {**defaults, "source": "fake", "data_dir": f"{tmp_path}/other", **index}


def test_the_setting_is_as_the_flags_say(model, images, monkeypatch):
    path, made = model
    monkeypatch.setattr(command, "BATCH_SIZE", 2)
    deep = dataclasses.replace(PREPROCESSING, bit_depth=12, dtype="float32")
    made = copy.copy(made)
    made.loss = "softmax"

    def setting(*flags, made=made):
        flags = command.parse_flags([str(path), f"--source=folder:{images[0]}", *flags])
        task = command.plan(str(path), flags)
        return command.open_setting(task, [made], flags, inference.Stopwatch())[0]

    found = setting("--config.data.num_eval_examples=9").data
    assert (found.batch_size, found.dtype, found.class_names) == (16, "uint8", CLASSES)
    assert found.config.num_eval_examples == 9
    assert setting("--batch_size=17").data.batch_size == 24, "eight devices share it"
    assert setting("--batch_size=99").data.batch_size == 24, "there are 21 images"
    assert setting("--ignore_class_names").data.class_names == ()
    assert (setting().loss, setting("--loss=sigmoid").loss) == ("softmax", "sigmoid")
    other = copy.copy(made)
    other.preprocessing = deep
    assert setting(made=other).data.dtype == "float32"


def test_evaluators_are_those_that_are_asked_for():
    def asked(*flags, loss="", models=("m",)):
        return command.asked_evaluators(command.parse_flags([*models, *flags]), loss)

    (found,) = asked("--classes=a'b")
    assert (type(found), found.classes) == (Classification, "a'b")
    kinds = [type(one) for loss in ("", "sigmoid", "l2") for one in asked(loss=loss)]
    assert kinds == [Classification, Classification, Regression]
    assert [one.prefix for one in asked("--evaluators= knn | probe ")] == ["knn", "probe"]
    both = command.parse_flags(["a", "b", "--ensemble", "--pictures=x"])
    assert (both.models, both.pictures) == (["a", "b"], "x")


def test_what_is_averaged_at_test_time_is_as_the_flags_say(model, images, monkeypatch):
    path, made = model
    asked = []

    def average(*given):
        asked.append(given)
        raise ConfigError("enough")

    monkeypatch.setattr(command, "average", average)
    made = copy.copy(made)
    made.loss = "sigmoid"
    source = f"--source=folder:{images[0]}"
    for flags in ((), ("--crops=5", "--average=logits", "--max_image_gib=0.5"), ("--flips",)):
        flags = command.parse_flags([str(path), source, *flags])
        task = command.plan(str(path), flags)
        with pytest.raises(ConfigError, match="enough"):
            command.open_setting(task, [made, made], flags, inference.Stopwatch())
    assert [given[:2] for given in asked] == [
        ([made, made], Views(1, flips=False)),
        ([made, made], Views(5, flips=False)),
        ([made, made], Views(1, flips=True)),
    ]
    default = default_config().data.max_image_gib
    assert [given[2:] for given in asked] == [
        ("probabilities", "sigmoid", default),
        ("logits", "sigmoid", 0.5),
        ("probabilities", "sigmoid", default),
    ]


@pytest.mark.parametrize(("flags", "kept"), [((), [3]), (("--flips",), [])])
def test_a_run_keeps_the_numbers_of_its_own_model_not_those_of_views(
    model, images, monkeypatch, flags, kept
):
    counting = types.SimpleNamespace(
        **{"NEEDS_HEAD": False, "NEEDS_OBJECTIVE": False, "prefix": "eval"},
        bind=lambda setting: lambda params, frozen: Results({"count": 4}),
    )
    found, made = [], copy.copy(model[1])
    made.loss = "softmax"
    for name, stand_in in {
        "load_task": lambda task, flags, needs_head: command.Loaded("run", made, 3, False),
        "asked_evaluators": lambda *_: [counting],
        "describe_result": lambda *_, step, **__: step,
        "append_to_run": lambda path, record: found.append(record),
    }.items():
        monkeypatch.setattr(command, name, stand_in)
    asked = command.parse_flags([str(model[0]), f"--source=folder:{images[0]}", *flags])
    result = command.evaluate([command.plan(str(model[0]), asked)], asked)
    assert (result.checkpoint, result.count, found) == (3, 4, kept)


@pytest.mark.parametrize(("asked", "averaged"), [(False, True), (True, False), (False, False)])
def test_an_objectives_own_parameters_are_of_the_same_average(
    model, images, tmp_path, monkeypatch, asked, averaged
):
    """Those that were scored best, or that are asked for; of the checkpoint that is measured."""
    (tmp_path / "run/checkpoints").mkdir(parents=True)
    run, loaded, given = str(tmp_path / "run"), [], []
    made = copy.copy(model[1])
    made.loss = "softmax"

    def with_objective(setting, params, *arguments, **options):
        given.append((arguments, options))
        raise ConfigError("enough")

    def load(path, flags, step, **options):
        loaded.append((path, step, options))
        return made

    monkeypatch.setattr(command, "find_checkpoint", lambda *_: (3, averaged))
    monkeypatch.setattr(command, "load_by_flags", load)
    monkeypatch.setattr(command, "with_objective", with_objective)
    flags = [run, f"--source=folder:{images[0]}", "--evaluators=objective", "--loss=softmax"]
    flags = command.parse_flags([*flags, "--checkpoint=best", *["--ema"] * asked])
    with pytest.raises(ConfigError, match="enough"):
        command.evaluate([command.plan(run, flags)], flags)
    ema = {"ema": asked or averaged}
    assert (loaded, given) == ([(run, 3, ema)], [((run, 3), ema)])


def test_a_run_is_measured_on_its_own_data_and_by_any_checkpoint(images, tmp_path, capsys):
    root, paths, labels = images
    workdir = tmp_path / "run"
    workdir.mkdir()
    write_workdir(workdir)
    config = default_config()
    config.data.source, config.data.eval_split = f"folder:{root}", "test[:50%]"
    config.objective.loss = "sigmoid"
    (workdir / "config.json").write_text(
        json.dumps({"config": {**json.loads(config.to_json_best_effort()), "later_key": 1}})
    )
    for flags, step, ema in (
        ((), 3, False),
        (("--checkpoint=best",), 2, False),
        (("--checkpoint=1", "--ema"), 1, True),
    ):
        (result,) = results_of(tmp_path, workdir, "--split=val", *flags)
        loaded = vit_jax.load_model(workdir, checkpoint=step, ema=ema)
        expected = expected_of(loaded, paths, labels, "sigmoid")
        assert {key: result[key] for key in expected} == pytest.approx(expected, rel=1e-5)
        assert (result["checkpoint"], result["ema"]) == (step, ema)
    (result,) = results_of(tmp_path, workdir)
    assert (result["split"], result["count"]) == ("test[:50%]", round(len(labels) / 2))
    assert list((workdir / "index").iterdir()), "where the run's own is, if it trained"
    assert "Traceback" not in capsys.readouterr().err


def test_several_models_make_one_table(model, images, tmp_path, capsys):
    path, made = model
    root, _, labels = images
    vit_jax.save_model(made, tmp_path / "out.npz")
    flags = (f"--source=folder:{root}", "--split=val", f"--csv={tmp_path}/results.csv")
    code = run(path, tmp_path / "damaged.npz", tmp_path / "out.npz", *flags)
    assert code == 2, "one of the three is not there"
    assert not (tmp_path / "results.csv").exists(), "and that is known before the work"
    (tmp_path / "damaged.npz").write_text("text")
    assert run(path, tmp_path / "damaged.npz", tmp_path / "out.npz", *flags) == 2
    captured = capsys.readouterr()
    assert "damaged.npz: it is neither a .npz nor a .safetensors" in captured.err
    header, *lines = captured.out.splitlines()
    assert header.split() == [
        "model",
        "checkpoint",
        "data",
        "images",
        "accuracy",
        "top-5",
        "loss",
        "images/s",
    ]
    assert [line.split()[0] for line in lines] == [str(path), f"{tmp_path}/out.npz"]
    assert len({len(line) for line in (header, *lines)}) == 1, "a column below its name"
    with open(tmp_path / "results.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["model"] for row in rows] == [str(path), f"{tmp_path}/out.npz"]
    assert rows[0]["accuracy"] == rows[1]["accuracy"]
    assert float(rows[0]["loss"]) == pytest.approx(float(rows[1]["loss"]), rel=1e-6)
    assert rows[0]["count"] == str(len(labels))
    assert rows[0]["top5_accuracy"] == ""
    assert rows[0]["parameters"] == str(sum(array.size for array in parameters(made).values()))


def test_a_number_that_is_none_is_null_in_json(tmp_path):
    empty = {field.name: None for field in dataclasses.fields(evaluation_files.Result)}
    values = {"loss": math.inf, "metrics": {"eval/loss": math.nan, "eval/count": 2}}
    result = evaluation_files.Result(**{**empty, **values})
    evaluation_files.write_json(str(tmp_path / "out.json"), [result])
    (found,) = json.loads((tmp_path / "out.json").read_text(), parse_constant=pytest.fail)
    assert found == {**empty, "metrics": {"eval/loss": None, "eval/count": 2}}


def test_names_in_the_table_are_no_formulas(tmp_path):
    empty = {field.name: None for field in dataclasses.fields(evaluation_files.Result)}
    result = evaluation_files.Result(
        **{**empty, "model": "=1+1", "source": "folder:a\x1bb", "loss": -0.5}
    )
    evaluation_files.write_csv(str(tmp_path / "out.csv"), [result])
    with open(tmp_path / "out.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["model"], row["source"], row["loss"]) == ("'=1+1", "folder:a\\u001bb", "-0.5")


def test_the_speed_is_that_of_all_images_since_the_first_batch(monkeypatch):
    """Of batches of two images. The first is handed over compiled, and computed after that."""
    now = [100.0]
    monkeypatch.setattr(inference.time, "perf_counter", lambda: now[0])
    stopwatch = inference.Stopwatch()
    for count, seconds in ((3, [50, 1, 1]), (1, [4])):  # The last is another evaluator's.
        batches = (batch for batch in range(count))
        for number, batch in enumerate(stopwatch.time(batches, 2 * count)):
            assert batch == number
            now[0] += seconds[number]
        expected = {3: 6 / (1 + 1), 1: (6 + 2) / (1 + 1 + 4)}[count]
        assert stopwatch.images_per_second == expected


def test_evaluators_measure_the_splits_that_they_name(model, images, tmp_path, capsys):
    root, *_ = images
    flags = [
        f"--source=folder:{root}",
        "--evaluators=classification | classification(name='few', split='val[:5]', worst=2)",
        f"--pictures={tmp_path}/drawn",
    ]
    (result,) = results_of(tmp_path, model[0], *flags)
    counts = {name: n for name, n in result["metrics"].items() if name.endswith("count")}
    assert counts == {"eval/count": 3 * PER_CLASS, "few/count": 5}
    assert [path.name for path in (tmp_path / "drawn").iterdir()] == ["few_worst.png"]
    _, row, *others = capsys.readouterr().out.splitlines()
    assert row.split()[-1] != "images/s"
    assert [line.split()[0] for line in others] == [
        *("few/accuracy", "few/loss", "few/count", "few/skipped")
    ]
    assert [others[0], others[2]] == [
        f"  few/accuracy {result['metrics']['few/accuracy']:.6g}",
        "  few/count 5",
    ]


def test_a_run_of_an_earlier_version_is_measured_by_any_evaluators_and_keeps_the_results(
    images, tmp_path, monkeypatch
):
    moments = iter([10.0, 13.0, 20.0, 21.5])  # Two evaluators begin and end.
    clock = types.SimpleNamespace(monotonic=lambda: next(moments))
    monkeypatch.setattr(command, "time", clock)
    write_workdir(tmp_path / "run")
    recorded = {"data": {"source": f"folder:{images[0]}"}, "objective": {"loss": "softmax"}}
    (tmp_path / "run/config.json").write_text(json.dumps({"config": recorded}))
    flags = ("--evaluators=classification | knn(k=2, train_split='val')", "--checkpoint=best")
    (result,) = results_of(tmp_path, tmp_path / "run", *flags)
    kept = read_records(str(tmp_path / "run/results.jsonl"))
    assert [(one["step"], one["name"]) for one in kept] == [(2, "eval"), (2, "knn")]
    assert [one["seconds"] for one in kept] == [3, 1.5]
    for one in kept:
        for name, value in one["numbers"].items():
            assert result["metrics"][f"{one['name']}/{name}"] == value


def test_frozen_features_need_no_head_and_no_classes_of_the_model(images, tmp_path):
    vit_jax.save_model(make_model(0, ()), tmp_path / "headless", "vit_jax")
    flags = (f"--source=folder:{images[0]}", "--evaluators=knn(k=1, train_split='val')")
    (result,) = results_of(tmp_path, tmp_path / "headless", *flags)
    assert result["metrics"].keys() == {"knn/accuracy"}
    assert result["metrics"]["knn/accuracy"] > 0.5, "most are their own nearest"
    assert result["accuracy"] is None
    assert run(tmp_path / "headless", flags[0]) == 2


# -------------------------------------------------------------------------------- data and model


def test_images_that_cannot_be_read_are_named_and_not_counted(model, tmp_path, capsys):
    path, made = model
    paths, labels = write_images(tmp_path / "val", CLASSES)
    for place in (3, len(paths) - 1):
        paths[place].write_bytes(paths[place].read_bytes()[:100])
    (result,) = results_of(tmp_path, path, f"--source=folder:{tmp_path}", code=1)
    readable = [place for place in range(len(paths)) if place not in (3, len(paths) - 1)]
    expected = expected_of(made, [paths[place] for place in readable], labels[readable])
    assert {key: result[key] for key in expected} == pytest.approx(expected, rel=1e-5)
    assert (result["count"], result["unreadable"]) == (len(paths) - 2, 2)
    errors = capsys.readouterr().err
    assert errors.count("Left out: ") == 2
    assert f"val/{CLASSES[0]}/3.png" in errors
    evaluators = "classification | knn(k=1, train_split='val')"
    features = (f"--source=folder:{tmp_path}", f"--evaluators={evaluators}")
    (of_features,) = results_of(tmp_path, path, *features, code=1)
    assert of_features["metrics"]["knn/skipped"] == 4, "two to fit to, the same two to measure on"
    assert (of_features["metrics"]["eval/skipped"], of_features["unreadable"]) == (2, 4)
    capsys.readouterr()
    assert run(path, f"--source=folder:{tmp_path}", "--max_image_gib=1e-7") == 2
    assert "raise max_image_gib=1e-07" in capsys.readouterr().err
    for picture in paths:
        picture.write_bytes(b"")
    assert run(path, f"--source=folder:{tmp_path}") == 2
    assert "none of the 21 images can be read" in capsys.readouterr().err


def test_classes_in_another_order_are_matched_by_name(images, tmp_path, capsys):
    root = images[0]
    vit_jax.save_model(make_model(), tmp_path / "a", "vit_jax")
    turned = make_model()
    turned.class_names = CLASSES[::-1]
    turned.head.kernel[...] = turned.head.kernel[...][:, ::-1]
    turned.head.bias[...] = turned.head.bias[...][::-1]
    vit_jax.save_model(turned, tmp_path / "b", "vit_jax")
    flags = (f"--source=folder:{root}",)
    first, second = results_of(tmp_path, tmp_path / "a", tmp_path / "b", *flags)
    assert first["accuracy"] == second["accuracy"]
    assert first["loss"] == pytest.approx(second["loss"], rel=1e-6)
    assert "classes are matched by name: 'cat' is 0 here, 2 there" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("count", "names", "message"),
    [
        (3, ("cat", "cow", "ähre"), r"class 1 of the data, 'dog', is not among the model's 3"),
        (10, (), "the model has 10 classes, the data 3: cat, dog, ähre"),
        (2, ("cat", "dog"), r"class 2 of the data, 'ähre', is not"),
    ],
)
def test_classes_that_do_not_match_are_refused(images, tmp_path, capsys, count, names, message):
    vit_jax.save_model(make_model(count, names), tmp_path / "export", "vit_jax")
    assert run(tmp_path / "export", f"--source=folder:{images[0]}") == 2
    error = capsys.readouterr().err
    assert re.search(f"export does not fit folder:{images[0]}: {message}", error)
    assert "add --ignore_class_names" in error
    if count != 3:  # It is no advice to those who have done so.
        flags = (f"--source=folder:{images[0]}", "--ignore_class_names")
        assert run(tmp_path / "export", *flags) == 2
        assert "add --ignore_class_names" not in capsys.readouterr().err


def test_names_may_be_ignored_or_unknown(model, images, tmp_path, capsys):
    root, *examples = images
    expected = expected_of(model[1], *examples)["accuracy"]
    for names, flags in ((("x", "y", "z"), ("--ignore_class_names",)), ((), ())):
        vit_jax.save_model(make_model(3, names), tmp_path / "export", "vit_jax")
        flags = (f"--source=folder:{root}", *flags)
        (result,) = results_of(tmp_path, tmp_path / "export", *flags)
        assert result["accuracy"] == expected
        assert "matched by number, and the data calls 0 'cat'" in capsys.readouterr().err


@pytest.mark.parametrize("source", ["fake", "digits"])
def test_other_sources(tmp_path, source):
    names = tuple(map(str, range(10)))
    vit_jax.save_model(make_model(10, names, channels=1), tmp_path / "export", "vit_jax")
    (result,) = results_of(tmp_path, tmp_path / "export", f"--source={source}", "--batch_size=128")
    assert result["count"] == {"fake": 64, "digits": 360}[source]


def test_keys_of_the_data_are_set_as_in_training(tmp_path):
    vit_jax.save_model(make_model(10, (), channels=1), tmp_path / "export", "vit_jax")
    flags = ("--config.data.source=fake", "--config.data.num_eval_examples=40")
    (result,) = results_of(tmp_path, tmp_path / "export", *flags)
    assert (result["source"], result["count"]) == ("fake", 40)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "required: MODEL"),
        (("MODEL",), "does not name its data: add --source=folder:DIR"),
        (("missing", "DATA"), "'missing': there is no such file or folder"),
        (("", "DATA"), "'': there is no such file or folder"),
        (("MODEL", "--source=foldr:x"), "config.data.source='foldr:x': unknown kind 'foldr'"),
        (("MODEL", "--source=folder:missing"), "config.data.source=folder:missing: no such folder"),
        (("MODEL", "DATA", "--split=tset"), "has no split 'tset'"),
        (("MODEL", "DATA", "--split=val[:x]"), "cannot read 'val[:x]'"),
        (("MODEL", "DATA", "--batch_size=0"), "'0' is not a whole number of at least 1"),
        (("MODEL", "DATA", f"--batch_size={10**30}"), "at most 1,000,000,000,000"),
        (("MODEL", "DATA", f"--batch_size={'9' * 5000}"), "is not a whole number of at least 1"),
        (("MODEL", "DATA", "--resize=20000"), "at least 1 and at most 16,384"),
        (("MODEL", "DATA", "--loss=mse"), "invalid choice: 'mse'"),
        (("MODEL", "DATA", "--config.data.held_out_fraction=x"), "held_out_fraction=x: expected a"),
        (
            ("MODEL", "DATA", "--config.batch_size=8"),
            "--config.batch_size=8: of config.data may be set",
        ),
        (("MODEL", "DATA", "--config.data.mean=(0.1,)"), "of config.data may be set: source, "),
        (("MODEL", "DATA", "--config.data.num_threads=-1"), "num_threads=-1: must be a whole"),
        (("MODEL", "DATA", "--josn=x"), "unrecognized arguments: --josn=x"),
        (
            ("MODEL", "DATA", "--json=run/config/x"),
            "--json=run/config/x cannot be written: Not a directory",
        ),
        (("MODEL", "DATA", "--csv=."), "--csv=. cannot be written: Is a directory"),
        (
            ("MODEL", "DATA", "--json=x.csv"),
            "--json: 'x.csv' is no name for what is written: NAME.json",
        ),
        (
            ("MODEL", "DATA", "--csv=x.txt"),
            "--csv: 'x.txt' is no name for what is written: NAME.csv",
        ),
        (
            ("MODEL", "DATA", "--classes=x", "--evaluators=knn"),
            "--classes=x is for classification alone",
        ),
        (("MODEL", "MODEL", "DATA", "--pictures=x"), "--pictures=x: name one model, not 2"),
        (("MODEL", "DATA", "--ema"), "choose from a run's workdir"),
        (("MODEL", "DATA", "--option=num_classes=0"), "has no head"),
        (("MODEL", "DATA", "--option=depth=two"), "model.depth='two'"),
        (("run",), "run/config.json is missing: name the data with --source"),
        (("damaged",), "damaged/config.json is damaged"),
        (("damaged", "DATA"), "is damaged (TypeError"),
        (("damaged", "DATA"), "give --source and --loss"),
        (("damaged", "DATA", "--loss=softmax"), "has no checkpoint 'latest'"),
        (("hinge",), "hinge/config.json is damaged (ValueError(\"loss='hinge'\"))"),
        (("run", "DATA", "--checkpoint=lates"), "has no checkpoint 'lates'; it has: none"),
    ],
)
def test_a_mistake_is_one_message_and_code_2(
    arguments, message, model, images, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    for name in ("run", "damaged", "hinge"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
        (tmp_path / name / "config").touch()
    (tmp_path / "damaged/config.json").write_text('{"config": {"data": {"source": 3}}}')
    (tmp_path / "hinge/config.json").write_text(
        '{"config": {"data": {}, "objective": {"loss": "hinge"}}}'
    )
    words = {"MODEL": model[0], "DATA": f"--source=folder:{images[0]}"}
    assert run(*(words.get(text, text) for text in arguments)) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert captured.err.count("E ") == 1
    assert "Traceback" not in captured.err


def test_what_measures_nothing_leaves_earlier_results(model, images, tmp_path):
    (tmp_path / "results.json").write_text("[1]")
    flags = (f"--source=folder:{images[0]}", "--option=num_classes=0")
    assert results_of(tmp_path, model[0], *flags, code=2) == [1]


# ------------------------------------------------------------------------------------ end to end


def test_a_trained_models_accuracy_is_the_trainers_to_the_digit(tmp_path):
    config = tiny.get_config()
    config.total_steps = 30
    workdir = tmp_path / "run"
    record = train.run(config, str(workdir))
    assert record["eval/accuracy"] == read_metrics(workdir)[-1]["eval/accuracy"]
    assert record["eval/accuracy"] > 0.15, "it learned something"
    loaded = vit_jax.load_model(workdir)
    exports = {
        "out.npz": "npz",
        "out.safetensors": "timm",
        "huggingface": "huggingface",
        "export": "vit_jax",
    }
    for name, format in exports.items():
        vit_jax.save_model(loaded, tmp_path / name, format)
    models = [str(path) for path in (workdir, *(tmp_path / name for name in exports))]
    # Another process, on one device instead of eight, and another batch size.
    flags = ["--source=digits", "--batch_size=100", f"--json={tmp_path}/results.json"]
    done = subprocess.run(
        [sys.executable, "-m", "vit_jax.evaluate", *models, *flags],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert [result["model"] for result in results] == models
    for result in results:
        assert result["accuracy"] == record["eval/accuracy"], result["model"]
        assert result["top5_accuracy"] == record["eval/top5_accuracy"]
        assert result["count"] == record["eval/count"] == 360
        assert math.isclose(result["loss"], record["eval/loss"], rel_tol=1e-5)
