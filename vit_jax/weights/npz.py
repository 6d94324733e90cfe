"""Published `.npz` files: those of google-research/vision_transformer, Big Vision and BiT.

Names are brought to one form on reading (no prefix, one block per layer, the first numbering of
Flax modules), which is also the form that is written. What the tensors cannot say (GELU, position of
the norm, class names, preprocessing) stands in a sidecar `NAME.json` beside `NAME.npz`.
"""

import os
import pathlib
import re
import zipfile
from collections.abc import Iterator

import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.model_file import AREA, ModelFile, Preprocessing
from vit_jax.models.base import ModelOptions
from vit_jax.models.mixer import MixerOptions
from vit_jax.models.positions import SINCOS_2D
from vit_jax.models.resnet import ResNetOptions
from vit_jax.models.vit import CLASS_TOKEN_POOLING
from vit_jax.weights import metadata
from vit_jax.weights.content import Hints, Stated, Weights, make_weights
from vit_jax.weights.files import Files
from vit_jax.weights.mapping import (
    GROUP_NORM,
    POINTWISE,
    VECTOR,
    Row,
    Tensors,
    Transform,
    best_table,
    read_table,
    renamed,
    table,
    to_float32,
    write_table,
)

# Longest first: "params/img/embedding/kernel" has two of them.
PREFIXES = ("opt/target/", "params/img/", "params/", "")
NEW_NUMBERING = {
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "LayerNorm_1": "LayerNorm_2",
    "MlpBlock_0": "MlpBlock_3",
}
BLOCK_NAME = re.compile(r"Transformer/encoderblock_(\d+)/(\w+)/(.+)")
STACKED_BLOCKS = "Transformer/encoderblock/"
MOST_LAYERS = 10_000  # The number in a block's name has four digits.
MOST_EXPANSION, ALWAYS_ALLOWED = 100, 2**30  # of a compressed file: times its size, or bytes
DEFAULTS = {
    "gelu": "tanh",
    "pooling": CLASS_TOKEN_POOLING,
    "positions": SINCOS_2D,
    "pool_padding": "zeros",
}

# Of pictures, for the accuracies that are published with the files. input_pipeline.py in
# vision_transformer and in BiT resizes whole pictures.
REFERENCE_PIXELS = Preprocessing(antialias=False)
# `resize_small(256)|central_crop(224)`, by area, in Big Vision's configs.
BIG_VISION_PIXELS = Preprocessing(crop="center", resize=256, interpolation=AREA)

POSITIONS = "Transformer/posembed_input/pos_embedding"
BLOCK = "Transformer/encoderblock_{layer}"
ATTENTION = BLOCK + "/MultiHeadDotProductAttention_1"
MLP = BLOCK + "/MlpBlock_3"
POOLING_ATTENTION = "MAPHead_0/MultiHeadDotProductAttention_0"
UNIT = "stage{stage}/unit{unit:02}"  # ours
BIT_UNIT = "resnet/block{stage}/unit{unit:02}"

HEAD = Row("head/{kernel,bias}", "head/{kernel,bias}")


def postactivation_rows(trunk: str, norm: Transform) -> list[Row]:
    """A post-activation ResNet's rows: the stem of a hybrid, or Big Vision's first form of BiT."""
    unit, our_unit = "block{stage}/unit{unit}", f"{trunk}/{UNIT}"
    return [
        Row("conv_root/kernel", f"{trunk}/conv_root/kernel"),
        Row("gn_root/{scale,bias}", trunk + "/norm_root/{scale,bias}", norm),
        Row(
            unit + "/conv{1,2,3,_proj}/kernel", our_unit + "/{conv1,conv2,conv3,projection}/kernel"
        ),
        Row(
            unit + "/gn{1,2,3,_proj}/{scale,bias}",
            our_unit + "/norm{1,2,3,_projection}/{scale,bias}",
            norm,
        ),
    ]


