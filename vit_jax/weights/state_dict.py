"""Single `.safetensors` files of libraries that write nothing but tensors, in and out.

They are CLIP's vision towers under OpenAI's and OpenCLIP's names, and torchvision's `vit_b_16` and
its like. A file that this package writes says in its metadata what the tensors do not.
"""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from vit_jax.model_file import TORCHVISION as TORCHVISION_ROUNDING
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models.vit import CLASS_TOKEN_POOLING, ViTOptions
from vit_jax.weights import metadata, tensor_file
from vit_jax.weights.architecture import axis_length, check_heads, num_heads_of_width
from vit_jax.weights.content import Hints, Stated, Weights, make_weights, unused_remarks, without
from vit_jax.weights.files import Files
from vit_jax.weights.layouts import HEAD_BIAS, Layout, vit_values, without_head_bias
from vit_jax.weights.mapping import (
    CONVOLUTION,
    DENSE,
    HEADS_OUT,
    ONE_LONG,
    ONE_TOKEN,
    SAME,
    Row,
    Tensors,
    fused_heads,
    read_table,
    table,
    write_table,
)
from vit_jax.weights.resampling import BICUBIC, BICUBIC_TORCH
from vit_jax.weights.timm_config import IMAGENET_MEAN, IMAGENET_STD

CLIP_LAYER = "transformer.resblocks.{layer}"
TORCHVISION_LAYER = "encoder.layers.encoder_layer_{layer}"
QKV = tuple(f"blocks/attention/{name}/{{kernel,bias}}" for name in ("query", "key", "value"))
HEAD_WIDTH = 64  # of CLIP's attention, in every published model

