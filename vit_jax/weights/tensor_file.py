"""`.safetensors` files as numpy arrays."""

import json
import os
from collections.abc import Mapping

import numpy as np
import safetensors
import safetensors.numpy

from vit_jax.errors import WeightsError
from vit_jax.weights.files import Writer
from vit_jax.weights.mapping import Tensors, to_float32

PathLike = str | os.PathLike[str]
SUFFIX = ".safetensors"
INDEX = ".safetensors.index.json"  # what the index of several files is called


def read_names(path: PathLike) -> list[str]:
    """The tensors' names; raises WeightsError if a file is damaged or missing."""
    return [name for part in parts_of(path) for name in open_file(part).keys()]  # noqa: SIM118


def read_tensors(path: PathLike, prefix: str = "") -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """The tensors, floating ones as float32, and the file's metadata.

    Args:
      path: of a file, or of the index of several.
      prefix: of the names to read, left out in what is returned; others are not read.
    """
    tensors: dict[str, np.ndarray] = {}
    metadata: dict[str, str] = {}
    for part in parts_of(path):
        file = open_file(part)
        metadata |= file.metadata() or {}
        for name in file.keys():  # noqa: SIM118
            if not name.startswith(prefix):
                continue
            try:
                tensors[name.removeprefix(prefix)] = to_float32(file.get_tensor(name))
            except (AttributeError, TypeError, ValueError) as error:  # numpy has no such type
                raise WeightsError(f"{name} cannot be read: {error}.") from None
    return tensors, metadata


def parts_of(path: PathLike) -> list[PathLike]:
    """The files that hold the tensors: `path` itself, or those that it is the index of.

    Raises WeightsError if the index names no files beside it, or one of them is missing.
    """
    if not os.fspath(path).endswith(INDEX):
        return [path]
    folder = os.path.dirname(path)
    try:
        with open(path, encoding="utf-8") as file:
            names = sorted(set(json.load(file)["weight_map"].values()))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"{path} is no index of .safetensors files: {error!r}.") from None
    for name in names:
        if os.path.basename(name) != name or not name.endswith(SUFFIX):
            raise WeightsError(f"{path} names {name!r}: not a .safetensors file beside it.")
        if not os.path.isfile(os.path.join(folder, name)):
            raise WeightsError(f"{name} is missing, which {os.path.basename(path)} names.")
    return [os.path.join(folder, name) for name in names]


def open_file(path: PathLike) -> safetensors.safe_open:
    """The open file; raises WeightsError if it is damaged."""
    try:
        return safetensors.safe_open(os.fspath(path), framework="numpy")
    except safetensors.SafetensorError as error:
        raise WeightsError(f"damaged or truncated .safetensors file: {error}.") from None


def writer(tensors: Tensors, metadata: Mapping[str, str]) -> Writer:
    """The writer of a file with all tensors as they are."""

    def write(path: PathLike) -> None:
        # The library writes the memory behind an array, whatever its strides.
        contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
        try:
            safetensors.numpy.save_file(contiguous, os.fspath(path), dict(metadata))
        except safetensors.SafetensorError as error:
            raise OSError(str(error)) from error

    return write
