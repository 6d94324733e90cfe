"""timm's files, against timm's own outputs."""

import dataclasses
import json
import math

import numpy as np
import pytest
import safetensors
import safetensors.numpy

import vit_jax
from tests.models.filled import intermediates
from tests.published import (
    GOLDEN,
    assert_same_tensors,
    golden,
    logits,
    parameters,
    random_model,
    write_npz,
)
from vit_jax.errors import WeightsError
from vit_jax.model_file import Preprocessing
from vit_jax.weights.timm import crop_percentage, stated_by_config
from vit_jax.weights.timm_arguments import mlp_ratio

NAMES = ("timm_token", "timm_gap", "timm_registers_layerscale", "timm_distilled")


def tensors_of(name):
    return safetensors.numpy.load_file(GOLDEN / f"{name}.safetensors")


def write(folder, tensors, config=None):
    """A file as timm's hub lays it out."""
    safetensors.numpy.save_file(tensors, folder / "model.safetensors")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder / "model.safetensors"


def with_positions(tensors, rows):
    table = np.random.default_rng(0).normal(size=(1, rows, 32)).astype(np.float32)
    return {**tensors, "pos_embed": table}


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_timms(name):
    expected = golden(name)
    model = vit_jax.load_model(GOLDEN / f"{name}.safetensors", num_heads=2)
    np.testing.assert_allclose(
        logits(model, expected["images"]), expected["logits"], rtol=0, atol=1e-5
    )


def test_a_distilled_model_has_two_tokens_and_two_heads(caplog):
    """DeiT's, `deit_tiny_distilled_patch16_224` of timm 1.0.31, two narrow blocks of it."""
    expected = golden("timm_distilled")
    model = vit_jax.load_model(GOLDEN / "timm_distilled.safetensors", num_heads=2)
    assert (model.options.distillation_token, model.options.num_tokens) == (True, 18)
    features = intermediates(model, expected["images"], "pre_logits")["pre_logits"]
    assert features.shape == (2, 64)
    apart = model.classify_apart(features)
    np.testing.assert_allclose(apart, expected["apart"], rtol=0, atol=1e-5)
    assert model.options.macs() == model.options.encoder_macs() + 16 * 192 * 32 + 2 * 32 * 10

    larger = vit_jax.load_model(
        GOLDEN / "timm_distilled.safetensors", num_heads=2, image_size=48, num_classes=3
    )
    assert "distillation_head/kernel" in caplog.text
    assert not np.any(logits(larger, np.zeros((1, 48, 48, 3), np.float32)))
    before, after = (parameters(one)["position_embedding"] for one in (model, larger))
    np.testing.assert_array_equal(after[:, :2], before[:, :2])

    folded = vit_jax.load_model(
        GOLDEN / "timm_distilled.safetensors", num_heads=2, prefix_positions=False
    )
    np.testing.assert_allclose(
        logits(folded, expected["images"]), expected["logits"], rtol=0, atol=1e-5
    )
    caplog.clear()
    vit_jax.load_model(GOLDEN / "timm_distilled.safetensors", num_heads=2, distillation_token=False)
    assert "for distillation_token=True; the model has distillation_token=False" in caplog.text


def test_what_timm_cannot_hold_beside_a_distillation_token(tmp_path):
    model = random_model(
        "ViT-Ti/16", depth=1, image_size=32, distillation_token=True, num_registers=2
    )
    with pytest.raises(WeightsError, match=r"timm has no .* distillation token"):
        vit_jax.save_model(model, tmp_path / "out", "timm")
    for name, format_ in (("out.npz", "npz"), ("out", "huggingface")):
        with pytest.raises(WeightsError, match=r"distillation_token|num_registers=2"):
            vit_jax.save_model(model, tmp_path / name, format_)


def test_what_the_file_does_not_say_is_asked_for_or_printed(caplog):
    with pytest.raises(
        WeightsError, match=r"timm_token.*heads a model of width 32 has.*num_heads="
    ):
        vit_jax.load_model(GOLDEN / "timm_token.safetensors")
    with pytest.raises(WeightsError, match="width 32 is no multiple of num_heads=5"):
        vit_jax.load_model(GOLDEN / "timm_token.safetensors", num_heads=5)
    vit_jax.load_model(GOLDEN / "timm_token.safetensors", num_heads=4)
    assert "Assumed, as nothing says it: gelu='erf', pooling='token'" in caplog.text
    assert "normalised to [-1, 1]" in caplog.text


