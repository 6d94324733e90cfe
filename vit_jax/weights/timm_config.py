"""timm's `config.json`: an architecture's name, its arguments, its preprocessing, in our terms.

`timm_architectures.json` holds the arguments behind each name, as
`tests/campaigns/timm_architectures.py` found them in timm. A name that is not in it, an argument
that is not known, and a value that this package has no model for, are refused by name.
"""

import functools
import importlib.resources
import json
import math
import re
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import WeightsError
from vit_jax.model_file import AREA, TORCHVISION, Preprocessing
from vit_jax.models.base import as_pair
from vit_jax.models.norms import LAYER_NORM_EPSILON
from vit_jax.models.positions import (
    CENTRED,
    INDICES,
    LEARNED_1D,
    LEARNED_1D_ROTARY_2D,
    NO_POSITIONS,
    ROTARY_2D,
)
from vit_jax.models.vit import ATTENTION_POOLING, AVERAGE_POOLING, CLASS_TOKEN_POOLING
from vit_jax.weights import metadata
from vit_jax.weights.architecture import bias_of
from vit_jax.weights.content import HeadOrder, Stated
from vit_jax.weights.resampling import BICUBIC, BILINEAR, BILINEAR_CORNER
from vit_jax.weights.translation import Arguments, Translation, article, named, nothing, only

POOLINGS = {"token": CLASS_TOKEN_POOLING, "avg": AVERAGE_POOLING, "map": ATTENTION_POOLING}
ACTIVATIONS = {"gelu": "erf", "gelu_tanh": "tanh", "quick_gelu": "quick"}
# GroupNorm's and the standardised convolutions', under our names.
STEM_EPSILONS = {"stem_group_norm_epsilon": 1e-5, "stem_kernel_epsilon": 1e-8}
BIT_EPSILONS = {"group_norm_epsilon": 1e-5, "kernel_epsilon": 1e-8}
DEFAULT_INPUT_SIZE = (3, 224, 224)
INTERPOLATIONS = {"bilinear": "bilinear", "bicubic": "bicubic", "box": AREA}
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# What architectures are called; the first that is found in a name.
FAMILIES = {
    "aimv2": "AIMv2",
    "beit3": "BEiT-3",
    "beit": "BEiT",
    "eva02": "EVA-02",
    "_pe_": "Perception Encoder",
    "dinov3": "DINOv3",
    "sapiens2": "Sapiens2",
    "lingbot": "LingBot-Vision",
    "mixed": "ViT with learned rotary positions",
    "rope": "ViT with rotary positions",
    "radio": "RADIO",
    "_rpn_": "ViT with norms after its branches",
    "_xp_": "ViT with parallel attention and MLP",
    "dpwee": "Differential Transformer",
    "pwee": "ViT with parallel attention and MLP",
    "dwee": "Differential Transformer",
    "dlittle": "Differential Transformer",
    "18x2": "ViT with parallel branches",
    "resnet26d": "hybrid on a ResNet with batch norm",
    "resnet50d": "hybrid on a ResNet with batch norm",
    "mci": "MobileCLIP hybrid",
    "distilled": "distilled DeiT",
    "gmlp": "gMLP",
    "gmixer": "gMixer",
    "resmlp": "ResMLP",
    "mixer": "MLP-Mixer",
    "resnetv2": "pre-activation ResNet without standardised convolutions",
    "swin": "Swin Transformer",
    "hiera": "Hiera",
    "naflexvit": "NaFlexViT",
    "cait": "CaiT",
    "convnext": "ConvNeXt",
    "xcit": "XCiT",
    "maxvit": "MaxViT",
    "levit": "LeViT",
    "vit": "ViT",
    "deit": "DeiT",
    "eva": "EVA",
}


def norm(value: Any) -> Arguments:
    """LayerNorm, with its epsilon."""
    if value is None:
        return {"norm_epsilon": LAYER_NORM_EPSILON}
    if value[""] != "LayerNorm" or set(value) != {"", "eps"}:
        raise ValueError
    return {"norm_epsilon": value["eps"]}


def stem(value: Any) -> Arguments:
    """The layer that makes patches: of images, or of the feature map of BiT's ResNet."""
    if value is None:
        return {}
    known = value[""] == "HybridEmbed" and value["backbone"] in ("ResNetV2", "Sequential")
    if not known or set(value) != {"", "backbone"}:
        raise ValueError
    return STEM_EPSILONS


