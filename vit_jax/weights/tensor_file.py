"""`.safetensors` files as numpy arrays."""

import os
from collections.abc import Mapping

import numpy as np
import safetensors
import safetensors.numpy

from vit_jax.errors import WeightsError
from vit_jax.weights.files import Writer
from vit_jax.weights.mapping import Tensors, to_float32

PathLike = str | os.PathLike[str]


def read_names(path: PathLike) -> list[str]:
    """The tensors' names; raises WeightsError if the file is damaged."""
    return list(open_file(path).keys())


def read_tensors(path: PathLike) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """All tensors, floating ones as float32, and the file's metadata."""
    file = open_file(path)
    tensors = {}
    for name in file.keys():  # noqa: SIM118
        try:
            tensors[name] = to_float32(file.get_tensor(name))
        except (AttributeError, TypeError, ValueError) as error:  # numpy has no such type, shape
            raise WeightsError(f"{name} cannot be read: {error}.") from None
    return tensors, file.metadata() or {}


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
