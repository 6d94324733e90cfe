"""The classes of the transformers library that models are written for, and what each can hold."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.models.layers import DENSE_MLP, SWIGLU
from vit_jax.models.positions import (
    CENTRED,
    EVERY_LAYER,
    EVERY_LAYER_SHARED,
    LEARNED_1D,
    NO_BIAS,
    NO_POSITIONS,
    ROTARY_2D,
)
from vit_jax.models.vit import (
    ATTENTION_POOLING,
    AVERAGE_POOLING,
    CLASS_TOKEN_POOLING,
    ViTOptions,
)
from vit_jax.weights import huggingface_table as tables
from vit_jax.weights.layouts import KEY_BIAS, vit_values, without_head_bias, without_key_bias
from vit_jax.weights.mapping import Row, Tensors

MOST_RATIO = 32  # of DINOv2's MLP to its width


def vit_keys(options: ViTOptions, parameters: Tensors) -> dict[str, Any]:
    """Keys of `config.json` besides the common ones: of ViT, DeiT and I-JEPA."""
    del parameters
    width = options.representation_size
    return {
        "intermediate_size": options.mlp_width,
        "qkv_bias": options.qkv_bias,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        **({"pooler_output_size": width} if width else {}),
    }


def dinov2_keys(options: ViTOptions, parameters: Tensors) -> dict[str, Any]:
    """The same of DINOv2; raises WeightsError for an MLP that it does not have."""
    check_squares(options, "DINOv2")
    keys = vit_keys(options, parameters)
    del keys["intermediate_size"]
    registers = {"num_register_tokens": options.num_registers} if options.num_registers else {}
    gated = options.mlp == SWIGLU
    return {**keys, "mlp_ratio": dinov2_ratio(options), "use_swiglu_ffn": gated, **registers}


def dinov2_ratio(options: ViTOptions) -> int:
    """DINOv2's `mlp_ratio`, an integer that the MLP's width follows from."""
    for ratio in range(1, MOST_RATIO + 1):
        hidden = ratio * options.width
        if options.mlp == SWIGLU:  # Two thirds of it, in steps of 8.
            hidden = (int(hidden * 2 / 3) + 7) // 8 * 8
        if hidden == options.mlp_width:
            return ratio
    raise WeightsError(
        f"huggingface files have no DINOv2 with model.mlp_width={options.mlp_width}: it is the width "
        f"{options.width} times an integer, with a SwiGLU two thirds of that."
    )


def dinov3_keys(options: ViTOptions, parameters: Tensors) -> dict[str, Any]:
    """The same of DINOv3."""
    gated = options.mlp == SWIGLU
    return {
        "intermediate_size": options.mlp_width,
        **({"hidden_act": "silu"} if gated else {}),
        "use_gated_mlp": gated,
        "rope_theta": options.rotary_temperature,
        "num_register_tokens": options.num_registers,
        "query_bias": options.qkv_bias,
        "key_bias": KEY_BIAS in parameters,
        "value_bias": options.qkv_bias,
    }


def beit_keys(options: ViTOptions, parameters: Tensors) -> dict[str, Any]:
    """The same of BEiT, whose bias the library reads right for squares only."""
    bias = options.relative_position_bias
    if bias != NO_BIAS:
        check_squares(options, "BEiT with a relative position bias")
    keys = vit_keys(options, parameters)
    del keys["qkv_bias"]
    return {
        **keys,
        "drop_path_rate": 0.0,
        "layer_scale_init_value": options.layer_scale,
        "use_mean_pooling": options.pooling == AVERAGE_POOLING,
        "use_absolute_position_embeddings": options.positions == LEARNED_1D,
        "use_relative_position_bias": bias == EVERY_LAYER,
        "use_shared_relative_position_bias": bias == EVERY_LAYER_SHARED,
    }


def clip_keys(options: ViTOptions, parameters: Tensors) -> dict[str, Any]:
    """The same of CLIP and SigLIP."""
    del parameters
    check_squares(options, "CLIP or SigLIP")
    projection = {"projection_dim": options.num_classes} if options.num_classes else {}
    return {"intermediate_size": options.mlp_width, **projection}


def check_squares(options: ViTOptions, family: str) -> None:
    """Raises WeightsError for images or patches that are no squares."""
    for name in ("image_size", "patch_size"):
        height, width = getattr(options, name)
        if height != width:
            raise WeightsError(
                f"huggingface files have no {family} with model.{name}={(height, width)}: write "
                "format='vit_jax'."
            )


def as_they_are(parameters: Tensors) -> Tensors:
    """The parameters."""
    return parameters


def with_token_row(parameters: Tensors) -> Tensors:
    """With a row of positions for the class token, 0; and a classifier that ignores the patches."""
    table = parameters["position_embedding"]
    row = np.zeros_like(table[:, :1])
    return {**with_wide_head(parameters), "position_embedding": np.concatenate([row, table], 1)}


def with_wide_head(parameters: Tensors) -> Tensors:
    """DINOv2's classifier, on the class token and the patches' average, with 0 for the latter."""
    if (kernel := parameters.get("head/kernel")) is None:
        return parameters
    return {**parameters, "head/kernel": np.concatenate([kernel, np.zeros_like(kernel)])}


def without_zero_key_bias(parameters: Tensors) -> Tensors:
    """Without the keys' biases, which DINOv3 does not have, if they are 0."""
    if parameters.get(KEY_BIAS, np.zeros(0)).any():
        return parameters
    return {name: array for name, array in parameters.items() if name != KEY_BIAS}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Class:
    """A class of the library that models are written for.

    Attributes:
      name: of the class.
      model_type: the library's word for what `config.json` describes.
      rows: of its tensors' names.
      prefix: of its trunk's names.
      keys: complete options, parameters -> keys of `config.json` besides the common ones.
      prepare: ours -> the parameters that the rows are of.
      mask_token: its shape before the width, where the class has one; inference does not use it.
      values, needs: as of a `Layout`.
    """

    name: str
    model_type: str
    rows: tuple[Row, ...]
    prefix: str = ""
    keys: Callable[[Any, Tensors], Mapping[str, Any]] = vit_keys
    prepare: Callable[[Tensors], Tensors] = as_they_are
    mask_token: tuple[int, ...] | None = None
    values: Mapping[str, tuple]
    needs: tuple[str, ...] = ()


