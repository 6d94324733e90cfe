"""Published `.npz` files: google-research/vision_transformer's and Big Vision's.

Names are brought to one form on reading (no prefix, one block per layer, the first numbering of
Flax modules), which is also the form that is written. What the tensors cannot say (GELU, norm
placement, class names, preprocessing) stands in a sidecar `NAME.json` beside the file.
"""

import re

import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.weights.mapping import Row, Tensors, read_table, table
from vit_jax.weights.source import Hints, Stated, Weights, vit_weights

# Longest first: "params/img/embedding/kernel" has two of them.
PREFIXES = ("opt/target/", "params/img/", "params/", "")
NEW_NUMBERING = {
    "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
    "LayerNorm_1": "LayerNorm_2",
    "MlpBlock_0": "MlpBlock_3",
}
BLOCK = re.compile(r"Transformer/encoderblock_(\d+)/(\w+)/(.+)")
STACKED_BLOCKS = "Transformer/encoderblock/"

POSITIONS = "Transformer/posembed_input/pos_embedding"
BLOCK_NAME = "Transformer/encoderblock_{layer}"
ATTENTION_NAME = f"{BLOCK_NAME}/MultiHeadDotProductAttention_1"
MLP_NAME = f"{BLOCK_NAME}/MlpBlock_3"

VIT_TABLE = table(
    Row("embedding/{kernel,bias}", "embedding/{kernel,bias}"),
    Row("cls", "class_token"),
    Row(
        POSITIONS,
        "position_embedding",
        when=lambda options: options.prefix_positions or not options.has_class_token,
    ),
    Row("pos_embedding", "position_embedding"),  # Big Vision's: never a row for the class token
    Row(f"{BLOCK_NAME}/LayerNorm_0/{{scale,bias}}", "blocks/norm1/{scale,bias}"),
    Row(f"{ATTENTION_NAME}/query/{{kernel,bias}}", "blocks/attention/query/{kernel,bias}"),
    Row(f"{ATTENTION_NAME}/key/{{kernel,bias}}", "blocks/attention/key/{kernel,bias}"),
    Row(f"{ATTENTION_NAME}/value/{{kernel,bias}}", "blocks/attention/value/{kernel,bias}"),
    Row(f"{ATTENTION_NAME}/out/{{kernel,bias}}", "blocks/attention/out/{kernel,bias}"),
    Row(f"{BLOCK_NAME}/LayerNorm_2/{{scale,bias}}", "blocks/norm2/{scale,bias}"),
    Row(f"{MLP_NAME}/Dense_0/{{kernel,bias}}", "blocks/mlp/dense1/{kernel,bias}"),
    Row(f"{MLP_NAME}/Dense_1/{{kernel,bias}}", "blocks/mlp/dense2/{kernel,bias}"),
    Row("Transformer/encoder_norm/{scale,bias}", "norm/{scale,bias}"),
    Row("pre_logits/{kernel,bias}", "pre_logits/{kernel,bias}"),
    Row("head/{kernel,bias}", "head/{kernel,bias}"),
)


def read_arrays(path: str) -> dict[str, np.ndarray]:
    """All arrays of a `.npz` file, floating ones as float32; raises WeightsError if damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except Exception as error:  # zipfile, zlib and numpy each raise their own
        raise WeightsError(f"{path}: damaged or truncated .npz file ({error}).") from error
    return {name: to_float32(array) for name, array in arrays.items()}


def to_float32(array: np.ndarray) -> np.ndarray:
    """Any float type as float32; numpy stores bfloat16 as a two-byte `void`."""
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32) if array.dtype.kind == "f" else array


def canonical_names(arrays: Tensors) -> dict[str, np.ndarray]:
    """The arrays under prefix-less names, one block per layer, in the old numbering."""
    prefix = next(
        prefix
        for prefix in PREFIXES
        if not prefix or any(name.startswith(prefix) for name in arrays)
    )
    canonical = {}
    for name, array in arrays.items():
        if not name.startswith(prefix):
            continue
        name = name.removeprefix(prefix)
        if name.startswith(STACKED_BLOCKS):
            rest = name.removeprefix(STACKED_BLOCKS)
            for layer, part in enumerate(array):
                canonical[old_numbering(f"Transformer/encoderblock_{layer}/{rest}")] = part
        else:
            canonical[old_numbering(name)] = array
    return canonical


def old_numbering(name: str) -> str:
    """A name in the new numbering of Flax modules -> the old one, which counted dropouts too."""
    if match := BLOCK.fullmatch(name):
        layer, module, rest = match.groups()
        return f"Transformer/encoderblock_{layer}/{NEW_NUMBERING.get(module, module)}/{rest}"
    return name


def read(path: str, hints: Hints) -> Weights:
    """The weights of a `.npz` file, with what its sidecar says if there is one."""
    tensors = canonical_names(read_arrays(path))
    reading = read_table(VIT_TABLE, tensors)
    has_class_row = "cls" in tensors and POSITIONS in tensors
    return vit_weights(
        path,
        reading,
        prefix_rows=int(has_class_row),
        stated=Stated(),
        hints=hints,
        defaults={"gelu": "tanh"},
    )
