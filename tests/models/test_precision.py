"""How precisely products are computed: in the text of the programs, before any compiler.

The CPU's products are float32 in any case, so that values would show nothing.
"""

import re

import jax
import pytest
from flax import nnx

from tests.models.filled import filled_model
from tests.models.test_execution import FAMILIES
from tests.stages import Setup, config_with, mesh_of
from vit_jax.models import abstract_model
from vit_jax.weights.saving import save_model

PRODUCT = re.compile(r"stablehlo\.(?:dot_general|convolution)\b[^\n]*")
HIGHEST = "precision = [HIGHEST, HIGHEST]"
CONVOLUTION = "#stablehlo<precision HIGHEST>, #stablehlo<precision HIGHEST>"


def share_at_highest(text):
    """Of the products of a program, in StableHLO."""
    products = PRODUCT.findall(text)
    assert len(products) > 2
    return sum(HIGHEST in line or CONVOLUTION in line for line in products) / len(products)


def lowered(name, **options):
    model = abstract_model(name, **FAMILIES[name], **options)
    graphdef, params = nnx.split(model)
    shape = (2, *model.options.image_size, model.options.channels)
    images = jax.ShapeDtypeStruct(shape, "float32")
    return jax.jit(lambda p, x: nnx.merge(graphdef, p)(x)).lower(params, images).as_text()


@pytest.mark.parametrize("name", FAMILIES)
def test_a_float32_model_multiplies_float32(name):
    assert share_at_highest(lowered(name)) == 1


def test_other_precisions_are_a_choice():
    assert share_at_highest(lowered("ViT-B/16", matmul_precision="default")) == 0
    assert share_at_highest(lowered("ViT-B/16", dtype="bfloat16")) == 0
    assert share_at_highest(lowered("ViT-B/16", dtype="bfloat16", matmul_precision="highest")) == 1
    with jax.default_matmul_precision("highest"):  # What is around counts for "default".
        assert share_at_highest(lowered("ViT-B/16", matmul_precision="default")) == 1


@pytest.mark.parametrize(
    ("values", "share"),
    [
        ({}, 1),
        ({"objective.name": "masked_patches", "model.num_classes": 0}, 1),  # Its own products too.
        ({"model.dtype": "bfloat16"}, 0),
    ],
    ids=str,
)
def test_training_forward_and_backward(values, share):
    experiment = Setup(config_with(**values), mesh_of(1)).experiment
    text = experiment.step.lower(experiment.state, {}, experiment.batch).as_text()
    assert share_at_highest(text) == share


def test_an_exported_program_keeps_it(tmp_path):
    path = tmp_path / "model.stablehlo"
    save_model(filled_model("ViT-B/16", **FAMILIES["ViT-B/16"]), path, format="stablehlo")
    text = jax.export.deserialize(bytearray(path.read_bytes())).mlir_module()
    assert share_at_highest(text) == 1


@pytest.mark.parametrize(("precision", "exact"), [("highest", True), ("default", False)])
def test_a_head_alone_is_as_precise(precision, exact):
    model = abstract_model("ViT-B/16", **FAMILIES["ViT-B/16"], matmul_precision=precision)
    features = jax.ShapeDtypeStruct((2, model.head.in_features), "float32")
    graphdef, params = nnx.split(model)
    found = jax.make_jaxpr(lambda p, x: nnx.merge(graphdef, p).classify(x))(params, features)
    assert ("HIGHEST" in str(found)) == exact