def mlp(value: Any) -> Arguments:
    """The MLP of a block; its hidden layer is read off the tensors."""
    swiglu = {"": "GluMlp", "act_layer": "SiLU", "gate_last": False}
    if value not in (None, swiglu):
        raise ValueError
    return {"mlp": "swiglu" if value else "dense"}


# What timm's names contain -> how it resizes their positions; others bicubically.
POSITION_RESIZES = {
    "flexivit": BILINEAR,
    "base_patch16_radio_v3": BILINEAR_CORNER,
    "huge_patch16_radio_v3": BILINEAR_CORNER,
    "radio": BILINEAR,
}


def reference(value: Any) -> Arguments:
    """The side of the grid that rotary positions are counted in."""
    sides = {value} if value is None or isinstance(value, int) else set(value)
    side = sides.pop() if len(sides) == 1 else ""
    if not isinstance(side, int | None):
        raise ValueError
    return {"rotary_reference": side or 0}


TRAINING = dict.fromkeys(
    (
        *("drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate"),
        *("drop_path_rate", "weight_init", "fix_init", "head_init_scale", "pretrained_strict"),
    ),
    nothing,
)
SHOWN = dict.fromkeys(
    (
        *("img_size", "in_chans", "depth", "mlp_ratio", "class_token", "reg_tokens"),
        *("init_values", "qk_norm", "qkv_bias", "fc_norm", "final_norm", "pre_norm"),
        *("pos_embed", "dynamic_img_size"),
    ),
    nothing,
)
COMMON: dict[str, Translation] = {
    **TRAINING,
    **SHOWN,
    "embed_dim": named("width"),
    "patch_size": nothing,
    "num_classes": named("num_classes"),
    "num_heads": named("num_heads"),
    "global_pool": named("pooling", POOLINGS),
    "no_embed_class": lambda value: {"prefix_positions": not value},
    "norm_layer": norm,
    "dynamic_img_pad": only(False),
}
TOKEN_OR_AVERAGE = named("pooling", {"token": CLASS_TOKEN_POOLING, "avg": AVERAGE_POOLING})
# A class of timm -> its arguments. One that is not here is refused whatever its value.
CLASSES: dict[str, Mapping[str, Translation]] = {
    "VisionTransformer": {
        **COMMON,
        "act_layer": named("gelu", {**ACTIVATIONS, "SiLU": "erf"}),  # of a SwiGLU
        "embed_layer": stem,
        "mlp_layer": mlp,
        "proj_bias": only(True),
        "pool_include_prefix": only(False),
        "scale_attn_norm": nothing,
        "scale_mlp_norm": nothing,
        "embed_norm_layer": only(None),
        "block_fn": only(None),
        "attn_layer": only(None),
    },
    "Eva": {
        **COMMON,
        "num_reg_tokens": nothing,
        "use_fc_norm": nothing,
        "use_pre_transformer_norm": nothing,
        "use_post_transformer_norm": nothing,
        "use_abs_pos_emb": nothing,
        "qkv_fused": nothing,
        "scale_mlp": nothing,
        "scale_attn_inner": nothing,
        "swiglu_mlp": nothing,
        "swiglu_align_to": nothing,
        "rope_rescale_coords": nothing,
        "rope_shift_coords": nothing,
        "rope_jitter_coords": nothing,
        "attn_only_layer_scale": only(False),
        "global_pool": TOKEN_OR_AVERAGE,
        "use_post_norm": only(False),
        "attn_type": only("eva", "rope"),
        "num_kv_heads": only(None),
        "use_rot_pos_emb": nothing,  # `stated_by_config` reads it, and `head_order` the next two.
        "rope_rotate_half": only(False, True),
        "rope_grid_indexing": only("ij", "xy"),
        "rope_type": named("rotary_coordinates", {"cat": INDICES, "dinov3": CENTRED}),
        "rope_temperature": lambda value: {"rotary_temperature": float(value)},
        "rope_grid_offset": only(0, 0.0),
        "ref_feat_shape": reference,
    },
    "Beit": {
        **COMMON,
        **dict.fromkeys(("swiglu_mlp", "scale_mlp", "use_fc_norm"), nothing),
        "use_rel_pos_bias": nothing,  # `stated_by_config` reads it, and the next.
        "use_shared_rel_pos_bias": nothing,
        "global_pool": TOKEN_OR_AVERAGE,
        "use_abs_pos_emb": lambda value: {"positions": LEARNED_1D if value else NO_POSITIONS},
    },
    "MlpMixer": {
        **TRAINING,
        **dict.fromkeys(("img_size", "in_chans", "num_blocks", "mlp_ratio"), nothing),
        "embed_dim": named("width"),
        "patch_size": nothing,
        "num_classes": named("num_classes"),
        "global_pool": only("avg"),
        "act_layer": named("gelu", ACTIVATIONS),
        "norm_layer": norm,
        "block_layer": only(None),
        "mlp_layer": only(None),
    },
    "ResNetV2": {
        **TRAINING,
        **dict.fromkeys(("in_chans", "layers", "channels"), nothing),
        "width_factor": named("width_factor"),
        "num_classes": named("num_classes"),
        "global_pool": only("avg"),
        "stem_type": only("fixed"),
        "conv_layer": only({"": "StdConv2d", "eps": 1e-8}),
        "preact": only(True),
        "norm_layer": only(None),
    },
}
CLASSES["VisionTransformerDistilled"] = CLASSES["VisionTransformer"]
# The classes' own values, where they say something.
CLASS_DEFAULTS: dict[str, Arguments] = {
    "VisionTransformer": {
        **{"embed_dim": 768, "num_heads": 12, "global_pool": "token", "act_layer": "gelu"},
        **{"norm_layer": None, "mlp_layer": None, "no_embed_class": False},
    },
    "Eva": {
        **{"embed_dim": 768, "num_heads": 12, "global_pool": "avg"},
        **{"norm_layer": None, "no_embed_class": False},
    },
    "MlpMixer": {"embed_dim": 512, "act_layer": "gelu", "norm_layer": None},
    "ResNetV2": {"stem_type": "", "conv_layer": "StdConv2d", "width_factor": 1},
}
CLASS_DEFAULTS["VisionTransformerDistilled"] = CLASS_DEFAULTS["VisionTransformer"]
CLASS_DEFAULTS["Beit"] = {**CLASS_DEFAULTS["Eva"], "use_abs_pos_emb": True}
CLASS_OPTIONS: dict[str, Arguments] = {  # Ours that no argument says.
    "VisionTransformer": {},
    "VisionTransformerDistilled": {},
    "Eva": {"gelu": "erf"},
    "Beit": {"gelu": "erf"},
    "MlpMixer": {},
    "ResNetV2": BIT_EPSILONS,
}
# Keys of `config.json` and its `pretrained_cfg` that say where weights come from, or how pixels do.
DESCRIPTIVE = frozenset(
    (
        *("architecture", "num_features", "num_classes", "global_pool", "model_args"),
        *("pretrained_cfg", "label_names", "label_descriptions", "labels", "tag", "url", "file"),
        *("hf_hub_id", "hf_hub_filename", "source", "state_dict", "custom_load", "license"),
        *("description", "origin_url", "paper_name", "paper_ids", "notes", "input_size"),
        *("test_input_size", "min_input_size", "fixed_input_size", "interpolation", "crop_pct"),
        *("test_crop_pct", "crop_mode", "mean", "std", "pool_size", "test_pool_size"),
        *("first_conv", "classifier", "label_offset"),
    )
)


