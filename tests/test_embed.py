"""Embeddings in Python and from the command line, against the models' own intermediates."""

import copy
import csv
import json
import os
import re
import types

import numpy as np
import pytest
from PIL import Image
from pyarrow import parquet

import vit_jax
from tests.models.filled import filled_model, intermediates
from tests.test_predict import PIXELS, TINY
from vit_jax import embed as command
from vit_jax.errors import ConfigError
from vit_jax.model_file import Preprocessing
from vit_jax.predict import load_images

OPTIONS = {**TINY, "depth": 2, "num_registers": 1, "num_classes": 3}
IMAGES = np.random.default_rng(0).normal(size=(2, 16, 16, 3)).astype(np.float32)


@pytest.fixture(scope="module")
def model():
    return filled_model("ViT-Ti/8", **OPTIONS)


@pytest.fixture(scope="module")
def model_path(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "export"
    vit_jax.save_model(model, path, "vit_jax")
    return str(path)


@pytest.fixture
def pictures(tmp_path):
    """Five pictures, of which the third is none."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number in range(5):
        path = folder / f"{number}.png"
        Image.fromarray(np.roll(PIXELS, number, axis=0)).save(path)
    (folder / "2.png").write_bytes(b"no picture")
    return folder


def layer_norm(x, norm):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * norm.scale[...] + norm.bias[...]


def test_embeddings_are_the_models_intermediates(model):
    captured = intermediates(model, IMAGES, "block_outputs", "pre_logits")
    first, last = np.asarray(captured["block_outputs"])
    normed = layer_norm(last, model.norm)
    expected = {
        ("pre_logits", None): captured["pre_logits"],
        ("class_token", None): normed[:, 0],
        ("class_token", 0): first[:, 0],
        ("mean", None): normed[:, 2:].mean(axis=1),  # Without class token and register.
        ("mean", -2): first[:, 2:].mean(axis=1),
        ("patches", None): normed[:, 2:],
        ("patches", 1): last[:, 2:],
    }
    for arguments, values in expected.items():
        np.testing.assert_allclose(model.embed(IMAGES, *arguments), values, atol=2e-5)
    np.testing.assert_array_equal(model.embed(IMAGES), captured["pre_logits"])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("Mixer-B/16", {"width": 32, "depth": 2, "mlp_width": 32, "token_mlp_width": 8}),
        ("BiT-R50x1", {"stage_depths": (1,)}),
    ],
)
def test_the_mean_of_models_without_a_class_token_is_what_their_head_sees(name, options):
    model = filled_model(name, image_size=32, num_classes=3, **options)
    images = np.random.default_rng(0).normal(size=(2, 32, 32, 3)).astype(np.float32)
    np.testing.assert_allclose(model.embed(images, "mean"), model.embed(images), atol=1e-5)
    with pytest.raises(ConfigError, match="has no class token"):
        model.embed(images, "class_token")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cls",), "features='cls': must be one of pre_logits, class_token"),
        (("mean", 2), "layer=2: the model has 2 blocks"),
        (("pre_logits", 0), "are of no block"),
    ],
)
def test_what_a_model_does_not_have(model, arguments, message):
    with pytest.raises(ConfigError, match=message):
        model.embed(IMAGES, *arguments)


def rows_of(model, folder, *arguments):
    """The embeddings one by one; NaN for what is no picture."""
    paths = sorted(folder.iterdir())
    good = load_images(model, [path for path in paths if path.name != "2.png"])
    return np.insert(np.asarray(model.embed(good, *arguments)), 2, np.nan, axis=0)


def test_the_command_writes_an_array_and_a_table(model, model_path, pictures, tmp_path):
    out = tmp_path / "out.npy"
    assert command.main([model_path, str(pictures), f"--output={out}", "--features=mean"]) == 1
    np.testing.assert_allclose(np.load(out), rows_of(model, pictures, "mean"), atol=1e-5)
    with open(tmp_path / "out.csv") as file:
        table = list(csv.DictReader(file))
    assert [os.path.basename(row["path"]) for row in table] == [f"{n}.png" for n in range(5)]
    assert [bool(row["error"]) for row in table] == [False, False, True, False, False]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.npy", "pictures"]


def test_the_command_writes_parquet(model, model_path, pictures, tmp_path):
    out = tmp_path / "out.parquet"
    flags = [f"--output={out}", "--features=patches", "--layer=0", "--dtype=float16"]
    assert command.main([model_path, str(pictures), *flags]) == 1
    table = parquet.read_table(out)
    shape = tuple(map(int, table.schema.field("embedding").metadata[b"shape"].split(b",")))
    assert shape == (4, 32)
    found = table.column("embedding").to_pylist()
    assert found[2] is None
    assert table.column("error").to_pylist()[1:3][0] is None
    expected = rows_of(model, pictures, "patches", 0)
    for n in (0, 1, 3, 4):
        np.testing.assert_allclose(np.reshape(found[n], shape), expected[n], atol=2e-2)


def test_an_interrupted_command_goes_on(model, model_path, pictures, tmp_path, monkeypatch, capsys):
    out = tmp_path / "out.npy"
    arguments = [model_path, str(pictures), f"--output={out}"]
    monkeypatch.setattr(command, "PART_BYTES", 3 * 32 * 4 - 1)  # Two rows of 32 float32.
    write, written = command.write_part, []

    def write_one(folder, number, part):
        if number == 1:
            raise KeyboardInterrupt
        write(folder, number, part)

    monkeypatch.setattr(command, "write_part", write_one)
    assert command.main(arguments) == 130
    assert not out.exists()
    monkeypatch.setattr(
        command, "write_part", lambda *part: (written.append(part[1]), write(*part))
    )
    assert command.main([*arguments, "--features=mean"]) == 2  # Of other embeddings.
    monkeypatch.setattr(command, "PART_BYTES", 2**28)
    monkeypatch.setattr(command, "PART_ROWS", 1)  # As of a version with other parts.
    assert command.main(arguments) == 1
    told = capsys.readouterr().err
    assert " 2 of 5 pictures are done." in told
    assert f" 4 pictures are in {out}." in told
    assert re.search(r"^W \S+ 1 of 5 files could not be read: the column error", told, re.MULTILINE)
    assert written == [1, 2, 3]
    np.testing.assert_allclose(np.load(out), rows_of(model, pictures), atol=1e-5)


def test_unfinished_embeddings_are_not_mixed(tmp_path):
    folder = str(tmp_path / "parts")
    assert command.open_parts(folder, {"model": "a", "layer": None}) == 0
    with pytest.raises(ConfigError, match="unfinished embeddings of another model: finish them"):
        command.open_parts(folder, {"model": "b", "layer": None})
    with pytest.raises(ConfigError, match="of another dtype: finish"):  # It is not known.
        command.open_parts(folder, {"model": "a", "layer": None, "dtype": "float32"})
    assert json.loads((tmp_path / "parts" / "identity.json").read_text())["model"] == "a"
    parts = [command.Part(np.float16([[number]]), np.array(["torn"])) for number in range(2)]
    for number, part in enumerate(parts):
        command.write_part(folder, number, part)
    (tmp_path / "parts/000002.npz.new").touch()  # As a kill leaves it.
    assert command.open_parts(folder, {"model": "a", "layer": None}) == 2
    for found, part in zip(command.read_parts(folder, 2), parts, strict=True):
        assert (found.embeddings.item(), found.errors.item()) == (part.embeddings.item(), "torn")
        assert found.embeddings.dtype == np.float16


def test_a_damaged_part_is_a_message(tmp_path):
    command.open_parts(str(tmp_path), {})
    file = tmp_path / "000000.npz"
    np.savez(file, embeddings=np.zeros((1, 2)))  # Without errors.
    for content in (file.read_bytes(), file.read_bytes()[:99], b"", b"neither"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"000000\.npz is damaged \(.*: remove "):
            command.rows_of(str(tmp_path), 1)


def test_files_are_not_there_before_they_are_whole(tmp_path):
    def parts():
        yield command.Part(np.zeros((1, 2), np.float32), np.array([""]))
        raise KeyboardInterrupt

    for ending, write in command.WRITERS.items():
        with pytest.raises(KeyboardInterrupt):
            write(f"{tmp_path}/x{ending}", parts(), ["a", "b"], (2,), "float32")
        assert not [*tmp_path.iterdir()]


def test_embeddings_are_those_of_one_model_list_and_layer():
    """What is different by one of them is not taken for a part of the same."""
    flags = {"features": "mean", "layer": None, "dtype": "float32"}

    def identity(paths=("a", "b"), preprocessing=None, seed=0, gelu="tanh", **changed):
        made = filled_model("ViT-Ti/8", seed, **OPTIONS, gelu=gelu)
        made.preprocessing = preprocessing or Preprocessing()
        return command.identity_of(made, paths, types.SimpleNamespace(**{**flags, **changed}))

    base = identity()
    assert base == identity()
    for changed, key in (
        (identity(paths=("ab",)), "list of pictures"),
        (identity(paths=("b", "a")), "list of pictures"),
        (identity(preprocessing=Preprocessing(mean=(0.25,))), "model"),
        (identity(seed=1), "model"),
        (identity(gelu="erf"), "model"),
        (identity(features="patches"), "features"),
        (identity(layer=0), "layer"),
        (identity(dtype="float16"), "dtype"),
    ):
        assert [name for name in base if base[name] != changed[name]] == [key]


def test_parts_have_a_row_for_each_picture(model, pictures):
    embedder = command.Embedder(model, dtype="float16", batch_size=2)
    assert embedder.batch_size == 8, "eight devices share it"
    calls = []

    def function(params, images):
        calls.append(images.shape)
        values = np.arange(len(images) * 32, dtype=np.float32).reshape(len(images), 32)
        values[1, 3] = np.inf  # Of one picture, one number.
        return values

    embedder.function = function
    paths = [str(path) for path in sorted(pictures.iterdir())]
    first, second = embedder.parts(paths, 3)
    assert calls == [(8, 16, 16, 3)] * 2
    assert first.errors.tolist()[:2] == ["", "the model's output for it is not finite"]
    assert second.errors.tolist() == ["", "the model's output for it is not finite"]
    np.testing.assert_array_equal(first.embeddings[0], np.arange(32))
    assert np.isnan(first.embeddings[1:]).all()
    assert (first.embeddings.shape, second.embeddings.shape) == ((3, 32), (2, 32))
    assert first.embeddings.dtype == np.float16


def test_the_embedder_is_as_it_is_asked_for(model, monkeypatch):
    asked, limits, budgets = [], [], []

    def embed(model, images, features, layer):
        asked.append((features, layer))
        return images.mean((1, 2))

    monkeypatch.setattr(type(model), "embed", embed)
    monkeypatch.setattr(command, "make_transform", lambda model, gib: limits.append(gib))
    monkeypatch.setattr(command, "Budget", budgets.append)
    default = command.Embedder(model)
    other = command.Embedder(model, "patches", 1, dtype="float16", batch_size=9, max_image_gib=0.5)
    assert {*asked} == {("pre_logits", None), ("patches", 1)}
    assert (default.batch_size, default.dtype, default.shape) == (8 * 32, np.float32, (3,))
    assert (other.batch_size, other.dtype) == (16, np.float16)
    assert limits == [command.MAX_IMAGE_GIB, 0.5]
    assert budgets == [int(command.MAX_IMAGE_GIB * 2**30), 2**29]


def test_pixels_of_twelve_bits_reach_the_model_uncut(model, tmp_path):
    values = np.linspace(0, 4095, 256).astype(np.uint16).reshape(16, 16)
    Image.fromarray(values).save(tmp_path / "x.png")
    deep, seen = copy.copy(model), []
    deep.preprocessing = Preprocessing(bit_depth=12, dtype="float32")
    embedder = command.Embedder(deep)
    embedder.function = lambda params, images: seen.append(images) or np.zeros((len(images), 32))
    list(embedder.parts([str(tmp_path / "x.png")], 1))
    np.testing.assert_allclose(seen[0][0, ..., 0], values / 4095 * 255, atol=1e-2)
    assert not np.any(seen[0][1:])


def parts_of(shape, dtype):
    values = np.arange(3 * np.prod(shape)).reshape(3, *shape).astype(dtype)
    values[1] = np.nan
    errors = np.array(["", "torn", ""])
    return values, iter(
        [command.Part(values[:2], errors[:2]), command.Part(values[2:], errors[2:])]
    )


def test_files_are_whole_whatever_names_have(tmp_path):
    paths, shape = ["=a.png", "b\udcff.png", "c.png"], (2, 3)
    values, parts = parts_of(shape, np.float16)
    command.write_parquet(f"{tmp_path}/x.parquet", parts, paths, shape, "float16")
    table = parquet.read_table(tmp_path / "x.parquet")
    assert table.schema.field("embedding").metadata == {b"shape": b"2,3"}
    assert str(table.schema.field("embedding").type.value_type) == "halffloat"
    assert table.column("path").to_pylist() == ["=a.png", "b?.png", "c.png"]
    assert table.column("error").to_pylist() == [None, "torn", None]
    assert table.column("embedding").to_pylist() == [
        *(values[0].ravel().tolist(), None, values[2].ravel().tolist())
    ]
    values, parts = parts_of(shape, np.float32)
    command.write_npy(f"{tmp_path}/x.npy", parts, paths, shape, "float32")
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), values)
    text = (tmp_path / "x.csv").read_bytes()
    assert text == b"path,error\n'=a.png,\nb\xff.png,torn\nc.png,\n"


def test_flags_are_the_embedders(model_path, pictures, monkeypatch):
    given = []

    def embedder(model, *arguments, **options):
        given.append((arguments, options))
        raise ConfigError("enough")

    monkeypatch.setattr(command, "Embedder", embedder)
    flags = ["--features=patches", "--layer=1", "--dtype=float16", "--batch_size=3"]
    arguments = [model_path, str(pictures), "--output=x.npy"]
    assert command.main([*arguments, *flags, "--max_image_gib=0.5"]) == 2
    assert command.main(arguments) == 2
    limits = [options.pop("max_image_gib") for _, options in given]
    assert limits == [0.5, command.MAX_IMAGE_GIB]
    assert given == [
        (("patches", 1), {"dtype": "float16", "batch_size": 3}),
        (("pre_logits", None), {"dtype": "float32", "batch_size": None}),
    ]


def test_where_nothing_can_be_read_the_code_is_2(model_path, pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(command, "PART_BYTES", 1)  # A part has a row at least.
    output = tmp_path / "out.NPY"
    assert command.main([model_path, str(pictures / "2.png"), f"--output={output}"]) == 2
    assert np.isnan(np.load(output)).all()
    assert (tmp_path / "out.csv").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--output=out.txt"], "^--output=out.txt: name a file that ends in .npy or .parquet"),
        ([], "required: --output"),
        (["--output=x.npy", "--dtype=float64"], "--dtype: invalid choice: 'float64'"),
        (["--output=x.npy", "--features=cls"], "--features: invalid choice: 'cls'"),
        (["--output=x.npy", "--layer=last"], "--layer: invalid int value: 'last'"),
        (["--output=x.npy", "--batch_size=0"], "--batch_size: '0' is not a whole number"),
        (["--output=x.npy", "--max_image_gib=0"], "--max_image_gib: '0' is not a number above"),
    ],
)
def test_a_command_line_that_is_not_understood(flags, message):
    with pytest.raises(ConfigError, match=message):
        command.parse_flags(["model", ".", *flags])
