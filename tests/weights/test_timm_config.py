"""timm's `config.json` in our options: its classes' own values, and what a config says instead."""

import contextlib
from collections import Counter

import pytest

from vit_jax.errors import WeightsError
from vit_jax.model_file import Preprocessing
from vit_jax.weights.content import HeadOrder
from vit_jax.weights.timm_config import (
    architecture_arguments,
    family_of,
    known_architectures,
    position_resize_of,
    preprocessing_of,
    stated_by_config,
    translate,
)

ENCODER = {
    **{"width": 768, "num_heads": 12, "pooling": "token", "gelu": "erf", "norm_epsilon": 1e-6},
    "prefix_positions": True,
}
EVA = {**ENCODER, "pooling": "average"}
# What the signatures of timm 1.0.31 say, in our terms; and what no argument says.
DEFAULTS = {
    "VisionTransformer": {**ENCODER, "mlp": "dense"},
    "VisionTransformerDistilled": {**ENCODER, "mlp": "dense"},
    "Eva": EVA,
    "Beit": {**EVA, "positions": "learned_1d"},
    "MlpMixer": {"width": 512, "gelu": "erf", "norm_epsilon": 1e-6},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_is_not_said_is_the_classs_own_value(name):
    assert translate("x", {"class": name}) == DEFAULTS[name]


def test_resnets_are_bits_alone():
    bit = {"class": "ResNetV2", "stem_type": "fixed", "conv_layer": {"": "StdConv2d", "eps": 1e-8}}
    expected = {"width_factor": 1, "group_norm_epsilon": 1e-5, "kernel_epsilon": 1e-8}
    assert translate("x", bit) == expected
    others = {"stem_type": "", "conv_layer": "StdConv2d", "preact": False, "global_pool": "map"}
    others["norm_layer"] = "BatchNorm2d"
    assert (
        translate("x", {**bit, "preact": True, "global_pool": "avg", "layers": "any"}) == expected
    )
    for key, value in others.items():
        with pytest.raises(WeightsError, match=f"with {key}="):
            translate("resnetv2", {**bit, key: value})
    for key in ("stem_type", "conv_layer"):  # Their own values are others.
        with pytest.raises(WeightsError, match=f"with {key}="):
            translate("resnetv2", {other: value for other, value in bit.items() if other != key})


@pytest.mark.parametrize(
    ("name", "arguments", "options"),
    [
        (
            "VisionTransformer",
            {"embed_dim": 24, "num_heads": 2, "global_pool": "map", "act_layer": "quick_gelu"},
            {"width": 24, "num_heads": 2, "pooling": "attention", "gelu": "quick"},
        ),
        (
            "VisionTransformer",
            {"no_embed_class": True, "norm_layer": {"": "LayerNorm", "eps": 1e-3}},
            {"prefix_positions": False, "norm_epsilon": 1e-3},
        ),
        ("VisionTransformer", {"act_layer": "gelu_tanh"}, {"gelu": "tanh"}),
        (
            "VisionTransformer",
            {
                "act_layer": "SiLU",
                "mlp_layer": {"": "GluMlp", "act_layer": "SiLU", "gate_last": False},
            },
            {"gelu": "erf", "mlp": "swiglu"},
        ),
        *(
            (
                "VisionTransformer",
                {"embed_layer": {"": "HybridEmbed", "backbone": backbone}},
                {"stem_group_norm_epsilon": 1e-5, "stem_kernel_epsilon": 1e-8},
            )
            for backbone in ("ResNetV2", "Sequential")
        ),
        (
            "Eva",
            {"global_pool": "token", "rope_type": "dinov3", "rope_temperature": 7},
            {"pooling": "token", "rotary_coordinates": "centred", "rotary_temperature": 7.0},
        ),
        ("Eva", {"rope_type": "cat"}, {"rotary_coordinates": "indices"}),
        ("Eva", {"ref_feat_shape": [16, 16]}, {"rotary_reference": 16}),
        ("Eva", {"ref_feat_shape": 14}, {"rotary_reference": 14}),
        ("Eva", {"ref_feat_shape": None}, {"rotary_reference": 0}),
        ("Beit", {"use_abs_pos_emb": False, "global_pool": "token"}, {"positions": "none"}),
        ("MlpMixer", {"embed_dim": 24, "act_layer": "gelu_tanh"}, {"width": 24, "gelu": "tanh"}),
    ],
)
def test_what_is_said(name, arguments, options):
    found = translate("x", {"class": name, **arguments})
    if name == "Beit":
        options = {**options, "pooling": "token"}
    assert found == {**DEFAULTS[name], **options}


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("VisionTransformer", "norm_layer", {"": "RmsNorm", "eps": 1e-6}),
        ("VisionTransformer", "norm_layer", {"": "LayerNorm", "eps": 1e-6, "bias": False}),
        (
            "VisionTransformer",
            "mlp_layer",
            {"": "GluMlp", "act_layer": "SiLU", "gate_last": True},
        ),
        ("VisionTransformer", "embed_layer", {"": "HybridEmbed", "backbone": "ResNet"}),
        ("VisionTransformer", "embed_layer", {"": "PatchEmbed", "backbone": "ResNetV2"}),
        ("VisionTransformer", "proj_bias", False),
        ("VisionTransformer", "dynamic_img_pad", True),
        ("VisionTransformer", "pool_include_prefix", True),
        ("VisionTransformer", "embed_norm_layer", "LayerNorm"),
        ("VisionTransformer", "block_fn", "ParallelScalingBlock"),
        ("VisionTransformer", "attn_layer", "DiffAttention"),
        ("Eva", "attn_only_layer_scale", True),
        ("Eva", "use_post_norm", True),
        ("Eva", "attn_type", "other"),
        ("Eva", "num_kv_heads", 2),
        ("Eva", "rope_grid_offset", 0.5),
        ("Eva", "rope_type", "mixed"),
        ("Eva", "ref_feat_shape", [16, 14]),
        ("Eva", "global_pool", "map"),
        ("Beit", "global_pool", "map"),
        ("Beit", "use_post_norm", False),
        ("MlpMixer", "act_layer", "relu"),
        ("MlpMixer", "global_pool", "token"),
        ("MlpMixer", "block_layer", "ResBlock"),
        ("MlpMixer", "mlp_layer", "GatedMlp"),
    ],
)
def test_what_is_not_computed_here_is_refused(name, key, value):
    with pytest.raises(WeightsError, match=f"with {key}="):
        translate("x", {"class": name, key: value})


