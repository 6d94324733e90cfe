"""Tables that translate tensors between a file format and this package; each reads both ways.

A row pairs a name in the file with one or several of ours, and the change of layout between them:

    Row("blocks.{layer}.mlp.fc1.{weight,bias}", "blocks/mlp/dense1/{kernel,bias}", DENSE)

`{a,b}` writes two rows as one. `{layer}` is the index of a block: our blocks are stacked on a
leading axis, so it stands on the file's side only, and reading stacks the layers in order. Other
placeholders stand on both sides: `{unit:02}` has two digits, `{unit-1}` counts from 0.
"""

import dataclasses
import functools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.models.base import ModelOptions

Tensors = Mapping[str, np.ndarray]  # by full name, as "blocks/mlp/dense1/kernel"

ALTERNATIVES = re.compile(r"\{([^{}]*,[^{}]*)\}")
PLACEHOLDER = re.compile(r"\{(\w+)(-1|:02)?\}")


def to_float32(array: np.ndarray) -> np.ndarray:
    """Any float type as float32; numpy's own files hold bfloat16 as a two-byte `void`."""
    if array.dtype.kind == "V" and array.dtype.itemsize == 2:
        array = array.view(ml_dtypes.bfloat16)
    is_float = np.issubdtype(array.dtype, np.floating) or array.dtype == ml_dtypes.bfloat16
    with np.errstate(over="ignore"):  # What is too large is found later, and named.
        return array.astype(np.float32) if is_float else array


@dataclasses.dataclass(frozen=True)
class Transform:
    """A change of layout between one array of a file and one or several of ours, both ways.

    `read(array, num_heads)` returns a tuple of our arrays; `write(*ours)` the file's array.
    """

    read: Callable[[np.ndarray, int], tuple[np.ndarray, ...]]
    write: Callable[..., np.ndarray]


def split_heads(array: np.ndarray, num_heads: int) -> np.ndarray:
    """PyTorch's (H·d, D) or (H·d) -> (D, H, d) or (H, d)."""
    return array.T.reshape(*array.T.shape[:-1], num_heads, -1)


def merge_heads(array: np.ndarray) -> np.ndarray:
    """The inverse of `split_heads`."""
    return array.reshape(*array.shape[:-2], -1).T


SAME = Transform(lambda array, _: (array,), lambda array: array)
DENSE = Transform(lambda array, _: (array.T,), lambda array: array.T)  # A bias stays as it is.
HEADS = Transform(lambda array, heads: (split_heads(array, heads),), lambda a: merge_heads(a))
HEADS_OUT = Transform(  # (D, H·d) <-> (H, d, D); biases stay
    lambda array, heads: (array.T.reshape(heads, -1, len(array)) if array.ndim == 2 else array,),
    lambda array: array.reshape(-1, array.shape[-1]).T if array.ndim == 3 else array,
)
VECTOR = Transform(  # (C), or (1, 1, 1, C) in some files <-> (C)
    lambda array, _: (array.reshape(array.shape[-1:]),), lambda array: array
)
GROUP_NORM = Transform(VECTOR.read, lambda array: array.reshape(1, 1, 1, -1))  # published files
POINTWISE = Transform(  # a 1×1 convolution (1, 1, C, D) <-> a dense layer (C, D); biases stay
    lambda array, _: (array.reshape(array.shape[-2:]) if array.ndim == 4 else array,),
    lambda array: array[None, None] if array.ndim == 2 else array,
)
CONVOLUTION = Transform(  # (out, in, height, width) <-> (height, width, in, out); biases stay
    lambda array, _: (array.transpose(2, 3, 1, 0) if array.ndim == 4 else array,),
    lambda array: array.transpose(3, 2, 0, 1) if array.ndim == 4 else array,
)


ONE_LONG = Transform(  # (S, D) <-> (1, S, D)
    lambda array, _: (array.reshape(1, -1, array.shape[-1]),), lambda array: array[0]
)
ONE_TOKEN = Transform(  # (D) <-> (1, 1, D)
    lambda array, _: (array.reshape(1, 1, -1),), lambda array: array[0, 0]
)
POINTWISE_HEAD = Transform(  # a 1×1 convolution (K, D, 1, 1) <-> a dense layer (D, K); biases stay
    lambda array, _: (array.reshape(array.shape[:2]).T if array.ndim == 4 else array,),
    lambda array: array.T[..., None, None] if array.ndim == 2 else array,
)