def test_a_pooled_class_token_is_an_assumption_that_can_be_corrected(tmp_path):
    """timm's average pooling with a class token has the tensors of class token pooling."""
    tiny = {"width": 32, "depth": 1, "mlp_width": 64, "num_heads": 2, "image_size": 32}
    model = random_model("ViT-Ti/16", **tiny, pooling="average", class_token=True, gelu="erf")
    vit_jax.save_model(model, tmp_path / "out.safetensors", "timm")
    write(tmp_path, safetensors.numpy.load_file(tmp_path / "out.safetensors"))  # no metadata
    path = tmp_path / "model.safetensors"
    assert vit_jax.load_model(path, num_heads=2).options.pooling == "token"
    assert vit_jax.load_model(path, num_heads=2, pooling="average").options == model.options


def test_the_head_count_comes_from_the_registered_width(tmp_path, caplog):
    model = random_model("ViT-Ti/16", depth=1, num_classes=2, image_size=32)
    vit_jax.save_model(model, tmp_path / "in.safetensors", "timm")
    write(tmp_path, safetensors.numpy.load_file(tmp_path / "in.safetensors"))  # no metadata
    loaded = vit_jax.load_model(tmp_path / "model.safetensors")
    assert loaded.options.num_heads == 3
    assert "num_heads=3" in caplog.text


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("single_file", [True, False])
def test_a_round_trip_gives_timms_tensors_back(name, single_file, tmp_path):
    model = vit_jax.load_model(GOLDEN / f"{name}.safetensors", num_heads=2)
    path = tmp_path / ("out.safetensors" if single_file else "out")
    vit_jax.save_model(model, path, "timm", class_names=tuple("abcdefghij"))
    file = path if single_file else path / "model.safetensors"
    assert_same_tensors(safetensors.numpy.load_file(file), tensors_of(name))
    again = vit_jax.load_model(path)  # Its metadata says all.
    assert again.options == model.options
    assert again.class_names == tuple("abcdefghij")
    assert_same_tensors(parameters(again), parameters(model))


@pytest.mark.parametrize(
    ("name", "rows", "image_size", "grid", "prefix"),
    [
        ("timm_token", 197, 224, (14, 14), True),  # 14² and the class token
        ("timm_token", 196, 224, (14, 14), False),  # 14², not 195 and the class token
        ("timm_gap", 196, 224, (14, 14), True),  # no class token at all
        ("timm_token", 145, 224, (12, 12), True),
        ("timm_registers_layerscale", 21, 32, (4, 4), True),  # 16, class token, 4 registers
        ("timm_registers_layerscale", 16, 32, (4, 4), False),
        ("timm_token", 16, (8, 120), (1, 15), True),  # The image's grid beats the square.
    ],
)
def test_the_layout_of_positions(name, rows, image_size, grid, prefix, tmp_path):
    path = write(tmp_path, with_positions(tensors_of(name), rows))
    model = vit_jax.load_model(path, num_heads=2, image_size=tuple(np.multiply(grid, 8).tolist()))
    assert model.options.grid == grid
    assert model.options.prefix_positions == prefix
    assert parameters(model)["position_embedding"].shape[1] == rows
    if grid[0] == grid[1]:  # A square needs no telling.
        assert vit_jax.load_model(path, num_heads=2).options == model.options