VIT_TABLE = table(
    Row("embedding/{kernel,bias}", "embedding/{kernel,bias}"),
    Row("cls", "class_token"),
    Row(
        POSITIONS,
        "position_embedding",
        when=lambda options: options.prefix_positions or not options.has_class_token,
    ),
    Row("pos_embedding", "position_embedding"),  # Big Vision's: never a row for the class token
    Row(BLOCK + "/LayerNorm_{0,2}/{scale,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(
        ATTENTION + "/{query,key,value,out}/{kernel,bias}",
        "blocks/attention/{query,key,value,out}/{kernel,bias}",
    ),
    Row(MLP + "/Dense_{0,1}/{kernel,bias}", "blocks/mlp/dense{1,2}/{kernel,bias}"),
    Row("Transformer/encoder_norm/{scale,bias}", "norm/{scale,bias}"),
    Row("MAPHead_0/probe", "attention_pooling/probe"),
    Row(
        POOLING_ATTENTION + "/{query,key,value,out}/{kernel,bias}",
        "attention_pooling/attention/{query,key,value,out}/{kernel,bias}",
    ),
    Row("MAPHead_0/LayerNorm_0/{scale,bias}", "attention_pooling/norm/{scale,bias}"),
    Row(
        "MAPHead_0/MlpBlock_0/Dense_{0,1}/{kernel,bias}",
        "attention_pooling/mlp/dense{1,2}/{kernel,bias}",
    ),
    Row("pre_logits/{kernel,bias}", "pre_logits/{kernel,bias}"),
    HEAD,
    *postactivation_rows("stem", GROUP_NORM),
)
POSTACTIVATION_TABLE = table(*postactivation_rows("trunk", VECTOR), HEAD)
BIG_VISION_BIT_TABLE = table(
    Row("root_block/conv_root/kernel", "trunk/conv_root/kernel"),
    Row(
        "block{stage}/unit{unit:02}/conv{1,2,3,_proj}/kernel",
        f"trunk/{UNIT}/" + "{conv1,conv2,conv3,projection}/kernel",
    ),
    Row(
        "block{stage}/unit{unit:02}/gn{1,2,3}/{scale,bias}",
        f"trunk/{UNIT}/" + "norm{1,2,3}/{scale,bias}",
        VECTOR,
    ),
    Row("norm-pre-head/{scale,bias}", "norm/{scale,bias}", VECTOR),
    HEAD,
)
BIT_TABLE = table(
    Row("resnet/root_block/standardized_conv2d/kernel", "trunk/conv_root/kernel"),
    Row(
        BIT_UNIT + "/{a,b,c,a/proj}/standardized_conv2d/kernel",
        f"trunk/{UNIT}/" + "{conv1,conv2,conv3,projection}/kernel",
    ),
    Row(
        BIT_UNIT + "/{a,b,c}/group_norm/{gamma,beta}",
        f"trunk/{UNIT}/" + "norm{1,2,3}/{scale,bias}",
        VECTOR,
    ),
    Row("resnet/group_norm/{gamma,beta}", "norm/{scale,bias}", VECTOR),
    Row("resnet/head/conv2d/{kernel,bias}", "head/{kernel,bias}", POINTWISE),
)
MIXER_TABLE = table(
    Row("stem/{kernel,bias}", "embedding/{kernel,bias}"),
    Row("MixerBlock_{layer}/LayerNorm_{0,1}/{scale,bias}", "blocks/norm{1,2}/{scale,bias}"),
    Row(
        "MixerBlock_{layer}/{token,channel}_mixing/Dense_{0,1}/{kernel,bias}",
        "blocks/{token,channel}_mixing/dense{1,2}/{kernel,bias}",
    ),
    Row("pre_head_layer_norm/{scale,bias}", "norm/{scale,bias}"),
    HEAD,
)
# Of tables that know equally much of a file the first is taken: the special come first.
TABLES = (BIT_TABLE, BIG_VISION_BIT_TABLE, POSTACTIVATION_TABLE, MIXER_TABLE, VIT_TABLE)


