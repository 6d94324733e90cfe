"""Hugging Face's `preprocessor_config.json`, against the library's definition of its keys."""

import dataclasses
import json
import shutil

import numpy as np
import pytest

import vit_jax
from tests.published import GOLDEN
from vit_jax.errors import WeightsError
from vit_jax.model_file import Preprocessing
from vit_jax.models import model_options
from vit_jax.weights import preprocessor

SIZE = (32, 32)
CROP = {"do_center_crop": True, "crop_size": {"height": 32, "width": 32}}


def pixels(preprocessing, x):
    """[0, 255] as the model sees it."""
    return (x / 255 - np.array(preprocessing.mean)) / np.array(preprocessing.std)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]},
        {"image_mean": 0.25, "image_std": 0.75},
        {"do_normalize": False},
        {"do_rescale": False, "image_mean": [123.7, 116.3, 103.5], "image_std": [58.4, 57.1, 57.4]},
        {"do_rescale": False, "do_normalize": False},
        {"rescale_factor": 1 / 127.5, "image_mean": [1.0], "image_std": [1.0]},
        {"rescale_factor": 0.003921568627450980},
    ],
)
def test_pixels_are_scaled_and_normalised_as_the_library_does(config):
    found, remarks = preprocessor.read(config, SIZE)
    x = np.arange(0, 256, 5.0)[:, None] * np.ones(3)
    expected = x
    if config.get("do_rescale", True):
        expected = expected * config.get("rescale_factor", 1 / 255)
    if config.get("do_normalize", True):
        mean, std = config.get("image_mean", 0.5), config.get("image_std", 0.5)
        expected = (expected - np.array(mean)) / np.array(std)
    np.testing.assert_allclose(pixels(found, x), expected, rtol=1e-6, atol=1e-7)
    assert remarks == []


@pytest.mark.parametrize(
    ("config", "crop", "resize", "remark"),
    [
        ({}, "resize", 256, ""),
        ({"size": 32}, "resize", 256, ""),
        ({"size": {"height": 32, "width": 32}}, "resize", 256, ""),
        ({"size": {"height": 32, "width": 32}, **CROP}, "resize", 256, ""),
        ({"size": {"shortest_edge": 36}, **CROP}, "center", 36, ""),
        ({"size": {"shortest_edge": 36}, "do_center_crop": True}, "center", 36, ""),
        ({"size": 36, **CROP}, "center", 36, "resizes the whole picture to (36, 36) before"),
        (
            {"size": {"height": 40, "width": 36}, **CROP},
            "center",
            36,
            "resizes the whole picture to",
        ),
        ({"size": {"height": 48, "width": 48}}, "resize", 256, "pictures of (48, 48); the model"),
        (
            {"size": {"shortest_edge": 36}, "do_center_crop": True, "crop_size": 24},
            *("center", 36, "pictures of (24, 24); the model is for (32, 32)"),
        ),
        ({"size": {"shortest_edge": 32}}, "center", 32, ""),
    ],
)
def test_sizes_and_crops(config, crop, resize, remark):
    found, remarks = preprocessor.read(config, SIZE)
    assert (found.crop, found.resize) == (crop, resize)
    assert len(remarks) == bool(remark)
    assert remark in " ".join(remarks)


@pytest.mark.parametrize(
    ("resample", "interpolation", "remark"),
    [
        (None, "bilinear", ""),
        (2, "bilinear", ""),
        (3, "bicubic", ""),
        (1, "bicubic", "resizes by lanczos, this package by bicubic"),
        (4, "area", "resizes by box, this package by area"),
        (0, "bilinear", "resizes by nearest, this package by bilinear"),
        (5, "bilinear", "resizes by hamming, this package by bilinear"),
    ],
)
def test_interpolations(resample, interpolation, remark):
    config = {} if resample is None else {"resample": resample}
    found, remarks = preprocessor.read(config, SIZE)
    assert found.interpolation == interpolation
    assert " ".join(remarks).endswith(remark)
    assert len(remarks) == bool(remark)


@pytest.mark.parametrize(
    "preprocessing",
    [
        Preprocessing(),
        Preprocessing((0.485, 0.456, 0.406), (0.229, 0.224, 0.225), interpolation="bicubic"),
        Preprocessing((0.3,), (0.6,), "center", 36, "area"),
    ],
)
def test_what_is_written_is_read_back(preprocessing, tmp_path):
    model = vit_jax.load_model(GOLDEN / "hf_gelu")
    vit_jax.save_model(model, tmp_path / "out", "huggingface", preprocessing=preprocessing)
    found = vit_jax.load_model(tmp_path / "out").preprocessing
    mean, std = (np.broadcast_to(values, 3) for values in (preprocessing.mean, preprocessing.std))
    assert (found.mean, found.std) == (tuple(mean), tuple(std))
    for field in ("crop", "resize", "interpolation"):
        assert getattr(found, field) == getattr(preprocessing, field)


def test_a_file_of_the_wrong_kind_is_named_and_remarks_are_printed(tmp_path, caplog):
    folder = shutil.copytree(GOLDEN / "hf_gelu", tmp_path / "folder")
    place = folder / "preprocessor_config.json"
    place.write_text(json.dumps({"resample": 1}))
    vit_jax.load_model(folder)
    assert "Note: preprocessor_config.json resizes by lanczos" in caplog.text
    for content in ({"resample": 9}, {"image_std": [0, 0, 0]}, {"size": {"longest_edge": 9}}):
        place.write_text(json.dumps(content))
        with pytest.raises(WeightsError, match=r"folder: .*preprocessor_config\.json"):
            vit_jax.load_model(folder)


def test_one_value_for_each_channel_or_their_average(tmp_path, caplog):
    folder = shutil.copytree(GOLDEN / "hf_gelu", tmp_path / "folder")
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.2, 0.4]}))
    assert vit_jax.load_model(folder).preprocessing.mean == pytest.approx((0.3,))
    assert "Note: the pixels' mean and deviation are averages" in caplog.text


def test_rectangles():
    """Heights come first, and the smaller side is the one that a crop is cut from."""
    size = {"height": 24, "width": 32}
    found, remarks = preprocessor.read({"size": size}, (24, 32))
    assert (found.crop, remarks) == ("resize", [])
    assert found.rounding == "huggingface"
    _, (remark,) = preprocessor.read({"size": size}, (32, 24))
    assert "makes pictures of (24, 32); the model is for (32, 24)" in remark
    crop = {"size": {"height": 40, "width": 36}, "do_center_crop": True, "crop_size": size}
    found, _ = preprocessor.read(crop, (24, 32))
    assert (found.crop, found.resize) == ("center", 36)


@pytest.mark.parametrize(
    ("interpolation", "number"), [("bilinear", 2), ("bicubic", 3), ("area", 4)]
)
def test_every_key_is_written(interpolation, number):
    options = model_options("ViT-Ti/16", image_size=(32, 64), channels=2)
    whole = Preprocessing((0.1, 0.2), (0.3,), interpolation=interpolation)
    size = {"height": 32, "width": 64}
    written = {
        **{"do_resize": True, "do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True},
        **{"resample": number, "image_mean": (0.1, 0.2), "image_std": (0.3, 0.3)},
        **{"image_processor_type": "ViTImageProcessor", "size": size},
    }
    assert preprocessor.write(options, whole) == written
    centre = dataclasses.replace(whole, crop="center", resize=36)
    assert preprocessor.write(options, centre) == {
        **written,
        **{"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 36}},
        **{"do_center_crop": True, "crop_size": size},
    }