PREFIXES = {
    "class token": {},
    "class token, registers": {"num_registers": 4},
    "class token, not pooled": {"pooling": "average", "class_token": True},
    "registers": {"pooling": "average", "num_registers": 3},
    "none": {"pooling": "average"},
}


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("name", PREFIXES)
def test_rows_for_prefix_tokens_survive(name, rows, tmp_path):
    """As our own metadata says it, and as timm's config.json does; on a grid that is no square."""
    tiny = {"width": 32, "depth": 1, "mlp_width": 64, "num_heads": 2, "patch_size": 8}
    options = {**tiny, **PREFIXES[name], "image_size": (32, 64), "prefix_positions": rows}
    model = random_model("ViT-Ti/16", num_classes=3, **options)
    for path in (tmp_path / "out.safetensors", tmp_path / "out"):
        vit_jax.save_model(model, path, "timm")
        loaded = vit_jax.load_model(path)
        assert loaded.options == model.options
        assert_same_tensors(parameters(loaded), parameters(model))
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["model_args"]["no_embed_class"] == (not rows)
    tensors = safetensors.numpy.load_file(tmp_path / "out/model.safetensors")
    safetensors.numpy.save_file(tensors, tmp_path / "out/model.safetensors")
    loaded = vit_jax.load_model(tmp_path / "out")
    assert loaded.options == model.options
    assert_same_tensors(parameters(loaded), parameters(model))


def test_positions_on_no_known_grid_are_asked_for(tmp_path):
    path = write(tmp_path, with_positions(tensors_of("timm_token"), 1 + 14 * 20))
    with pytest.raises(WeightsError, match=r"281 position embeddings .* source_grid=\(rows"):
        vit_jax.load_model(path, num_heads=2)
    model = vit_jax.load_model(path, num_heads=2, source_grid=(14, 20))
    assert model.options.image_size == (112, 160)
    with pytest.raises(WeightsError, match=r"\(10, 10\) does not fit"):
        vit_jax.load_model(path, num_heads=2, source_grid=(10, 10))


def test_the_config_beside_the_file_is_used(tmp_path):
    config = {
        "architecture": "vit_tiny_patch16_224",
        "num_classes": 10,
        "global_pool": "avg",
        "label_names": list("abcdefghij"),
        "model_args": {"num_heads": 2, "act_layer": "gelu_tanh", "img_size": 32},
        "pretrained_cfg": {
            "input_size": [3, 32, 32],
            "interpolation": "bicubic",
            "crop_pct": 0.9,
            "crop_mode": "center",
            "mean": [0.485, 0.456, 0.406],
            "std": [0.229, 0.224, 0.225],
        },
    }
    model = vit_jax.load_model(write(tmp_path, tensors_of("timm_token"), config))
    assert (model.options.num_heads, model.options.gelu) == (2, "tanh")
    assert (model.options.pooling, model.options.class_token) == ("average", True)
    assert model.class_names == tuple("abcdefghij")
    assert model.preprocessing == Preprocessing(
        mean=(0.485, 0.456, 0.406),
        std=(0.229, 0.224, 0.225),
        crop="center",
        resize=35,
        interpolation="bicubic",
        rounding="torchvision",
    )
    larger = vit_jax.load_model(tmp_path, image_size=64)
    assert larger.preprocessing.resize == 70
    assert vit_jax.load_model(tmp_path, channels=1).preprocessing.mean == pytest.approx((0.449,))


def test_what_a_config_leaves_out_is_timms_default():
    found = stated_by_config({"architecture": "vit_tiny_patch16_224"}).preprocessing
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    expected = Preprocessing(mean, std, crop="center", resize=256, interpolation="bicubic")
    assert found == dataclasses.replace(expected, rounding="torchvision")


