"""Muon, against its formula in NumPy."""

import numpy as np
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict

from tests.optimizer.trees import leaves, random_tree, settings, update_all
from vit_jax.models import registry
from vit_jax.optimizer.muon import matrix_view

STEPS = 5
SHAPES = {
    "blocks/attention/query/kernel": (2, 6, 2, 4),
    "blocks/attention/key/kernel": (2, 6, 2, 4),
    "blocks/attention/value/kernel": (2, 6, 2, 4),
    "blocks/attention/out/kernel": (2, 2, 4, 6),
    "blocks/attention/out/bias": (2, 6),
    "blocks/mlp/dense1/kernel": (2, 6, 10),
    "embedding/kernel": (2, 2, 3, 6),
    "trunk/stage1/unit01/conv2/kernel": (3, 3, 2, 5),
    "head/kernel": (6, 3),
}
MATRICES = {  # Rows and columns of one layer.
    "blocks/attention/query/kernel": (6, 8),
    "blocks/attention/key/kernel": (6, 8),
    "blocks/attention/value/kernel": (6, 8),
    "blocks/attention/out/kernel": (8, 6),
    "blocks/mlp/dense1/kernel": (6, 10),
    "trunk/stage1/unit01/conv2/kernel": (18, 5),
}


def orthogonalized(matrix):
    """Five quintic Newton-Schulz iterations (kellerjordan.github.io/posts/muon)."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = matrix / (np.linalg.norm(matrix) + 1e-8)
    x = x.T if x.shape[0] > x.shape[1] else x
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x if x.shape == matrix.shape else x.T


def directions(gradients, momentum=0.95):
    """The last update's direction of one matrix: momentum with Nesterov's look ahead."""
    average = np.zeros_like(gradients[0])
    for step, gradient in enumerate(gradients, start=1):
        average = momentum * average + (1 - momentum) * gradient
        ahead = momentum * average / (1 - momentum ** (step + 1))
        ahead += (1 - momentum) * gradient / (1 - momentum**step)
    return 0.2 * max(ahead.shape) ** 0.5 * orthogonalized(ahead)


@pytest.fixture(scope="module")
def gradients():
    return [random_tree(seed, shapes=SHAPES) for seed in range(STEPS)]


def last_direction(name, gradients, **options):
    zeros = random_tree(0, scale=0.0, shapes=SHAPES)
    config = settings(name=name, **options)
    return leaves(update_all(config, lambda step: 1.0 * (step == STEPS - 1), zeros, gradients)[0])


@pytest.mark.parametrize("options", [{}, {"momentum": 0.5}], ids=str)
def test_five_updates_are_the_formula(gradients, options):
    found = last_direction("muon", gradients, **options)
    for name, (rows, columns) in MATRICES.items():
        layers = [leaves(gradient)[name] for gradient in gradients]
        count = 2 if name.startswith("blocks/") else 1
        matrices = [np.float64(layer).reshape(count, rows, columns) for layer in layers]
        for layer in range(count):
            expected = -directions([m[layer] for m in matrices], **options)
            value = found[name].reshape(count, rows, columns)[layer]
            np.testing.assert_allclose(value, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"b1": 0.5, "b2": 0.8}], ids=str)
def test_all_else_is_adamws(gradients, options):
    found, adam = (last_direction(name, gradients, **options) for name in ("muon", "adamw"))
    for name in SHAPES.keys() - MATRICES.keys():
        np.testing.assert_array_equal(found[name], adam[name], err_msg=name)
    assert not np.allclose(found["blocks/mlp/dense1/kernel"], adam["blocks/mlp/dense1/kernel"])


@pytest.mark.parametrize("model", ["ViT-Ti/16", "R26+ViT-S/32", "Axial-ViT-B/32", "Mixer-B/32"])
def test_the_matrices_of_a_model_are_its_hidden_kernels(model):
    params = flatten_dict(
        nnx.to_pure_dict(nnx.split(registry.abstract_model(model, num_classes=3))[1]), sep="/"
    )
    matrices = {name for name, leaf in params.items() if matrix_view(name, leaf.ndim)}
    kernels = {name for name in params if name.endswith("kernel")}
    outer = {"embedding/kernel", "head/kernel", "stem/conv_root/kernel"}
    assert matrices == kernels - outer
    for name in matrices:
        rows, columns = matrix_view(name, params[name].ndim)
        layer_axis = {0} if name.startswith("blocks/") else set()
        assert {*rows, *columns} == set(range(params[name].ndim)) - layer_axis
        assert rows
        assert columns
