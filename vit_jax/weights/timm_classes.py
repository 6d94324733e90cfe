"""The classes of timm that models are written for, and what each can hold."""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.errors import WeightsError
from vit_jax.models.hybrid import HybridOptions
from vit_jax.models.layers import DENSE_MLP, SWIGLU
from vit_jax.models.mixer import MixerOptions
from vit_jax.models.norms import LAYER_NORM_EPSILON
from vit_jax.models.positions import (
    EVERY_LAYER,
    EVERY_LAYER_SHARED,
    LEARNED_1D,
    NO_BIAS,
    NO_POSITIONS,
    ROTARY,
    STEM,
)
from vit_jax.models.resnet import ResNetOptions
from vit_jax.models.vit import AVERAGE_POOLING, CLASS_TOKEN_POOLING, ViTOptions
from vit_jax.weights import timm_beit, timm_eva
from vit_jax.weights import timm_table as tables
from vit_jax.weights.architecture import registered_name
from vit_jax.weights.mapping import Row, Tensors
from vit_jax.weights.timm_arguments import (
    WIDE_EPSILON,
    encoder_arguments,
    exact_ratio,
    invert,
    is_swiglu,
    mlp_ratio,
    warn_of_norms,
)
from vit_jax.weights.timm_config import ACTIVATIONS, BIT_EPSILONS, STEM_EPSILONS
from vit_jax.weights.timm_table import BACKBONE, has_stages

logger = logging.getLogger(__name__)

STEM_REMARK = (
    "timm's hybrids and BiT ResNets use GroupNorm epsilon 1e-5 and standardisation epsilon 1e-8, this "
    "model others: logits differ by about 2e-4"
)
# Our names -> timm's, where it has the same model; other ViTs are built from their arguments.
ARCHITECTURES = {
    "ViT-Ti/16": "vit_tiny_patch16_224",
    "ViT-S/32": "vit_small_patch32_224",
    "ViT-S/16": "vit_small_patch16_224",
    "ViT-B/32": "vit_base_patch32_224",
    "ViT-B/16": "vit_base_patch16_224",
    "ViT-B/8": "vit_base_patch8_224",
    "ViT-L/32": "vit_large_patch32_224",
    "ViT-L/16": "vit_large_patch16_224",
    "ViT-H/14": "vit_huge_patch14_224",
    "ViT-g/14": "vit_giant_patch14_224",
    "ViT-G/14": "vit_gigantic_patch14_224",
    "R+ViT-Ti/16": "vit_tiny_r_s16_p8_224",
    "R26+ViT-S/32": "vit_small_r26_s32_224",
    "R26+ViT-B/32": "vit_base_r26_s32_224",
    "R50+ViT-B/16": "vit_base_r50_s16_224",
    "R50+ViT-L/32": "vit_large_r50_s32_224",
}
DISTILLED = "deit_base_distilled_patch16_224"
BIT_RESNETS = {
    "BiT-R50x1": "resnetv2_50x1_bit",
    "BiT-R50x3": "resnetv2_50x3_bit",
    "BiT-R101x1": "resnetv2_101x1_bit",
    "BiT-R101x3": "resnetv2_101x3_bit",
    "BiT-R152x2": "resnetv2_152x2_bit",
    "BiT-R152x4": "resnetv2_152x4_bit",
}
MIXERS = {  # patch, blocks, width -> timm's name: they are no arguments
    (32, 8, 512): "mixer_s32_224",
    (16, 8, 512): "mixer_s16_224",
    (32, 12, 768): "mixer_b32_224",
    (16, 12, 768): "mixer_b16_224",
    (32, 24, 1024): "mixer_l32_224",
    (16, 24, 1024): "mixer_l16_224",
}
TENSORS_ALONE = "its tensors alone can be written, to a name that ends in .safetensors."


def as_they_are(parameters: Tensors, options: Any) -> Tensors:
    """The parameters."""
    del options
    return parameters