CLIP_TABLE = table(
    Row("conv1.weight", "embedding/kernel", CONVOLUTION),
    Row("class_embedding", "class_token", ONE_TOKEN),
    Row("positional_embedding", "position_embedding", ONE_LONG),
    Row("ln_pre.{weight,bias}", "pre_norm/{scale,bias}"),
    Row(CLIP_LAYER + ".ln_{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(CLIP_LAYER + ".attn.in_proj_{weight,bias}", QKV, fused_heads(3)),
    Row(
        CLIP_LAYER + ".attn.out_proj.{weight,bias}", "blocks/attention/out/{kernel,bias}", HEADS_OUT
    ),
    Row(
        CLIP_LAYER + ".mlp.c_{fc,proj}.{weight,bias}", "blocks/mlp/dense{1,2}/{kernel,bias}", DENSE
    ),
    Row(CLIP_LAYER + ".ls_{1,2}.gamma", "blocks/layer_scale{1,2}"),
    Row("ln_post.{weight,bias}", "norm/{scale,bias}"),
    Row("proj", "head/kernel", SAME),
)
TORCHVISION_TABLE = table(
    Row("conv_proj.{weight,bias}", "embedding/{kernel,bias}", CONVOLUTION),
    Row("class_token", "class_token"),
    Row("encoder.pos_embedding", "position_embedding"),
    Row(TORCHVISION_LAYER + ".ln_{1,2}.{weight,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(TORCHVISION_LAYER + ".self_attention.in_proj_{weight,bias}", QKV, fused_heads(3)),
    Row(
        TORCHVISION_LAYER + ".self_attention.out_proj.{weight,bias}",
        "blocks/attention/out/{kernel,bias}",
        HEADS_OUT,
    ),
    Row(
        TORCHVISION_LAYER + ".mlp.{0,3}.{weight,bias}", "blocks/mlp/dense{1,2}/{kernel,bias}", DENSE
    ),
    # Its first releases' names, which writing does not reach.
    Row(
        TORCHVISION_LAYER + ".mlp.linear_{1,2}.{weight,bias}",
        "blocks/mlp/dense{1,2}/{kernel,bias}",
        DENSE,
    ),
    Row("encoder.ln.{weight,bias}", "norm/{scale,bias}"),
    Row("heads.head.{weight,bias}", "head/{kernel,bias}", DENSE),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Library:
    """A library whose files hold tensors alone.

    Attributes:
      rows: of its tensors' names.
      kernel: the tensor that only its files have, of the layer that makes patches.
      num_heads: width -> heads, which no tensor shows.
      position_resize: its way.
      defaults: options that its files imply.
      biased_head: whether its head has a bias; ours has one, which is 0 without.
      pixels: how its pictures are prepared, for images of 224 pixels.
      unused: tensors that inference does not use.
      values: as of a `Layout`.
    """

    rows: tuple[Row, ...]
    kernel: str
    num_heads: Callable[[int], int]
    position_resize: str
    defaults: Mapping[str, Any]
    pixels: Preprocessing
    biased_head: bool = True
    unused: re.Pattern = re.compile(r".*num_batches_tracked")
    values: Mapping[str, tuple]


PLAIN = vit_values(
    pooling=(CLASS_TOKEN_POOLING,),
    norm_after_pooling=(False,),
    prefix_positions=(True,),
    qkv_bias=(True,),
)
CLIP = Library(
    rows=CLIP_TABLE,
    kernel="conv1.weight",
    num_heads=lambda width: width // HEAD_WIDTH or 1,
    position_resize=BICUBIC,
    defaults={"gelu": "quick", "norm_epsilon": 1e-5},  # OpenAI's; OpenCLIP's own models have erf.
    pixels=Preprocessing(
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
        crop="center",
        resize=224,
        interpolation="bicubic",
        rounding=TORCHVISION_ROUNDING,
    ),
    biased_head=False,
    unused=re.compile(r"attnpool\..*|.*position_ids"),
    values={
        **{option: allowed for option, allowed in PLAIN.items() if option != "layer_scale"},
        "pre_norm": (True,),
        "norm_epsilon": (1e-5,),
        "gelu": ("quick", "erf"),
    },
)
TORCHVISION = Library(
    rows=TORCHVISION_TABLE,
    kernel="conv_proj.weight",
    num_heads=num_heads_of_width,
    position_resize=BICUBIC_TORCH,
    defaults={"gelu": "erf"},
    pixels=Preprocessing(
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        crop="center",
        resize=256,
        rounding=TORCHVISION_ROUNDING,
    ),
    values={**PLAIN, "norm_epsilon": (1e-6,), "gelu": ("erf",)},
)


def read(path: str, hints: Hints, prefix: str = "", *, library: Library) -> Weights:
    """The weights of a file, with what its metadata says if this package wrote it."""
    tensors, entries = tensor_file.read_tensors(path, prefix)
    tensors, unused = without(tensors, library.unused)
    own = metadata.read_entries(entries)
    stated = Stated.by(own) if own else Stated({"pooling": CLASS_TOKEN_POOLING})
    width = axis_length(tensors, library.kernel, 0)
    known = stated.options.get("num_heads") or hints.options.get("num_heads")
    num_heads = known or library.num_heads(width)
    check_heads(num_heads, width)
    reading = read_table(library.rows, tensors, num_heads)
    if not library.biased_head and "head/kernel" in reading.parameters:
        num_classes = axis_length(reading.parameters, "head/kernel", 1)
        reading.parameters[HEAD_BIAS] = np.zeros(num_classes, np.float32)
    return make_weights(
        path,
        reading,
        prefix_choices=(1,),
        stated=dataclasses.replace(
            stated,
            position_resize=library.position_resize,
            assumed=() if known else (f"num_heads={num_heads}",),
            remarks=unused_remarks(unused),
        ),
        hints=hints,
        defaults=library.defaults,
        pixels=library.pixels,
    )


def files(
    path: str,
    parameters: Tensors,
    options: ViTOptions,
    model_file: ModelFile,
    *,
    library: Library,
) -> Files:
    """A `.safetensors` file; raises WeightsError for a bias that its head has not."""
    if not library.biased_head:
        parameters = without_head_bias(parameters)
    tensors = write_table(library.rows, parameters, options)
    return {pathlib.Path(path): tensor_file.writer(tensors, metadata.entries_of(model_file))}


def layout(library: Library) -> Layout:
    """What the library's files can hold."""
    write = functools.partial(files, library=library)
    return Layout(files=write, models=(ViTOptions,), values=library.values)
