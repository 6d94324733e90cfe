"""torchvision's Vision Transformers (`vit_b_16` and its like); they are only read."""

from vit_jax.models.vit import CLASS_TOKEN_POOLING
from vit_jax.weights import tensor_file
from vit_jax.weights.architecture import axis_length, check_heads, num_heads_of_width
from vit_jax.weights.content import Hints, Stated, Weights, make_weights
from vit_jax.weights.mapping import (
    CONVOLUTION,
    DENSE,
    HEADS_OUT,
    Row,
    fused_heads,
    read_table,
    table,
)
from vit_jax.weights.resampling import BICUBIC_TORCH

LAYER = "encoder.layers.encoder_layer_{layer}"
TABLE = table(
    Row("conv_proj.{weight,bias}", "embedding/{kernel,bias}", CONVOLUTION),
    Row("class_token", "class_token"),
    Row("encoder.pos_embedding", "position_embedding"),
    Row(LAYER + ".ln_{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(
        LAYER + ".self_attention.in_proj_{weight,bias}",
        tuple(f"blocks/attention/{name}/{{kernel,bias}}" for name in ("query", "key", "value")),
        fused_heads(3),
    ),
    Row(
        LAYER + ".self_attention.out_proj.{weight,bias}",
        "blocks/attention/out/{kernel,bias}",
        HEADS_OUT,
    ),
    Row(LAYER + ".mlp.{0,3}.{weight,bias}", "blocks/mlp/dense{1,2}/{kernel,bias}", DENSE),
    # Its first releases' names.
    Row(LAYER + ".mlp.linear_{1,2}.{weight,bias}", "blocks/mlp/dense{1,2}/{kernel,bias}", DENSE),
    Row("encoder.ln.{weight,bias}", "norm/{scale,bias}"),
    Row("heads.head.{weight,bias}", "head/{kernel,bias}", DENSE),
)


def read(path: str, hints: Hints, prefix: str = "") -> Weights:
    """The weights of a torchvision file."""
    tensors, _ = tensor_file.read_tensors(path, prefix)
    width = axis_length(tensors, "conv_proj.weight", 0)
    hinted = hints.options.get("num_heads")
    num_heads = num_heads_of_width(width) if hinted is None else hinted
    check_heads(num_heads, width)
    return make_weights(
        path,
        read_table(TABLE, tensors, num_heads),
        prefix_choices=(1,),
        stated=Stated(
            {"pooling": CLASS_TOKEN_POOLING},
            position_resize=BICUBIC_TORCH,
            assumed=() if hinted else (f"num_heads={num_heads}",),
        ),
        hints=hints,
        defaults={"gelu": "erf"},
    )
