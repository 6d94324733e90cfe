"""Predictions from picture files, in Python and from the command line, against Pillow and NumPy."""

import contextlib
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests.data.pictures import encode, photograph
from tests.published import random_model
from tests.runs import LIMIT_SECONDS, ROOT
from tests.workdirs import CLASSES, write_workdir
from vit_jax import predict as command
from vit_jax.errors import ConfigError, DataError
from vit_jax.model_file import Preprocessing
from vit_jax.predict import format_of, load_images, predict

TINY = {"width": 32, "depth": 1, "mlp_width": 32, "num_heads": 2, "image_size": 16}
NAMES = ("cat", "dog", "ähre", "4", "5", "6", "crane, bird")
COLOURS = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.2, 0.25, 0.3))
PIXELS = np.random.default_rng(1).integers(0, 256, (24, 20, 3), np.uint8)


@pytest.fixture(scope="module")
def model():
    made = random_model("ViT-Ti/8", num_classes=len(NAMES), **TINY)
    made.preprocessing, made.class_names = COLOURS, NAMES
    return made


@pytest.fixture(scope="module")
def model_path(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "export"
    vit_jax.save_model(model, path, "vit_jax")
    return str(path)


@pytest.fixture
def pictures(tmp_path):
    """A folder of two good pictures and three files that only look like pictures."""
    folder = tmp_path / "pictures"
    (folder / "sub").mkdir(parents=True)
    Image.fromarray(PIXELS).save(folder / "élève 1.png")
    Image.fromarray(PIXELS[::-1]).save(folder / "sub/10.jpg")
    (folder / "sub/2.jpg").write_bytes((folder / "sub/10.jpg").read_bytes()[:300])
    (folder / "text.png").write_text("not a picture")
    (folder / "zero.bmp").touch()
    return folder


def run(*arguments):
    return command.main([str(argument) for argument in arguments])


def probabilities(prediction):
    return {ranked.index: ranked.probability for ranked in prediction.classes}


# ------------------------------------------------------------------------------------ in Python


def test_images_are_what_pillow_and_numpy_make_of_the_files(model, tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    resized = Image.fromarray(PIXELS).resize((16, 16), Image.Resampling.BILINEAR)
    expected = (np.asarray(resized) / 255 - COLOURS.mean) / COLOURS.std
    images = load_images(model, [tmp_path / "a.png"])
    np.testing.assert_allclose(images, expected[None], atol=1e-5)
    with pytest.raises(DataError, match=r"b\.png: No such file"):
        load_images(model, [tmp_path / "a.png", tmp_path / "b.png"])


def test_a_model_of_twelve_bits_is_given_twelve(model, tmp_path):
    made = random_model("ViT-Ti/8", num_classes=2, **{**TINY, "image_size": 8})
    made.preprocessing = Preprocessing(bit_depth=12, dtype="float32")
    vit_jax.save_model(made, tmp_path / "model", "vit_jax")
    values = np.linspace(0, 4095, 64).astype(np.uint16).reshape(8, 8)
    Image.fromarray(values).save(tmp_path / "x.png")
    images = load_images(vit_jax.load_model(tmp_path / "model"), tmp_path / "x.png")
    np.testing.assert_allclose(images[0, ..., 0], values / 4095 * 2 - 1, atol=1e-4)
    logits = np.float64(made(images))[0]
    (found,) = predict(made, tmp_path / "x.png")
    expected = np.exp(logits) / np.exp(logits).sum()
    assert probabilities(found) == pytest.approx(dict(enumerate(expected)), abs=1e-5)


def test_predictions_are_the_softmax_of_the_logits(model, tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(11)]
    for number, path in enumerate(paths):
        Image.fromarray(np.roll(PIXELS, number, axis=1)).save(path)
    logits = np.float64(model(load_images(model, paths)))
    expected = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    order = np.argsort(-expected, axis=-1)
    for batch_size in (None, 3, 8, 100):
        found = list(predict(model, map(str, paths), top_k=3, batch_size=batch_size))
        assert [prediction.path for prediction in found] == list(map(str, paths))
        for row, prediction in enumerate(found):
            assert [ranked.index for ranked in prediction.classes] == order[row, :3].tolist()
            for index, name, probability in prediction.classes:
                assert name == NAMES[index]
                assert probability == pytest.approx(expected[row, index], abs=1e-5)


def test_one_picture_in_every_form_that_python_has(model, tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    (expected,) = load_images(model, [tmp_path / "a.png"])
    exif = Image.Exif()
    exif[0x0112] = 3
    turned = Image.fromarray(PIXELS[::-1, ::-1])
    turned.getexif().update(exif)
    forms = {
        "text": str(tmp_path / "a.png"),
        "path": tmp_path / "a.png",
        "content": (tmp_path / "a.png").read_bytes(),
        "array": PIXELS,
        "jax": jnp.asarray(PIXELS),
        "pillow": Image.fromarray(PIXELS),
        "pillow, turned": turned,
    }
    for kind, picture in forms.items():
        np.testing.assert_array_equal(load_images(model, picture)[0], expected, err_msg=kind)
        (found,) = predict(model, picture)
        assert not found.error, kind
        assert found.path == (str(tmp_path / "a.png") if kind in ("text", "path") else "[0]")
    assert len(list(predict(model, np.stack([PIXELS, PIXELS])))) == 2
    assert len(list(predict(model, forms.values()))) == len(forms)
    (grey,) = predict(model, PIXELS[..., 0])
    assert not grey.error


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        (PIXELS / np.float32(255), r"an image array is float32 \[24, 20, 3\]; expected uint8"),
        (PIXELS[..., :2], "it has 2 channels, and the model expects 3"),
    ],
)
def test_arrays_that_are_no_pictures(model, picture, message):
    (found,) = predict(model, picture)
    assert re.search(message, found.error)
    with pytest.raises(DataError, match=rf"^\[0\]: {message}"):
        load_images(model, picture)


def test_what_is_no_picture_at_all(model):
    with pytest.raises(TypeError, match="this is a int"):
        list(predict(model, [7]))  # Not the file with this number.


def test_pixels_where_a_model_expects_normalised_floats(model):
    with pytest.raises(ConfigError, match="images are uint8, expected normalised floats"):
        model(np.zeros((2, 16, 16, 3), np.uint8))
    with pytest.raises(ConfigError, match=r"one image of shape .* images\[None\]"):
        model(np.zeros((16, 16, 3), np.float32))
    with pytest.raises(ConfigError, match="images are int32"):
        model.intermediates(np.zeros((2, 16, 16, 3), np.int32), "pre_logits")


@pytest.mark.parametrize("loss", ["sigmoid", "binary"])
def test_a_sigmoid_model_tells_each_class_s_own_probability(loss, tmp_path):
    made = random_model("ViT-Ti/8", num_classes=len(NAMES), **TINY)
    made.loss = loss
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    logits = np.float64(made(load_images(made, [tmp_path / "a.png"])))[0]
    expected = 1 / (1 + np.exp(-logits))
    (found,) = predict(made, [tmp_path / "a.png"], top_k=len(NAMES))
    assert probabilities(found) == pytest.approx(dict(enumerate(expected)), abs=1e-5)
    flags = {"top_k": len(NAMES), "threshold": 0.5, "batch_size": 1}
    for found in predict(made, [tmp_path / "a.png"] * 2, **flags):
        assert set(probabilities(found)) == set(np.flatnonzero(expected >= 0.5).tolist())
    (found,) = predict(made, [tmp_path / "a.png"], top_k=len(NAMES), loss="softmax")
    assert sum(probabilities(found).values()) == pytest.approx(1)
    made.loss = "distance"
    with pytest.raises(
        ConfigError, match="the loss 'distance'; probabilities are known of softmax"
    ):
        list(predict(made, [tmp_path / "a.png"]))


@pytest.mark.parametrize(
    ("format", "name"),
    [
        *(("npz", "out.npz"), ("vit_jax", "out"), ("timm", "out.safetensors")),
        *(("timm", "out"), ("huggingface", "out")),
    ],
)
def test_the_loss_travels_with_the_weights(format, name, tmp_path):
    made = random_model("ViT-Ti/16", num_classes=3, width=192, depth=1, image_size=32)
    made.loss = "sigmoid"
    vit_jax.save_model(made, tmp_path / name, format)
    assert vit_jax.load_model(tmp_path / name).loss == "sigmoid"
    assert vit_jax.load_model(tmp_path / name, num_classes=2).loss == "softmax"  # Another head.


def test_outputs_that_are_not_finite(model, tmp_path, capsys, monkeypatch):
    """Finite weights may still overflow: an error, and valid JSON."""
    made = random_model("ViT-Ti/8", num_classes=3, **TINY)
    made.head.bias[...] = jnp.array([3e38, 3e38, 3e38])
    made.head.kernel[...] = made.head.kernel[...] * 1e38
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    vit_jax.save_model(made, tmp_path / "export", "vit_jax")
    assert run(tmp_path / "export", tmp_path / "a.png", "--format=jsonl") == 2
    row = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert (row["error"], row["classes"]) == ("the model's output for it is not finite", [])
    made.head.kernel[...] = made.head.kernel[...].at[:, 1:].set(0)  # Some classes are finite.
    (found,) = predict(made, PIXELS, loss="sigmoid")
    assert (found.error, found.classes) == (row["error"], ())


def test_thresholds_on_the_command_line(model_path, pictures, capsys):
    picture = pictures / "élève 1.png"
    assert run(model_path, picture, "--loss=sigmoid", "--threshold=1") == 0
    assert capsys.readouterr().out == f"{picture}: none\n"
    assert run(model_path, picture, "--loss=sigmoid", "--threshold=0", "--top_k=7") == 0
    assert capsys.readouterr().out.count("%") == 7
    assert run(model_path, picture, "--threshold=50") == 2
    assert "'50' is not a number from 0 to 1" in capsys.readouterr().err


def test_a_model_just_created_and_fewer_classes_than_asked_for(tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    for count in (1, 2):
        made = vit_jax.create_model("ViT-Ti/8", num_classes=count, **TINY)
        (found,) = predict(made, [tmp_path / "a.png"])
        assert [ranked.name for ranked in found.classes] == [str(k) for k in range(count)]
        assert [ranked.probability for ranked in found.classes] == [1 / count] * count
        (same,) = predict(made, [tmp_path / "a.png"], threshold=1 / count)
        assert same == found, "the threshold is told, too"


def test_a_head_with_more_classes_than_names(tmp_path):
    made = vit_jax.create_model("ViT-Ti/8", num_classes=4, **TINY)
    made.class_names = ("cat", "dog")
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    (found,) = predict(made, [tmp_path / "a.png"])
    assert [ranked.name for ranked in found.classes] == ["cat", "dog", "2", "3"]


def test_what_is_told_of_a_batch():
    read = [command.Loaded(name, PIXELS) for name in ("a", "b")]
    pictures = [read[0], command.Loaded("torn", None, "no image"), read[1]]
    ranked = np.array([[0.75, 0.25], [0.9, 0.1], [0.5, np.nan]]), np.array([[2, 0], [0, 1], [1, 0]])
    first, torn, third = command.named((pictures, ranked), ("x", "y", "z"), 0.25)
    assert (first.path, first.classes) == ("a", ((2, "z", 0.75), (0, "x", 0.25)))
    assert (torn.path, torn.classes, torn.error) == ("torn", (), "no image")
    assert (third.path, third.error) == ("b", "the model's output for it is not finite")
    (first,) = command.named((read[:1], (np.array([[3.0, 1.0]]),)), ("z", "a"), 0.5)
    assert (first.classes, first.values) == ((), (("z", 3.0), ("a", 1.0)))
    assert [*command.named(None, (), 0.0)] == []


def test_a_batch_is_black_where_there_is_no_picture():
    made = types.SimpleNamespace(
        options=types.SimpleNamespace(image_size=(2, 3), channels=1),
        preprocessing=Preprocessing(dtype="float32"),
    )
    image = np.arange(6, dtype=np.float32).reshape(2, 3, 1)
    pictures = [command.Loaded("a", image), command.Loaded("torn", None, "no image")]
    found = command.batch_of([*pictures, command.Loaded("b", image + 0.5)], 4, made)
    np.testing.assert_array_equal(found, [image, 0 * image, image + 0.5, 0 * image])
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(5, "Input/output error", "a.png"), "Input/output error"),
        (OSError("no room"), "no room"),
        (DataError("a hole"), "a hole"),
        (ValueError("embedded null byte"), "embedded null byte"),
    ],
)
def test_why_a_picture_cannot_be_read(error, told):
    def transform(content):
        raise error

    assert command.load((3, b"content"), transform) == command.Loaded("[3]", None, told)
    with pytest.raises(ZeroDivisionError):  # A mistake of ours.
        command.load((3, b"content"), lambda content: 1 // 0)


def test_batches_are_as_large_as_was_asked_for(model, model_path, monkeypatch, tmp_path, capsys):
    sizes = []

    def read_ahead(one, numbered, size):
        sizes.append(size)
        yield from ()

    monkeypatch.setattr(command, "read_ahead", read_ahead)
    assert [*predict(model, PIXELS)] == [*predict(model, PIXELS, batch_size=3)] == []
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    run(model_path, tmp_path / "a.png", "--batch_size=5")
    assert sizes == [32 * jax.device_count(), 3, 5]
    capsys.readouterr()


def test_what_the_flags_say_is_what_predicts(model, model_path, monkeypatch):
    asked, made = [], []

    def stand_in(*given, **options):
        asked.append((given, options))
        raise ConfigError("enough")

    with monkeypatch.context() as patch:
        patch.setattr(command, "predict", stand_in)
        patch.setattr(command, "find_files", lambda *_: "PATHS")
        flags = ["--top_k=2", "--threshold=0.25", "--loss=sigmoid", "--max_image_gib=0.5"]
        assert run(model_path, "x", *flags, "--batch_size=7") == 2
        assert run(model_path, "x") == 2
    (_, paths), given = asked[0]
    assert paths == "PATHS"
    assert given.pop("max_image_gib") == 0.5
    assert given == {"top_k": 2, "threshold": 0.25, "loss": "sigmoid", "batch_size": 7}
    given = asked[1][1]
    assert given.pop("max_image_gib") == command.MAX_IMAGE_GIB
    classes = min(command.TOP_K, model.options.num_classes)
    assert given == {"top_k": classes, "threshold": 0.0, "loss": None, "batch_size": None}

    def budget(size):
        made.append(size)
        raise ConfigError("enough")

    monkeypatch.setattr(command, "make_transform", lambda *given: made.append(given[1:]))
    monkeypatch.setattr(command, "Budget", budget)
    with pytest.raises(ConfigError, match="enough"):
        next(predict(model, "x.png", max_image_gib=0.5))
    assert made == [(0.5,), 2**29]


def test_paths_are_taken_as_they_are_needed(model, tmp_path):
    Image.fromarray(PIXELS).save(tmp_path / "a.png")
    taken = 0

    def endless():
        nonlocal taken
        while True:
            taken += 1
            yield tmp_path / "a.png"

    found = predict(model, endless(), batch_size=8)
    for _ in range(20):
        next(found)
    found.close()
    assert taken <= 20 + 4 * 8


# ----------------------------------------------------------------------------- kinds of pictures


def gray(pixels):
    return np.repeat(pixels[..., :1], 3, axis=-1)


def encoded(image, format, **options):
    content = io.BytesIO()
    image.save(content, format, **options)
    return content.getvalue()


def rotated(orientation, transpose, format, **options):
    """A file whose pixels are turned, and whose EXIF says how to turn them back."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(Image.fromarray(PIXELS).transpose(transpose), format, exif=exif, **options)


def as_pillow_reads_it(content):
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))


PALETTE = Image.fromarray(PIXELS).quantize(16)
OPAQUE = np.arange(24 * 20).reshape(24, 20) % 3 > 0
RGBA = np.dstack([PIXELS, np.where(OPAQUE, 255, 0).astype(np.uint8)])
OVER_WHITE = np.where(OPAQUE[..., None], PIXELS, 255).astype(np.uint8)
JPEG = encoded(Image.fromarray(PIXELS), "JPEG", quality=90)
CMYK = encoded(Image.fromarray(PIXELS).convert("CMYK"), "JPEG", quality=95)
TURN = Image.Transpose
# A file's content, and the upright RGB picture that it shows.
KINDS = {
    "jpeg": (JPEG, as_pillow_reads_it(JPEG)),
    "cmyk": (CMYK, as_pillow_reads_it(CMYK)),
    "bmp": (encoded(Image.fromarray(PIXELS), "BMP"), PIXELS),
    "webp": (encoded(Image.fromarray(PIXELS), "WEBP", lossless=True), PIXELS),
    "tiff": (encoded(Image.fromarray(PIXELS), "TIFF"), PIXELS),
    "palette": (encoded(PALETTE, "PNG"), np.asarray(PALETTE.convert("RGB"))),
    "rgba": (encoded(Image.fromarray(RGBA), "PNG"), OVER_WHITE),
    "gray": (encoded(Image.fromarray(PIXELS[..., 0]), "PNG"), gray(PIXELS)),
    "gray_alpha": (
        encoded(Image.fromarray(RGBA[..., [0, 3]], "LA"), "PNG"),
        gray(OVER_WHITE),
    ),
    "bits": (
        encoded(Image.fromarray(PIXELS[..., 0] > 99), "PNG"),
        gray(np.where(PIXELS > 99, 255, 0).astype(np.uint8)),
    ),
    "sixteen_bits": (
        encoded(Image.fromarray(PIXELS[..., 0].astype(np.uint16) * 257), "PNG"),
        gray(PIXELS),
    ),
    "turned_left": (rotated(6, TURN.ROTATE_90, "PNG"), PIXELS),
    "turned_right": (rotated(8, TURN.ROTATE_270, "WEBP", lossless=True), PIXELS),
    "upside_down": (rotated(3, TURN.ROTATE_180, "TIFF"), PIXELS),
    "mirrored": (rotated(2, TURN.FLIP_LEFT_RIGHT, "PNG"), PIXELS),
    "transposed": (rotated(5, TURN.TRANSPOSE, "PNG"), PIXELS),
}


@pytest.mark.parametrize("channels", [3, 1])
def test_every_kind_of_picture_is_read_as_its_upright_rgb_picture(channels, model, tmp_path):
    if channels == 1:
        model = random_model("ViT-Ti/8", num_classes=len(NAMES), channels=1, **TINY)
    paths = []
    for kind, (content, upright) in KINDS.items():
        (tmp_path / f"{kind}.dat").write_bytes(content)  # Told by content, not by name.
        Image.fromarray(upright).save(tmp_path / f"{kind}_upright.png")
        paths += [tmp_path / f"{kind}.dat", tmp_path / f"{kind}_upright.png"]
    found = list(predict(model, paths, top_k=len(NAMES)))
    for actual, upright in zip(found[::2], found[1::2], strict=True):
        assert not actual.error, actual
        # A JPEG is resized while it is decoded, by a filter that comes close to Pillow's.
        tolerance = 1e-3 if actual.path.endswith("jpeg.dat") else 1e-6
        expected = pytest.approx(probabilities(upright), abs=tolerance)
        assert probabilities(actual) == expected, actual.path
    colourful = {round(prediction.classes[0].probability, 6) for prediction in found}
    assert len(colourful) > 4, "the pictures differ, so the comparison says something"


def test_a_picture_turned_in_a_jpeg(model, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = encode(Image.fromarray(photograph()).transpose(TURN.ROTATE_90), "JPEG", exif=exif)
    (tmp_path / "turned.jpg").write_bytes(turned)
    pixels = as_pillow_reads_it(turned)  # As they lie in the file.
    Image.fromarray(np.rot90(pixels, -1)).save(tmp_path / "upright.png")
    Image.fromarray(pixels).save(tmp_path / "lying.png")
    names = ("turned.jpg", "upright.png", "lying.png")
    found, expected, lying = load_images(model, [tmp_path / name for name in names])
    # A JPEG is resized by a filter that comes within three grey levels of Pillow's.
    assert np.abs(found - expected).mean() < 3 / 255 / 0.2  # The least deviation of `COLOURS`.
    assert np.abs(found - lying).mean() > 1


# ------------------------------------------------------------------------------- the command


def test_text_and_the_reasons_of_what_cannot_be_read(model_path, pictures, capsys):
    assert run(model_path, pictures, "--top_k=2") == 1
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    names = [os.path.relpath(line.split(": ")[0], pictures) for line in lines]
    assert names == ["sub/2.jpg", "sub/10.jpg", "text.png", "zero.bmp", "élève 1.png"]
    assert all(line.count("%") == 2 for line in (lines[1], lines[4]))
    assert all(": error: " in line for line in (lines[0], lines[2], lines[3]))
    assert re.search(r"^W \S+ 3 of 5 files could not be read\.$", captured.err, re.MULTILINE)


@pytest.mark.parametrize("format", ["text", "csv", "jsonl"])
def test_names_cannot_act_on_a_terminal_or_a_spreadsheet(tmp_path, capsys, monkeypatch, format):
    made = random_model("ViT-Ti/8", num_classes=2, **TINY)
    made.class_names = ("=cmd|' /C calc'!A0", "\x1b]0;owned\x07\nforged.png: cat (100.00%)")
    vit_jax.save_model(made, tmp_path / "model", "vit_jax")
    monkeypatch.chdir(tmp_path)
    names = ("-1\x1b[2K\n.png", "\x1b[31m.png")
    Image.fromarray(PIXELS).save(tmp_path / names[0], "PNG")
    (tmp_path / names[1]).touch()
    assert run("model", ".", f"--format={format}") == 1
    out, err = capsys.readouterr()
    assert not any(ord(character) < 32 and character != "\n" for character in out + err)
    assert len(out.splitlines()) == {"text": 2, "csv": 3, "jsonl": 2}[format]
    if format == "csv":
        cells = {cell for row in csv.reader(out.splitlines()) for cell in row}
        assert not any(cell.startswith(("=", "+", "-", "@")) for cell in cells)
        assert out.partition("\n")[0].endswith(",class_2,index_2,probability_2"), "of two classes"
    if format == "jsonl":
        rows = [json.loads(line) for line in out.splitlines()]
        assert {os.path.basename(row["path"]) for row in rows} == set(names)


def test_pipes_and_devices_are_no_pictures(model_path, pictures, capsys):
    os.mkfifo(pictures / "pipe")
    assert run(model_path, pictures / "pipe", "/dev/zero") == 2
    assert capsys.readouterr().out.count("error: it is a pipe, a socket or a device") == 2


def test_how_large_a_picture_may_be(model_path, pictures, capsys):
    path = pictures / "élève 1.png"
    assert run(model_path, path, "--max_image_gib=1e-6") == 2
    assert "raise max_image_gib=1e-06" in capsys.readouterr().out
    assert run(model_path, path, "--max_image_gib=1e-4") == 0
    assert "%" in capsys.readouterr().out


def test_a_picture_is_decoded_where_there_is_room_for_it():
    """Threads share the room: see `Budget`."""
    told = []

    @contextlib.contextmanager
    def reserve(amount):
        told.append(amount)
        yield
        told.append("free")

    content = encode(np.zeros((30, 50, 3), np.uint8))
    budget = types.SimpleNamespace(reserve=reserve)
    command.load((0, content), lambda _: told.append("decoded"), budget)
    assert told == [30 * 50 * 4, "decoded", "free"]


def test_csv_has_a_row_for_each_file(model_path, pictures, tmp_path):
    assert run(model_path, pictures, "--output", tmp_path / "out.csv", "--top_k=2") == 1
    with open(tmp_path / "out.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == [
        *("path", "error", "class_1", "index_1", "probability_1"),
        *("class_2", "index_2", "probability_2"),
    ]
    assert [bool(row["error"]) for row in rows] == [True, False, True, True, False]
    for row in rows:
        if row.pop("error"):
            del row["path"]
            assert set(row.values()) == {""}, "as many cells as in every other row"
    good = rows[4]
    assert good["path"] == str(pictures / "élève 1.png")
    assert NAMES[int(good["index_1"])] == good["class_1"]
    assert 1 >= float(good["probability_1"]) >= float(good["probability_2"]) > 0


@pytest.mark.parametrize("name", ["out.csv", "OUT.CSV", "a.b/out.Csv"])
def test_the_format_is_that_of_the_name_in_any_case(name):
    assert format_of(name, None) == format_of(name, "csv") == "csv"


def test_the_format_may_be_said_and_is_text_else():
    assert [format_of("", None), format_of("", "csv"), format_of("x.txt", None)] == [
        *("text", "csv", "text")
    ]
    assert format_of("x.log", "jsonl") == "jsonl"


def test_json_lines_equal_the_python_api(model, model_path, pictures, capsys):
    paths = [pictures / "élève 1.png", pictures / "zero.bmp"]
    assert run(model_path, *paths, "--format=jsonl") == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    good, bad = predict(model, paths)
    assert [(c["index"], c["class"]) for c in rows[0]["classes"]] == [c[:2] for c in good.classes]
    assert len(good.classes) == 5, "of seven"
    assert [c["probability"] for c in rows[0]["classes"]] == pytest.approx(
        [ranked.probability for ranked in good.classes], rel=1e-4
    )
    assert rows[0]["error"] is None
    assert rows[1] == {"path": str(paths[1]), "error": bad.error, "classes": []}


def test_a_list_on_standard_input(model_path, pictures, capsys, monkeypatch):
    listing = f"{pictures}/élève 1.png\n{pictures}/gone.png\n".encode() + b"/\xff.png\n"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(listing)))
    assert run(model_path, "-", "--format=jsonl") == 1
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["error"] for row in rows] == [None, *["No such file or directory"] * 2]
    assert rows[2]["path"] == os.fsdecode(b"/\xff.png")


def test_nothing_but_the_workdir_is_needed(tmp_path, pictures, capsys):
    (tmp_path / "run").mkdir()
    write_workdir(tmp_path / "run")
    flags = ("--checkpoint=best", "--ema", "--top_k=1", "--format=jsonl")
    assert run(tmp_path / "run", pictures / "élève 1.png", *flags) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["classes"][0]["class"] in CLASSES
    assert captured.err == ""


def test_without_class_names_the_numbers(tmp_path, pictures, capsys):
    made = random_model("ViT-Ti/8", num_classes=3, **TINY)
    vit_jax.save_model(made, tmp_path / "out.npz")
    (tmp_path / "out.json").unlink()
    assert run(tmp_path / "out.npz", pictures / "élève 1.png", "--format=jsonl") == 0
    classes = json.loads(capsys.readouterr().out)["classes"]
    assert sorted(ranked["class"] for ranked in classes) == ["0", "1", "2"]
    assert all(ranked["class"] == str(ranked["index"]) for ranked in classes)


def test_when_nothing_can_be_read_the_code_is_2(model_path, pictures, capsys):
    assert run(model_path, pictures / "zero.bmp", pictures / "text.png") == 2
    assert capsys.readouterr().out.count("error: ") == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("MODEL",), "required: INPUT"),
        (("MODEL", "missing.png"), "there is no such file or folder"),
        (("MODEL", "*.gif"), "as a glob it matches none"),
        (("MODEL", "empty"), "this folder holds no image files"),
        (("missing", "1.png"), "missing: it does not exist"),
        (("1.png", "1.png"), "but a PNG picture"),
        (("MODEL", "1.png", "--top_k=0"), "'0' is not a whole number of at least 1"),
        (("MODEL", "1.png", "--batch_size=many"), "'many' is not a whole number"),
        (("MODEL", "1.png", "--format=xml"), "invalid choice: 'xml'"),
        (("MODEL", "1.png", "--outptu=x"), "unrecognized arguments: --outptu=x; --help"),
        (("MODEL", "1.png", "--output=no/out.csv"), "no/out.csv cannot be written: No such file"),
        (("MODEL", "1.png", "--output=1.png", "--format=csv"), "would be taken for a picture"),
        (
            ("MODEL", "1.png", "--output=x.json"),
            "x.json: the format follows from .txt, .csv, .jsonl",
        ),
        (
            ("MODEL", "1.png", "--output=x.csv", "--format=jsonl"),
            "a name for --format=csv, not for",
        ),
        (("MODEL", "1.png", "--output=empty"), "empty cannot be written: Is a directory"),
        (("MODEL", "1.png", "--ema"), "choose from a run's workdir"),
        (("MODEL", "1.png", "--checkpoint=best"), "choose from a run's workdir"),
        (("MODEL", "1.png", "--option=depth"), "write KEY=VALUE"),
        (("MODEL", "1.png", "--option=depht=1"), "did you mean model.depth"),
        (("MODEL", "1.png", "--option=weights=x"), "is no option of a model"),
        (("MODEL", "1.png", "--option=path=x"), "'path' is no option of a model"),
        (("MODEL", "1.png", "--option=image_size=17"), "not divisible"),
        (("MODEL", "1.png", "--option=num_classes=0"), "has no head"),
    ],
)
def test_a_mistake_is_one_message_and_code_2(
    arguments, message, model_path, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    Image.fromarray(PIXELS).save("1.png")
    assert run(*(model_path if text == "MODEL" else text for text in arguments)) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert captured.err.count("E ") == 1
    assert "Traceback" not in captured.err


def test_a_head_of_zeros_is_mentioned(tmp_path, capsys):
    made = vit_jax.create_model("ViT-Ti/8", num_classes=3, **TINY)
    vit_jax.save_model(made, tmp_path / "export", "vit_jax")
    Image.fromarray(PIXELS).save(tmp_path / "1.png")
    assert run(tmp_path / "export", tmp_path / "1.png") == 0
    assert "is all zeros: nothing has been trained with it" in capsys.readouterr().err


def start(*arguments, stdin=subprocess.PIPE):
    return subprocess.Popen(
        [sys.executable, "-m", "vit_jax.predict", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


@pytest.mark.slow
def test_a_closed_pipe_and_ctrl_c_end_quietly(model_path, pictures, tmp_path):
    name = os.fsencode(pictures / "élève 1.png") + b"\n"
    (tmp_path / "names.txt").write_bytes(name * 10_000)
    with open(tmp_path / "names.txt", "rb") as names:
        process = start(model_path, "-", stdin=names)
    assert process.stdout.readline().startswith(name.strip())
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(LIMIT_SECONDS) == 0

    process = start(model_path, "-", "--batch_size=2")
    process.stdin.write(name * 10)
    process.stdin.flush()
    process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.stderr.read() == b""
    assert process.wait(LIMIT_SECONDS) == 130
