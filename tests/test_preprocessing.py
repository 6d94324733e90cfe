"""All that uses a model shows it the pixels that it was trained for, made here by other libraries.

Every value of the preprocessing differs from its default, and each from every other's.
"""

import dataclasses
import json

import cv2
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import tiny
from tests.published import logits, random_model
from tests.runs import read_metrics
from tests.shared_programs import shared_programs  # noqa: F401
from vit_jax import evaluate, export, predict, train
from vit_jax.data.images.transforms import eval_transform
from vit_jax.model_file import Preprocessing
from vit_jax.predict import load_images

pytestmark = pytest.mark.usefixtures("on_one_device", "shared_programs")

SIZE = 16
CLASSES = ("cat", "cow", "dog")
OWN = Preprocessing((0.3, 0.4, 0.5), (0.2, 0.25, 0.35), "center", 20, "bicubic", False)
# The same but for one value: a model that is used with the wrong one gives other logits.
OTHERS = {
    "crop": Preprocessing(OWN.mean, OWN.std, "resize", 20, "bicubic", False),
    "resize": Preprocessing(OWN.mean, OWN.std, "center", 24, "bicubic", False),
    "interpolation": Preprocessing(OWN.mean, OWN.std, "center", 20, "bilinear", False),
    "antialias": Preprocessing(OWN.mean, OWN.std, "center", 20, "bicubic", True),
    "mean": Preprocessing((0.5, 0.4, 0.3), OWN.std, "center", 20, "bicubic", False),
    "std": Preprocessing(OWN.mean, (0.35, 0.25, 0.2), "center", 20, "bicubic", False),
}
PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
OPENCV = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}


def expected_pixels(path, wanted, size=SIZE):
    """What Pillow, OpenCV and NumPy make of a file, float64 [size, size, 3]."""
    picture = Image.open(path).convert("RGB")
    width, height = picture.size
    if wanted.crop == "center":
        scale = wanted.resize / min(width, height)
        width, height = round(width * scale), round(height * scale)
    else:
        width = height = size
    if wanted.antialias:
        array = np.asarray(picture.resize((width, height), PILLOW[wanted.interpolation]))
    else:
        flag = OPENCV[wanted.interpolation]
        array = cv2.resize(np.asarray(picture), (width, height), interpolation=flag)
    top, left = (height - size) // 2, (width - size) // 2
    pixels = array[top : top + size, left : left + size] / 255
    return (pixels - wanted.mean) / wanted.std


@pytest.mark.parametrize(
    ("rounding", "whole", "corner"),
    [  # A picture of 37×50, its smaller side 22: 29.73 pixels and offsets 3 and 6.86 or 6.5.
        ("nearest", (22, 30), (3, 7)),
        ("torchvision", (22, 29), (3, 6)),  # 6.5 is rounded to an even number.
        ("huggingface", (22, 29), (3, 6)),
    ],
)
def test_sides_and_centres_are_rounded_as_the_files_library_does(rounding, whole, corner):
    pixels = np.random.default_rng(0).integers(0, 256, (37, 50, 3), np.uint8)
    how = dataclasses.replace(OWN, resize=22, antialias=True, rounding=rounding)
    height, width = whole
    resized = np.asarray(Image.fromarray(pixels).resize((width, height), PILLOW["bicubic"]))
    (top, left), found = corner, eval_transform(how, (SIZE, SIZE), 3)(pixels)
    np.testing.assert_array_equal(found, resized[top : top + SIZE, left : left + SIZE])


def test_torchvision_begins_the_centre_at_the_nearest_pixel():
    """Of 19 pixels 16 begin at 1.5: at 2 there, at 1 in Hugging Face's processors."""
    pixels = np.random.default_rng(0).integers(0, 256, (19, 19, 3), np.uint8)
    for rounding, start in (("torchvision", 2), ("huggingface", 1), ("nearest", 1)):
        how = dataclasses.replace(OWN, resize=19, rounding=rounding)
        found = eval_transform(how, (SIZE, SIZE), 3)(pixels)
        np.testing.assert_array_equal(found, pixels[start : start + SIZE, start : start + SIZE])


def expected_logits(model, paths, wanted):
    return np.float64(logits(model, np.float32([expected_pixels(p, wanted) for p in paths])))


def log_softmax(values):
    shifted = values - values.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def cross_entropy(values, labels):
    return -log_softmax(values)[np.arange(len(labels)), labels].mean()


