"""This package's own: a run's workdir, and the export made of it."""

import hashlib
import os
import pathlib

import numpy as np
from etils import epath
from flax.traverse_util import flatten_dict

from vit_jax import digests
from vit_jax.errors import WeightsError
from vit_jax.model_file import FILE_NAME, ModelFile, read_model_file, to_json
from vit_jax.weights import tensor_file
from vit_jax.weights.content import Hints, Weights
from vit_jax.weights.files import Files, json_text
from vit_jax.weights.mapping import Tensors, to_float32

PARAMS_FILE = "params.safetensors"
DIGEST = "digest"  # In the file's metadata; earlier exports have none.


def read_run(directory: str, checkpoint: str | int, ema: bool, average: int | None) -> Weights:
    """The (averaged) parameters of a run's checkpoint, or the mean of its last `average` ones.

    Raises CheckpointError if it has no such checkpoint, WeightsError if it has fewer.
    """
    if average is None:
        parameters = read_checkpoint(directory, checkpoint, ema)
    else:
        parameters = mean_of_last(directory, average, ema)
    return Weights(directory, parameters, read_model_file(directory))


def read_checkpoint(directory: str, checkpoint: str | int, ema: bool) -> dict[str, np.ndarray]:
    """The parameters of one checkpoint: "latest", "best" or a step."""
    from vit_jax.checkpoint import restore_params  # Orbax takes long to import.

    params = restore_params(directory, checkpoint, ema=ema)
    return {name: np.asarray(array) for name, array in flatten_dict(params, sep="/").items()}


def mean_of_last(directory: str, count: int, ema: bool) -> dict[str, np.ndarray]:
    """The mean, in float64, of the last `count` checkpoints' parameters."""
    steps = digests.steps(epath.Path(directory) / "checkpoints")
    if not 1 <= count <= len(steps):
        raise WeightsError(
            f"it has {len(steps)} checkpoints, not {count}: config.keep_checkpoints says how many "
            "a run keeps."
        )
    sums: dict[str, np.ndarray] = {}
    for step in steps[-count:]:
        for name, array in read_checkpoint(directory, step, ema).items():
            sums[name] = sums.get(name, 0) + array.astype(np.float64)
    return {name: (total / count).astype(np.float32) for name, total in sums.items()}


def read_export(path: str, hints: Hints, prefix: str = "") -> Weights:
    """The parameters of a `params.safetensors`, with the `model.json` beside it."""
    del hints  # Nothing is left open.
    tensors, metadata = tensor_file.read_tensors(path, prefix)
    if metadata.get(DIGEST, expected := digest_of(tensors)) != expected:
        raise WeightsError("it is damaged: its numbers are not those that were written.")
    return Weights(path, tensors, read_model_file(os.path.dirname(path)))


def digest_of(tensors: Tensors) -> str:
    """The BLAKE2 digest of 128 bits of tensors as float32, with their names and shapes."""
    state = hashlib.blake2b(digest_size=16)
    for name in sorted(tensors):
        array = np.ascontiguousarray(to_float32(tensors[name]))
        state.update(f"{name} {array.shape} {array.dtype.str}".encode())
        state.update(array.reshape(-1).view(np.uint8).data)
    return state.hexdigest()


def files(path: str, parameters: Tensors, options: object, model_file: ModelFile) -> Files:
    """A folder with `model.json` and `params.safetensors`, under our own names."""
    del options  # They are in the description.
    folder = pathlib.Path(path)
    if (folder / "model.npz").exists() and (folder / FILE_NAME).exists():
        raise WeightsError(f"{folder / FILE_NAME} describes model.npz there: name another folder.")
    return {
        folder / PARAMS_FILE: tensor_file.writer(parameters, {DIGEST: digest_of(parameters)}),
        folder / FILE_NAME: json_text(to_json(model_file)),
    }
