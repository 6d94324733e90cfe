"""`model.json` is written whole and read back equal."""

import dataclasses
import json
import math

import pytest

from vit_jax.errors import CheckpointError, ConfigError
from vit_jax.model_file import (
    ModelFile,
    Preprocessing,
    is_value_range,
    read_model_file,
    write_model_file,
)
from vit_jax.models import registry
from vit_jax.storage import write_json

OPTIONS = dataclasses.asdict(
    registry.model_options("ViT-B/16", image_size=(64, 32), patch_size=(16, 8), num_classes=3)
)


@pytest.mark.parametrize(
    "model_file",
    [
        ModelFile("ViT-B/16", OPTIONS),
        ModelFile(
            "ViT-B/16",
            OPTIONS,
            Preprocessing((0.485, 0.456, 0.406), (0.2, 0.2, 0.2), "center", 248, "bicubic", False),
            ("élève", "cat, dog", ""),
            "sigmoid",
        ),
        ModelFile("BiT-R50x1", dataclasses.asdict(registry.model_options("BiT-R50x1"))),
    ],
)
def test_a_model_file_comes_back_equal(tmp_path, model_file):
    write_model_file(tmp_path, model_file)
    found = read_model_file(tmp_path)
    assert found == model_file
    # Complete: the same options result.
    assert dataclasses.asdict(registry.model_options(found.name, **found.options)) == found.options
    assert [path.name for path in tmp_path.iterdir()] == ["model.json"]


def test_a_new_file_replaces_the_old_one(tmp_path):
    for name in ("ViT-B/16", "ViT-S/16"):
        write_model_file(str(tmp_path), ModelFile(name, OPTIONS))
    assert read_model_file(str(tmp_path)).name == "ViT-S/16"


def test_a_missing_file_is_named(tmp_path):
    (tmp_path / "weights.npz").write_text("")
    for directory in (tmp_path, tmp_path / "nothing", tmp_path / "weights.npz"):
        said = rf"^{directory}/model\.json is missing: {directory} is not a run's workdir\.$"
        with pytest.raises(CheckpointError, match=said):
            read_model_file(directory)


@pytest.fixture
def content(tmp_path):
    write_model_file(tmp_path, ModelFile("ViT-B/16", OPTIONS))
    return json.loads((tmp_path / "model.json").read_text())


def test_a_file_that_does_not_say_the_loss(tmp_path, content):
    del content["loss"]  # As before it was recorded.
    (tmp_path / "model.json").write_text(json.dumps(content))
    assert read_model_file(tmp_path).loss == "softmax"


def test_a_newer_format_is_refused(tmp_path, content):
    (tmp_path / "model.json").write_text(json.dumps({**content, "format_version": 2}))
    with pytest.raises(CheckpointError, match=r"format version 2.*up to 1: upgrade"):
        read_model_file(tmp_path)


@pytest.mark.parametrize("removed", ["format_version", "model", "preprocessing", "class_names"])
def test_an_incomplete_file_is_named(tmp_path, content, removed):
    del content[removed]
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=rf"model\.json is damaged.*{removed}"):
        read_model_file(tmp_path)


NESTED, BINARY = "[" * 9999, "\udcff"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '"ViT"', '{"format_version": 1, "model": []}', NESTED, BINARY]
)
def test_a_damaged_file_is_named(tmp_path, text):
    (tmp_path / "model.json").write_text(text, errors="surrogateescape")
    with pytest.raises(CheckpointError, match=r"model\.json is damaged"):
        read_model_file(tmp_path)


def test_what_is_no_file_is_named(tmp_path):
    (tmp_path / "model.json").mkdir()
    with pytest.raises(CheckpointError, match=r"model\.json cannot be read: Is a directory"):
        read_model_file(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mean": ()}, "mean=.*must be numbers"),
        ({"mean": (float("nan"),)}, "mean=.*must be numbers"),
        ({"std": (0.5, 0.0, 0.5)}, "std=.*must be positive numbers"),
        ({"std": ("0.5",)}, "std=.*must be positive numbers"),
        ({"resize": 0}, "resize=0: must be a positive integer"),
        ({"crop": "centre"}, "crop='centre': must be one of resize, center"),
        ({"interpolation": "nearest"}, "must be one of bilinear, bicubic"),
    ],
)
def test_impossible_preprocessing_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        Preprocessing(**values)


