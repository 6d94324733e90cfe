"""timm's `config.json` as it is written, key by key: no two numbers of these models are alike.

That timm builds the same models from them is tested in `test_libraries.py`, where it is installed;
what each argument is called and means is its classes'.
"""

import numpy as np
import pytest

from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models import model_options
from vit_jax.weights import timm
from vit_jax.weights.layouts import KEY_BIAS
from vit_jax.weights.saving import find_layout
from vit_jax.weights.timm_classes import ARCHITECTURES, BIT_RESNETS, MIXERS

SIZES = {
    **{"width": 48, "depth": 3, "mlp_width": 40, "num_heads": 2, "channels": 5, "num_classes": 7},
    **{"patch_size": (4, 2), "image_size": (12, 8), "gelu": "erf"},
}
AVERAGED = {"pooling": "average", "class_token": True, "norm_after_pooling": True}
ENCODER = {
    **{"img_size": (12, 8), "in_chans": 5, "num_classes": 7, "embed_dim": 48, "depth": 3},
    **{"num_heads": 2, "patch_size": (4, 2), "mlp_ratio": pytest.approx(40 / 48, abs=1e-15)},
    **{"class_token": True, "no_embed_class": False, "global_pool": "token"},
    **{"init_values": None, "qk_norm": False, "qkv_bias": True},
}
VIT = {
    **ENCODER,
    **{"act_layer": "gelu", "reg_tokens": 0, "pos_embed": "learn", "fc_norm": False},
    **{"pre_norm": False, "final_norm": True, "scale_attn_norm": False, "scale_mlp_norm": False},
}
NOT_BEITS = ("class_token", "no_embed_class", "qk_norm")  # No arguments of timm's class.
BEIT = {
    **{name: value for name, value in ENCODER.items() if name not in NOT_BEITS},
    **{"scale_mlp": False, "use_abs_pos_emb": True, "use_fc_norm": False},
    **{"use_rel_pos_bias": False, "use_shared_rel_pos_bias": False},
}
EVA = {
    **ENCODER,
    **{"num_reg_tokens": 0, "use_abs_pos_emb": False, "use_fc_norm": False},
    **{"use_pre_transformer_norm": False, "use_post_transformer_norm": True},
    **{"attn_type": "eva", "qkv_fused": True, "scale_attn_inner": False, "scale_mlp": False},
    **{"swiglu_mlp": False, "swiglu_align_to": 1, "use_rot_pos_emb": True, "rope_type": "cat"},
    **{"rope_temperature": 10_000.0, "rope_grid_indexing": "ij", "rope_rotate_half": False},
    "ref_feat_shape": None,
}
BIASED = {KEY_BIAS: np.array([0.0, 1.0])}
# Options beyond SIZES, parameters -> the architecture, what the arguments are beyond the defaults.
WRITTEN = {
    "plain": ({}, {}, "vit_base_patch16_224", VIT),
    "averaged": (
        {**AVERAGED, "num_registers": 3, "layer_scale": 0.25, "query_key_norm": True}
        | {"qkv_bias": False, "prefix_positions": False, "gelu": "tanh"},
        {},
        "vit_base_patch16_224",
        {**VIT, "global_pool": "avg", "fc_norm": True, "reg_tokens": 3, "init_values": 0.25}
        | {"qk_norm": True, "qkv_bias": False, "no_embed_class": True, "act_layer": "gelu_tanh"},
    ),
    "without a class token": (
        {"pooling": "average"},
        {},
        "vit_base_patch16_224",
        {**VIT, "global_pool": "avg", "class_token": False},
    ),
    "attention pooling": (
        {"pooling": "attention", "positions": "none", "final_norm": False, "gelu": "quick"}
        | {"attention_norm": True},
        {},
        "vit_base_patch16_224",
        {**VIT, "global_pool": "map", "class_token": False, "pos_embed": "none"}
        | {"final_norm": False, "act_layer": "quick_gelu", "scale_attn_norm": True},
    ),
    "a wide epsilon": (
        {"norm_epsilon": 1e-5, "mlp_norm": True, "pre_norm": True},
        {},
        "vit_base_patch16_clip_224",
        {**VIT, "scale_mlp_norm": True, "pre_norm": True},
    ),
    "distilled": ({"distillation_token": True}, {}, "deit_base_distilled_patch16_224", VIT),
    "gated": (  # Both halves of its first layer count.
        {"mlp": "swiglu"},
        {},
        "vit_giant_patch14_dinov2",
        {name: value for name, value in VIT.items() if name != "act_layer"}
        | {"mlp_ratio": pytest.approx(80 / 48, abs=1e-15)},
    ),
    "bias of each layer": (
        {"relative_position_bias": "every_layer", "positions": "none", "layer_scale": 0.25}
        | {"mlp_norm": True},
        {},
        "beit_base_patch16_224",
        {**BEIT, "use_rel_pos_bias": True, "use_abs_pos_emb": False, "init_values": 0.25}
        | {"scale_mlp": True},
    ),
    "bias of all layers": (
        {**AVERAGED, "relative_position_bias": "every_layer_shared", "qkv_bias": False},
        {},
        "beit_base_patch16_224",
        {**BEIT, "use_shared_rel_pos_bias": True, "global_pool": "avg", "use_fc_norm": True}
        | {"qkv_bias": False},
    ),
    "rotary": (
        {"positions": "rotary_2d", "pre_norm": True, "num_registers": 3},
        BIASED,
        "eva02_tiny_patch14_224",
        {**EVA, "attn_type": "rope", "rope_grid_indexing": "xy", "num_reg_tokens": 3}
        | {"use_pre_transformer_norm": True},
    ),
    "rotary and learned": (
        {**AVERAGED, "positions": "learned_1d_rotary_2d", "rotary_reference": 5, "mlp": "swiglu"}
        | {"rotary_temperature": 50.0},
        {KEY_BIAS: np.zeros(2)},  # Which is none.
        "eva02_tiny_patch14_224",
        {**EVA, "global_pool": "avg", "use_fc_norm": True, "use_post_transformer_norm": False}
        | {"use_abs_pos_emb": True, "ref_feat_shape": (5, 5), "rope_temperature": 50.0}
        | {"swiglu_mlp": True, "swiglu_align_to": 0},
    ),
    "rotary with inner norms": (
        {"positions": "rotary_2d", "mlp": "swiglu", "mlp_norm": True, "final_norm": False},
        {},
        "eva02_tiny_patch14_224",
        {**EVA, "swiglu_mlp": True, "scale_mlp": True, "qkv_fused": False}
        | {"use_post_transformer_norm": False},
    ),
    "centred": (
        {"positions": "rotary_2d", "rotary_coordinates": "centred", "mlp": "swiglu"}
        | {"attention_norm": True, "norm_epsilon": 1e-5},
        {},
        "vit_small_patch16_dinov3",
        {**EVA, "swiglu_mlp": True, "scale_attn_inner": True, "rope_type": "dinov3"}
        | {"rope_rotate_half": True},
    ),
}


