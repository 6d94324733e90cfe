"""Tokens over depth, colours, relevance and neighbours against numpy and scikit-learn."""

import jax
import numpy as np
import pytest
import sklearn.decomposition
import sklearn.neighbors
from flax import nnx

import vit_jax
from tests.stages import random_model
from vit_jax.analysis import (
    class_relevance,
    nearest_neighbors,
    patch_colors,
    principal_components,
    token_similarity,
)
from vit_jax.analysis.tokens import patch_features
from vit_jax.errors import ConfigError

SIZES = {"width": 16, "depth": 3, "num_heads": 2, "mlp_width": 16, "num_classes": 3}
SIZES |= {"image_size": 8, "patch_size": 4, "channels": 1}


def make_model(**options):
    return random_model("ViT-Ti/16", **{**SIZES, **options})


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).normal(size=(3, 8, 8, 1)).astype(np.float32)


def test_similarity_of_tokens(images):
    model = make_model()
    tokens = np.float64(model.intermediates(images, "block_outputs")["block_outputs"])[:, :, 1:]
    units = tokens / np.linalg.norm(tokens, axis=-1, keepdims=True)
    cosines = np.einsum("lbid,lbjd->lbij", units, units)
    others = cosines[..., ~np.eye(4, dtype=bool)]
    found = token_similarity(model, images)
    np.testing.assert_allclose(found, others.mean(axis=(1, 2)), atol=1e-5)


def test_components_against_scikit_learn():
    features = np.random.default_rng(0).normal(size=(50, 6)) * [5, 4, 3, 2, 1, 1] + 7
    found = principal_components(features, 3)
    pca = sklearn.decomposition.PCA(3).fit(features)
    np.testing.assert_allclose(np.abs(found), np.abs(pca.transform(features)), atol=1e-5)
    again = principal_components(features[::-1].copy(), 3)
    np.testing.assert_allclose(again[::-1], found, atol=1e-5, err_msg="signs are fixed")


def test_colours_are_components_of_all_images_together(images):
    model = make_model()
    found = patch_colors(model, images)
    assert found.shape == (3, 2, 2, 3)
    scores = principal_components(patch_features(model, images).reshape(12, 16), 3)
    low, high = np.percentile(scores, (1, 99), axis=0)
    expected = np.clip((scores - low) / (high - low), 0, 1).reshape(3, 2, 2, 3)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert (found.min(), found.max()) == (0, 1)


@pytest.mark.parametrize("patches", [2, 3])
def test_three_patches_at_least_have_colours(patches, monkeypatch):
    size = {**SIZES, "image_size": (4, 4 * patches)}
    model = jax.eval_shape(lambda: vit_jax.create_model("ViT-Ti/16", **size))
    features = np.random.default_rng(0).normal(size=(1, patches, 16))
    monkeypatch.setattr("vit_jax.analysis.tokens.patch_features", lambda *given: features)
    if patches == 3:
        assert patch_colors(model, None).shape == (1, 1, 3, 3)
        return
    with pytest.raises(ConfigError, match="three patches at least"):
        patch_colors(model, None)


def test_layers_of_features(images):
    model = make_model(pooling="average")
    outputs = model.intermediates(images, "block_outputs")["block_outputs"]
    for layer in (1, 2):  # The last by its number is not normalised.
        np.testing.assert_allclose(patch_features(model, images, layer), outputs[layer], atol=1e-5)
    pooled = model.intermediates(images, "pre_logits")["pre_logits"]
    np.testing.assert_allclose(patch_features(model, images).mean(axis=1), pooled, atol=1e-5)
    for layer in (3, -2):
        with pytest.raises(ConfigError, match=f"^layer={layer}: ViT-Ti/16 has blocks 0 to 2, -1"):
            patch_features(model, images, layer)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"pooling": "average", "depth": 2},
        {"depth": 1},
        {"position_placement": "every_layer_shared"},
    ],
)
def test_relevance_is_the_logits_slope_away_from_the_mean(images, options):
    """By finite differences: each patch's token moves a little from the mean of all."""
    from vit_jax.analysis.tokens import before_last_block, last_block

    model = make_model(**options)
    found = class_relevance(model, images[[1, 0]], np.array([0, 2]))[1:]
    tokens = np.asarray(before_last_block(model, images[:1]))

    @jax.jit
    def logit(tokens):
        return model.classify(model.pool(last_block(model)(tokens, None, None)[0]))[0, 2]

    expected = nnx.jit(lambda model, images: model(images)[0, 2])(model, images[:1])
    np.testing.assert_allclose(logit(tokens), expected, rtol=1e-5)
    prefix = model.options.num_prefix_tokens
    for patch in range(4):
        step = 1e-2
        away = tokens[:, prefix + patch] - tokens[:, prefix:].mean(axis=1)
        further, nearer = np.array(tokens), np.array(tokens)
        further[:, prefix + patch] += step * away
        nearer[:, prefix + patch] -= step * away
        slope = float(logit(further) - logit(nearer)) / (2 * step)
        assert found[0].ravel()[patch] == pytest.approx(slope, abs=2e-3)
    assert np.abs(found).max() > 0.01


def test_neighbours_against_scikit_learn():
    rng = np.random.default_rng(0)
    features, others = rng.normal(size=(4, 8)), rng.normal(size=(30, 8))
    order, similarities = nearest_neighbors(features, others, 3)
    reference = sklearn.neighbors.NearestNeighbors(n_neighbors=3, metric="cosine").fit(others)
    distances, expected = reference.kneighbors(features)
    np.testing.assert_array_equal(order, expected)
    np.testing.assert_allclose(similarities, 1 - distances, atol=1e-5)


def test_what_has_no_tokens_is_refused():
    model = jax.eval_shape(lambda: vit_jax.create_model("BiT-R50x1", image_size=32))
    for name, figure in (
        ("similarity of tokens", token_similarity),
        ("features as colours", patch_colors),
        ("relevance for a class", lambda *given: class_relevance(*given, None)),
    ):
        with pytest.raises(ConfigError, match=f"^{name} is defined for .*: BiT-R50x1 has no"):
            figure(model, None)