def read(path: str, hints: Hints) -> Weights:
    """The weights of a `.npz` file, with what its sidecar says if there is one."""
    tensors = read_tensors(path)
    description = metadata.read_sidecar(path)
    reading = read_table(best_table(TABLES, tensors), tensors)
    defaults = dict(DEFAULTS)
    if "trunk/norm_root/scale" in reading.parameters:  # The post-activation form has no choice.
        del defaults["pool_padding"]
    return make_weights(
        path,
        reading,
        prefix_choices=(int("cls" in tensors and POSITIONS in tensors),),
        stated=Stated() if description is None else Stated.by(description),
        hints=hints,
        defaults=defaults,
        pixels=BIG_VISION_PIXELS if is_big_visions(tensors) else REFERENCE_PIXELS,
    )


def is_big_visions(tensors: Tensors) -> bool:
    """Whether Big Vision wrote the tensors, not vision_transformer or BiT, as their names show."""
    vit = "Transformer/encoder_norm/scale" in tensors and POSITIONS not in tensors
    return vit or "root_block/conv_root/kernel" in tensors


def files(path: str, parameters: Tensors, options: ModelOptions, model_file: ModelFile) -> Files:
    """`path` and its sidecar; raises WeightsError naming what the format cannot hold."""
    tensors = write_table(write_rows(options), parameters, options)

    def write(target: pathlib.Path) -> None:
        with target.open("wb") as file:  # numpy would append ".npz" to a name without it.
            np.savez(file, **tensors)

    return {pathlib.Path(path): write, **metadata.write_sidecar(path, model_file)}


def write_rows(options: ModelOptions) -> tuple[Row, ...]:
    """The table of the published files with such a model."""
    if isinstance(options, ResNetOptions):
        return BIT_TABLE if options.preactivation else POSTACTIVATION_TABLE
    return MIXER_TABLE if isinstance(options, MixerOptions) else VIT_TABLE


def read_tensors(path: str) -> dict[str, np.ndarray]:
    """The parameters in a `.npz` file under their canonical names, floating ones as float32.

    Of a training state the rest is not read. Raises WeightsError if the file is damaged, or grows
    without measure when it is unpacked.
    """
    check_expansion(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            prefix = next(p for p in PREFIXES if any(name.startswith(p) for name in file.files))
            tensors = [
                (name, name.removeprefix(prefix), to_float32(file[name]))
                for name in file.files
                if name.startswith(prefix)
            ]
    except Exception as error:  # zipfile, zlib and numpy each raise their own.
        raise WeightsError(f"damaged or truncated .npz file: {error}.") from error
    return canonical_names(renamed(tensors))


def check_expansion(path: str) -> None:
    """Raises WeightsError for an archive that is far larger unpacked: a zip bomb, no weights."""
    with zipfile.ZipFile(path) as archive:  # It never unpacks more than these sizes say.
        unpacked = sum(entry.file_size for entry in archive.infolist())
    if unpacked > max(ALWAYS_ALLOWED, MOST_EXPANSION * os.path.getsize(path)):
        raise WeightsError(
            f"{os.path.getsize(path):,} bytes that unpack to {unpacked:,}: these are no weights."
        )


def canonical_names(tensors: Tensors) -> dict[str, np.ndarray]:
    """The tensors with one block per layer, in the old numbering."""
    return renamed(
        (name, old_numbering(new), part)
        for name, array in tensors.items()
        for new, part in unstacked(name, array)
    )


def unstacked(name: str, array: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """A tensor under its name; one for all blocks as its layers, each under a name of its own."""
    if not name.startswith(STACKED_BLOCKS):
        yield name, array
        return
    rest, layers = name.removeprefix(STACKED_BLOCKS), np.atleast_1d(array)
    if len(layers) > MOST_LAYERS:
        raise WeightsError(f"{name} has {len(layers)} layers; {MOST_LAYERS} is the most.")
    for layer, part in enumerate(layers):
        yield f"Transformer/encoderblock_{layer}/{rest}", part


def old_numbering(name: str) -> str:
    """A name in the new numbering of Flax modules -> the old one, which counted dropouts too."""
    if match := BLOCK_NAME.fullmatch(name):
        layer, module, rest = match.groups()
        return f"Transformer/encoderblock_{layer}/{NEW_NUMBERING.get(module, module)}/{rest}"
    return name
