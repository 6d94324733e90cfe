"""Weight files as others publish them, made of the golden values; and what tests do with models."""

import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict

from vit_jax.models import model_options
from vit_jax.weights.architecture import abstract_parameters

GOLDEN = pathlib.Path(__file__).parent / "golden"
OLD_TO_NEW = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}


def golden(name):
    """A golden file's entries: arrays by key, and those under params/ and grads/ as dicts."""
    entries = dict(_read(name))
    for group in ("params", "grads"):
        prefix = f"{group}/"
        entries[group] = {
            key.removeprefix(prefix): entries.pop(key)
            for key in list(entries)
            if key.startswith(prefix)
        }
    return entries


@functools.cache
def _read(name):
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        return dict(file)


def write_npz(path, tensors):
    np.savez(path, **tensors)
    return path


def old_numbering(tensors):
    return tensors


def new_numbering(tensors):
    def rename(name):
        return re.sub("|".join(OLD_TO_NEW), lambda match: OLD_TO_NEW[match[0]], name)

    return {rename(name): array for name, array in tensors.items()}


def stacked(tensors):
    """Big Vision's scanned layout: new numbering, one tensor for all blocks."""
    layers = {}
    for name, array in new_numbering(tensors).items():
        layers.setdefault(re.sub(r"encoderblock_\d+", "encoderblock", name), []).append(array)
    return {
        name: np.stack(arrays) if "/encoderblock/" in name else arrays[0]
        for name, arrays in layers.items()
    }


@functools.partial(jax.jit, static_argnums=0)
def _apply(graphdef, state, images):
    return nnx.merge(graphdef, state)(images)


def logits(model, images):
    graphdef, state = nnx.split(model)
    return np.asarray(_apply(graphdef, state, jnp.asarray(images)))


def random_model(name, **options):
    """A model with random parameters, made without compiling its initialisers."""
    complete = model_options(name, **options)
    graphdef, shapes = abstract_parameters(name, complete)
    rng = np.random.default_rng(0)
    arrays = {
        key: jnp.asarray(rng.normal(size=shape).astype(np.float32)) for key, shape in shapes.items()
    }
    return nnx.merge(graphdef, unflatten_dict(arrays, sep="/"))


def parameters(model):
    flat = flatten_dict(nnx.to_pure_dict(nnx.split(model)[1]), sep="/")
    return {name: np.asarray(array) for name, array in flat.items()}


def assert_same_tensors(actual, expected):
    """Equal names, shapes, types and bits."""
    assert sorted(actual) == sorted(expected)
    for name, array in expected.items():
        assert actual[name].dtype == array.dtype, name
        np.testing.assert_array_equal(actual[name], array, err_msg=name, strict=True)