TRAINING = (
    *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"),
    *("drop_path_rate", "weight_init", "fix_init", "head_init_scale", "pretrained_strict"),
)
ENCODERS = (
    *("img_size", "in_chans", "depth", "mlp_ratio", "class_token", "reg_tokens", "init_values"),
    *("qk_norm", "qkv_bias", "fc_norm", "final_norm", "pre_norm", "pos_embed", "patch_size"),
    "dynamic_img_size",
)
# Arguments that tensors show, or that inference does not depend on.
SILENT = {
    "VisionTransformer": (*ENCODERS, "scale_attn_norm", "scale_mlp_norm"),
    "Eva": (
        *(*ENCODERS, "num_reg_tokens", "use_fc_norm", "use_pre_transformer_norm", "qkv_fused"),
        *("use_post_transformer_norm", "use_abs_pos_emb", "scale_mlp", "scale_attn_inner"),
        *("swiglu_mlp", "swiglu_align_to", "use_rot_pos_emb", "rope_rescale_coords"),
        *("rope_shift_coords", "rope_jitter_coords"),
    ),
    "Beit": (
        *(*ENCODERS, "swiglu_mlp", "scale_mlp", "use_fc_norm", "use_rel_pos_bias"),
        "use_shared_rel_pos_bias",
    ),
    "MlpMixer": ("img_size", "in_chans", "num_blocks", "mlp_ratio", "patch_size"),
}