@dataclasses.dataclass(frozen=True, kw_only=True)
class Class:
    """A class of timm that models are written for.

    Attributes:
      name: of the class.
      models: option classes.
      rows: parameters, options -> the table of its tensors' names.
      prepare: parameters, options -> the parameters that the rows are of.
      config: parameters, options -> the keys of `config.json` that say which model it is; raises
        WeightsError if timm has no such model.
      first_conv, classifier: options -> timm's names of the layers that see the image and the
        classes.
      fixed_input_size: whether the size of images is an argument.
      values: as of a `Layout`.
    """

    name: str
    models: tuple[type, ...]
    rows: Callable[[Tensors, Any], tuple[Row, ...]]
    prepare: Callable[[Tensors, Any], Tensors] = as_they_are
    config: Callable[[Tensors, Any], Mapping[str, Any]]
    first_conv: Callable[[Any], str]
    classifier: Callable[[Any], Any] = lambda options: "head"
    fixed_input_size: bool = True
    values: Mapping[str, tuple]


def warn_of_epsilons(options: Any, theirs: Mapping[str, float]) -> None:
    """Says that a ResNet's epsilons are not timm's, where they are not."""
    if any(getattr(options, option) != value for option, value in theirs.items()):
        logger.warning("Note: %s.", STEM_REMARK)


def vit_rows(parameters: Tensors, options: Any) -> tuple[Row, ...]:
    """The table of a VisionTransformer."""
    del parameters
    first = tables.PACKED_ROWS if is_swiglu(options) else tables.DENSE_ROWS
    return (*first, *tables.VIT)


def vit_config(parameters: Tensors, options: Any) -> dict[str, Any]:
    """The configuration of a VisionTransformer; all arguments are in it, whatever its name's own."""
    del parameters
    hybrid, name = isinstance(options, HybridOptions), registered_name(options)
    if options.distillation_token and (hybrid or options.num_registers):
        raise WeightsError(
            "timm has no hybrid with a distillation token, and no model with that and registers: "
            + TENSORS_ALONE
        )
    if hybrid and name not in ARCHITECTURES:
        raise WeightsError(f"timm has no hybrid like {name or 'this one'}: {TENSORS_ALONE}")
    warn_of_norms(options, LAYER_NORM_EPSILON, WIDE_EPSILON)
    return {"architecture": vit_architecture(options, name), "model_args": vit_arguments(options)}


def vit_arguments(options: Any) -> dict[str, Any]:
    """The arguments of timm's VisionTransformer."""
    arguments = {
        **encoder_arguments(options),
        "mlp_ratio": mlp_ratio(options, packed=is_swiglu(options)),
        "act_layer": invert(ACTIVATIONS)[options.gelu],
        "reg_tokens": options.num_registers,
        "pos_embed": "learn" if options.positions == LEARNED_1D else "none",
        "fc_norm": options.norm_after_pooling,
        "pre_norm": options.pre_norm,
        "final_norm": options.final_norm,
        "scale_attn_norm": options.attention_norm,
        "scale_mlp_norm": options.mlp_norm,
    }
    if is_swiglu(options):  # Its activation is not an option there.
        del arguments["act_layer"]
    if not isinstance(options, HybridOptions):  # Their patch size belongs to the backbone.
        arguments["patch_size"] = options.patch_size
    return arguments


def vit_architecture(options: Any, name: str | None) -> str:
    """timm's name with what is no argument: the stem, the LayerNorms' epsilon, the kind of MLP."""
    needed = {
        "vit_giant_patch14_dinov2": is_swiglu(options),
        "vit_base_patch16_clip_224": options.norm_epsilon == WIDE_EPSILON,
        DISTILLED: options.distillation_token,
        ARCHITECTURES.get(name or "", ""): isinstance(options, HybridOptions),
    }
    found = [architecture for architecture, is_needed in needed.items() if is_needed]
    if len(found) > 1:
        raise WeightsError(
            f"timm has no model that is like {' and '.join(found)} at once: {TENSORS_ALONE}"
        )
    return found[0] if found else ARCHITECTURES.get(name or "", "vit_base_patch16_224")


def vit_first_conv(options: Any) -> str:
    """timm's name of the layer that sees the image."""
    if not isinstance(options, HybridOptions):
        return "patch_embed.proj"
    return f"{BACKBONE}.stem.conv" if has_stages(options) else f"{BACKBONE}.conv"


def with_own_epsilons(parameters: Tensors, options: Any) -> Tensors:
    """The parameters; says so where timm's hybrids compute with other epsilons."""
    if isinstance(options, HybridOptions):
        warn_of_epsilons(options, STEM_EPSILONS)
    return parameters


