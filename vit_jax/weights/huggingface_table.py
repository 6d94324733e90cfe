"""The transformers library's names of tensors, and ours: one table for each kind of model.

Names are a bare trunk's: `vit.`, `vision_model.` and the like are taken off before.
"""

from typing import Any

from vit_jax.models.layers import SWIGLU
from vit_jax.weights.mapping import (
    CONVOLUTION,
    DENSE,
    HEADS,
    HEADS_OUT,
    ONE_LONG,
    ONE_TOKEN,
    Row,
    fused_dense,
    fused_heads,
    table,
)

LAYER = "encoder.layer.{layer}"
CLIP_LAYER = "encoder.layers.{layer}"


def is_swiglu(options: Any) -> bool:
    """Whether the MLP has a gate."""
    return options.mlp == SWIGLU


def has_norm_after_pooling(options: Any) -> bool:
    """Whether the last norm is of the pooled tokens."""
    return options.norm_after_pooling


EMBEDDINGS = table(
    Row("embeddings.cls_token", "class_token"),
    Row("embeddings.position_embeddings", "position_embedding"),
    Row(
        "embeddings.patch_embeddings.projection.{weight,bias}",
        "embedding/{kernel,bias}",
        CONVOLUTION,
    ),
    Row("layernorm.{weight,bias}", "norm/{scale,bias}"),
    Row("classifier.{weight,bias}", "head/{kernel,bias}", DENSE),
)
ATTENTION = table(
    Row(
        LAYER + ".attention.attention.{query,key,value}.{weight,bias}",
        "blocks/attention/{query,key,value}/{kernel,bias}",
        HEADS,
    ),
    Row(
        LAYER + ".attention.output.dense.{weight,bias}",
        "blocks/attention/out/{kernel,bias}",
        HEADS_OUT,
    ),
)
VIT = (
    *EMBEDDINGS,
    *ATTENTION,
    *table(
        Row(LAYER + ".layernorm_{before,after}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
        Row(
            LAYER + ".{intermediate,output}.dense.{weight,bias}",
            "blocks/mlp/dense{1,2}/{kernel,bias}",
            DENSE,
        ),
        Row("pooler.dense.{weight,bias}", "pre_logits/{kernel,bias}", DENSE),
    ),
)
BEIT = (  # and Data2VecVision; its norm stands behind the average, if it takes that
    *table(
        Row("pooler.layernorm.{weight,bias}", "norm/{scale,bias}", when=has_norm_after_pooling),
        Row(LAYER + ".lambda_{1,2}", "blocks/layer_scale{1,2}"),
        Row(
            LAYER + ".attention.attention.relative_position_bias.relative_position_bias_table",
            "blocks/relative_position_bias",
        ),
        Row(
            "encoder.relative_position_bias.relative_position_bias_table",
            "relative_position_bias",
        ),
    ),
    *VIT,
)
# Without its head, the token of DeiT's teacher is a token without a use of its own.
DEIT = (*VIT, *table(Row("embeddings.distillation_token", "registers")))
DEIT_WITH_TEACHER = (
    *table(
        Row("embeddings.distillation_token", "distillation_token"),
        Row(
            "{cls,distillation}_classifier.{weight,bias}",
            "{head,distillation_head}/{kernel,bias}",
            DENSE,
        ),
    ),
    *VIT,
)
DINOV2 = (
    *EMBEDDINGS,
    *ATTENTION,
    *table(
        Row("embeddings.register_tokens", "registers"),
        Row(LAYER + ".norm{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
        Row(LAYER + ".layer_scale{1,2}.lambda1", "blocks/layer_scale{1,2}"),
        Row(
            LAYER + ".mlp.weights_in.{weight,bias}",
            ("blocks/mlp/gate/{kernel,bias}", "blocks/mlp/dense1/{kernel,bias}"),
            fused_dense(2),
            is_swiglu,
        ),
        Row(
            LAYER + ".mlp.weights_out.{weight,bias}",
            "blocks/mlp/dense2/{kernel,bias}",
            DENSE,
            is_swiglu,
        ),
        Row(LAYER + ".mlp.fc{1,2}.{weight,bias}", "blocks/mlp/dense{1,2}/{kernel,bias}", DENSE),
    ),
)
DINOV3 = table(
    Row("embeddings.cls_token", "class_token"),
    Row("embeddings.register_tokens", "registers"),
    Row("embeddings.patch_embeddings.{weight,bias}", "embedding/{kernel,bias}", CONVOLUTION),
    Row("layer.{layer}.norm{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row("layer.{layer}.layer_scale{1,2}.lambda1", "blocks/layer_scale{1,2}"),
    Row(
        "layer.{layer}.attention.{q,k,v}_proj.{weight,bias}",
        "blocks/attention/{query,key,value}/{kernel,bias}",
        HEADS,
    ),
    Row(
        "layer.{layer}.attention.o_proj.{weight,bias}",
        "blocks/attention/out/{kernel,bias}",
        HEADS_OUT,
    ),
    Row(
        "layer.{layer}.mlp.{gate,up,down}_proj.{weight,bias}",
        "blocks/mlp/{gate,dense1,dense2}/{kernel,bias}",
        DENSE,
    ),
    Row("norm.{weight,bias}", "norm/{scale,bias}"),
)
CLIP = table(  # and SigLIP
    Row("embeddings.class_embedding", "class_token", ONE_TOKEN),
    Row("embeddings.position_embedding.weight", "position_embedding", ONE_LONG),
    Row("embeddings.patch_embedding.{weight,bias}", "embedding/{kernel,bias}", CONVOLUTION),
    Row("pre_layrnorm.{weight,bias}", "pre_norm/{scale,bias}"),
    Row("post_layernorm.{weight,bias}", "norm/{scale,bias}"),
    Row(CLIP_LAYER + ".layer_norm{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(
        CLIP_LAYER + ".self_attn.{q,k,v}_proj.{weight,bias}",
        "blocks/attention/{query,key,value}/{kernel,bias}",
        HEADS,
    ),
    Row(
        CLIP_LAYER + ".self_attn.out_proj.{weight,bias}",
        "blocks/attention/out/{kernel,bias}",
        HEADS_OUT,
    ),
    Row(CLIP_LAYER + ".mlp.fc{1,2}.{weight,bias}", "blocks/mlp/dense{1,2}/{kernel,bias}", DENSE),
    Row("head.probe", "attention_pooling/probe"),
    Row(
        "head.attention.in_proj_{weight,bias}",
        tuple(
            f"attention_pooling/attention/{name}/{{kernel,bias}}"
            for name in ("query", "key", "value")
        ),
        fused_heads(3),
    ),
    Row(
        "head.attention.out_proj.{weight,bias}",
        "attention_pooling/attention/out/{kernel,bias}",
        HEADS_OUT,
    ),
    Row("head.layernorm.{weight,bias}", "attention_pooling/norm/{scale,bias}"),
    Row("head.mlp.fc{1,2}.{weight,bias}", "attention_pooling/mlp/dense{1,2}/{kernel,bias}", DENSE),
    Row("visual_projection.{weight,bias}", "head/{kernel,bias}", DENSE),
    Row("classifier.{weight,bias}", "head/{kernel,bias}", DENSE),
)