def stated_by_config(config: Arguments) -> Stated:
    """The statements of timm's `config.json`.

    Raises WeightsError for an architecture, a key or a value that this package does not know.
    """
    architecture = config["architecture"].split(".")[0]  # A tag may follow.
    pretrained, overrides = config.get("pretrained_cfg") or {}, config.get("model_args") or {}
    given = {**pretrained, **config, **overrides}
    for key in (*config, *pretrained):
        if key not in DESCRIPTIVE:
            raise WeightsError(
                f"config.json has {key}={given[key]!r}, which this package does not know."
            )
    if given.get("label_offset"):
        raise WeightsError(f"config.json has label_offset={given['label_offset']}: not supported.")
    arguments = dict(architecture_arguments(architecture))
    arguments |= {
        key: given[key] for key in ("num_classes", "global_pool") if given.get(key) is not None
    }
    arguments |= overrides
    options = translate(architecture, arguments)
    if arguments.get("use_rot_pos_emb"):
        learned = arguments.get("use_abs_pos_emb", True)
        options["positions"] = LEARNED_1D_ROTARY_2D if learned else ROTARY_2D
    if arguments["class"] == "Beit":
        ways = (arguments.get(f"use_{way}rel_pos_bias", False) for way in ("", "shared_"))
        options["relative_position_bias"] = bias_of(*ways)
    if "num_heads" in overrides and "embed_dim" not in overrides:
        del options["width"]  # With its heads known, a model of another width is no contradiction.
    size = overrides.get("img_size") or given.get("input_size", DEFAULT_INPUT_SIZE)[1:]
    options["image_size"] = as_pair("image_size", size)
    names = metadata.ordered_names(given.get("label_names") or ())
    return Stated(
        options,
        preprocessing_of(given, min(options["image_size"])),
        names,
        position_resize=position_resize_of(architecture),
        remarks=preprocessing_remarks(given, options["image_size"]),
        head_order=head_order(arguments) if arguments.get("use_rot_pos_emb") else None,
    )