@pytest.mark.parametrize("name", SILENT)
def test_what_says_nothing_is_accepted_whatever_it_is(name):
    for key in (*TRAINING, *SILENT[name]):
        assert translate("x", {"class": name, key: "any"}) == DEFAULTS[name], key


@pytest.mark.parametrize(
    ("name", "key", "values"),
    [
        ("VisionTransformer", "proj_bias", [True]),
        ("VisionTransformer", "dynamic_img_pad", [False]),
        ("VisionTransformer", "embed_norm_layer", [None]),
        ("Eva", "attn_type", ["eva", "rope"]),
        ("Eva", "rope_rotate_half", [False, True]),
        ("Eva", "rope_grid_indexing", ["ij", "xy"]),
        ("Eva", "rope_grid_offset", [0, 0.0]),
        ("Eva", "num_kv_heads", [None]),
        ("MlpMixer", "global_pool", ["avg"]),
        ("MlpMixer", "block_layer", [None]),
    ],
)
def test_what_is_computed_here_is_accepted(name, key, values):
    for value in values:
        assert translate("x", {"class": name, key: value}) == DEFAULTS[name]


def test_how_many_of_timms_architectures_are_computed_here():
    """The others are refused, with a reason: what timm's classes are asked for is in their table."""
    known, found = known_architectures()["architectures"], Counter()
    for name, arguments in known.items():
        with contextlib.suppress(WeightsError):
            translate(name, arguments)
            found[arguments["class"]] += 1
    assert len(known) == 300
    assert found == {
        **{"VisionTransformer": 160, "VisionTransformerDistilled": 4, "Eva": 43, "Beit": 7},
        **{"MlpMixer": 6, "ResNetV2": 6},
    }


def test_a_config_changes_nothing_of_what_is_known_of_its_architecture():
    name = "vit_tiny_patch16_224"
    before = dict(architecture_arguments(name))
    stated_by_config({"architecture": name, "num_classes": 7, "model_args": {"img_size": 48}})
    assert architecture_arguments(name) == before


@pytest.mark.parametrize("place", ["config", "pretrained_cfg"])
def test_keys_that_only_describe(place):
    """Of both places: where weights come from, how they are called, how pixels are measured."""
    keys = (
        *("num_features", "label_descriptions", "labels", "tag", "url", "file", "hf_hub_id"),
        *("hf_hub_filename", "source", "state_dict", "custom_load", "license", "description"),
        *("origin_url", "paper_name", "paper_ids", "notes", "test_input_size", "min_input_size"),
        *("fixed_input_size", "test_crop_pct", "pool_size", "test_pool_size", "first_conv"),
        "classifier",
    )
    config = {"architecture": "vit_tiny_patch16_224"}
    plain, some = stated_by_config(config), dict.fromkeys(keys, "any")
    assert stated_by_config(config | (some if place == "config" else {place: some})) == plain
    zero = {"label_offset": 0}
    assert stated_by_config(config | (zero if place == "config" else {place: zero})) == plain


def test_rotary_positions_and_their_order():
    """An EVA-02 has both kinds of positions, unless it says otherwise; DINOv3 turns halves."""
    eva = {"architecture": "eva02_tiny_patch14_224"}
    stated = stated_by_config(eva)
    assert stated.options["positions"] == "learned_1d_rotary_2d"
    assert stated.head_order == HeadOrder(interleaved=True, column_first=False)
    alone = stated_by_config({**eva, "model_args": {"use_abs_pos_emb": False}})
    assert alone.options["positions"] == "rotary_2d"
    arguments = {"rope_grid_indexing": "xy", "rope_rotate_half": True}
    other = stated_by_config({**eva, "model_args": arguments})
    assert other.head_order == HeadOrder(interleaved=False, column_first=True)
    without = stated_by_config({**eva, "model_args": {"use_rot_pos_emb": False}})
    assert (without.head_order, "positions" in without.options) == (None, False)


