"""Averages at test time, over views and models, against NumPy and the models one by one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests.published import logits, parameters
from tests.test_evaluate import CLASSES, make_model, results_of, run, write_images
from vit_jax.averaging import PROBABILITIES, Views, average, average_logits
from vit_jax.errors import ConfigError
from vit_jax.models.base import LOGITS
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
    found = one.network(one.params, pixels)
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