def head_order(arguments: Arguments) -> HeadOrder:
    """How timm orders the features that rotary positions turn."""
    return HeadOrder(
        interleaved=not arguments.get("rope_rotate_half", False),
        column_first=arguments.get("rope_grid_indexing", "ij") == "xy",
    )


def position_resize_of(architecture: str) -> str:
    """How timm resizes positions of that architecture."""
    return next((way for part, way in POSITION_RESIZES.items() if part in architecture), BICUBIC)


@functools.cache
def known_architectures() -> Mapping[str, Any]:
    """The content of `timm_architectures.json`."""
    file = importlib.resources.files(__package__) / "timm_architectures.json"
    return json.loads(file.read_text(encoding="utf-8"))


def architecture_arguments(architecture: str) -> Arguments:
    """The arguments behind a name of timm's; raises WeightsError if it is not known."""
    known = known_architectures()
    name = known["renamed"].get(architecture, architecture)
    if name not in known["architectures"]:
        raise WeightsError(
            f"config.json says architecture={architecture!r}, {article(family_of(architecture))}: "
            f"it is not among the {len(known['architectures'])} architectures of timm "
            f"{known['timm']} that this package knows."
        )
    return known["architectures"][name]


def family_of(architecture: str) -> str:
    """The kind of model behind a name; the name's first word for others."""
    for part, family in FAMILIES.items():
        if part in f"_{architecture}_":
            return family
    return re.split("[_.]", architecture)[0]


def translate(architecture: str, arguments: Arguments) -> dict[str, Any]:
    """Our options for timm's arguments; raises WeightsError for what this package cannot compute."""
    arguments = dict(arguments)
    name = arguments.pop("class")
    family = article(family_of(architecture))
    if name not in CLASSES:
        raise WeightsError(f"its architecture {architecture!r} is {family}: not supported.")
    options = dict(CLASS_OPTIONS[name])
    for key, value in {**CLASS_DEFAULTS[name], **arguments}.items():
        try:
            options |= CLASSES[name][key](value)
        except (KeyError, TypeError, ValueError):
            raise WeightsError(
                f"its architecture {architecture!r} is {family} with {key}={value!r}, which this "
                "package does not compute."
            ) from None
    return options


def preprocessing_remarks(given: Arguments, size: tuple[int, int]) -> tuple[str, ...]:
    """What timm's preprocessing does in a way that this package cannot."""
    remarks = []
    if (theirs := given.get("interpolation", "bicubic")) not in INTERPOLATIONS:
        remarks.append(f"config.json resizes pictures by {theirs}, this package by bicubic")
    if (mode := given.get("crop_mode", "center")) not in ("center", "squash"):
        remarks.append(f"config.json has crop_mode={mode!r}, this package crops the centre")
    elif mode == "center" and size[0] != size[1]:
        remarks.append(
            "timm resizes pictures to cover a rectangle before its crop, this package their smaller "
            "side"
        )
    return tuple(remarks)


def preprocessing_of(given: Arguments, side: int) -> Preprocessing:
    """timm's preprocessing for images of which the smaller side has `side` pixels."""
    squash = given.get("crop_mode") == "squash"
    return Preprocessing(
        mean=tuple(given.get("mean", IMAGENET_MEAN)),
        std=tuple(given.get("std", IMAGENET_STD)),
        crop="resize" if squash else "center",
        resize=math.floor(side / given.get("crop_pct", 0.875)),
        interpolation=INTERPOLATIONS.get(given.get("interpolation", ""), "bicubic"),
        rounding=TORCHVISION,
    )