@pytest.mark.parametrize(
    ("arguments", "bias"),
    [
        ({}, "every_layer"),
        ({"use_rel_pos_bias": False, "use_shared_rel_pos_bias": True}, "every_layer_shared"),
        ({"use_rel_pos_bias": False}, "none"),
    ],
)
def test_beits_bias(arguments, bias):
    config = {"architecture": "beit_base_patch16_224", "model_args": arguments}
    assert stated_by_config(config).options["relative_position_bias"] == bias


@pytest.mark.parametrize(
    ("config", "size"),
    [
        ({}, (224, 224)),
        ({"pretrained_cfg": {"input_size": [3, 96, 32]}}, (96, 32)),
        ({"pretrained_cfg": {"input_size": [3, 96, 32]}, "model_args": {"img_size": 48}}, (48, 48)),
        ({"model_args": {"img_size": [48, 64]}}, (48, 64)),
    ],
)
def test_the_size_of_images(config, size):
    stated = stated_by_config({"architecture": "vit_tiny_patch16_224.augreg_in21k", **config})
    assert stated.options["image_size"] == size
    assert stated.preprocessing.resize == int(min(size) / 0.875)


def test_heads_that_are_given_fit_any_width():
    """Else a file of another width contradicts its architecture's name."""
    config = {"architecture": "vit_tiny_patch16_224"}
    assert stated_by_config(config).options["width"] == 192
    assert "width" not in stated_by_config({**config, "model_args": {"num_heads": 2}}).options
    both = {**config, "model_args": {"num_heads": 2, "embed_dim": 24}}
    assert stated_by_config(both).options["width"] == 24
    embed_only = stated_by_config({**config, "model_args": {"embed_dim": 24}})
    assert (embed_only.options["width"], embed_only.options["num_heads"]) == (24, 3)


def test_a_later_name_of_timm_for_an_earlier_one():
    earlier, later = next(iter(known_architectures()["renamed"].items()))
    assert architecture_arguments(earlier) == architecture_arguments(later)


@pytest.mark.parametrize(
    ("architecture", "way"),
    [
        ("vit_base_patch16_224", "bicubic"),
        ("flexivit_base", "bilinear"),
        ("vit_base_patch16_radio_v3", "bilinear_corner"),
        ("vit_huge_patch16_radio_v3", "bilinear_corner"),
        ("radio_v25_l", "bilinear"),
    ],
)
def test_positions_are_resized_as_timm_does(architecture, way):
    assert position_resize_of(architecture) == way


