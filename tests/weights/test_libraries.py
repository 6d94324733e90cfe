"""Exports in the hands of the real libraries; skipped where they are not installed."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy

import vit_jax
from tests.published import (
    GOLDEN,
    assert_same_tensors,
    golden,
    logits,
    random_model,
    write_npz,
)
from vit_jax.errors import WeightsError
from vit_jax.models.positions import num_offsets
from vit_jax.weights import timm_config
from vit_jax.weights.resampling import resize_bias

torch = pytest.importorskip("torch")
import safetensors.torch  # noqa: E402

TINY = {"width": 32, "depth": 2, "mlp_width": 96, "num_heads": 2, "patch_size": 8, "image_size": 32}
IMAGES = np.random.default_rng(0).uniform(-1, 1, (3, 32, 32, 3)).astype(np.float32)


def torch_logits(model, images):
    with torch.no_grad():
        outputs = model.eval()(torch.from_numpy(images.transpose(0, 3, 1, 2).copy()))
    return getattr(outputs, "logits", outputs).numpy()


def published_model(name, tmp_path):
    return vit_jax.load_model(write_npz(tmp_path / "in.npz", golden(name)["params"]))


FAMILIES = GOLDEN / "huggingface"
HUGGINGFACE_OPTIONS = (
    {"pooling": "average"},
    {"pooling": "average", "positions": "sincos_2d", "gelu": "erf"},
    {"distillation_token": True},
    {"num_registers": 1},
    {"layer_scale": 0.1},
    {"layer_scale": 0.1, "mlp": "swiglu", "mlp_width": 48},
    {"layer_scale": 0.1, "num_registers": 3, "prefix_positions": False},
)
TIMM_OPTIONS = {
    "token": {},
    "erf": {"gelu": "erf"},
    "average": {"pooling": "average"},
    "norm after": {"pooling": "average", "norm_after_pooling": True},
    "attention": {"pooling": "attention"},
    "average with class token": {"pooling": "average", "class_token": True},
    "registers": {"num_registers": 4},
    "distilled": {"distillation_token": True},
    "no prefix positions": {"prefix_positions": False, "num_registers": 2},
    "layer scale": {"layer_scale": 0.1, "query_key_norm": True},
    "fixed positions": {"positions": "sincos_2d"},
    "rectangle": {"image_size": (16, 48), "num_classes": 7, "channels": 5},
    "no head": {"num_classes": 0},
    "inner norms": {"attention_norm": True, "mlp_norm": True, "norm_epsilon": 1e-5},
    "relative bias": {
        "positions": "none",
        "relative_position_bias": "every_layer",
        "image_size": (16, 48),
        "gelu": "erf",
        "layer_scale": 0.1,
        "mlp_norm": True,
    },
    "shared relative bias": {
        "relative_position_bias": "every_layer_shared",
        "pooling": "average",
        "class_token": True,
        "norm_after_pooling": True,
        "gelu": "erf",
    },
    "rotary": {"positions": "rotary_2d", "gelu": "erf"},
    "rotary, gated": {
        "positions": "learned_1d_rotary_2d",
        "rotary_reference": 3,
        "gelu": "erf",
        "mlp": "swiglu",
        "pooling": "average",
        "norm_after_pooling": True,
        "prefix_positions": False,
        "layer_scale": 0.1,
        "num_registers": 2,
    },
    "rotary, centred": {
        "positions": "rotary_2d",
        "rotary_coordinates": "centred",
        "rotary_temperature": 100.0,
        "gelu": "erf",
        "mlp": "swiglu",
        "norm_epsilon": 1e-5,
        "image_size": (16, 48),
        "query_key_norm": True,
    },
}


@pytest.mark.parametrize("name", TIMM_OPTIONS)
def test_timm_creates_the_exported_model(name, tmp_path):
    timm = pytest.importorskip("timm")
    model = random_model("ViT-Ti/16", **{**TINY, **TIMM_OPTIONS[name]})
    vit_jax.save_model(model, tmp_path / "out", "timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)  # strict
    height, width = model.options.image_size
    images = np.random.default_rng(0).uniform(-1, 1, (2, height, width, model.options.channels))
    images = images.astype(np.float32)
    expected = logits(model, images)
    tolerance = 1e-5 * abs(expected).max()
    np.testing.assert_allclose(torch_logits(theirs, images), expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("grids", [((14, 14), (24, 24)), ((3, 4), (5, 6)), ((7, 4), (7, 9))])
def test_timm_resizes_relative_positions_so(grids):
    layers = pytest.importorskip("timm.layers")
    (old, new), heads = grids, 2
    old_length, length = (num_offsets(grid) + 3 for grid in grids)
    table = np.random.default_rng(0).normal(size=(old_length, heads)).astype(np.float32)
    resized = layers.resize_rel_pos_bias_table(torch.from_numpy(table), new, (length, heads), old)
    expected = resized.numpy()
    np.testing.assert_allclose(resize_bias(table, old, new, "geometric"), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["vit_token", "vit_gap", "bv_vit_map"])
def test_timm_computes_the_published_logits(name, tmp_path):
    timm = pytest.importorskip("timm")
    vit_jax.save_model(published_model(name, tmp_path), tmp_path / "out", "timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    expected = golden(name)
    np.testing.assert_allclose(
        torch_logits(theirs, expected["images"]), expected["logits"], rtol=0, atol=1e-5
    )


def test_a_model_that_timm_saved_is_loaded(tmp_path):
    timm = pytest.importorskip("timm")
    from timm.models import save_for_hf

    theirs = timm.create_model(
        "vit_tiny_patch16_224", img_size=32, embed_dim=32, num_heads=2, depth=2, num_classes=5
    )
    save_for_hf(theirs, tmp_path / "theirs", safe_serialization=True)
    model = vit_jax.load_model(tmp_path / "theirs")
    np.testing.assert_allclose(
        logits(model, IMAGES), torch_logits(theirs, IMAGES), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", ["vit_tiny_r_s16_p8_224", "vit_small_r26_s32_224"])
def test_hybrids_compute_with_timms_epsilons(name, tmp_path):
    timm = pytest.importorskip("timm")
    registered = {"vit_tiny_r_s16_p8_224": "R+ViT-Ti/16", "vit_small_r26_s32_224": "R26+ViT-S/32"}
    theirs = timm.create_model(name, num_classes=5, img_size=64)
    timm.models.save_for_hf(theirs, tmp_path / "theirs", safe_serialization=True)
    model = vit_jax.load_model(tmp_path / "theirs")
    vit_jax.save_model(model, tmp_path / "ours", "timm")
    content = (tmp_path / "ours/config.json").read_text()
    assert f'"architecture": "{name}"' in content
    assert model.options.stem_depths == vit_jax.models.model_options(registered[name]).stem_depths
    images = np.random.default_rng(0).uniform(-1, 1, (2, 64, 64, 3)).astype(np.float32)
    ours = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True)
    np.testing.assert_array_equal(torch_logits(ours, images), torch_logits(theirs, images))
    np.testing.assert_allclose(
        logits(model, images), torch_logits(theirs, images), rtol=0, atol=1e-4
    )


def test_the_table_of_architectures_is_timms():
    """Made by `tests/campaigns/timm_architectures.py`; another timm may need another table."""
    timm = pytest.importorskip("timm")
    from tests.campaigns.timm_architectures import rendered, table

    known = timm_config.known_architectures()
    if timm.__version__ != known["timm"]:
        pytest.skip(f"timm {timm.__version__} is installed, the table is of {known['timm']}")
    assert json.loads(rendered(*table())) == known


@pytest.mark.parametrize("name", ["mixer_s32_224", "resnetv2_50x1_bit"])
def test_mixers_and_bit_resnets_of_timm_are_loaded(name, tmp_path):
    timm = pytest.importorskip("timm")
    theirs = timm.create_model(name, num_classes=5)
    timm.models.save_for_hf(theirs, tmp_path / "theirs", safe_serialization=True)
    model = vit_jax.load_model(tmp_path / "theirs")
    height, width = model.options.image_size
    images = np.random.default_rng(0).uniform(-1, 1, (1, height, width, 3)).astype(np.float32)
    expected = torch_logits(theirs, images)
    np.testing.assert_allclose(logits(model, images), expected, rtol=0, atol=1e-4)
    vit_jax.save_model(model, tmp_path / "ours", "timm")
    ours = timm.create_model(f"local-dir:{tmp_path / 'ours'}", pretrained=True)
    np.testing.assert_array_equal(torch_logits(ours, images), expected)


@pytest.mark.parametrize("name", sorted(path.name for path in (GOLDEN / "timm").iterdir()))
def test_timm_reads_what_is_written_of_its_architectures(name, tmp_path):
    timm = pytest.importorskip("timm")
    model = vit_jax.load_model(GOLDEN / "timm" / name)
    vit_jax.save_model(model, tmp_path / "out", "timm")
    written = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    original = safetensors.numpy.load_file(GOLDEN / "timm" / name / "model.safetensors")
    if name != "eva_giant_patch14_224":  # It is written as a plain ViT.
        assert_same_tensors(written, original)
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    expected = golden(f"timm/{name}/expected")
    outputs = torch_logits(theirs, expected["images"])
    np.testing.assert_allclose(outputs, expected["logits"], rtol=0, atol=1e-5)


NESTED = {
    "plain": lambda tensors: tensors,
    "DDP": lambda tensors: {"model": {f"module.{k}": v for k, v in tensors.items()}, "epoch": 3},
    "torch.compile": lambda tensors: {f"_orig_mod.{k}": v for k, v in tensors.items()},
    "Lightning": lambda tensors: {
        "state_dict": {f"model.{k}": v for k, v in tensors.items()},
        "optimizer_states": [{"state": {0: {"exp_avg": torch.zeros(2)}}}],
    },
    "DINO": lambda tensors: {
        "student": {f"module.backbone.{k}": torch.zeros_like(v) for k, v in tensors.items()},
        "teacher": {f"backbone.{k}": v for k, v in tensors.items()},
    },
}


@pytest.mark.parametrize("kind", NESTED)
def test_the_line_that_converts_pickles_works(kind, tmp_path):
    tensors = safetensors.torch.load_file(GOLDEN / "timm_token.safetensors")
    torch.save(NESTED[kind](tensors), tmp_path / "in.pth")
    with pytest.raises(WeightsError, match="Convert it") as error:
        vit_jax.load_model(tmp_path / "in.pth")
    command = str(error.value).split("with torch installed: ")[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, shell=True, check=True, env=environment)
    model = vit_jax.load_model(tmp_path / "in.pth.safetensors", num_heads=2)
    expected = golden("timm_token")
    outputs = logits(model, expected["images"])
    np.testing.assert_allclose(outputs, expected["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["hf_gelu", "hf_gelu_pytorch_tanh"])
def test_transformers_loads_the_exported_folder(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    expected = golden(f"{name}/expected")
    vit_jax.save_model(vit_jax.load_model(GOLDEN / name), tmp_path / "out", "huggingface")
    theirs, info = transformers.ViTForImageClassification.from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info.values()), info
    assert theirs.config.id2label[3] == "cat"
    np.testing.assert_allclose(
        torch_logits(theirs, expected["images"]), expected["logits"], rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("name", sorted(path.name for path in FAMILIES.iterdir()))
def test_transformers_computes_the_same_from_what_is_written_back(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    from tests.campaigns.huggingface_names import outputs_of

    try:
        vit_jax.save_model(vit_jax.load_model(FAMILIES / name), tmp_path / "out", "huggingface")
    except WeightsError as error:
        pytest.skip(f"it is only read, or not at all: {error}")
    config = json.loads((tmp_path / "out/config.json").read_text())
    theirs, info = getattr(transformers, config["architectures"][0]).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    missing = {key for key in info["missing_keys"] if not key.startswith("pooler.")}
    assert [*missing, *info["unexpected_keys"], *info["mismatched_keys"]] == []
    expected = golden(f"huggingface/{name}/expected")
    with torch.no_grad():
        images = torch.from_numpy(expected["images"].transpose(0, 3, 1, 2).copy())
        outputs = outputs_of(theirs.eval(), images).numpy()
    if "ViTModel" in config["architectures"][0] and "pooler" in str(info["missing_keys"]):
        return  # Its pooler is fresh.
    np.testing.assert_allclose(outputs, expected["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("options", HUGGINGFACE_OPTIONS)
def test_transformers_loads_every_class(options, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = random_model("ViT-Ti/16", **{**TINY, "mlp_width": 64, "num_classes": 3, **options})
    vit_jax.save_model(model, tmp_path / "out", "huggingface")
    config = json.loads((tmp_path / "out/config.json").read_text())
    theirs, info = getattr(transformers, config["architectures"][0]).from_pretrained(
        tmp_path / "out", output_loading_info=True
    )
    assert not any(info.values()), info
    expected = logits(model, IMAGES)
    tolerance = 1e-5 * abs(expected).max()
    np.testing.assert_allclose(torch_logits(theirs, IMAGES), expected, rtol=0, atol=tolerance)
    loaded = vit_jax.load_model(tmp_path / "out")
    np.testing.assert_array_equal(logits(loaded, IMAGES), expected)


@pytest.mark.parametrize(
    "options", [{}, {"gelu": "erf", "prefix_positions": False}, {"image_size": (16, 48)}]
)
def test_transformers_computes_the_same_logits(options, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = random_model("ViT-Ti/16", **{**TINY, **options}, num_classes=3)
    vit_jax.save_model(model, tmp_path / "out", "huggingface")
    theirs = transformers.ViTForImageClassification.from_pretrained(tmp_path / "out")
    height, width = model.options.image_size
    images = np.random.default_rng(0).uniform(-1, 1, (2, height, width, 3)).astype(np.float32)
    expected = logits(model, images)
    tolerance = 1e-5 * abs(expected).max()
    np.testing.assert_allclose(torch_logits(theirs, images), expected, rtol=0, atol=tolerance)


def test_a_folder_that_transformers_saved_is_loaded(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        image_size=32,
        patch_size=8,
        num_labels=3,
        layer_norm_eps=1e-6,
    )
    theirs = transformers.ViTForImageClassification(config)
    theirs.save_pretrained(tmp_path / "theirs")
    model = vit_jax.load_model(tmp_path / "theirs")
    assert model.class_names == ()  # LABEL_0, ... are no names.
    np.testing.assert_allclose(
        logits(model, IMAGES), torch_logits(theirs, IMAGES), rtol=0, atol=1e-5
    )
