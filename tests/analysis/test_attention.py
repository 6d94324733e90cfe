"""Attention's figures against a plain numpy form of their definitions, and on analytic cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from vit_jax.analysis import attention_distance, attention_maps, attention_rollout
from vit_jax.analysis.attention import patch_distances, rolled_out
from vit_jax.analysis.captured import MEMORY_BYTES, chunk_size
from vit_jax.errors import ConfigError
from vit_jax.models.base import ATTENTION_WEIGHTS

SIZES = {"width": 16, "depth": 2, "num_heads": 2, "mlp_width": 16, "patch_size": (4, 2)}
SIZES |= {"image_size": (12, 8), "channels": 1, "num_classes": 3}
GRID = (3, 4)


def make_model(**options):
    model = vit_jax.create_model("ViT-Ti/16", seed=1, **{**SIZES, **options})
    sharpen(model.blocks.attention, 6)
    if "attention" in options.values():
        sharpen(model.attention_pooling.attention, 6)
    return model


def sharpen(attention, factor):
    """Weights that differ: at random initial values attention is nearly uniform."""
    attention.query.kernel[...] = factor * attention.query.kernel[...]


def images_of(count=5):
    return np.random.default_rng(0).normal(size=(count, *SIZES["image_size"], 1)).astype(np.float32)


def weights_of(model, images):
    return np.float64(model.intermediates(images, ATTENTION_WEIGHTS)[ATTENTION_WEIGHTS])


def distance_by_hand(weights, prefix):
    expected = np.zeros(weights.shape[:3])
    for query in range(12):
        for key in range(12):
            (y, x), (v, u) = divmod(query, 4), divmod(key, 4)
            pixels = np.sqrt((4 * (y - v)) ** 2 + (2 * (x - u)) ** 2)
            expected += weights[..., prefix + query, prefix + key] * pixels / 12
    return expected.mean(axis=1)


@pytest.mark.parametrize(
    ("options", "prefix"),
    [({}, 1), ({"num_registers": 2}, 3), ({"pooling": "average"}, 0)],
)
def test_distance(options, prefix, monkeypatch):
    monkeypatch.setattr("vit_jax.analysis.captured.MEMORY_BYTES", 1)  # One image at a time.
    model, images = make_model(**options), images_of()
    found = attention_distance(model, images)
    assert found.shape == (2, 2)
    expected = distance_by_hand(weights_of(model, images), prefix)
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_distance_of_known_attention():
    class Options:
        grid, image_size = (2, 2), (32, 32)

    distances = patch_distances(Options)
    uniform = (np.full((4, 4), 0.25) * distances).sum() / 4
    np.testing.assert_allclose(uniform, 16 * (2 + np.sqrt(2)) / 4, rtol=1e-6)
    assert (np.eye(4) * distances).sum() == 0
    beside = np.eye(4)[[1, 0, 3, 2]]  # Each attends to its neighbour in the row.
    assert (beside * distances).sum() / 4 == 16


def rollout_by_hand(weights):
    """[L, B, H, S, S] -> [B, S, S]."""
    result = []
    for image in range(weights.shape[1]):
        flow = np.eye(weights.shape[-1])
        for layer in weights[:, image]:
            mixed = layer.mean(axis=0) + np.eye(len(flow))
            flow = mixed / mixed.sum(axis=1, keepdims=True) @ flow
        result.append(flow)
    return np.stack(result)


def scaled(seen):
    return (seen / seen.max(axis=1, keepdims=True)).reshape(-1, *GRID)


@pytest.mark.parametrize("registers", [0, 2])
def test_rollout_of_the_class_token(registers):
    model, images = make_model(num_registers=registers), images_of()
    flow = rollout_by_hand(weights_of(model, images))
    expected = scaled(flow[:, 0, 1 + registers :])
    assert np.ptp(expected) > 0.2
    np.testing.assert_allclose(attention_rollout(model, images), expected, atol=1e-5)


def test_rollout_of_averaged_patches():
    model, images = make_model(pooling="average"), images_of()
    expected = scaled(rollout_by_hand(weights_of(model, images)).mean(axis=1))
    np.testing.assert_allclose(attention_rollout(model, images), expected, atol=1e-5)


def test_rollout_of_a_probe_is_its_own_mean():
    model, images = make_model(pooling="attention"), images_of()
    outputs = model.intermediates(images, "block_outputs", ATTENTION_WEIGHTS)
    tokens = model.norm(jnp.asarray(outputs["block_outputs"])[-1])
    pooling = model.attention_pooling
    query = np.float64(pooling.attention.query(pooling.probe[...]))[0, 0]  # [H, d]
    keys = np.float64(pooling.attention.key(tokens))  # [B, N, H, d]
    logits = np.einsum("hd,bnhd->bhn", query, keys) / np.sqrt(query.shape[-1])
    probe = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    flow = rollout_by_hand(np.float64(outputs[ATTENTION_WEIGHTS]))
    expected = scaled(np.einsum("bn,bnm->bm", probe.mean(axis=1), flow))
    assert np.ptp(probe) > 0.01
    np.testing.assert_allclose(attention_rollout(model, images), expected, atol=1e-5)


def test_rollout_of_identity_attention_stays_where_it_is():
    weights = jnp.broadcast_to(jnp.eye(5), (3, 1, 2, 5, 5))
    np.testing.assert_allclose(rolled_out(weights)[0], np.eye(5), atol=1e-6)


def test_a_hybrids_patches_stand_for_pixels_of_the_image():
    hybrid = vit_jax.create_model(
        "R+ViT-Ti/16", width=16, depth=1, num_heads=2, mlp_width=16, image_size=64, num_classes=2
    )
    hybrid.blocks.attention.query.kernel[...] *= 0
    images = np.zeros((2, 64, 64, 3), np.float32)
    assert hybrid.options.grid == (2, 2)
    uniform = 32 * (2 + np.sqrt(2)) / 4 * 4 / 5  # A fifth goes to the class token.
    np.testing.assert_allclose(attention_distance(hybrid, images), uniform, rtol=1e-4)


def test_memory_is_bounded_by_chunks():
    shapes = jax.eval_shape(lambda: vit_jax.create_model("ViT-B/16", image_size=384))
    size = chunk_size(shapes, (ATTENTION_WEIGHTS,))
    assert size >= 1
    assert size * 12 * 12 * 577**2 * 4 <= MEMORY_BYTES


@pytest.mark.parametrize("figure", [attention_distance, attention_rollout])
@pytest.mark.parametrize("name", ["BiT-R50x1", "Axial-ViT-B/32", "Mixer-B/32"])
def test_models_without_such_attention_are_refused_by_name(figure, name):
    size = {} if "Mixer" in name else {"image_size": 32}
    model = jax.eval_shape(lambda: vit_jax.create_model(name, **size))
    with pytest.raises(ConfigError, match=name):
        figure(model, None)


@pytest.mark.parametrize("options", [{}, {"num_registers": 2}, {"pooling": "average"}])
def test_maps_are_what_the_output_would_read(options):
    model, images = make_model(**options), images_of(2)
    weights = weights_of(model, images)  # [L, B, H, S, S]
    prefix = model.options.num_prefix_tokens
    read = weights.mean(axis=3) if "pooling" in options else weights[:, :, :, 0]
    expected = read[..., prefix:].reshape(2, 2, 2, *GRID).swapaxes(0, 1)
    np.testing.assert_allclose(attention_maps(model, images), expected, atol=1e-5)