@pytest.mark.parametrize(
    ("given", "side", "changes"),
    [
        ({}, 224, {"resize": 256}),
        ({"crop_pct": 0.9}, 224, {"resize": 248}),  # 248.9, of which timm takes the whole part.
        ({"crop_pct": 1}, 32, {"resize": 32}),
        ({"crop_mode": "squash", "crop_pct": 1.0}, 32, {"crop": "resize", "resize": 32}),
        ({"interpolation": "bilinear"}, 224, {"interpolation": "bilinear"}),
        ({"interpolation": "box"}, 224, {"interpolation": "area"}),
        ({"interpolation": "random"}, 224, {}),
        ({"mean": [0.1, 0.2, 0.3], "std": [0.4]}, 224, {"mean": (0.1, 0.2, 0.3), "std": (0.4,)}),
    ],
)
def test_preprocessing(given, side, changes):
    expected = {
        **{"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225), "crop": "center"},
        **{"resize": 256, "interpolation": "bicubic", "rounding": "torchvision"},
    }
    assert preprocessing_of(given, side) == Preprocessing(**{**expected, **changes})


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("beit3_base_patch16_224", "BEiT-3"),
        ("beitv2_base_patch16_224", "BEiT"),
        ("eva02_tiny_patch14_224", "EVA-02"),
        ("vit_pe_core_base_patch16_224", "Perception Encoder"),
        ("vit_base_mci_224", "MobileCLIP hybrid"),
        ("deit_base_distilled_patch16_224", "distilled DeiT"),
        ("deit_base_patch16_224", "DeiT"),
        ("xcit_nano_12_p16_224", "XCiT"),
        ("cait_m36_384", "CaiT"),
        ("convnext_base", "ConvNeXt"),
        ("maxvit_base_tf_224", "MaxViT"),
        ("levit_128", "LeViT"),
        ("vit_medium_patch16_rpn_224", "ViT with norms after its branches"),
        ("coat_tiny", "coat"),
        ("efficientnet.b0_x", "efficientnet"),
        ("aimv2_1b_patch14_224", "AIMv2"),
        ("vit_small_patch16_dinov3", "DINOv3"),
        ("sapiens2_1b", "Sapiens2"),
        ("vit_base_lingbot_vision", "LingBot-Vision"),
        ("vit_base_patch16_rope_mixed_224", "ViT with learned rotary positions"),
        ("vit_base_patch16_rope_224", "ViT with rotary positions"),
        ("vit_base_patch16_radio_v3", "RADIO"),
        ("vit_base_patch16_xp_224", "ViT with parallel attention and MLP"),
        ("vit_dpwee_patch16_reg1_gap_256", "Differential Transformer"),
        ("vit_pwee_patch16_reg1_gap_256", "ViT with parallel attention and MLP"),
        ("vit_dwee_patch16_reg1_gap_256", "Differential Transformer"),
        ("vit_dlittle_patch16_reg1_gap_256", "Differential Transformer"),
        ("vit_small_patch16_18x2_224", "ViT with parallel branches"),
        ("vit_small_resnet26d_224", "hybrid on a ResNet with batch norm"),
        ("vit_base_resnet50d_224", "hybrid on a ResNet with batch norm"),
        ("gmlp_s16_224", "gMLP"),
        ("gmixer_24_224", "gMixer"),
        ("resmlp_12_224", "ResMLP"),
        ("mixer_b16_224", "MLP-Mixer"),
        ("resnetv2_50", "pre-activation ResNet without standardised convolutions"),
        ("swin_tiny_patch4_window7_224", "Swin Transformer"),
        ("hiera_base_224", "Hiera"),
        ("naflexvit_base_patch16_gap", "NaFlexViT"),
        ("vit_base_patch16_224", "ViT"),
        ("eva_giant_patch14_224", "EVA"),
    ],
)
def test_the_family_in_a_name(architecture, family):
    assert family_of(architecture) == family


def test_what_a_config_states_beside_options():
    flexible = stated_by_config({"architecture": "flexivit_small"})
    assert (flexible.position_resize, flexible.remarks) == ("bilinear", ())
    for size in ((48, 64), (64, 48)):
        given = {"architecture": "vit_tiny_patch16_224", "model_args": {"img_size": size}}
        (remark,) = stated_by_config(given).remarks
        assert "rectangle" in remark
        squashed = {**given, "pretrained_cfg": {"crop_mode": "squash"}}
        assert stated_by_config(squashed).remarks == ()


def test_what_is_refused_is_named_with_what_is_known():
    known = known_architectures()
    with pytest.raises(
        WeightsError,
        match=rf"architecture='swin_x', a Swin Transformer: .* 300 .* timm {known['timm']} that",
    ):
        architecture_arguments("swin_x")
    with pytest.raises(
        WeightsError, match=r"^its architecture 'swin_x' is a Swin Tr.*: not supported"
    ):
        translate("swin_x", {"class": "SwinTransformer"})
    config = {"architecture": "vit_tiny_patch16_224"}
    for place in (config | {"new": 3}, config | {"pretrained_cfg": {"new": 3}}):
        with pytest.raises(
            WeightsError, match=r"^config\.json has new=3, which this package does not"
        ):
            stated_by_config(place)
    with pytest.raises(WeightsError, match=r"^config\.json has label_offset=2: not supported\.$"):
        stated_by_config(config | {"label_offset": 2})