def fused_heads(parts: int) -> Transform:
    """Several projections (query, key, value) stacked in one tensor of PyTorch's layout."""
    return Transform(
        lambda array, num_heads: tuple(
            split_heads(part, num_heads) for part in np.split(array, parts)
        ),
        lambda *arrays: np.concatenate([merge_heads(array) for array in arrays]),
    )


def fused_dense(parts: int) -> Transform:
    """Several dense layers stacked in one tensor of PyTorch's layout."""
    return Transform(
        lambda array, _: tuple(part.T for part in np.split(array, parts)),
        lambda *arrays: np.concatenate([array.T for array in arrays]),
    )


@dataclasses.dataclass(frozen=True)
class Row:
    """One line of a table: the file's name, ours, and the transform between them.

    `when(options)` chooses, in writing, among rows with the same target.
    """

    theirs: str
    ours: str | tuple[str, ...]
    transform: Transform = SAME
    when: Callable[[Any], bool] = lambda options: True

    def expand(self) -> list["Row"]:
        """This row with each `{a,b}` written out, the first on both sides together, and so on."""
        ours = (self.ours,) if isinstance(self.ours, str) else self.ours
        found = ALTERNATIVES.search(self.theirs)
        if not found:
            return [dataclasses.replace(self, ours=ours)]

        def choose(name: str, index: int) -> str:
            return ALTERNATIVES.sub(lambda match: match[1].split(",")[index], name, count=1)

        return [
            row
            for index in range(len(found[1].split(",")))
            for row in dataclasses.replace(
                self,
                theirs=choose(self.theirs, index),
                ours=tuple(choose(name, index) for name in ours),
            ).expand()
        ]


def table(*rows: Row) -> tuple[Row, ...]:
    """Rows with their `{a,b}` written out."""
    return tuple(expanded for row in rows for expanded in row.expand())


@functools.cache
def pattern(template: str) -> re.Pattern:
    """The regular expression of a template's instances."""
    parts, start = [], 0
    for placeholder in PLACEHOLDER.finditer(template):
        digits = rf"(?P<{placeholder[1]}>[0-9]{{1,4}})"
        parts += [re.escape(template[start : placeholder.start()]), digits]
        start = placeholder.end()
    return re.compile("".join(parts) + re.escape(template[start:]))


def match_name(template: str, name: str) -> dict[str, int] | None:
    """The placeholders' values, if `name` is an instance of `template`."""
    match = pattern(template).fullmatch(name)
    if match is None:
        return None
    offsets = {key: modifier == "-1" for key, modifier in PLACEHOLDER.findall(template)}
    return {key: int(value) + offsets[key] for key, value in match.groupdict().items()}


def fill_name(template: str, values: Mapping[str, int]) -> str:
    """The inverse of `match_name`; a placeholder without a value stays."""

    def fill(match: re.Match) -> str:
        key, modifier = match.groups()
        if key not in values:
            return match[0]
        return f"{values[key]:02}" if modifier == ":02" else str(values[key] - (modifier == "-1"))

    return PLACEHOLDER.sub(fill, template)


@dataclasses.dataclass(frozen=True)
class Reading:
    """The parameters that a table made of a file's tensors."""

    parameters: dict[str, np.ndarray]  # by our names, blocks stacked
    file_names: dict[str, str]  # our name -> the file's, with its `{layer}`
    unknown: tuple[str, ...]  # names in the file that no row has


