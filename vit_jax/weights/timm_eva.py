"""timm's class Eva: EVA, EVA-02, DINOv3 and ViTs with rotary positions."""

from typing import Any

from vit_jax.models.norms import LAYER_NORM_EPSILON
from vit_jax.models.positions import CENTRED, LEARNED_1D_ROTARY_2D
from vit_jax.models.vit import ViTOptions
from vit_jax.weights import timm_table as tables
from vit_jax.weights.content import HeadOrder
from vit_jax.weights.layouts import KEY_BIAS
from vit_jax.weights.mapping import Row, Tensors
from vit_jax.weights.timm_arguments import (
    WIDE_EPSILON,
    encoder_arguments,
    is_swiglu,
    mlp_ratio,
    warn_of_norms,
)

DINOV3, EVA02 = "vit_small_patch16_dinov3", "eva02_tiny_patch14_224"


def has_key_bias(parameters: Tensors) -> bool:
    """Whether keys have a bias: EVA's and DINOv3's have none, which is one of 0 here."""
    return KEY_BIAS in parameters and bool(parameters[KEY_BIAS].any())


def head_order(key_bias: bool, options: ViTOptions) -> HeadOrder:
    """How timm orders the features that rotary positions turn: DINOv3's, RoPE-ViT's, EVA-02's way."""
    if options.rotary_coordinates == CENTRED:
        return HeadOrder(interleaved=False, column_first=False)
    return HeadOrder(interleaved=True, column_first=key_bias)


def ordered(parameters: Tensors, options: ViTOptions) -> Tensors:
    """The parameters in timm's order, without a bias of the keys that is 0."""
    theirs = head_order(has_key_bias(parameters), options).invert(parameters)
    if has_key_bias(parameters):
        return theirs
    return {name: array for name, array in theirs.items() if name != KEY_BIAS}


def is_apart(options: ViTOptions) -> bool:
    """Whether timm keeps the two layers of a SwiGLU in two tensors: EVA-02's with a norm, DINOv3's."""
    return options.mlp_norm or options.rotary_coordinates == CENTRED


def rows(parameters: Tensors, options: ViTOptions) -> tuple[Row, ...]:
    """The table of an Eva, for parameters as of `ordered`."""
    first = tables.DENSE_ROWS
    if is_swiglu(options):
        first = tables.GATED_ROWS if is_apart(options) else tables.PACKED_ROWS
    fused = tables.FUSED_ROWS if has_key_bias(parameters) else tables.FUSED_KERNEL_ROWS
    attention = tables.APART_ROWS if options.mlp_norm else fused
    return (*first, *attention, *tables.ENCODER, *tables.EVA_SCALE_ROWS)


def config(parameters: Tensors, options: ViTOptions) -> dict[str, Any]:
    """The configuration of an Eva; all arguments are in it, but for the LayerNorms' epsilon."""
    warn_of_norms(options, LAYER_NORM_EPSILON, WIDE_EPSILON)
    key_bias = has_key_bias(parameters)
    order, reference = head_order(key_bias, options), options.rotary_reference
    packed = is_swiglu(options) and not is_apart(options)
    arguments = {
        **encoder_arguments(options),
        "patch_size": options.patch_size,
        "mlp_ratio": mlp_ratio(options),
        "num_reg_tokens": options.num_registers,
        "use_abs_pos_emb": options.positions == LEARNED_1D_ROTARY_2D,
        "use_fc_norm": options.norm_after_pooling,
        "use_pre_transformer_norm": options.pre_norm,
        "use_post_transformer_norm": options.final_norm and not options.norm_after_pooling,
        "attn_type": "rope" if key_bias else "eva",
        "qkv_fused": not options.mlp_norm,
        "scale_attn_inner": options.attention_norm,
        "scale_mlp": options.mlp_norm,
        "swiglu_mlp": is_swiglu(options),
        "swiglu_align_to": 0 if packed else 1,  # 1 keeps the width, and the two layers apart.
        "use_rot_pos_emb": True,
        "rope_type": "dinov3" if options.rotary_coordinates == CENTRED else "cat",
        "rope_temperature": options.rotary_temperature,
        "rope_grid_indexing": "xy" if order.column_first else "ij",
        "rope_rotate_half": not order.interleaved,
        "ref_feat_shape": (reference, reference) if reference else None,
    }
    wide = options.norm_epsilon == WIDE_EPSILON
    return {"architecture": DINOV3 if wide else EVA02, "model_args": arguments}
