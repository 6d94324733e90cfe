"""Positions and filters against a plain numpy form of their definitions."""

import jax
import numpy as np
import pytest

import vit_jax
from tests.stages import random_model
from vit_jax.analysis import embedding_filters, position_similarity
from vit_jax.errors import ConfigError

SIZES = {"width": 16, "depth": 1, "num_heads": 2, "mlp_width": 16, "num_classes": 2}
SIZES |= {"image_size": (8, 12), "patch_size": 4}


def test_similarity_of_positions():
    model = random_model("ViT-Ti/16", **SIZES, num_registers=1)
    found = position_similarity(model)
    assert found.shape == (2, 3, 2, 3)
    table = np.float64(model.position_embedding[...])[0, 2:]
    for a in range(6):
        for b in range(6):
            cosine = table[a] @ table[b] / np.linalg.norm(table[a]) / np.linalg.norm(table[b])
            assert found[divmod(a, 3) + divmod(b, 3)] == pytest.approx(cosine, abs=1e-5)


def test_similarity_of_fixed_and_of_two_dimensional_positions():
    for positions in ("sincos_2d", "learned_2d"):
        model = vit_jax.create_model("ViT-Ti/16", positions=positions, **SIZES)
        found = position_similarity(model).reshape(6, 6)
        np.testing.assert_allclose(np.diag(found), 1, rtol=1e-5)
        np.testing.assert_allclose(found, found.T, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{"positions": "none"}, {"positions": "relative"}, {"position_placement": "every_layer"}],
)
def test_models_without_one_table_are_refused(options):
    model = jax.eval_shape(lambda: vit_jax.create_model("ViT-Ti/16", **SIZES, **options))
    with pytest.raises(ConfigError, match="one table"):
        position_similarity(model)


def test_filters_are_principal_components_of_the_kernel():
    model = random_model("ViT-Ti/16", **{**SIZES, "width": 64})
    found = embedding_filters(model, count=5)
    assert found.shape == (5, 4, 4, 3)
    assert (found.min(axis=(1, 2, 3)) == 0).all()
    assert (found.max(axis=(1, 2, 3)) == 1).all()
    filters = np.float64(model.embedding.kernel[...]).reshape(48, 64).T
    values, vectors = np.linalg.eigh(np.cov(filters.T))
    assert (np.diff(values[-6:]) > 1e-3 * values[-1]).all()  # Else any mixture would do.
    for number, component in enumerate(found):
        expected = vectors[:, -1 - number]
        expected = expected * np.sign(expected[np.abs(expected).argmax()])
        expected = (expected - expected.min()) / np.ptp(expected)
        np.testing.assert_allclose(component.ravel(), expected, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "small"),
    [
        ("R+ViT-Ti/16", {"width": 16, "depth": 1, "num_heads": 2, "mlp_width": 16}),
        ("BiT-R50x1", {"stage_depths": (1,)}),
    ],
)
def test_filters_of_convolutions(name, small):
    model = random_model(name, image_size=32, num_classes=2, **small)
    assert embedding_filters(model).shape == (28, 7, 7, 3)


def test_fewer_filters_than_asked_for():
    model = random_model("ViT-Ti/16", **{**SIZES, "width": 8})
    assert len(embedding_filters(model)) == 8
