"""Exports are whole or not there, and nothing that was there before is lost."""

import os

import numpy as np
import pytest

import vit_jax
from tests.published import random_model
from vit_jax.errors import WeightsError
from vit_jax.weights.files import text, write_files

TINY = {"width": 32, "depth": 1, "mlp_width": 32, "num_heads": 2, "image_size": 16}
FORMATS = {
    "npz": "new/folder/out.npz",
    "timm": "new/folder/out.safetensors",
    "huggingface": "new/folder/out",
    "vit_jax": "new/folder/out",
    "stablehlo": "new/folder/out.stablehlo",
}


def contents(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def model():
    return random_model("ViT-Ti/16", num_classes=3, **TINY)


@pytest.mark.parametrize("format", FORMATS)
def test_folders_are_made_and_old_files_replaced(model, format, tmp_path):
    path = tmp_path / FORMATS[format]
    vit_jax.save_model(model, path, format)
    first = contents(tmp_path)
    assert first
    assert not any(name.endswith(".tmp") for name in first)
    vit_jax.save_model(model, path, format)
    assert contents(tmp_path).keys() == first.keys()


@pytest.mark.parametrize("format", ["npz", "huggingface"])
def test_a_failed_export_leaves_the_former_one_whole(model, format, tmp_path, monkeypatch):
    path = tmp_path / FORMATS[format]
    vit_jax.save_model(model, path, format)
    before = contents(tmp_path)

    def full_disk(*arguments, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", full_disk)
    monkeypatch.setattr("pathlib.Path.write_text", full_disk)
    other = random_model("ViT-Ti/16", num_classes=4, **TINY)
    with pytest.raises(WeightsError, match=r"out.* cannot be written: No space left on device"):
        vit_jax.save_model(other, path, format)
    assert contents(tmp_path) == before


def test_an_interrupted_export_leaves_nothing(tmp_path):
    def interrupted(path):
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_files({tmp_path / "a": text("whole"), tmp_path / "b": interrupted})
    assert contents(tmp_path) == {}


def test_places_that_cannot_be_written_are_named(model, tmp_path):
    (tmp_path / "taken.npz").mkdir()
    with pytest.raises(WeightsError, match=r"taken\.npz is a folder: name a file"):
        vit_jax.save_model(model, tmp_path / "taken.npz")
    (tmp_path / "file").write_text("mine")
    for format, name in (("npz", "out.npz"), ("huggingface", "out")):
        with pytest.raises(WeightsError, match=r"file/out.* cannot be written: "):
            vit_jax.save_model(model, tmp_path / "file" / name, format)
    os.mkfifo(tmp_path / "pipe.npz")  # as unlike a file as /dev/null
    with pytest.raises(WeightsError, match=r"pipe\.npz is no regular file: name a file"):
        vit_jax.save_model(model, tmp_path / "pipe.npz")
    assert (tmp_path / "pipe.npz").is_fifo()
    (tmp_path / "out.json").mkdir()
    with pytest.raises(WeightsError, match=r"out\.json"):
        vit_jax.save_model(model, tmp_path / "out.npz")
    assert contents(tmp_path) == {"file": b"mine"}


@pytest.mark.parametrize("name", ["m.onnx", "x.bin", "x.pth", "x.json", "out", "v1.0"])
def test_without_a_format_the_name_must_tell_it(model, name, tmp_path):
    with pytest.raises(WeightsError, match=rf"{name}: the format follows from a name that ends in"):
        vit_jax.save_model(model, tmp_path / name)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", ["m.onnx", "x.bin", "x.NPZ", "x.stablehlo", "x.safetensors"])
def test_a_name_that_contradicts_the_format(model, name, format, tmp_path):
    fits = {"npz": ".npz", "stablehlo": ".stablehlo", "timm": ".safetensors"}.get(format)
    if name.lower().endswith(fits or "/"):
        return
    with pytest.raises(WeightsError, match=f"{name}: {format} is written to .*: name it so"):
        vit_jax.save_model(model, tmp_path / name, format)
    assert contents(tmp_path) == {}


def test_the_format_follows_the_name(model, tmp_path):
    for name in ("a.npz", "B.NPZ", "a.safetensors"):
        vit_jax.save_model(model, tmp_path / name)
    np.load(tmp_path / "a.npz").close()
    assert vit_jax.load_model(tmp_path / "a.safetensors").options.width == model.options.width
    vit_jax.save_model(model, tmp_path / "v1.0", "vit_jax")  # A dot is no ending.


def test_a_link_is_followed(model, tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "out.safetensors").symlink_to(tmp_path / "disk/real.safetensors")
    vit_jax.save_model(model, tmp_path / "out.safetensors", "timm")
    assert (tmp_path / "out.safetensors").is_symlink()
    assert contents(tmp_path / "disk").keys() == {"real.safetensors"}