def kind_of(changes):
    options = model_options("ViT-Ti/16", **{**SIZES, **changes})
    return options, find_layout("timm", options).files.keywords["kind"]


@pytest.mark.parametrize("case", WRITTEN)
def test_every_argument_is_written(case, caplog):
    changes, parameters, architecture, arguments = WRITTEN[case]
    options, kind = kind_of(changes)
    assert kind.config(parameters, options) == {
        "architecture": architecture,
        "model_args": arguments,
    }
    heads = ("head", "head_dist") if case == "distilled" else "head"
    assert (kind.first_conv(options), kind.classifier(options)) == ("patch_embed.proj", heads)
    assert not caplog.text


def test_what_a_config_says_of_every_model():
    options, kind = kind_of({"pooling": "average"})
    preprocessing = Preprocessing(
        mean=(0.1, 0.2, 0.3, 0.4, 0.5), std=(0.6,), crop="center", resize=9, interpolation="area"
    )
    names = tuple("gabcdef")
    written = timm.common_config(options, ModelFile("x", {}, preprocessing, names), kind)
    pretrained = written.pop("pretrained_cfg")
    assert written == {
        **{"num_classes": 7, "num_features": 48, "global_pool": "avg", "label_names": names}
    }
    share = pretrained.pop("crop_pct")
    assert int(8 / share) == 9  # Of the smaller side.
    assert share == 0.84  # The shortest number of which that is so.
    assert pretrained == {
        **{"custom_load": False, "input_size": (5, 12, 8), "fixed_input_size": True},
        **{"interpolation": "box", "crop_mode": "center", "mean": (0.1, 0.2, 0.3, 0.4, 0.5)},
        **{"std": (0.6,) * 5, "num_classes": 7, "pool_size": None},
        **{"first_conv": "patch_embed.proj", "classifier": "head"},
    }


