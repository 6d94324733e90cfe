"""What classification measures on request: on any devices and batches, against scikit-learn."""

import csv
import functools
import json

import jax.numpy as jnp
import numpy as np
import pytest
import sklearn.metrics
from PIL import Image
from pyarrow import parquet

from tests.data.example_sources import Numbered
from tests.evaluators.settings import make_setting, write_folder
from vit_jax.data.images.sheet import LINE_HEIGHT, SMALLEST
from vit_jax.errors import ConfigError, NonFiniteLossError
from vit_jax.evaluators import classification, read_evaluators
from vit_jax.evaluators.answer_files import draw_worst
from vit_jax.evaluators.judgements import Answers, answers
from vit_jax.objectives.losses import LOSSES

NAMES = ("=a", "b", "c")
PIXELS = {"=a": [0, 20, 9, 5], "b": [20, 31, 40, 25, 22], "c": [40, 28, 0]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    write_folder(root / "val", PIXELS)
    return root


def measure(folder, text, sharpness=1.0, **layout):
    setting, params = make_setting(f"folder:{folder}", NAMES, num_classes=3, **layout)
    (evaluator,) = read_evaluators(text)
    results = evaluator.bind(setting)({**params, "sharpness": sharpness * params["sharpness"]}, {})
    assert set(evaluator.metrics(setting)) == results.numbers.keys()
    return results


def expected():
    """Labels, predictions, and probabilities [N, K], by hand."""
    labels = np.repeat([0, 1, 2], [len(values) for values in PIXELS.values()])
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
    safe = ("'=a", "b", "c")
    assert [row["label"] for row in rows] == [safe[label] for label in labels]
    assert [row["prediction"] for row in rows] == [safe[one] for one in predictions]
    found = [float(row["probability"]) for row in rows]
    np.testing.assert_allclose(found, probabilities.max(1), rtol=1e-5)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_no_numbers_are_refused(folder, value):
    message = "the logits of 12 of 12 images are not finite"
    with pytest.raises(NonFiniteLossError, match=f"eval: {message}"):
        measure(folder, "classification", sharpness=value)
    with pytest.raises(NonFiniteLossError, match=message):  # Padding is no image.
        measure(folder, "classification", sharpness=value, batch_size=5)


@pytest.mark.parametrize("text", ["fewshot(shots=(1, 3))", "knn(k=3)", "probe(l2=0.1)"])
def test_features_are_the_same_on_any_devices_and_in_any_batches(folder, text):
    if not (folder / "train").exists():
        write_folder(folder / "train", PIXELS)
    found = [measure(folder, text, **layout).numbers for layout in LAYOUTS]
    assert found[0] == found[1] == found[2]


def test_features_that_are_no_numbers_are_refused(folder):
    if not (folder / "train").exists():
        write_folder(folder / "train", PIXELS)
    setting, params = make_setting(f"folder:{folder}", NAMES, num_classes=3)
    (evaluator,) = read_evaluators("fewshot(shots=(3,), seeds=1)")
    measure = evaluator.bind(setting)
    assert 0.5 < measure(params, {}).numbers["3_shot"] < 1
    with pytest.raises(NonFiniteLossError, match="features are not finite"):
        measure({**params, "scale": np.nan * params["scale"]}, {})


def test_few_images_a_class_are_an_error_before_anything_is_computed(folder):
    if not (folder / "train").exists():
        write_folder(folder / "train", PIXELS)
    setting, _ = make_setting(f"folder:{folder}", NAMES, num_classes=3)
    (evaluator,) = read_evaluators("fewshot(shots=(1, 4))")
    with pytest.raises(
        Exception, match=r"1 of 3 classes have fewer .* than the 4 shots, class 'c' 3"
    ):
        evaluator.bind(setting)


def test_the_worst_are_found_by_their_index_in_the_source():
    """Where images are left out, it is not the number of the answer."""

    class Seen(Numbered):
        def fetch(self, indices):
            asked.append(list(indices))
            return super().fetch(indices)

    asked: list[list[int]] = []
    nothing = np.zeros((3, 0))
    labels, margins = np.array([0, 1, 0]), np.array([0.5, -0.5, 0.1])
    found = Answers(np.array([2, 5, 7]), labels, labels, np.abs(margins), margins, nothing)
    as_image = functools.partial(np.full, (4, 4, 1), dtype=np.uint8)
    draw_worst(found, 2, Seen(9), ("a", "b"), lambda image: as_image(image.item()))
    assert asked == [[5, 7]]


def test_the_confusion_is_drawn_in_shares_of_each_class(monkeypatch):
    drawn = []
    monkeypatch.setattr(classification, "draw_matrix", lambda shares, *names: drawn.append(shares))
    classification.draw_confusion(np.array([[3, 1, 0], [0, 5, 0], [0, 0, 0]]))
    np.testing.assert_array_equal(drawn[0], [[0.75, 0.25, 0], [0, 1, 0]])


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
    numbers = evaluator.bind(setting)(params, {}).numbers
    scores = -np.square(brightness[:, None] / 20 - np.arange(2))
    each = sklearn.metrics.average_precision_score(targets, scores, average=None)
    assert numbers["mean_average_precision"] == pytest.approx(each.mean())
    assert [numbers["accuracy_of/b"], numbers["accuracy_of/c"]] == pytest.approx(each)