def mixer_config(parameters: Tensors, options: MixerOptions) -> dict[str, Any]:
    """The configuration of an MlpMixer."""
    del parameters
    rows, columns = options.patch_size
    name = MIXERS.get((rows, options.depth, options.width)) if rows == columns else None
    if name is None:
        raise WeightsError(f"timm has no MLP-Mixer of these sizes: {TENSORS_ALONE}")
    widths = (options.token_mlp_width, options.mlp_width)
    arguments = {
        "img_size": options.image_size,
        "in_chans": options.channels,
        "num_classes": options.num_classes,
        "mlp_ratio": tuple(exact_ratio(hidden, options.width) for hidden in widths),
    }
    return {"architecture": name, "model_args": arguments, "global_pool": "avg"}


def bit_config(parameters: Tensors, options: ResNetOptions) -> dict[str, Any]:
    """The configuration of a ResNetV2."""
    del parameters
    name = BIT_RESNETS.get(registered_name(options) or "")
    if name is None:
        raise WeightsError(f"timm has no BiT ResNet of these sizes: {TENSORS_ALONE}")
    warn_of_epsilons(options, BIT_EPSILONS)
    arguments = {"in_chans": options.channels, "num_classes": options.num_classes}
    return {"architecture": name, "model_args": arguments, "global_pool": "avg"}


ENCODER_VALUES: Mapping[str, tuple] = {"representation_size": (0,), "position_placement": (STEM,)}
VIT_VALUES = {**ENCODER_VALUES, "relative_position_bias": (NO_BIAS,)}
EVA = Class(
    name="Eva",
    models=(ViTOptions,),
    rows=timm_eva.rows,
    prepare=timm_eva.ordered,
    config=timm_eva.config,
    first_conv=vit_first_conv,
    values={
        **VIT_VALUES,
        "positions": ROTARY,
        "pooling": (CLASS_TOKEN_POOLING, AVERAGE_POOLING),
        "distillation_token": (False,),
        "mlp": (SWIGLU,),
    },
)
BEIT = Class(
    name="Beit",
    models=(ViTOptions,),
    rows=timm_beit.rows,
    prepare=timm_beit.prepared,
    config=timm_beit.config,
    first_conv=vit_first_conv,
    values={
        **ENCODER_VALUES,
        "relative_position_bias": (EVERY_LAYER, EVERY_LAYER_SHARED),
        "positions": (LEARNED_1D, NO_POSITIONS),
        "prefix_positions": (True,),
        "pooling": (AVERAGE_POOLING,),
        "class_token": (True,),
        "distillation_token": (False,),
        "num_registers": (0,),
        "query_key_norm": (False,),
        "attention_norm": (False,),
        "pre_norm": (False,),
        "final_norm": (True,),
        "mlp": (DENSE_MLP,),
        "gelu": ("erf",),
    },
)
OF_TOKEN = {"pooling": (CLASS_TOKEN_POOLING,), "class_token": (None, True)}
CLASSES = (
    BEIT,
    dataclasses.replace(BEIT, values={**BEIT.values, **OF_TOKEN}),
    dataclasses.replace(EVA, values={**EVA.values, "mlp": (DENSE_MLP,), "gelu": ("erf",)}),
    EVA,
    Class(
        name="VisionTransformer",
        models=(ViTOptions, HybridOptions),
        rows=vit_rows,
        prepare=with_own_epsilons,
        config=vit_config,
        first_conv=vit_first_conv,
        classifier=lambda options: ("head", "head_dist") if options.distillation_token else "head",
        values={**VIT_VALUES, "positions": (LEARNED_1D, NO_POSITIONS)},
    ),
    Class(
        name="MlpMixer",
        models=(MixerOptions,),
        rows=lambda parameters, options: tables.MIXER,
        config=mixer_config,
        first_conv=lambda options: "stem.proj",
        values={"gelu": ("erf",)},
    ),
    Class(
        name="ResNetV2",
        models=(ResNetOptions,),
        rows=lambda parameters, options: tables.BIT,
        config=bit_config,
        first_conv=lambda options: "stem.conv",
        classifier=lambda options: "head.fc",
        fixed_input_size=False,
        values={"preactivation": (True,), "pool_padding": ("zeros",)},
    ),
)