def test_pictures_that_are_resized_whole():
    options, kind = kind_of({})
    written = timm.common_config(options, ModelFile("x", {}), kind)
    assert "label_names" not in written
    pretrained = written["pretrained_cfg"]
    assert (pretrained["crop_mode"], pretrained["crop_pct"]) == ("squash", 1.0)
    assert (pretrained["interpolation"], pretrained["mean"]) == ("bilinear", (0.5,) * 5)


@pytest.mark.parametrize(
    ("changes", "parameters"),
    [
        ({}, {}),
        ({"relative_position_bias": "every_layer"}, {}),
        ({"positions": "rotary_2d"}, BIASED),
    ],
    ids=["VisionTransformer", "Beit", "Eva"],
)
def test_an_epsilon_that_timm_has_not_is_told(changes, parameters, caplog):
    for epsilon, is_told in ((1e-6, False), (1e-12, True)):
        options, kind = kind_of({**changes, "norm_epsilon": epsilon})
        kind.config(parameters, options)
        line = "computes with LayerNorm epsilon 1e-06, this model with 1e-12"
        assert (line in caplog.text) == is_told


def test_beits_of_timm_have_one_epsilon(caplog):
    options, kind = kind_of({"relative_position_bias": "every_layer", "norm_epsilon": 1e-5})
    kind.config({}, options)
    assert "this model with 1e-05" in caplog.text


@pytest.mark.parametrize("name", sorted(BIT_RESNETS))
def test_resnets(name, caplog):
    options = model_options(name, num_classes=7, channels=5, group_norm_epsilon=1e-5)
    kind = find_layout("timm", options).files.keywords["kind"]
    written = kind.config({}, options)
    assert written == {
        "architecture": f"resnetv2_{name.removeprefix('BiT-R').lower()}_bit",
        "model_args": {"in_chans": 5, "num_classes": 7},
        "global_pool": "avg",
    }
    assert "standardisation epsilon 1e-8, this model others" in caplog.text  # One of them differs.
    caplog.clear()
    kind.config({}, model_options(name, group_norm_epsilon=1e-5, kernel_epsilon=1e-8))
    assert not caplog.text
    common = timm.common_config(options, ModelFile(name, {}), kind)
    assert (common["global_pool"], "num_features" in common) == ("avg", False)
    pretrained = common["pretrained_cfg"]
    assert (pretrained["first_conv"], pretrained["classifier"]) == ("stem.conv", "head.fc")
    assert not pretrained["fixed_input_size"]


@pytest.mark.parametrize(("sizes", "architecture"), sorted(MIXERS.items()))
def test_mixers(sizes, architecture):
    patch, depth, width = sizes
    letter = {(8, 512): "S", (12, 768): "B", (24, 1024): "L"}[depth, width]
    assert architecture == f"mixer_{letter.lower()}{patch}_224"
    sizes = {"patch_size": patch, "depth": depth, "width": width, "gelu": "erf"}
    sizes |= {"token_mlp_width": 100, "mlp_width": 3000}
    options = model_options("Mixer-B/16", **sizes, image_size=2 * patch, num_classes=7, channels=5)
    kind = find_layout("timm", options).files.keywords["kind"]
    written = kind.config({}, options)
    token_ratio, ratio = written["model_args"].pop("mlp_ratio")
    assert (int(width * token_ratio), int(width * ratio)) == (100, 3000)
    assert written == {
        "architecture": architecture,
        "model_args": {"img_size": (2 * patch,) * 2, "in_chans": 5, "num_classes": 7},
        "global_pool": "avg",
    }
    assert kind.first_conv(options) == "stem.proj"
    rectangle = model_options("Mixer-B/16", **sizes | {"patch_size": (patch, 8)}, image_size=64)
    with pytest.raises(WeightsError, match="no MLP-Mixer of these sizes"):
        kind.config({}, rectangle)


