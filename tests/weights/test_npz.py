"""Published .npz files, against outputs and gradients of the code that published them."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict

import vit_jax
from vit_jax.models import registry
from vit_jax.weights import npz
from vit_jax.weights.mapping import read_table, write_table

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"
VITS = ("vit_token", "vit_token_representation", "vit_gap")
OLD_TO_NEW = {
    "MultiHeadDotProductAttention_1": "MultiHeadDotProductAttention_0",
    "LayerNorm_2": "LayerNorm_1",
    "MlpBlock_3": "MlpBlock_0",
}


@pytest.fixture(autouse=True)
def _full_precision():
    with jax.default_matmul_precision("highest"):
        yield


def golden(name):
    """A golden file's entries: arrays by key, and those under params/ and grads/ as dicts."""
    with np.load(GOLDEN / f"{name}.npz") as file:
        entries = {key: file[key] for key in file.files}
    for group in ("params", "grads"):
        prefix = f"{group}/"
        entries[group] = {
            key.removeprefix(prefix): entries.pop(key)
            for key in list(entries)
            if key.startswith(prefix)
        }
    return entries


def new_numbering(name):
    return re.sub("|".join(OLD_TO_NEW), lambda match: OLD_TO_NEW[match[0]], name)


def stack(tensors):
    """Big Vision's scanned layout: one tensor for all blocks."""
    stacked = {}
    for name, array in tensors.items():
        stacked.setdefault(re.sub(r"encoderblock_\d+", "encoderblock", name), []).append(array)
    return {
        name: np.stack(arrays) if "encoderblock" in name else arrays[0]
        for name, arrays in stacked.items()
    }


@pytest.mark.parametrize("name", VITS)
def test_logits_and_gradients_are_the_reference_codes(name, tmp_path):
    expected = golden(name)
    np.savez(tmp_path / "weights.npz", **expected["params"])
    model = vit_jax.load_model(tmp_path / "weights.npz")
    graphdef, state = nnx.split(model)

    def loss_function(params):
        logits = nnx.merge(graphdef, params)(jnp.asarray(expected["images"]))
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, expected["labels"])
        return losses.mean(), logits

    (loss, logits), grads = jax.value_and_grad(loss_function, has_aux=True)(nnx.to_pure_dict(state))
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-5)
    np.testing.assert_allclose(loss, expected["softmax_loss"], rtol=0, atol=1e-5)
    written = write_table(npz.VIT_TABLE, flatten_dict(grads, sep="/"), model.options)
    assert written.keys() == expected["grads"].keys()
    for key, reference in expected["grads"].items():
        tolerance = 1e-4 * abs(reference).max() + 1e-7
        np.testing.assert_allclose(written[key], reference, rtol=0, atol=tolerance, err_msg=key)


@pytest.mark.parametrize("prefix", npz.PREFIXES)
@pytest.mark.parametrize(
    "layout",
    [dict, lambda t: {new_numbering(k): v for k, v in t.items()}, stack],
    ids=["old", "new", "stacked"],
)
def test_every_prefix_and_layout_gives_the_same_parameters(prefix, layout):
    tensors = golden("vit_token")["params"]
    expected = read_table(npz.VIT_TABLE, tensors).parameters
    disguised = {prefix + name: array for name, array in layout(tensors).items()}
    reading = read_table(npz.VIT_TABLE, npz.canonical_names(disguised))
    assert not reading.unknown
    assert reading.parameters.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(reading.parameters[name], array)


def test_writing_gives_the_published_tensors_back():
    tensors = golden("vit_token_representation")["params"]
    parameters = read_table(npz.VIT_TABLE, tensors).parameters
    options = registry.model_options("ViT-Ti/16")
    written = write_table(npz.VIT_TABLE, parameters, options)
    assert written.keys() == tensors.keys()
    for name, array in tensors.items():
        np.testing.assert_array_equal(written[name], array)
