"""This package's own: a run's workdir, and the export made of it."""

import dataclasses
import os
import pathlib

import numpy as np
from etils import epath
from flax.traverse_util import flatten_dict

from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile, read_model_file, write_model_file
from vit_jax.weights import tensor_file
from vit_jax.weights.mapping import Tensors
from vit_jax.weights.source import Hints, Weights

PARAMS_FILE = "params.safetensors"


def read_run(directory: str, checkpoint: str | int, ema: bool) -> Weights:
    """The (averaged) parameters of a run's checkpoint: "latest", "best" or a step."""
    from vit_jax.checkpoint import restore_params  # Orbax takes long to import.

    params = restore_params(directory, checkpoint, ema=ema)
    flat = {name: np.asarray(array) for name, array in flatten_dict(params, sep="/").items()}
    return Weights(directory, flat, read_model_file(directory))


def read_average(directory: str, count: int, ema: bool = False) -> Weights:
    """The mean of a run's last `count` checkpoints; raises WeightsError if it has fewer."""
    from orbax.checkpoint import utils

    steps = sorted(utils.checkpoint_steps(epath.Path(directory) / "checkpoints"))
    if not 1 <= count <= len(steps):
        raise WeightsError(
            f"{directory} has {len(steps)} checkpoints, not {count}: config.keep_checkpoints says "
            "how many a run keeps."
        )
    last = read_run(directory, steps[-1], ema)
    sums = {name: array.astype(np.float64) for name, array in last.parameters.items()}
    for step in steps[-count:-1]:
        for name, array in read_run(directory, step, ema).parameters.items():
            sums[name] += array
    mean = {name: (total / count).astype(np.float32) for name, total in sums.items()}
    return dataclasses.replace(last, parameters=mean)


def read_export(path: str, hints: Hints) -> Weights:
    """The parameters of a `params.safetensors`, with the `model.json` beside it."""
    del hints  # Nothing is left open.
    tensors, _ = tensor_file.read_tensors(path)
    return Weights(path, tensors, read_model_file(os.path.dirname(path)))


def write(path: str, parameters: Tensors, options: object, model_file: ModelFile) -> None:
    """Writes a folder with `model.json` and `params.safetensors`, under our own names."""
    del options  # They are in the description.
    folder = pathlib.Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    tensor_file.write_tensors(folder / PARAMS_FILE, parameters, {})
    write_model_file(folder, model_file)