HEADLESS: Mapping[str, tuple] = {"num_classes": (0,)}
OF_TOKEN: Mapping[str, tuple] = {
    "pooling": (CLASS_TOKEN_POOLING,),
    "norm_after_pooling": (False,),
    "prefix_positions": (True,),
}
OF_PATCHES: Mapping[str, tuple] = {"norm_after_pooling": (False,), "class_token": (None, False)}
AVERAGED = {**vit_values(**OF_PATCHES), "pooling": (AVERAGE_POOLING,)}
PLAIN = vit_values(**OF_TOKEN)
WITH_POOLER = vit_values("representation_size", **OF_TOKEN, **HEADLESS)
DINOV2_VALUES = vit_values("layer_scale", **OF_TOKEN, mlp=(DENSE_MLP, SWIGLU))
REGISTERS = {
    **vit_values("layer_scale", "num_registers", **OF_TOKEN, mlp=(DENSE_MLP, SWIGLU)),
    "prefix_positions": (False,),
}
DINOV3_VALUES = {
    **vit_values("layer_scale", "num_registers", **OF_TOKEN, **HEADLESS),
    "mlp": (DENSE_MLP, SWIGLU),
    "positions": (ROTARY_2D,),
    "rotary_coordinates": (CENTRED,),
}
del DINOV3_VALUES["prefix_positions"]  # It has no table.
BEIT_OF_TOKEN = {
    **vit_values("layer_scale", "relative_position_bias", **OF_TOKEN),
    "positions": (LEARNED_1D, NO_POSITIONS),
    "qkv_bias": (True,),
}
BEIT_OF_PATCHES = {
    **BEIT_OF_TOKEN,
    "pooling": (AVERAGE_POOLING,),
    "norm_after_pooling": (True,),
    "class_token": (True,),
}
CLASSES = (
    Class(
        name="ViTForImageClassification",
        model_type="vit",
        rows=tables.VIT,
        prefix="vit.",
        values=PLAIN,
        needs=("num_classes",),
    ),
    Class(name="ViTModel", model_type="vit", rows=tables.VIT, values=WITH_POOLER),
    Class(
        name="IJepaForImageClassification",
        model_type="ijepa",
        rows=tables.VIT,
        prefix="ijepa.",
        values=AVERAGED,
        needs=("num_classes",),
    ),
    Class(name="IJepaModel", model_type="ijepa", rows=tables.VIT, values={**AVERAGED, **HEADLESS}),
    Class(
        name="DeiTForImageClassification",
        model_type="deit",
        rows=tables.DEIT,
        prefix="deit.",
        values={**PLAIN, "num_registers": (1,)},
        needs=("num_classes",),
    ),
    Class(
        name="DeiTForImageClassificationWithTeacher",
        model_type="deit",
        rows=tables.DEIT_WITH_TEACHER,
        prefix="deit.",
        values={**PLAIN, "distillation_token": (True,)},
        needs=("num_classes",),
    ),
    Class(
        name="DeiTModel",
        model_type="deit",
        rows=tables.DEIT,
        values={**WITH_POOLER, "num_registers": (1,)},
    ),
    Class(
        name="Dinov2ForImageClassification",
        model_type="dinov2",
        rows=tables.DINOV2,
        prefix="dinov2.",
        keys=dinov2_keys,
        prepare=with_wide_head,
        mask_token=(1,),
        values=DINOV2_VALUES,
        needs=("num_classes", "layer_scale"),
    ),
    Class(
        name="Dinov2Model",
        model_type="dinov2",
        rows=tables.DINOV2,
        keys=dinov2_keys,
        mask_token=(1,),
        values={**DINOV2_VALUES, **HEADLESS},
        needs=("layer_scale",),
    ),
    Class(
        name="Dinov2WithRegistersForImageClassification",
        model_type="dinov2_with_registers",
        rows=tables.DINOV2,
        prefix="dinov2_with_registers.",
        keys=dinov2_keys,
        prepare=with_token_row,
        mask_token=(1,),
        values=REGISTERS,
        needs=("num_classes", "layer_scale", "num_registers"),
    ),
    Class(
        name="Dinov2WithRegistersModel",
        model_type="dinov2_with_registers",
        rows=tables.DINOV2,
        keys=dinov2_keys,
        prepare=with_token_row,
        mask_token=(1,),
        values={**REGISTERS, **HEADLESS},
        needs=("layer_scale", "num_registers"),
    ),
    Class(
        name="DINOv3ViTModel",
        model_type="dinov3_vit",
        rows=tables.DINOV3,
        keys=dinov3_keys,
        prepare=without_zero_key_bias,
        mask_token=(1, 1),
        values=DINOV3_VALUES,
        needs=("layer_scale",),
    ),
    Class(
        name="CLIPVisionModelWithProjection",
        model_type="clip_vision_model",
        rows=tables.CLIP,
        prefix="vision_model.",
        keys=clip_keys,
        prepare=without_head_bias,
        values={**PLAIN, "pre_norm": (True,), "qkv_bias": (True,)},
        needs=("num_classes",),
    ),
    Class(
        name="CLIPVisionModel",
        model_type="clip_vision_model",
        rows=tables.CLIP,
        prefix="vision_model.",
        keys=clip_keys,
        values={**PLAIN, **HEADLESS, "pre_norm": (True,), "qkv_bias": (True,)},
    ),
    Class(
        name="SiglipVisionModel",
        model_type="siglip_vision_model",
        rows=tables.CLIP,
        prefix="vision_model.",
        keys=clip_keys,
        values={
            **vit_values(**OF_PATCHES, **HEADLESS),
            "pooling": (ATTENTION_POOLING,),
            "qkv_bias": (True,),
        },
    ),
    *(
        Class(
            name=name,
            model_type="beit",
            rows=tables.BEIT,
            prefix="beit." if needs else "",
            keys=beit_keys,
            prepare=without_key_bias,
            values=values if needs else {**values, **HEADLESS},
            needs=needs,
        )
        for name, needs in (("BeitForImageClassification", ("num_classes",)), ("BeitModel", ()))
        for values in (BEIT_OF_PATCHES, BEIT_OF_TOKEN)
    ),
)