def read_table(rows: Iterable[Row], tensors: Tensors, num_heads: int = 0) -> Reading:
    """Our parameters from a file's tensors.

    Args:
      rows: the format's table.
      tensors: the file's, by name.
      num_heads: of the model; only formats that keep the heads flat need it.

    Raises:
      WeightsError: two tensors are the same parameter, a block lacks a tensor that another has, or
        a tensor's type or shape is impossible.
    """
    layers: dict[str, dict[int, np.ndarray]] = {}
    parameters: dict[str, np.ndarray] = {}
    file_names: dict[str, str] = {}
    sources: dict[tuple[str, int | None], str] = {}
    unknown = []
    for name, array in tensors.items():
        found = find_row(rows, name)
        if found is None:
            unknown.append(name)
            continue
        row, values = found
        layer = values.pop("layer", None)
        parts = read_array(row, name, array, num_heads)
        for template, part in zip(row.ours, parts, strict=True):
            ours = fill_name(template, values)
            if (other := sources.setdefault((ours, layer), name)) != name:
                raise WeightsError(
                    f"{other} and {name} are the same parameter: remove one of them."
                )
            file_names[ours] = fill_name(row.theirs, values)
            if layer is None:
                parameters[ours] = part
            else:
                layers.setdefault(ours, {})[layer] = part
    depth = 1 + max((layer for parts in layers.values() for layer in parts), default=-1)
    for ours, unstacked in layers.items():
        parameters[ours] = stack_layers(file_names[ours], unstacked, depth)
    return Reading(parameters, file_names, tuple(unknown))


def read_array(row: Row, name: str, array: np.ndarray, num_heads: int) -> tuple[np.ndarray, ...]:
    """Our arrays from one tensor; raises WeightsError if it cannot be what its name says."""
    if array.dtype != np.float32:
        raise WeightsError(f"{name} holds {array.dtype} values, not floating-point numbers.")
    try:
        if array.size == 0:
            raise ValueError
        return row.transform.read(array, num_heads)
    except (ValueError, IndexError):  # from reshape and split
        heads = f" with {num_heads} attention heads" if num_heads else ""
        raise WeightsError(f"{name} has the impossible shape {array.shape}{heads}.") from None


def renamed(tensors: Iterable[tuple[str, str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Arrays by new name, from (name in the file, new name, array).

    Raises WeightsError if two get the same name.
    """
    arrays: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    for name, new, array in tensors:
        if new in arrays:
            raise WeightsError(
                f"{names[new]} and {name} are the same parameter: remove one of them."
            )
        arrays[new], names[new] = array, name
    return arrays


def best_table(tables: Iterable[tuple[Row, ...]], names: Iterable[str]) -> tuple[Row, ...]:
    """The table that knows most of the names; of equals the first."""
    names = list(names)
    return max(tables, key=lambda rows: sum(find_row(rows, name) is not None for name in names))


def find_row(rows: Iterable[Row], name: str) -> tuple[Row, dict[str, int]] | None:
    """The row of a file's name, and the values of its placeholders."""
    for row in rows:
        if (values := match_name(row.theirs, name)) is not None:
            return row, values
    return None


def stack_layers(file_name: str, parts: Mapping[int, np.ndarray], depth: int) -> np.ndarray:
    """One array with a leading axis of `depth` layers; raises WeightsError if they do not fit."""
    for layer in range(depth):
        name = fill_name(file_name, {"layer": layer})
        if layer not in parts:
            raise WeightsError(f"{name} is missing, though there are {depth} blocks.")
        if parts[layer].shape != parts[min(parts)].shape:
            raise WeightsError(
                f"{name} has shape {parts[layer].shape}; in the first block it is "
                f"{parts[min(parts)].shape}."
            )
    return np.stack([parts[layer] for layer in range(depth)])


def write_table(
    rows: Iterable[Row], parameters: Tensors, options: ModelOptions
) -> dict[str, np.ndarray]:
    """The inverse of `read_table`: a file's tensors; `options` are the model's.

    Raises WeightsError, naming them, if the format has no tensor for some parameters.
    """
    tensors: dict[str, np.ndarray] = {}
    left = dict.fromkeys(parameters)
    for row in rows:
        if not row.when(options):
            continue
        for name in list(left):
            if (values := match_name(row.ours[0], name)) is None:
                continue
            names = [fill_name(template, values) for template in row.ours]
            arrays = [np.asarray(parameters[name]) for name in names]
            for name in names:
                del left[name]
            if "{layer}" in row.theirs:
                for layer, parts in enumerate(zip(*arrays, strict=True)):
                    theirs = fill_name(row.theirs, {**values, "layer": layer})
                    tensors[theirs] = row.transform.write(*parts)
            else:
                tensors[fill_name(row.theirs, values)] = row.transform.write(*arrays)
    if left:
        raise WeightsError(f"this format has no tensor for {', '.join(left)}.")
    return tensors
