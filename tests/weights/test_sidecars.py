"""What travels beside a file: under which name, and what a file of another kind does there."""

import json

import numpy as np
import pytest

import vit_jax
from tests.published import GOLDEN, golden, parameters, random_model, write_npz
from vit_jax.errors import WeightsError

TINY = {"width": 32, "depth": 1, "mlp_width": 32, "num_heads": 2, "image_size": 16}


@pytest.fixture
def path(tmp_path):
    return write_npz(tmp_path / "in.npz", golden("vit_token")["params"])


def test_each_file_has_a_sidecar_of_its_own(path, tmp_path):
    """Names with dots, and two formats of one name."""
    erf, tanh = vit_jax.load_model(path, gelu="erf"), vit_jax.load_model(path)
    names = ("a.b.npz", "a.c.npz", "a.npz")
    for index, name in enumerate(names):
        vit_jax.save_model(tanh if index % 2 else erf, tmp_path / name)
    sidecars = {"a.b.json", "a.c.json", "a.json"}
    assert {place.name for place in tmp_path.glob("*.json")} == sidecars
    for name in ("a.b.npz", "a.c.npz", "a.npz"):
        expected = "tanh" if name == "a.c.npz" else "erf"
        assert vit_jax.load_model(tmp_path / name).options.gelu == expected
    small = random_model("ViT-Ti/16", num_classes=3, **TINY)
    vit_jax.save_model(small, tmp_path / "a.stablehlo", "stablehlo")
    assert json.loads((tmp_path / "a.stablehlo.json").read_text())["model"]["width"] == 32
    assert vit_jax.load_model(tmp_path / "a.npz").options.gelu == "erf"


@pytest.mark.parametrize(
    "text", ["[1, 2]", "5", "{}", '{"classes": ["cat"]}', "{", "\x00", "[" * 9999]
)
def test_other_json_beside_a_published_file_is_not_used(path, text, caplog):
    path.with_suffix(".json").write_text(text)
    assert vit_jax.load_model(path).options.gelu == "tanh"
    assert "in.json is not used" in caplog.text


def test_other_json_beside_a_timm_file_is_not_used(tmp_path, caplog):
    (tmp_path / "model.safetensors").write_bytes((GOLDEN / "timm_token.safetensors").read_bytes())
    for text in ("[]", "{}", "{"):
        (tmp_path / "config.json").write_text(text)
        assert vit_jax.load_model(tmp_path, num_heads=2).options.gelu == "erf"
        assert "config.json is not used" in caplog.text
        caplog.clear()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "ViT-Ti/16", "colour": "red"}}, "colour='red', which a ViT does not"),
        ({"model": {"name": "ViT-Ti/16", "stage_depths": [3]}}, "stage_depths"),
        ({"model": {"name": "Mixer-B/16"}}, "describes a Mixer-B/16, but its tensors are a ViT's"),
        ({"model": {"name": "ViT-Q/16"}}, "model.name='ViT-Q/16' is unknown"),
        ({"model": {"name": 7}}, "in.json is damaged: .*names must be texts"),
        ({"model": {"name": "ViT-Ti/16", "num_heads": -2}}, "num_heads=-2, but its tensors have 2"),
        ({"model": {"name": "ViT-Ti/16", "prefix_positions": "no"}}, "must be true or false"),
        ({"model": {"name": "ViT-Ti/16", "positions": "sincos_2d"}}, "tensors have 'learned_1d'"),
        ({"class_names": "abcdefghij"}, "in.json is damaged: .*names must be texts"),
        ({"preprocessing": {"std": [0.0]}}, r"std=\(0.0,\): must be positive numbers"),
        ({"preprocessing": {"crop": "middle"}}, "crop='middle': must be one of resize, center"),
        ({"format_version": 9}, "in.json has format version 9, written by a newer"),
        ({"format_version": "1"}, "in.json is damaged"),
    ],
)
def test_a_description_that_cannot_be_is_one_message(path, changes, message):
    content = {
        "format_version": 1,
        "model": {"name": "ViT-Ti/16"},
        "preprocessing": {},
        "class_names": [],
    }
    path.with_suffix(".json").write_text(json.dumps({**content, **changes}))
    with pytest.raises(WeightsError, match=rf"^{path}: .*{message}"):
        vit_jax.load_model(path)


def test_other_peoples_files_are_not_overwritten(path, tmp_path):
    model = vit_jax.load_model(path)
    for name, sidecar in (("out.npz", "out.json"), ("out.stablehlo", "out.stablehlo.json")):
        (tmp_path / sidecar).write_text('{"my": "notes"}')
        with pytest.raises(WeightsError, match=rf"{sidecar} belongs to something else"):
            vit_jax.save_model(model, tmp_path / name)
    assert (tmp_path / "out.json").read_text() == '{"my": "notes"}'
    assert not (tmp_path / "out.npz").exists()


def test_an_export_and_a_published_file_do_not_share_a_description(path, tmp_path):
    """Both would call it `model.json`."""
    erf, tanh = vit_jax.load_model(path, gelu="erf"), vit_jax.load_model(path)
    vit_jax.save_model(erf, tmp_path / "export", "vit_jax")
    with pytest.raises(WeightsError, match=r"export/model\.json belongs to something else"):
        vit_jax.save_model(tanh, tmp_path / "export/model.npz")
    vit_jax.save_model(erf, tmp_path / "export/other.npz")
    vit_jax.save_model(erf, tmp_path / "plain/model.npz")
    with pytest.raises(WeightsError, match=r"plain/model\.json describes model\.npz"):
        vit_jax.save_model(tanh, tmp_path / "plain", "vit_jax")
    assert vit_jax.load_model(tmp_path / "export").options.gelu == "erf"
    assert vit_jax.load_model(tmp_path / "plain/model.npz").options.gelu == "erf"


@pytest.mark.parametrize(
    ("format", "place"),
    [("npz", "out.npz"), ("timm", "out.safetensors"), ("timm", "out"), ("vit_jax", "out")],
)
def test_a_model_keeps_the_name_that_it_was_built_with(format, place, tmp_path):
    model = vit_jax.create_model("ViT-B/16", num_classes=3, **TINY)
    vit_jax.save_model(model, tmp_path / place, format)
    loaded = vit_jax.load_model(tmp_path / place)
    assert (loaded.name, loaded.options) == ("ViT-B/16", model.options)
    vit_jax.save_model(loaded, tmp_path / "again", "vit_jax", trunk_only=True)
    content = json.loads((tmp_path / "again/model.json").read_text())
    assert content["model"]["name"] == "ViT-B/16"
    np.testing.assert_array_equal(
        parameters(loaded)["embedding/kernel"], parameters(model)["embedding/kernel"]
    )