def test_a_models_arguments_are_before_the_rest_of_a_config():
    """Then the config's own keys: the weights' first configuration says the least."""
    stated = stated_by_config(
        {
            "architecture": "vit_tiny_patch16_224",
            "pretrained_cfg": {"num_classes": 1000, "global_pool": "map"},
            "num_classes": 10,
            "global_pool": "avg",
            "model_args": {"global_pool": "token"},
        }
    )
    assert stated.options["pooling"] == "token"
    assert (stated.options["num_classes"], stated.options["num_heads"]) == (10, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_classes": 5}, "says num_classes=5, but its tensors have 10"),
        ({"label_names": ["cat"]}, "names 1 classes, but its head has 10"),
        (
            {"global_pool": "max"},
            "a ViT with global_pool='max', which this package does not compute",
        ),
        ({"model_args": {"num_heads": -2}}, "width 32 is no multiple of num_heads=-2"),
        ({"pretrained_cfg": {"crop_pct": 0}}, "config.json has a value of the wrong kind"),
        ({"model_args": {"act_layer": "relu"}}, "act_layer='relu'"),
        ({"model_args": {"pool_include_prefix": True}}, "pool_include_prefix=True"),
        ({"model_args": {"a_new_argument": False}}, "a_new_argument=False"),
        ({"a_new_key": 1}, "config.json has a_new_key=1"),
        ({"pretrained_cfg": {"another_key": 1}}, "config.json has another_key=1"),
        ({"pretrained_cfg": {"label_offset": 1}}, "label_offset=1"),
        ({"model_args": {}}, "says width=768, but its tensors have 32"),  # of 12 heads
        ({"architecture": "swin_tiny_patch4_window7_224"}, "a Swin Transformer"),
        ({"architecture": "hiera_base_224"}, "a Hiera"),
        ({"architecture": "vit_pwee_patch16_reg1_gap_256"}, "a ViT with parallel attention"),
        ({"architecture": "aimv2_1b_patch14_224"}, "an AIMv2"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(change, message, tmp_path):
    config = {"architecture": "vit_base_patch16_224", "model_args": {"num_heads": 2}, **change}
    path = write(tmp_path, tensors_of("timm_token"), config)
    with pytest.raises(WeightsError, match=f"model.safetensors: .*{message}"):
        vit_jax.load_model(path, num_heads=2)


@pytest.mark.parametrize("name", ["vit_token", "vit_gap"])
def test_npz_to_timm_and_back_keeps_the_logits(name, tmp_path):
    expected = golden(name)
    model = vit_jax.load_model(write_npz(tmp_path / "in.npz", expected["params"]))
    vit_jax.save_model(model, tmp_path / "out.safetensors", "timm")
    loaded = vit_jax.load_model(tmp_path / "out.safetensors")
    assert (loaded.options.gelu, loaded.options.norm_after_pooling) == ("tanh", False)
    outputs = logits(loaded, expected["images"])
    np.testing.assert_allclose(outputs, expected["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["timm_token", "timm_gap"])
def test_timm_to_npz_and_back_keeps_the_logits(name, tmp_path):
    expected = golden(name)
    model = vit_jax.load_model(GOLDEN / f"{name}.safetensors", num_heads=2)
    vit_jax.save_model(model, tmp_path / "out.npz")
    loaded = vit_jax.load_model(tmp_path / "out.npz")
    assert loaded.options.norm_after_pooling == (name == "timm_gap")
    assert loaded.options.gelu == "erf"
    outputs = logits(loaded, expected["images"])
    np.testing.assert_allclose(outputs, expected["logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", ["hybrid_stem", "hybrid_r_1_2", "bv_vit_map"])
def test_hybrids_and_attention_pooling_survive_timm(name, tmp_path):
    expected = golden(name)
    model = vit_jax.load_model(write_npz(tmp_path / "in.npz", expected["params"]))
    vit_jax.save_model(model, tmp_path / "out.safetensors", "timm")
    loaded = vit_jax.load_model(tmp_path / "out.safetensors")
    assert_same_tensors(parameters(loaded), parameters(model))


def test_timms_names_of_a_hybrid(tmp_path, caplog):
    path = write_npz(tmp_path / "in.npz", golden("hybrid_r_1_2")["params"])
    vit_jax.save_model(vit_jax.load_model(path), tmp_path / "out.safetensors", "timm")
    backbone = "patch_embed.backbone"
    tensors = safetensors.numpy.load_file(tmp_path / "out.safetensors")
    params = golden("hybrid_r_1_2")["params"]
    np.testing.assert_array_equal(
        tensors[f"{backbone}.stages.1.blocks.0.downsample.conv.weight"],
        params["block2/unit1/conv_proj/kernel"].transpose(3, 2, 0, 1),
    )
    np.testing.assert_array_equal(
        tensors[f"{backbone}.stem.norm.bias"], params["gn_root/bias"].reshape(-1)
    )
    vit_jax.load_model(tmp_path / "out.safetensors")
    assert "GroupNorm epsilon 1e-5" in caplog.text
    with pytest.raises(WeightsError, match=r"no hybrid like this one.*\.safetensors"):
        vit_jax.save_model(vit_jax.load_model(path), tmp_path / "folder", "timm")


def test_fixed_positions_are_written_out(tmp_path):
    expected = golden("bv_vit_sincos_gap_rep")
    path = write_npz(tmp_path / "in.npz", expected["params"])
    model = vit_jax.load_model(path, image_size=32)
    with pytest.raises(WeightsError, match=r"model\.representation_size=32.*trunk_only=True"):
        vit_jax.save_model(model, tmp_path / "out.safetensors", "timm")
    vit_jax.save_model(model, tmp_path / "out.safetensors", "timm", trunk_only=True)
    trunk = vit_jax.load_model(tmp_path / "out.safetensors")
    assert trunk.options.num_classes == 0
    kernel, bias = expected["params"]["pre_logits/kernel"], expected["params"]["pre_logits/bias"]
    pre_logits = np.tanh(logits(trunk, expected["images"]) @ kernel + bias)
    np.testing.assert_allclose(pre_logits, expected["pre_logits"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"positions": "relative"}, "positions='relative'"),
        ({"position_placement": "every_layer"}, "position_placement='every_layer'"),
    ],
)
def test_what_timm_cannot_express_is_named(options, named, tmp_path):
    tiny = {"width": 32, "depth": 1, "mlp_width": 64, "num_heads": 2, "image_size": 32}
    model = random_model("ViT-Ti/16", **tiny, **options)
    with pytest.raises(WeightsError, match=f"timm files cannot express model.{named}"):
        vit_jax.save_model(model, tmp_path / "out.safetensors", "timm")


@pytest.mark.parametrize(
    ("name", "options", "tensor"),
    [
        (
            "Mixer-B/32",
            {"depth": 2, "num_classes": 3, "gelu": "erf"},
            "blocks.1.mlp_tokens.fc1.weight",
        ),
        (
            "BiT-R50x1",
            {"stage_depths": (1, 2), "image_size": 32, "num_classes": 2},
            "stages.1.blocks.1.conv3.weight",
        ),
    ],
)
def test_mixers_and_bit_resnets_are_written_and_read_back(name, options, tensor, tmp_path):
    model = random_model(name, **options)
    path = tmp_path / "out.safetensors"
    vit_jax.save_model(model, path, "timm")
    assert tensor in safetensors.numpy.load_file(path)
    loaded = vit_jax.load_model(path)
    assert loaded.options == model.options
    assert_same_tensors(parameters(loaded), parameters(model))
    with pytest.raises(WeightsError, match=r"timm has no .* of these sizes: its tensors alone"):
        vit_jax.save_model(model, tmp_path / "folder", "timm")
    with pytest.raises(WeightsError, match="huggingface files have no"):
        vit_jax.save_model(model, tmp_path / "folder", "huggingface")


def test_other_forms_of_resnets_are_refused(tmp_path):
    model = random_model("BiT-v1-R50x1", stage_depths=(1,), image_size=32, num_classes=2)
    with pytest.raises(WeightsError, match=r"model\.preactivation=False in a ResNetV2, only True"):
        vit_jax.save_model(model, tmp_path / "out", "timm")


@pytest.mark.parametrize(("side", "resize"), [(224, 256), (224, 248), (384, 384), (32, 35)])
def test_the_crop_share_gives_the_resize_back(side, resize):
    share = crop_percentage(Preprocessing(crop="center", resize=resize), side)
    assert math.floor(side / share) == resize


def test_the_mlp_ratio_gives_the_width_back():
    for name in vit_jax.list_models():
        if name.startswith("ViT-"):
            options = vit_jax.models.model_options(name)
            assert int(options.width * mlp_ratio(options)) == options.mlp_width


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"interpolation": "lanczos"}, "resizes pictures by lanczos, this package by bicubic"),
        ({"crop_mode": "border"}, "crop_mode='border', this package crops the centre"),
        ({"input_size": (3, 32, 64)}, "cover a rectangle"),
        ({"crop_mode": "squash", "input_size": (3, 32, 64)}, ""),
        ({}, ""),
    ],
)
def test_preprocessing_that_cannot_be_done_here_is_said(change, message):
    config = {"architecture": "vit_base_patch16_224", "pretrained_cfg": change}
    assert message in "".join(stated_by_config(config).remarks)
    assert bool(message) == bool(stated_by_config(config).remarks)