def test_a_mean_for_each_channel_or_their_average():
    rgb = Preprocessing(mean=(0.4, 0.5, 0.6), std=(0.1, 0.2, 0.3), resize=7)
    assert rgb.for_channels(3) == rgb
    gray = rgb.for_channels(1)
    assert (gray.mean, gray.std, gray.resize) == (pytest.approx((0.5,)), pytest.approx((0.2,)), 7)
    assert Preprocessing().for_channels(5) == Preprocessing()


def test_json_is_always_valid(tmp_path):
    content = {"a": [math.nan, 1.5, {"b": (math.inf, -math.inf)}], "c": True}
    write_json(tmp_path / "x.json", content)
    found = json.loads((tmp_path / "x.json").read_text(), parse_constant=pytest.fail)
    assert found == {"a": [None, 1.5, {"b": [None, None]}], "c": True}


@pytest.mark.parametrize("content", [None, b"", b"{}"])
def test_a_run_without_its_file_is_told_where_to_get_another(tmp_path, content):
    if content is not None:
        (tmp_path / "model.json").write_bytes(content)
    with pytest.raises(CheckpointError) as error:
        read_model_file(tmp_path)
    assert "has checkpoints" not in str(error.value)
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(
        CheckpointError, match="at its start in another --workdir: copy it"
    ) as error:
        read_model_file(tmp_path)
    assert "not a run's workdir" not in str(error.value)


def test_the_defaults_of_preprocessing():
    """Files of earlier versions do not say all: a default that changes makes theirs others."""
    assert dataclasses.asdict(Preprocessing()) == {
        **{"mean": (0.5,), "std": (0.5,), "crop": "resize", "resize": 256, "antialias": True},
        **{"interpolation": "bilinear", "bit_depth": 16, "value_range": (), "dtype": "uint8"},
        "rounding": "nearest",
    }
    assert Preprocessing().at_side(112) == Preprocessing(resize=128)
    assert Preprocessing(resize=33).at_side(3, 2) == Preprocessing(resize=50)  # 49.5
    assert Preprocessing(resize=35).at_side(33, 32).resize == 36  # 36.09


@pytest.mark.parametrize("value", [(), (0, 1), [-1.5, 2], (0.0, 4095.0)])
def test_ranges_of_values(value):
    assert is_value_range(value)


@pytest.mark.parametrize(
    "value", [(1,), (1, 1), (2, 1), (0, 1, 2), (0, math.inf), (0, "1"), "01", None, (0, True), 3]
)
def test_what_is_no_range(value):
    assert not is_value_range(value)
    with pytest.raises(ConfigError, match=r"value_range=.*must be \(lowest, highest\)"):
        Preprocessing(value_range=value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bit_depth": 7}, "bit_depth=7: must be from 8 to 16"),
        ({"bit_depth": 17}, "bit_depth=17"),
        ({"mean": (math.inf,)}, "mean=.*: must be numbers"),
        ({"std": (math.inf,)}, "std=.*: must be positive numbers"),
        ({"std": ()}, "std=.*: must be positive numbers"),
        ({"resize": 1.5}, "resize=1.5: must be a positive integer"),
        ({"dtype": "float16"}, "dtype='float16': must be one of uint8, float32"),
        ({"rounding": "down"}, "must be one of nearest, torchvision, huggingface"),
    ],
)
def test_more_that_is_impossible(values, message):
    with pytest.raises(ConfigError, match=message):
        Preprocessing(**values)


def test_the_edges_of_what_is_possible():
    for values in ({"bit_depth": 8}, {"bit_depth": 16}, {"resize": 1}, {"mean": (0, -3)}):
        Preprocessing(**values, std=(1e-9,))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": 1, "size": 2}, "the key 'colour' is not known: a newer vit_jax wrote it"),
        ({"loss": 3}, "names must be texts"),
        ({"class_names": "ab"}, "names must be texts"),
        ({"class_names": ["a", 1]}, "names must be texts"),
    ],
)
def test_what_a_newer_version_may_have_added(tmp_path, content, changes, message):
    (tmp_path / "model.json").write_text(json.dumps({**content, **changes}))
    with pytest.raises(CheckpointError, match=message):
        read_model_file(tmp_path)
