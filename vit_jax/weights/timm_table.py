"""timm's names of tensors, and ours: one table for each of its classes, and one of all names.

What is read may have any of them; `timm_classes` says which table a model is written by.
"""

from typing import Any

from vit_jax.models.hybrid import HybridOptions
from vit_jax.weights.mapping import (
    CONVOLUTION,
    DENSE,
    HEADS,
    HEADS_OUT,
    POINTWISE_HEAD,
    Row,
    fused_dense,
    fused_heads,
    table,
)

BACKBONE = "patch_embed.backbone"
UNIT = BACKBONE + ".stages.{stage-1}.blocks.{unit-1}"
OUR_UNIT = "stem/stage{stage}/unit{unit:02}"
BLOCK = "blocks.{layer}"


def has_stages(options: Any) -> bool:
    """Whether a hybrid's stem has more than its root."""
    return isinstance(options, HybridOptions) and len(options.stem_depths) > 0


def qkv(path: str, *names: str) -> tuple[str, ...]:
    """Our names of the projections that timm keeps in one tensor."""
    return tuple(f"{path}/{name}/{{kernel,bias}}" for name in names)


GATE = ("blocks/mlp/gate/{kernel,bias}", "blocks/mlp/dense1/{kernel,bias}")
# An MLP's first layer: one, two in one tensor, or two.
DENSE_ROWS = table(Row(BLOCK + ".mlp.fc1.{weight,bias}", "blocks/mlp/dense1/{kernel,bias}", DENSE))
PACKED_ROWS = table(Row(BLOCK + ".mlp.fc1.{weight,bias}", GATE, fused_dense(2)))
GATED_ROWS = table(
    Row(BLOCK + ".mlp.fc1_{g,x}.{weight,bias}", "blocks/mlp/{gate,dense1}/{kernel,bias}", DENSE)
)
# Queries, keys and values: in one tensor, in one but for biases without the keys', or apart.
FUSED_ROWS = table(
    Row(
        BLOCK + ".attn.qkv.{weight,bias}",
        qkv("blocks/attention", "query", "key", "value"),
        fused_heads(3),
    )
)
FUSED_KERNEL_ROWS = table(
    Row(
        BLOCK + ".attn.qkv.weight",
        tuple(f"blocks/attention/{name}/kernel" for name in ("query", "key", "value")),
        fused_heads(3),
    ),
    Row(BLOCK + ".attn.{q,k,v}_bias", "blocks/attention/{query,key,value}/bias", HEADS),
)
APART_ROWS = table(
    Row(
        BLOCK + ".attn.{q,k,v}_proj.{weight,bias}",
        "blocks/attention/{query,key,value}/{kernel,bias}",
        HEADS,
    )
)
SCALE_ROWS = table(Row(BLOCK + ".ls{1,2}.gamma", "blocks/layer_scale{1,2}"))
EVA_SCALE_ROWS = table(Row(BLOCK + ".gamma_{1,2}", "blocks/layer_scale{1,2}"))

BIAS_ROWS = table(  # BEiT's
    Row(BLOCK + ".attn.relative_position_bias_table", "blocks/relative_position_bias"),
    Row("rel_pos_bias.relative_position_bias_table", "relative_position_bias"),
)

