"""The vision towers of CLIP under OpenAI's and OpenCLIP's names; they are only read.

A norm before the blocks, patches without bias, and a projection without bias, which is read as the
head. The file does not say its activation: OpenAI's own models have the quick GELU, OpenCLIP's erf.
"""

import re

import numpy as np

from vit_jax.models.vit import CLASS_TOKEN_POOLING
from vit_jax.weights import tensor_file
from vit_jax.weights.architecture import axis_length
from vit_jax.weights.content import Hints, Stated, Weights, make_weights, unused_remarks, without
from vit_jax.weights.mapping import (
    CONVOLUTION,
    DENSE,
    HEADS_OUT,
    ONE_LONG,
    SAME,
    Row,
    fused_heads,
    read_table,
    table,
)
from vit_jax.weights.resampling import BICUBIC

HEAD_WIDTH = 64  # of the attention, in every published model
LAYER = "transformer.resblocks.{layer}"
UNUSED = re.compile(r"attnpool\..*|.*position_ids")
TABLE = table(
    Row("conv1.weight", "embedding/kernel", CONVOLUTION),
    Row("class_embedding", "class_token", ONE_LONG),
    Row("positional_embedding", "position_embedding", ONE_LONG),
    Row("ln_pre.{weight,bias}", "pre_norm/{scale,bias}"),
    Row(LAYER + ".ln_{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(
        LAYER + ".attn.in_proj_{weight,bias}",
        tuple(f"blocks/attention/{name}/{{kernel,bias}}" for name in ("query", "key", "value")),
        fused_heads(3),
    ),
    Row(LAYER + ".attn.out_proj.{weight,bias}", "blocks/attention/out/{kernel,bias}", HEADS_OUT),
    Row(LAYER + ".mlp.c_{fc,proj}.{weight,bias}", "blocks/mlp/dense{1,2}/{kernel,bias}", DENSE),
    Row(LAYER + ".ls_{1,2}.gamma", "blocks/layer_scale{1,2}"),
    Row("ln_post.{weight,bias}", "norm/{scale,bias}"),
    Row("proj", "head/kernel", SAME),
    Row("head_bias", "head/bias", SAME),  # added in reading
)


def read(path: str, hints: Hints, prefix: str = "") -> Weights:
    """The weights of a vision tower."""
    tensors, _ = tensor_file.read_tensors(path, prefix)
    tensors, unused = without(tensors, UNUSED)
    if "proj" in tensors:
        tensors["head_bias"] = np.zeros(axis_length(tensors, "proj", 1), np.float32)
    hinted = hints.options.get("num_heads")
    num_heads = hinted or axis_length(tensors, "conv1.weight", 0) // HEAD_WIDTH or 1
    return make_weights(
        path,
        read_table(TABLE, tensors, num_heads),
        prefix_choices=(1,),
        stated=Stated(
            {"pooling": CLASS_TOKEN_POOLING},
            position_resize=BICUBIC,
            assumed=() if hinted else (f"num_heads={num_heads}",),
            remarks=unused_remarks(unused),
        ),
        hints=hints,
        defaults={"gelu": "quick", "norm_epsilon": 1e-5},
    )
