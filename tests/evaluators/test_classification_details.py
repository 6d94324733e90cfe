"""What classification measures on request: on any devices and batches, against scikit-learn."""

import csv
import functools
import json
import pathlib
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from PIL import Image
from pyarrow import parquet

from tests.data.example_sources import Numbered
from tests.evaluators.settings import make_setting, write_folder
from vit_jax import figures
from vit_jax.data.images.sheet import LINE_HEIGHT, SMALLEST
from vit_jax.errors import ConfigError, DataError, NonFiniteLossError
from vit_jax.evaluators import answer_files, classification, metrics, read_evaluators
from vit_jax.evaluators.answer_files import draw_worst, write_answers
from vit_jax.evaluators.judgements import Answers, answers
from vit_jax.objectives.losses import LOSSES

NAMES = ("b", "=a", "c")  # The model's, in another order than the folders'.
PIXELS = {"=a": [20, 31, 40, 25], "b": [0, 20, 9, 5, 7], "c": [40, 28, 0]}
TO_FIT = {"=a": [0, 2, 4], "b": [20, 21, 23], "c": [39, 40, 41, 45]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    write_folder(root / "val", PIXELS)
    write_folder(root / "train", TO_FIT)
    return root


def measure(folder, text, sharpness=1.0, **layout):
    setting, params = make_setting(f"folder:{folder}", NAMES, num_classes=3, **layout)
    (evaluator,) = read_evaluators(text)
    results = evaluator.bind(setting)({**params, "sharpness": sharpness * params["sharpness"]}, {})
    assert set(evaluator.metrics(setting)) == results.numbers.keys()
    return results


def expected():
    """Labels, predictions, and probabilities [N, K], by hand."""
    labels = np.repeat([NAMES.index(name) for name in PIXELS], [*map(len, PIXELS.values())])
    brightness = np.concatenate([*PIXELS.values()])
    logits = -np.square(brightness[:, None] / 20 - np.arange(3))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return labels, probabilities.argmax(1), probabilities


@pytest.mark.parametrize("loss", LOSSES)
def test_how_sure_an_answer_is_depends_on_the_loss(loss):
    logits = np.float32([[2.0, -1.0], [0.5, 1.0]])
    powers = np.exp(logits)
    each = powers / powers.sum(1, keepdims=True) if loss == "softmax" else powers / (1 + powers)
    batch = {"label": jnp.array([0, 0]), "index": jnp.arange(2)}
    found = answers(jnp.array(logits), batch, loss)
    np.testing.assert_allclose(found.probability, each.max(1), rtol=1e-5)
    np.testing.assert_allclose(found.margin, each[:, 0] - each[:, 1], rtol=1e-5)


def test_the_margin_of_several_classes_is_that_of_the_likeliest():
    logits = np.float32([[2.0, 1.0, -1.0, 0.5], [0.0, 1.0, 3.0, -1.0]])
    batch = {"label": jnp.array([[1, 1, 0, 0], [0, 1, 0, 1]]), "index": jnp.arange(2)}
    found = answers(jnp.array(logits), batch, "sigmoid")
    each = 1 / (1 + np.exp(-logits))
    np.testing.assert_allclose(found.margin, [each[0, 0] - each[0, 3], each[1, 1] - each[1, 2]])
    np.testing.assert_array_equal(found.scores, logits)


LAYOUTS = [
    {"num_devices": 1, "batch_size": 1},
    {"num_devices": 1, "batch_size": 5},
    {"num_devices": 8, "batch_size": 8},
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_image_counts_once_on_any_devices_and_in_any_batches(folder, tmp_path, layout):
    labels, predictions, probabilities = expected()
    rows = tmp_path / "rows.parquet"
    text = f"classification(detailed=True, per_class=True, rows='{rows}', worst=4)"
    numbers, pictures = measure(folder, text, **layout)
    report = sklearn.metrics
    assert numbers["count"] == len(labels)
    assert numbers["accuracy"] == report.accuracy_score(labels, predictions)
    assert numbers["loss"] == pytest.approx(report.log_loss(labels, probabilities), rel=1e-5)
    balanced = report.balanced_accuracy_score(labels, predictions)
    assert numbers["balanced_accuracy"] == pytest.approx(balanced)
    f1 = report.f1_score(labels, predictions, average="macro")
    assert numbers["macro_f1"] == pytest.approx(f1)
    recall = report.recall_score(labels, predictions, average=None)
    found = [numbers[f"accuracy_of/{name}"] for name in NAMES]
    np.testing.assert_allclose(found, recall)
    confidence = probabilities.max(1)
    bins = np.ceil(confidence * 15)
    gaps = [
        abs(np.sum(confidence[bins == one]) - np.sum((labels == predictions)[bins == one]))
        for one in np.unique(bins)
    ]
    assert numbers["calibration_error"] == pytest.approx(sum(gaps) / len(labels), abs=1e-6)
    table = parquet.read_table(rows).sort_by("path").to_pydict()
    assert len(set(table["path"])) == len(labels)
    assert table["path"][0].endswith("=a/0000.png")
    assert table["label"] == [NAMES[label] for label in labels]
    assert table["prediction"] == [NAMES[prediction] for prediction in predictions]
    np.testing.assert_allclose(table["probability"], confidence, rtol=1e-5)
    own = probabilities[np.arange(len(labels)), labels]
    others = np.where(np.eye(3)[labels], 0, probabilities).max(1)
    np.testing.assert_allclose(table["margin"], own - others, atol=1e-6)
    assert pictures.keys() == {"confusion", "reliability", "worst"}
    height, width = 2 * (SMALLEST + 2 * LINE_HEIGHT), 2 * (SMALLEST + 2)
    assert pictures["worst"].shape == (height, width, 3)
    worst = np.argsort(own - others, kind="stable")[0]
    assert pictures["worst"][5, 5, 0] == np.concatenate([*PIXELS.values()])[worst]


def test_a_csv_file_says_the_same_and_holds_no_formulas(folder, tmp_path):
    measure(folder, f"classification(rows='{tmp_path}/rows.csv')")
    with open(tmp_path / "rows.csv", newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["path"])
    labels, predictions, probabilities = expected()
    safe = ("b", "'=a", "c")
    assert [row["label"] for row in rows] == [safe[label] for label in labels]
    assert [row["prediction"] for row in rows] == [safe[one] for one in predictions]
    found = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(found, probabilities.max(1), rtol=1e-5)


@pytest.mark.parametrize(
    ("option", "pictures"),
    [
        ("detailed=True", {"confusion", "reliability"}),
        ("per_class=True", set()),
        ("worst=1, split='val[:1]'", {"worst"}),
        ("", set()),
    ],
)
def test_each_option_by_itself(folder, option, pictures):
    assert measure(folder, f"classification({option})").pictures.keys() == pictures


def test_details_of_images_none_of_which_can_be_read_are_no_numbers(tmp_path):
    write_folder(tmp_path / "val", {"=a": [0], "b": [1], "c": [2]})
    for path in (tmp_path / "val").rglob("*.png"):
        path.write_bytes(b"")
    keys = {"on_error": "skip", "max_skipped": 1.0}
    setting, params = make_setting(f"folder:{tmp_path}", NAMES, num_classes=3, **keys)
    (evaluator,) = read_evaluators("classification(detailed=True, worst=2)")
    numbers, pictures = evaluator.bind(setting)(params, {})
    assert (numbers["count"], numbers["skipped"], pictures) == (0, 3, {})
    assert np.isnan(numbers["accuracy"])


@pytest.mark.parametrize(
    ("value", "count"),
    [(np.nan, 12), (np.inf, 12), (3e38, 10)],  # Two are near enough to all classes.
)
def test_logits_that_are_no_numbers_are_refused(folder, value, count):
    message = f"the logits of {count} of 12 images are not finite"
    with pytest.raises(NonFiniteLossError, match=f"eval: {message}"):
        measure(folder, "classification", sharpness=value)
    with pytest.raises(NonFiniteLossError, match=message):  # Padding is no image.
        measure(folder, "classification", sharpness=value, batch_size=5)


@pytest.mark.parametrize("text", ["fewshot(shots=(1, 3))", "knn(k=3)", "probe(l2=0.1)"])
def test_features_are_the_same_on_any_devices_and_in_any_batches(folder, text):
    found = [measure(folder, text, **layout).numbers for layout in LAYOUTS]
    assert found[0] == found[1] == found[2]


def test_features_that_are_no_numbers_are_refused(folder):
    setting, params = make_setting(f"folder:{folder}", NAMES, num_classes=3)
    (evaluator,) = read_evaluators("fewshot(shots=(3,), seeds=1)")
    measure = evaluator.bind(setting)
    assert 0 < measure(params, {}).numbers["3_shot"] < 1
    with pytest.raises(NonFiniteLossError, match="features are not finite"):
        measure({**params, "scale": np.nan * params["scale"]}, {})


def test_few_images_a_class_are_an_error_before_anything_is_computed(folder):
    setting, _ = make_setting(f"folder:{folder}", NAMES, num_classes=3)
    (evaluator,) = read_evaluators("fewshot(shots=(1, 4))")
    with pytest.raises(
        DataError, match=r"2 of 3 classes have fewer .* than the 4 shots, class '=a' 3"
    ):
        evaluator.bind(setting)


def test_the_worst_are_found_by_their_index_in_the_source(monkeypatch):
    """Where images are left out, it is not the number of the answer."""

    class Seen(Numbered):
        def fetch(self, indices):
            return [
                DataError("torn") if n == 7 else example
                for n, example in zip(indices, super().fetch(indices), strict=True)
            ]

    drawn = []
    monkeypatch.setattr(answer_files.sheet, "draw", lambda *given: drawn.append(given))
    found = Answers(
        index=np.array([2, 5, 7, 1]),
        label=np.array([0, 1, 0, 1]),
        prediction=np.array([0, -1, 1, 0]),
        probability=np.array([0.9, 0.85, 0.6, 0.7]),
        margin=np.array([0.5, -0.5, 0.1, 0.2]),
        scores=np.zeros((4, 0)),
    )
    as_image = functools.partial(np.full, (4, 4, 1), dtype=np.uint8)
    draw_worst(found, 3, Seen(9), ("a", "b"), lambda image: as_image(image.item()))
    ((images, captions),) = drawn
    assert images[:, 0, 0, 0].tolist() == [5, 1], "between them one that is torn"
    assert captions == [["b", "85% "], ["b", "70% a"]]


ONE_ANSWER = Answers(*(np.array([value]) for value in (0, [0, 1, 1], -1, 0.5, 0.25, 0.0)))


@pytest.mark.parametrize(
    ("error", "reason"),
    [(PermissionError(13, "not allowed"), "not allowed"), (OSError("no room"), "no room")],
)
def test_rows_that_cannot_be_written_are_named(monkeypatch, error, reason):
    def refuse(path, content):
        raise error

    monkeypatch.setattr(answer_files.storage, "write", refuse)
    with pytest.raises(ConfigError, match=f"^rows='r.csv' cannot be written: {reason}[.]$"):
        write_answers("r.csv", ONE_ANSWER, Numbered(9), ("a", "b", "c"))


def test_names_of_files_that_are_no_text_stand_in_parquet_as_escapes(tmp_path):
    source = types.SimpleNamespace(name_of=lambda index: "\udcff.png")
    write_answers(f"{tmp_path}/ROWS.PARQUET", ONE_ANSWER, source, ("a", "b", "c"))
    (row,) = parquet.read_table(tmp_path / "ROWS.PARQUET").to_pylist()
    assert row == {
        "path": "\\udcff.png",
        "label": "b|c",
        "prediction": "",
        "probability": 0.5,
        "margin": 0.25,
    }


def test_rows_of_answers_have_six_digits_and_may_lie_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    found = Answers(*(np.array([value]) for value in (3, 1, 0, 0.123456789, -0.5, 0.0)))
    source = types.SimpleNamespace(name_of=lambda index: f"{index}.png")
    write_answers("~/rows.csv", found, source, ("a", "b"))
    assert (tmp_path / "rows.csv").read_text() == (
        "path,label,prediction,probability,margin\n3.png,b,a,0.123457,-0.5\n"
    )


def test_the_confusion_is_drawn_in_shares_of_each_class(monkeypatch):
    drawn = []
    monkeypatch.setattr(classification, "draw_matrix", lambda *given: drawn.append(given))
    classification.draw_confusion(np.array([[3, 1, 0], [0, 5, 0], [0, 0, 0]]))
    ((shares, *labels),) = drawn
    np.testing.assert_array_equal(shares, [[0.75, 0.25, 0], [0, 1, 0]])
    assert labels == ["class", "prediction"]


def test_accuracy_is_drawn_over_confidence(monkeypatch):
    drawn = []
    monkeypatch.setattr(classification, "draw", lambda *given: drawn.append(given))
    confidence, accuracy = np.array([0.25, 0.75]), np.array([0.5, 0.625])
    classification.draw_reliability(metrics.Reliability(confidence, accuracy, np.array([2, 8])))
    ((paint, size),) = drawn
    assert size == (4, 4)
    with figures.painted(paint, size) as figure:
        (axes,) = figure.axes
        diagonal, curve = (line.get_xydata().tolist() for line in axes.lines)
        assert diagonal == [[0, 0], [1, 1]]
        assert curve == [[0.25, 0.5], [0.75, 0.625]]
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("confidence", "accuracy")
        assert axes.get_xlim() == axes.get_ylim() == (0, 1)


def test_details_where_answers_are_of_no_class_of_the_data():
    found = Answers(
        index=np.arange(4),
        label=np.array([0, 0, 1, 1]),
        prediction=np.array([0, -1, 1, 0]),
        probability=np.array([0.9, 0.9, 0.5, 0.3]),
        margin=np.zeros(4),
        scores=np.zeros((4, 0)),
    )
    numbers, _ = classification.details(found, ("a", "b"))
    f1 = np.mean([2 * 1 / (2 + 2), 2 * 1 / (2 + 1)])
    error = (2 * 0.4 + 1 * 0.5 + 1 * 0.3) / 4
    expected = {"balanced_accuracy": 0.5, "macro_f1": f1, "calibration_error": error}
    assert numbers == pytest.approx(expected)
    assert classification.class_scores(found, 2).tolist() == [0.5, 0.5]


def test_rows_in_another_format_are_refused_at_the_start(folder):
    with pytest.raises(ConfigError, match=r"name it NAME.csv or NAME.parquet"):
        measure(folder, "classification(rows='rows.txt')")


def test_images_with_several_classes_have_average_precision(tmp_path):
    generator = np.random.default_rng(0)
    targets = generator.random((9, 2)) < 0.5
    brightness = generator.integers(0, 60, 9)
    lines = []
    for number, (value, target) in enumerate(zip(brightness.tolist(), targets, strict=True)):
        Image.fromarray(np.full((4, 4), value, np.uint8)).save(tmp_path / f"{number}.png")
        labels = np.array(["b", "c"])[target].tolist()
        lines.append(json.dumps({"path": f"{number}.png", "labels": labels, "split": "test"}))
    (tmp_path / "images.jsonl").write_text("\n".join(lines))
    setting, params = make_setting(f"manifest:{tmp_path}/images.jsonl", ("b", "c"), num_classes=2)
    (evaluator,) = read_evaluators("classification(detailed=True, per_class=True)")
    numbers, pictures = evaluator.bind(setting)(params, {})
    assert set(evaluator.metrics(setting)) == numbers.keys()
    assert pictures == {}
    scores = -np.square(brightness[:, None] / 20 - np.arange(2))
    each = sklearn.metrics.average_precision_score(targets, scores, average=None)
    assert numbers["mean_average_precision"] == pytest.approx(each.mean())
    assert [numbers["accuracy_of/b"], numbers["accuracy_of/c"]] == pytest.approx(each)
    (tmp_path / "map").write_text("b\tc\n")
    (evaluator,) = read_evaluators(f"classification(classes='{tmp_path}/map')")
    with pytest.raises(DataError, match="its images have any number of classes"):
        evaluator.bind(setting)
    (evaluator,) = read_evaluators("knn(k=1, train_split='test')")
    with pytest.raises(DataError, match="need images with one class each"):
        evaluator.bind(setting)


@pytest.mark.parametrize(("process", "written"), [(0, ["rows.csv"]), (1, [])])
def test_one_process_writes_the_rows(monkeypatch, tmp_path, process, written):
    monkeypatch.setattr(jax, "process_index", lambda: process)
    monkeypatch.setattr(
        classification, "write_answers", lambda path, *given: pathlib.Path(path).touch()
    )
    evaluator = classification.Classification(rows=f"{tmp_path}/rows.csv")
    split = types.SimpleNamespace(source="SOURCE")
    labelled = classification.LabelledSplit(split, None, ("a", "b"))
    results = evaluator._look_closer({"count": 1}, None, labelled)
    assert results.numbers == {"count": 1}
    assert [path.name for path in tmp_path.iterdir()] == written