@pytest.mark.parametrize("name", sorted(ARCHITECTURES))
def test_models_that_timm_has_by_name(name, caplog):
    options = model_options(name, stem_kernel_epsilon=1e-8) if "+" in name else model_options(name)
    kind = find_layout("timm", options).files.keywords["kind"]
    architecture = kind.config({}, options)["architecture"]
    size = {"g": "giant", "G": "gigantic", "Ti": "tiny", "S": "small", "B": "base"}
    size |= {"L": "large", "H": "huge"}
    letters, _, patch = name.partition("ViT-")[2].partition("/")
    stem, _, _ = name.partition("+")
    middle = {"R": "r_s16_p8", "R26": "r26_s32", "R50": "r50_s32"}.get(stem, f"patch{patch}")
    middle = "r50_s16" if name == "R50+ViT-B/16" else middle
    assert architecture == f"vit_{size[letters]}_{middle}_224"
    if "+" in name:
        kind.prepare({}, options)  # Of two epsilons one is timm's.
        assert "this model others" in caplog.text
        backbone = "patch_embed.backbone.stem.conv" if options.stem_depths else ""
        assert kind.first_conv(options) == (backbone or "patch_embed.backbone.conv")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"distillation_token": True, "num_registers": 1}, "no model with that and registers"),
        ({"mlp": "swiglu", "norm_epsilon": 1e-5}, "dinov2 and vit_base_patch16_clip_224 at once"),
        ({"mlp": "swiglu", "distillation_token": True}, "at once"),
    ],
)
def test_what_no_model_of_timm_is_like_at_once(changes, message):
    options, kind = kind_of(changes)
    with pytest.raises(WeightsError, match=message):
        kind.config({}, options)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("R26+ViT-S/32", {"depth": 5}, "no hybrid like this one"),
        ("R26+ViT-S/32", {"distillation_token": True}, "no hybrid with a distillation token"),
        ("BiT-R50x1", {"stage_depths": (1, 2)}, "no BiT ResNet of these sizes"),
        ("Mixer-B/16", {"gelu": "erf", "depth": 5}, "no MLP-Mixer of these sizes"),
    ],
)
def test_sizes_that_no_model_of_timm_has(name, changes, message):
    options = model_options(name, **changes)
    kind = find_layout("timm", options).files.keywords["kind"]
    advice = r": its tensors alone can be written, to a name that ends in \.safetensors\.$"
    with pytest.raises(WeightsError, match=f"^timm has {message}.*{advice}"):
        kind.config({}, options)


BIAS = {"relative_position_bias": "every_layer"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ViT-Ti/16", {**SIZES, **BIAS, "query_key_norm": True}),
        ("ViT-Ti/16", {**SIZES, **BIAS, "attention_norm": True}),
        ("ViT-Ti/16", {**SIZES, **BIAS, "pre_norm": True}),
        ("ViT-Ti/16", {**SIZES, **BIAS, "final_norm": False}),
        ("ViT-Ti/16", {**SIZES, **BIAS, "mlp": "swiglu"}),
        ("ViT-Ti/16", {**SIZES, **BIAS, "distillation_token": True}),
        ("ViT-Ti/16", {**SIZES, **BIAS, "num_registers": 1}),
        ("ViT-Ti/16", {**SIZES, **BIAS, "gelu": "quick"}),
        ("ViT-Ti/16", {**SIZES, **BIAS, "pooling": "average", "class_token": None}),
        ("ViT-Ti/16", {**SIZES, **BIAS, "pooling": "attention"}),
        ("ViT-Ti/16", {**SIZES, "positions": "rotary_2d", "gelu": "tanh"}),
        ("ViT-Ti/16", {**SIZES, "positions": "rotary_2d", "pooling": "attention"}),
        ("ViT-Ti/16", {**SIZES, "positions": "rotary_2d", "distillation_token": True}),
        ("ViT-Ti/16", {**SIZES, "representation_size": 9}),
        ("ViT-Ti/16", {**SIZES, "position_placement": "every_layer"}),
        ("Mixer-B/16", {"gelu": "tanh"}),
        ("BiT-v1-R50x1", {}),
        ("BiT-R50x1", {"pool_padding": "infinity"}),
    ],
)
def test_what_no_class_of_timm_has_is_refused(name, changes):
    with pytest.raises(WeightsError, match="timm files cannot express model"):
        find_layout("timm", model_options(name, **changes))