def write_split(folder):
    """Noise of sizes of which none is the model's; returns the paths and labels."""
    generator, paths, labels = np.random.default_rng(0), [], []
    for label, name in enumerate(CLASSES):
        (folder / name).mkdir(parents=True)
        for number in range(4):
            pixels = generator.integers(0, 256, (*generator.integers(25, 60, 2), 3), np.uint8)
            paths.append(folder / name / f"{number}.png")
            labels.append(label)
            Image.fromarray(pixels).save(paths[-1])
    return paths, np.array(labels)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    write_split(root / "train")
    return root, *write_split(root / "val")


@pytest.fixture(scope="module")
def trained(images, tmp_path_factory):
    """The workdir of a run whose config differs from each default of the preprocessing."""
    config = tiny.get_config()
    config.data.update(source=f"folder:{images[0]}", train_crop="inception", mean=OWN.mean)
    config.data.update(std=OWN.std, eval_crop=OWN.crop, eval_resize=OWN.resize)
    config.data.update(interpolation=OWN.interpolation, antialias=OWN.antialias)
    config.model.update(image_size=SIZE, patch_size=8, channels=3, depth=1)
    config.batch_size, config.total_steps, config.warmup_steps = 8, 2, 0
    config.optimizer.update(name="sgd", learning_rate=1.0, grad_clip_norm=0.0)  # Quick to compile.
    workdir = tmp_path_factory.mktemp("run")
    train.run(config, str(workdir))
    return workdir


def made(wanted):
    model = random_model(
        "ViT-Ti/8",
        num_classes=len(CLASSES),
        image_size=SIZE,
        **{"width": 32, "depth": 1, "mlp_width": 32, "num_heads": 2},
    )
    model.preprocessing, model.class_names = wanted, CLASSES
    return model


def results_of(path, tmp_path, *flags):
    assert evaluate.main([str(path), *flags, f"--json={tmp_path}/results.json"]) == 0
    (result,) = json.loads((tmp_path / "results.json").read_text())
    return result


@pytest.mark.parametrize("wanted", [OWN, *OTHERS.values()], ids=["all", *OTHERS])
def test_pixels_are_those_of_other_libraries(images, wanted):
    _, paths, _ = images
    found = load_images(made(wanted), paths)
    expected = [expected_pixels(path, wanted) for path in paths]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_each_value_changes_what_a_model_says(images):
    """Else the tests below would not see that it is ignored."""
    _, paths, labels = images
    model = made(OWN)
    own = cross_entropy(expected_logits(model, paths, OWN), labels)
    for name, other in OTHERS.items():
        wrong = cross_entropy(expected_logits(model, paths, other), labels)
        assert abs(wrong - own) > 1e-2 * own, name


def test_evaluate_and_predict_see_them(images, tmp_path, capsys):
    root, paths, labels = images
    model = made(OWN)
    vit_jax.save_model(model, tmp_path / "export", "vit_jax")
    expected = expected_logits(model, paths, OWN)
    result = results_of(tmp_path / "export", tmp_path, f"--source=folder:{root}")
    assert result["loss"] == pytest.approx(cross_entropy(expected, labels), rel=1e-5)
    assert result["accuracy"] == (expected.argmax(-1) == labels).mean()
    capsys.readouterr()
    arguments = [tmp_path / "export", *paths, "--format=jsonl"]
    assert predict.main(list(map(str, arguments))) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    for row, values in zip(rows, np.exp(log_softmax(expected)), strict=True):
        found = {ranked["index"]: ranked["probability"] for ranked in row["classes"]}
        assert found == pytest.approx(dict(enumerate(values)), abs=1e-5)


def test_the_trainer_measures_with_them_and_hands_them_on(images, trained, tmp_path, capsys):
    """From the config by `model.json` and each export to the evaluation command."""
    _, paths, labels = images
    model = vit_jax.load_model(trained)
    assert model.preprocessing == OWN
    expected = cross_entropy(expected_logits(model, paths, OWN), labels)
    recorded = read_metrics(trained)[-1]
    assert recorded["eval/loss"] == pytest.approx(expected, rel=1e-5)
    assert results_of(trained, tmp_path)["loss"] == pytest.approx(expected, rel=1e-5)
    for name, other in OTHERS.items():
        wrong = cross_entropy(expected_logits(model, paths, other), labels)
        assert abs(wrong - expected) > 1e-4 * expected, name
    for format in ("npz", "timm", "huggingface", "vit_jax"):
        exported = tmp_path / (format + (".npz" if format == "npz" else ""))
        assert export.main([str(trained), str(exported), f"--format={format}"]) == 0
        told = capsys.readouterr().err
        found = vit_jax.load_model(exported).preprocessing
        if format == "huggingface":  # Has no word for it.
            assert "resized without antialiasing, which Hugging Face" in told
            found = dataclasses.replace(found, antialias=False, rounding="nearest")
        assert found == OWN, format