ENCODER = table(  # what ViT and EVA have in common
    Row("patch_embed.proj.{weight,bias}", "embedding/{kernel,bias}", CONVOLUTION),
    Row("cls_token", "class_token"),
    Row("dist_token", "distillation_token"),
    Row("reg_token", "registers"),
    Row("pos_embed", "position_embedding"),
    Row("norm_pre.{weight,bias}", "pre_norm/{scale,bias}"),
    Row(BLOCK + ".norm{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(BLOCK + ".attn.{q,k}_norm.{weight,bias}", "blocks/attention/{query,key}_norm/{scale,bias}"),
    Row(BLOCK + ".attn.norm.{weight,bias}", "blocks/attention/norm/{scale,bias}"),
    Row(BLOCK + ".attn.proj.{weight,bias}", "blocks/attention/out/{kernel,bias}", HEADS_OUT),
    Row(BLOCK + ".mlp.norm.{weight,bias}", "blocks/mlp/norm/{scale,bias}"),
    Row(BLOCK + ".mlp.fc2.{weight,bias}", "blocks/mlp/dense2/{kernel,bias}", DENSE),
    Row("fc_norm.{weight,bias}", "norm/{scale,bias}", when=lambda o: o.norm_after_pooling),
    Row("norm.{weight,bias}", "norm/{scale,bias}"),
    Row("head.{weight,bias}", "head/{kernel,bias}", DENSE),
    Row("head_dist.{weight,bias}", "distillation_head/{kernel,bias}", DENSE),
)
POOLING = table(
    Row("attn_pool.latent", "attention_pooling/probe"),
    Row("attn_pool.q.{weight,bias}", "attention_pooling/attention/query/{kernel,bias}", HEADS),
    Row(
        "attn_pool.kv.{weight,bias}",
        qkv("attention_pooling/attention", "key", "value"),
        fused_heads(2),
    ),
    Row("attn_pool.proj.{weight,bias}", "attention_pooling/attention/out/{kernel,bias}", HEADS_OUT),
    Row("attn_pool.norm.{weight,bias}", "attention_pooling/norm/{scale,bias}"),
    Row(
        "attn_pool.mlp.fc{1,2}.{weight,bias}",
        "attention_pooling/mlp/dense{1,2}/{kernel,bias}",
        DENSE,
    ),
)
STEM = table(  # of a hybrid; one without stages is not nested
    Row(BACKBONE + ".stem.conv.weight", "stem/conv_root/kernel", CONVOLUTION, has_stages),
    Row(BACKBONE + ".stem.norm.{weight,bias}", "stem/norm_root/{scale,bias}", when=has_stages),
    Row(BACKBONE + ".conv.weight", "stem/conv_root/kernel", CONVOLUTION),
    Row(BACKBONE + ".norm.{weight,bias}", "stem/norm_root/{scale,bias}"),
    Row(UNIT + ".conv{1,2,3}.weight", OUR_UNIT + "/conv{1,2,3}/kernel", CONVOLUTION),
    Row(UNIT + ".norm{1,2,3}.{weight,bias}", OUR_UNIT + "/norm{1,2,3}/{scale,bias}"),
    Row(UNIT + ".downsample.conv.weight", OUR_UNIT + "/projection/kernel", CONVOLUTION),
    Row(UNIT + ".downsample.norm.{weight,bias}", OUR_UNIT + "/norm_projection/{scale,bias}"),
)
VIT = (*ENCODER, *FUSED_ROWS, *SCALE_ROWS, *POOLING, *STEM)
MIXER = table(
    Row("stem.proj.{weight,bias}", "embedding/{kernel,bias}", CONVOLUTION),
    Row(BLOCK + ".norm{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(
        BLOCK + ".mlp_{tokens,channels}.fc1.{weight,bias}",
        "blocks/{token,channel}_mixing/dense1/{kernel,bias}",
        DENSE,
    ),
    Row(
        BLOCK + ".mlp_{tokens,channels}.fc2.{weight,bias}",
        "blocks/{token,channel}_mixing/dense2/{kernel,bias}",
        DENSE,
    ),
    Row("norm.{weight,bias}", "norm/{scale,bias}"),
    Row("head.{weight,bias}", "head/{kernel,bias}", DENSE),
)
BIT = table(
    Row("stem.conv.weight", "trunk/conv_root/kernel", CONVOLUTION),
    Row(
        "stages.{stage-1}.blocks.{unit-1}.conv{1,2,3}.weight",
        "trunk/stage{stage}/unit{unit:02}/conv{1,2,3}/kernel",
        CONVOLUTION,
    ),
    Row(
        "stages.{stage-1}.blocks.{unit-1}.norm{1,2,3}.{weight,bias}",
        "trunk/stage{stage}/unit{unit:02}/norm{1,2,3}/{scale,bias}",
    ),
    Row(
        "stages.{stage-1}.blocks.{unit-1}.downsample.conv.weight",
        "trunk/stage{stage}/unit{unit:02}/projection/kernel",
        CONVOLUTION,
    ),
    Row("norm.{weight,bias}", "norm/{scale,bias}"),
    Row("head.fc.{weight,bias}", "head/{kernel,bias}", POINTWISE_HEAD),
)
DINOV2 = table(  # its own names, where they are not timm's
    Row("register_tokens", "registers"),
    Row(BLOCK + ".mlp.w12.{weight,bias}", GATE, fused_dense(2)),
    Row(BLOCK + ".mlp.w3.{weight,bias}", "blocks/mlp/dense2/{kernel,bias}", DENSE),
)
# Every name but that of the MLP's first layer, which shapes tell.
READ = (
    *(*VIT, *FUSED_KERNEL_ROWS, *APART_ROWS, *EVA_SCALE_ROWS, *GATED_ROWS, *BIAS_ROWS),
    *(*MIXER, *BIT, *DINOV2),
)
