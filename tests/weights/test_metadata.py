"""What stands beside tensors: when it is used, and what is said of pictures that others see otherwise."""

import json

import pytest

from vit_jax.errors import ConfigError, WeightsError
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.weights.metadata import (
    is_owned,
    is_used,
    ordered_names,
    per_channel,
    read_entries,
    read_json,
    resize_remark,
    sidecar_of,
    translating,
    write_entry,
)


@pytest.mark.parametrize(
    ("preprocessing", "words"),
    [
        (Preprocessing(), ""),
        (Preprocessing(crop="center", rounding="torchvision"), ""),
        (Preprocessing(crop="center", rounding="huggingface"), "round the sides"),
        (Preprocessing(crop="center"), "round the sides"),
        (Preprocessing(rounding="huggingface"), ""),  # Without a crop nothing is rounded.
        (Preprocessing(antialias=False), "without antialiasing, which THEY cannot do"),
        (Preprocessing(antialias=False, crop="center"), "without antialiasing"),
        (Preprocessing(interpolation="area", antialias=False), "by area; THEY take a box filter"),
        (Preprocessing(interpolation="area"), "by area; THEY"),
    ],
)
def test_what_the_users_of_a_library_see_otherwise(preprocessing, words):
    found = resize_remark(preprocessing, "THEY", "torchvision")
    assert words in found
    assert bool(found) == bool(words)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["b", "a"], ("b", "a")),
        (("b", 1), ("b", "1")),
        ({"1": "one", "0": "zero", 10: "ten", **{str(n): str(n) for n in range(2, 10)}}, None),
        ({}, ()),
    ],
)
def test_names_in_order(names, expected):
    if expected is None:
        expected = ("zero", "one", *map(str, range(2, 10)), "ten")
    assert ordered_names(names) == expected


@pytest.mark.parametrize("names", [{"0": "a", "2": "c"}, {"1": "a"}, {"-1": "a"}])
def test_classes_are_numbered_from_0_without_gaps(names):
    with pytest.raises(ValueError, match="it does not number its classes from 0 without gaps"):
        ordered_names(names)


@pytest.mark.parametrize("names", ["abc", 3, None])
def test_names_of_classes_are_a_list_or_a_mapping(names):
    with pytest.raises(ValueError, match=f"^{names!r} are no class names$"):
        ordered_names(names)


def test_one_value_for_each_channel():
    found = [per_channel((1.0,), 1), per_channel((1.0,), 3), per_channel((1.0, 2.0), 2)]
    assert found == [(1.0,), (1.0, 1.0, 1.0), (1.0, 2.0)]


@pytest.mark.parametrize(
    ("beside", "owned"), [("checkpoints", True), ("params.safetensors", True), ("x.npz", False)]
)
def test_whose_a_description_is(beside, owned, tmp_path):
    (tmp_path / beside).write_text("")
    assert is_owned(tmp_path / "model.json") == owned
    assert not is_owned(tmp_path / "other.json")


def test_what_is_used_and_what_is_only_there(tmp_path, caplog):
    file = tmp_path / "a.json"
    assert not is_used(file, "key")
    assert not caplog.text
    file.write_text('{"other": 1}')
    assert not is_used(file, "key")
    assert caplog.messages == [f"{file} is not used: it does not describe the weights beside it."]
    file.write_text('{"key": 0}')
    assert is_used(file, "key")


def test_json_that_is_none(tmp_path):
    file = tmp_path / "a.json"
    with pytest.raises(WeightsError, match=r"a\.json is missing\."):
        read_json(file)
    with pytest.raises(WeightsError, match="cannot be read: Is a directory"):
        read_json(tmp_path)
    for content, words in (("{", "is not JSON"), ("[1]", "is not a JSON object")):
        file.write_text(content)
        with pytest.raises(WeightsError, match=f"a.json {words}"):
            read_json(file)


@pytest.mark.parametrize(
    "error",
    [
        *(KeyError("k"), IndexError("i"), TypeError("t"), ValueError(), AttributeError("a")),
        *(ZeroDivisionError(), OverflowError()),
    ],
)
def test_values_of_the_wrong_kind(error):
    with (
        pytest.raises(WeightsError, match="FILE has a value of the wrong kind"),
        translating("FILE"),
    ):
        raise error


def test_a_mistake_keeps_its_words():
    with pytest.raises(WeightsError, match=r"^FILE: width\.$"), translating("FILE"):
        raise ConfigError("width.")
    with pytest.raises(WeightsError, match=r"^as it is$"), translating("FILE"):
        raise WeightsError("as it is")


def test_paths_and_entries():
    paths = ["a/b.npz", "a/b.c.npz", "a/b.stablehlo", "b"]
    sidecars = ["a/b.json", "a/b.c.json", "a/b.stablehlo.json", "b.json"]
    assert [str(sidecar_of(path)) for path in paths] == sidecars
    file = ModelFile("ViT-B/16", {"width": 24}, class_names=("b", "a"), loss="huber")
    entry = write_entry(file)
    assert "\n" not in entry
    assert json.loads(entry)["class_names"] == ["b", "a"]
    assert read_entries({"vit_jax": entry}) == file
    assert read_entries({"format": "pt"}) is None
    with pytest.raises(WeightsError, match="its metadata is damaged"):
        read_entries({"vit_jax": "{"})
