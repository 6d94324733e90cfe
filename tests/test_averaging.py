"""Averages at test time, over views and models, against NumPy and the models one by one."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests.published import logits, parameters
from tests.test_evaluate import CLASSES, make_model, results_of, run, write_images
from vit_jax import averaging
from vit_jax.averaging import PROBABILITIES, Views, average, average_logits, check_same
from vit_jax.errors import ConfigError
from vit_jax.inference import Classifier
from vit_jax.model_file import Preprocessing
from vit_jax.models import model_options
from vit_jax.models.base import LOGITS, PRE_LOGITS
from vit_jax.predict import load_images

VALUES = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)


def test_logits_are_averaged_as_they_are_or_by_their_probabilities():
    np.testing.assert_allclose(average_logits(VALUES, LOGITS, "softmax"), VALUES.mean(0), atol=1e-6)
    found = jax.nn.softmax(average_logits(VALUES, PROBABILITIES, "softmax"))
    expected = np.exp(VALUES) / np.exp(VALUES).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, expected.mean(0), atol=1e-6)
    found = jax.nn.sigmoid(average_logits(VALUES, PROBABILITIES, "sigmoid"))
    np.testing.assert_allclose(found, (1 / (1 + np.exp(-VALUES))).mean(0), atol=1e-6)
    extreme = jnp.array([[[90.0, -90.0]], [[-90.0, 90.0]]])
    for loss, turn in (("softmax", jax.nn.softmax), ("sigmoid", jax.nn.sigmoid)):
        found = turn(average_logits(extreme, PROBABILITIES, loss))
        np.testing.assert_allclose(found, 0.5, atol=1e-3)


def test_views_are_the_middle_the_corners_and_their_mirror_images():
    image = jnp.arange(30.0).reshape(1, 5, 6, 1)
    views = [np.asarray(view[0, :, :, 0]) for view in Views(5, flips=True).of(image, (3, 2))]
    assert [view[0, 0] for view in views[::2]] == [8, 0, 4, 12, 16]
    for view, mirrored in zip(views[::2], views[1::2], strict=True):
        np.testing.assert_array_equal(mirrored, view[:, ::-1])
    (only,) = Views().of(image, (5, 6))
    np.testing.assert_array_equal(only, image)


def test_a_model_on_views_answers_with_the_mean_of_its_answers(tmp_path):
    model = make_model()  # 16 pixels of the middle of 20.
    paths, _ = write_images(tmp_path, CLASSES, per_class=8)
    one = average([model], Views(5, flips=True), LOGITS, "softmax")
    assert one.image_size == (20, 20)
    pixels = np.stack([one.transform(path.read_bytes()) for path in paths])
    found = jax.jit(one.network)(one.params, pixels)
    corners = [(2, 2), (0, 0), (0, 4), (4, 0), (4, 4)]
    mean, std = (np.float32(value) for value in (0.4, 0.2))
    each = []
    for top, left in corners:
        view = (pixels[:, top : top + 16, left : left + 16] / np.float32(255) - mean) / std
        each += [logits(model, view), logits(model, view[:, :, ::-1])]
    np.testing.assert_allclose(found, np.mean(each, axis=0), atol=1e-4)
    middle = (pixels[:, 2:18, 2:18] / np.float32(255) - mean) / std
    np.testing.assert_allclose(middle, load_images(model, paths), atol=1e-6)


def test_the_command_averages_models_views_and_counts_each_image_once(tmp_path, capsys):
    _, labels = write_images(tmp_path / "data/val", CLASSES)
    first, second = make_model(), make_model()
    second.head.kernel[...] = first.head.kernel[...][:, ::-1]
    for name, model in (("a", first), ("b", second)):
        vit_jax.save_model(model, tmp_path / name, "vit_jax")
    flags = (f"--source=folder:{tmp_path}/data", "--ensemble", "--average=logits")
    together = results_of(tmp_path, tmp_path / "a", tmp_path / "b", *flags)
    paths = sorted(
        (tmp_path / "data/val").glob("*/*"),
        key=lambda p: (CLASSES.index(p.parent.name), int(p.stem)),
    )
    values = np.mean([logits(m, load_images(m, paths)) for m in (first, second)], axis=0)
    (result,) = together
    assert result["model"] == f"{tmp_path}/a + {tmp_path}/b"
    assert result["count"] == len(labels)
    assert result["accuracy"] == np.mean(values.argmax(1) == labels)
    assert result["parameters"] == 2 * sum(x.size for x in parameters(first).values())
    assert result["metrics"].keys() == {"eval/loss", "eval/accuracy", "eval/count", "eval/skipped"}
    (again,) = results_of(
        tmp_path,
        *(tmp_path / "a", f"--source=folder:{tmp_path}/data"),
        *("--crops=5", "--flips", "--resize=28", "--option=image_size=24", "--batch_size=5"),
    )
    assert (again["count"], again["image_size"]) == (len(labels), "24x24")
    second.class_names = CLASSES[::-1]
    vit_jax.save_model(second, tmp_path / "c", "vit_jax")
    assert run(tmp_path / "a", tmp_path / "c", *flags) == 2
    assert "model 2 of the ensemble has another classes" in capsys.readouterr().err


@pytest.mark.parametrize("size", [16, 24])
def test_crops_need_a_margin(size):
    model = make_model(image_size=size)
    if size == 16:
        assert average([model], Views(5), LOGITS, "softmax").image_size == (20, 20)
        return
    with pytest.raises(ConfigError, match="set --resize to more"):
        average([model], Views(5), LOGITS, "softmax")


DEFAULT = Preprocessing()


class Plain:
    """What is compared of a model."""

    def __init__(self, names=("a", "b"), preprocessing=DEFAULT, **options):
        self.options = model_options("BiT-R50x1", **{"num_classes": 2, "image_size": 8, **options})
        self.class_names, self.preprocessing = names, preprocessing


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (Plain(names=("b", "a")), "classes"),
        (Plain(names=(), num_classes=3), "classes"),
        (Plain(image_size=(8, 9)), "image size"),
        (Plain(channels=1), "channels"),
        (Plain(preprocessing=Preprocessing(interpolation="bicubic")), "preprocessing"),
        (Plain(preprocessing=Preprocessing(resize=255)), "preprocessing"),
    ],
)
def test_models_that_cannot_answer_together(other, name):
    first = Plain(names=() if not other.class_names else ("a", "b"))
    with pytest.raises(ConfigError, match=f"^WHAT has another {name} than the first"):
        check_same(first, other, "WHAT")
    with pytest.raises(ConfigError, match=f"^model 3 of the ensemble has another {name}"):
        average([first, first, other], Views(), LOGITS, "softmax")


def test_each_model_normalises_for_itself():
    check_same(Plain(), Plain(preprocessing=Preprocessing((0.1,), (0.2,))), "WHAT")


@pytest.mark.parametrize(
    ("size", "preprocessing", "expected"),
    [
        ((14, 28), Preprocessing(), (16, 32)),
        ((24, 20), Preprocessing(), (27, 23)),  # 27.43 and 22.86.
        ((14, 28), Preprocessing(crop="center", resize=29), (29, 29)),
        ((14, 28), Preprocessing(crop="center", resize=28), None),
        ((28, 14), Preprocessing(crop="center", resize=20), None),
    ],
)
def test_what_crops_are_cut_out_of(size, preprocessing, expected, monkeypatch):
    classifier = types.SimpleNamespace(network="NETWORK", params="PARAMS")
    monkeypatch.setattr(averaging, "make_classifier", lambda model: classifier)
    model = Plain(image_size=size, preprocessing=preprocessing)
    if expected is None:
        with pytest.raises(ConfigError, match="set --resize to more, or --crops=1"):
            average([model], Views(5), LOGITS, "softmax")
        return
    made = average([model], Views(5), LOGITS, "softmax")
    assert made.image_size == expected
    assert isinstance(made.network, averaging.AveragedNetwork)
    plain = average([model], Views(), LOGITS, "softmax")
    assert (plain.network, plain.params, plain.image_size) == ("NETWORK", "PARAMS", size)
    mirrored = average([model], Views(flips=True), PROBABILITIES, "sigmoid")
    assert (mirrored.network.views, mirrored.network.average) == (Views(1, True), PROBABILITIES)
    assert (mirrored.network.loss, mirrored.image_size) == ("sigmoid", size)
    both = average([model, model], Views(), LOGITS, "softmax")
    assert both.params == {"0": "PARAMS", "1": "PARAMS"}


def test_batches_that_devices_share():
    network = types.SimpleNamespace(mesh=types.SimpleNamespace(size=4))
    for made in (averaging.Averaged(network, {}, None, (1, 1)), Classifier(network, {})):
        assert [made.round_up(size) for size in (1, 4, 5, 8)] == [4, 4, 8, 8]


def test_features_of_views_are_averaged_and_those_of_models_stand_side_by_side():
    def network(factor):
        def outputs(params, images):
            value = factor * images.mean((1, 2, 3))[:, None] * jnp.ones(params)
            return {LOGITS: value, PRE_LOGITS: value}

        options = types.SimpleNamespace(image_size=(1, 1))
        return types.SimpleNamespace(outputs=outputs, options=options)

    networks = (network(1.0), network(10.0))
    together = averaging.AveragedNetwork(networks, Views(5), LOGITS, "softmax")
    images = jnp.array([0.0, 1, 2, 3, 4, 5, 6, 7, 80]).reshape(1, 3, 3, 1)
    found = together.outputs({"0": (1, 2), "1": (1, 2)}, images)
    mean = (4 + 0 + 2 + 6 + 80) / 5  # The middle and the corners.
    np.testing.assert_allclose(found[LOGITS], [[5.5 * mean] * 2])
    np.testing.assert_allclose(found[PRE_LOGITS], [[mean, mean, 10 * mean, 10 * mean]])
