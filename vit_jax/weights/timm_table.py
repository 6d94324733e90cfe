"""timm's names of tensors, and ours."""

from typing import Any

from vit_jax.models.hybrid import HybridOptions
from vit_jax.models.layers import DENSE_MLP, SWIGLU
from vit_jax.models.mixer import MixerOptions
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


def has_stages(options: Any) -> bool:
    """Whether a hybrid's stem has more than its root."""
    return isinstance(options, HybridOptions) and len(options.stem_depths) > 0


def qkv(path: str, *names: str) -> tuple[str, ...]:
    """Our names of the projections that timm keeps in one tensor."""
    return tuple(f"{path}/{name}/{{kernel,bias}}" for name in names)


def never(options: Any) -> bool:
    """For rows that are only read."""
    return False


def is_mixer(options: Any) -> bool:
    """Whether they are an MLP-Mixer's."""
    return isinstance(options, MixerOptions)


def is_packed(options: Any) -> bool:
    """Whether its MLP is a SwiGLU, of which timm keeps two layers in one tensor."""
    return getattr(options, "mlp", DENSE_MLP) == SWIGLU


PACKED_ROWS = table(
    Row(
        "blocks.{layer}.mlp.fc1.{weight,bias}",
        ("blocks/mlp/gate/{kernel,bias}", "blocks/mlp/dense1/{kernel,bias}"),
        fused_dense(2),
        is_packed,
    )
)
TABLE = table(
    Row("stem.proj.{weight,bias}", "embedding/{kernel,bias}", CONVOLUTION, is_mixer),
    Row("patch_embed.proj.{weight,bias}", "embedding/{kernel,bias}", CONVOLUTION),
    Row("cls_token", "class_token"),
    Row("dist_token", "distillation_token"),
    Row("reg_token", "registers"),
    # DINOv2's own names.
    Row("register_tokens", "registers", when=never),
    Row(
        "blocks.{layer}.mlp.w12.{weight,bias}",
        ("blocks/mlp/gate/{kernel,bias}", "blocks/mlp/dense1/{kernel,bias}"),
        fused_dense(2),
        never,
    ),
    Row("blocks.{layer}.mlp.w3.{weight,bias}", "blocks/mlp/dense2/{kernel,bias}", DENSE, never),
    Row("pos_embed", "position_embedding"),
    Row("norm_pre.{weight,bias}", "pre_norm/{scale,bias}"),
    Row("blocks.{layer}.norm{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(
        "blocks.{layer}.attn.qkv.{weight,bias}",
        qkv("blocks/attention", "query", "key", "value"),
        fused_heads(3),
    ),
    Row(
        "blocks.{layer}.attn.{q,k}_norm.{weight,bias}",
        "blocks/attention/{query,key}_norm/{scale,bias}",
    ),
    Row("blocks.{layer}.attn.proj.{weight,bias}", "blocks/attention/out/{kernel,bias}", HEADS_OUT),
    Row("blocks.{layer}.attn.norm.{weight,bias}", "blocks/attention/norm/{scale,bias}"),
    Row("blocks.{layer}.mlp.norm.{weight,bias}", "blocks/mlp/norm/{scale,bias}"),
    # EVA's.
    Row(
        "blocks.{layer}.attn.{q,k,v}_proj.{weight,bias}",
        "blocks/attention/{query,key,value}/{kernel,bias}",
        HEADS,
        never,
    ),
    Row(
        "blocks.{layer}.mlp.fc1_{g,x}.{weight,bias}",
        "blocks/mlp/{gate,dense1}/{kernel,bias}",
        DENSE,
        never,
    ),
    Row(
        "blocks.{layer}.attn.{q,k,v}_bias", "blocks/attention/{query,key,value}/bias", HEADS, never
    ),
    Row("blocks.{layer}.gamma_{1,2}", "blocks/layer_scale{1,2}", when=never),
    Row("blocks.{layer}.ls{1,2}.gamma", "blocks/layer_scale{1,2}"),
    Row(
        "blocks.{layer}.mlp_{tokens,channels}.fc1.{weight,bias}",
        "blocks/{token,channel}_mixing/dense1/{kernel,bias}",
        DENSE,
    ),
    Row(
        "blocks.{layer}.mlp_{tokens,channels}.fc2.{weight,bias}",
        "blocks/{token,channel}_mixing/dense2/{kernel,bias}",
        DENSE,
    ),
    Row("blocks.{layer}.mlp.fc{1,2}.{weight,bias}", "blocks/mlp/dense{1,2}/{kernel,bias}", DENSE),
    Row("fc_norm.{weight,bias}", "norm/{scale,bias}", when=lambda o: o.norm_after_pooling),
    Row("norm.{weight,bias}", "norm/{scale,bias}"),
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
    Row("head.{weight,bias}", "head/{kernel,bias}", DENSE),
    Row("head_dist.{weight,bias}", "distillation_head/{kernel,bias}", DENSE),
    # BiT ResNets.
    Row("head.fc.{weight,bias}", "head/{kernel,bias}", POINTWISE_HEAD, never),
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
    # Hybrids; a stem without stages is not nested.
    Row(BACKBONE + ".stem.conv.weight", "stem/conv_root/kernel", CONVOLUTION, has_stages),
    Row(BACKBONE + ".stem.norm.{weight,bias}", "stem/norm_root/{scale,bias}", when=has_stages),
    Row(BACKBONE + ".conv.weight", "stem/conv_root/kernel", CONVOLUTION),
    Row(BACKBONE + ".norm.{weight,bias}", "stem/norm_root/{scale,bias}"),
    Row(UNIT + ".conv{1,2,3}.weight", OUR_UNIT + "/conv{1,2,3}/kernel", CONVOLUTION),
    Row(UNIT + ".norm{1,2,3}.{weight,bias}", OUR_UNIT + "/norm{1,2,3}/{scale,bias}"),
    Row(UNIT + ".downsample.conv.weight", OUR_UNIT + "/projection/kernel", CONVOLUTION),
    Row(UNIT + ".downsample.norm.{weight,bias}", OUR_UNIT + "/norm_projection/{scale,bias}"),
)
