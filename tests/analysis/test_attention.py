"""Attention's figures against a plain numpy form of their definitions, and on analytic cases."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import vit_jax
from tests.stages import random_model
from vit_jax.analysis import attention_distance, attention_maps, attention_rollout, captured
from vit_jax.analysis.attention import rolled_out
from vit_jax.analysis.captured import MEMORY_BYTES, chunk_size
from vit_jax.errors import ConfigError
from vit_jax.models.base import ATTENTION_WEIGHTS, BLOCK_OUTPUTS

SIZES = {"width": 16, "depth": 2, "num_heads": 2, "mlp_width": 16, "patch_size": (4, 2)}
SIZES |= {"image_size": (12, 8), "channels": 1, "num_classes": 3}
GRID = (3, 4)


def make_model(**options):
    model = random_model("ViT-Ti/16", seed=1, **{**SIZES, **options})
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
    [
        ({}, 1),
        ({"num_registers": 2}, 3),
        ({"pooling": "average"}, 0),
        ({"pooling": "attention"}, 0),
    ],
)
def test_distance(options, prefix, monkeypatch):
    model, images = make_model(**options), images_of()
    needed = captured.MEMORY_BYTES // captured.chunk_size(model, (ATTENTION_WEIGHTS,))
    monkeypatch.setattr(captured, "MEMORY_BYTES", 2 * needed + 8)  # Two images at a time.
    assert captured.chunk_size(model, (ATTENTION_WEIGHTS,)) == 2
    found = attention_distance(model, images)
    assert found.shape == (2, 2)
    expected = distance_by_hand(weights_of(model, images), prefix)
    assert np.ptp(expected) > 0.05
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.fixture
def attending(monkeypatch):
    """A function: an average-pooled model all of whose heads have a given attention [N, N]."""

    def attending(weights, grid, patch):
        stacked = jnp.broadcast_to(jnp.float32(weights), (2, 3, 2, *weights.shape))
        monkeypatch.setattr(
            "vit_jax.analysis.attention.reduced",
            lambda model, images, names, reduction: np.asarray(
                reduction(model, {ATTENTION_WEIGHTS: stacked})
            ),
        )
        size = [side * patch for side in grid]
        options = {**SIZES, "patch_size": patch, "image_size": size, "pooling": "average"}
        return jax.eval_shape(lambda: vit_jax.create_model("ViT-Ti/16", **options))

    return attending


@pytest.mark.parametrize("grid", [(2, 2), (5, 5), (2, 7)])
def test_distance_of_known_attention(attending, grid):
    rows, columns = grid
    count = rows * columns
    y, x = np.divmod(np.arange(count), columns)
    mean = np.hypot(y[:, None] - y, x[:, None] - x).mean()
    for weights, expected in (
        (np.full((count, count), 1 / count), 16 * mean),
        (np.eye(count), 0),
        (np.eye(count)[np.where(x > 0, np.arange(count) - 1, np.arange(count) + 1)], 16),
        (
            np.eye(count)[np.where(y > 0, np.arange(count) - columns, np.arange(count) + columns)],
            16,
        ),
    ):
        found = attention_distance(attending(weights, grid, 16), None)
        np.testing.assert_allclose(found, np.full((2, 2), expected), rtol=1e-5, atol=1e-6)
    if grid == (2, 2):
        assert mean == pytest.approx((2 + np.sqrt(2)) / 4)


def test_rollout_of_known_attention(attending):
    for weights in (np.eye(6), np.full((6, 6), 1 / 6)):
        found = attention_rollout(attending(weights, (2, 3), 4), None)
        np.testing.assert_allclose(found, np.ones((3, 2, 3)), rtol=1e-6)
    first = np.zeros((6, 6))
    first[:, 4] = 1  # All attend to one: after two layers it has a half, then three quarters more.
    found = attention_rollout(attending(first, (2, 3), 4), None)[0].ravel()
    np.testing.assert_allclose(
        found / found.sum(), [*[1 / 24] * 4, 3 / 4 + 1 / 24, 1 / 24], rtol=1e-5
    )


def test_rollout_of_a_class_token_that_attends_to_itself_alone_is_zero(monkeypatch):
    weights = jnp.broadcast_to(jnp.eye(13), (2, 1, 2, 13, 13))
    monkeypatch.setattr(
        "vit_jax.analysis.attention.reduced",
        lambda model, images, names, reduction: reduction(model, {ATTENTION_WEIGHTS: weights}),
    )
    assert (attention_rollout(make_model(), None) == 0).all()


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
    model, images = make_model(pooling="average", num_registers=2), images_of()
    flow = rollout_by_hand(weights_of(model, images))
    prefix = model.options.num_prefix_tokens
    assert prefix == 2
    expected = scaled(flow[:, prefix:, prefix:].mean(axis=1))
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
    hybrid = random_model(
        "R+ViT-Ti/16", width=16, depth=1, num_heads=2, mlp_width=16, image_size=64, num_classes=2
    )
    query = hybrid.blocks.attention.query
    query.kernel[...], query.bias[...] = 0 * query.kernel[...], 0 * query.bias[...]
    images = np.zeros((2, 64, 64, 3), np.float32)
    assert hybrid.options.grid == (2, 2)
    uniform = 32 * (2 + np.sqrt(2)) / 4 * 4 / 5  # A fifth goes to the class token.
    np.testing.assert_allclose(attention_distance(hybrid, images), uniform, rtol=1e-4)


def test_memory_is_bounded_by_chunks():
    options = {"image_size": (384, 192), "channels": 4}
    shapes = jax.eval_shape(lambda: vit_jax.create_model("ViT-B/16", **options))
    size = chunk_size(shapes, (ATTENTION_WEIGHTS,))
    assert size >= 1
    assert size * 12 * 12 * 289**2 * 4 <= MEMORY_BYTES
    pixels, attention, tokens = 16 * 384 * 192 * 4, 12 * 12 * 289**2, 12 * 289 * 768
    for names, numbers in (
        ((), pixels),
        ((ATTENTION_WEIGHTS,), pixels + attention),
        ((BLOCK_OUTPUTS,), pixels + tokens),
        ((ATTENTION_WEIGHTS, BLOCK_OUTPUTS), pixels + attention + tokens),
    ):
        assert chunk_size(shapes, names) == MEMORY_BYTES // (4 * numbers)


@pytest.mark.parametrize("figure", [attention_distance, attention_rollout])
@pytest.mark.parametrize("name", ["BiT-R50x1", "Axial-ViT-B/32", "Mixer-B/32"])
def test_models_without_such_attention_are_refused_by_name(figure, name):
    size = {} if "Mixer" in name else {"image_size": 32}
    model = jax.eval_shape(lambda: vit_jax.create_model(name, **size))
    with pytest.raises(ConfigError, match=name):
        figure(model, None)


@pytest.mark.slow  # Compiles the whole model.
def test_a_chunk_of_b16_at_384_pixels_fits_in_four_gib(monkeypatch):
    """128 images are so many chunks, one after another; of them all, only the figure is kept."""
    taken, jit = [], jax.jit

    def compiled(function):
        def run(parameters, images):
            memory = jit(function).lower(parameters, images).compile().memory_analysis()
            taken.append(memory.temp_size_in_bytes + memory.argument_size_in_bytes)
            assert len(images) < 128
            return np.zeros((len(images), 12, 12), np.float32)

        return run

    monkeypatch.setattr("vit_jax.analysis.captured.jax.jit", compiled)
    model = jax.eval_shape(lambda: vit_jax.create_model("ViT-B/16", image_size=384))
    images = np.zeros((5, 384, 384, 3), np.float32)
    assert attention_distance(model, images).shape == (12, 12)
    assert max(taken) + 128 * images[0].nbytes < 4 * 2**30


@pytest.mark.parametrize(
    "options", [{}, {"num_registers": 2}, {"pooling": "average", "num_registers": 2}]
)
def test_maps_are_what_the_output_would_read(options):
    model, images = make_model(**options), images_of(2)
    weights = weights_of(model, images)  # [L, B, H, S, S]
    prefix = model.options.num_prefix_tokens
    read = weights[:, :, :, prefix:].mean(axis=3) if "pooling" in options else weights[:, :, :, 0]
    expected = read[..., prefix:].reshape(2, 2, 2, *GRID).swapaxes(0, 1)
    np.testing.assert_allclose(attention_maps(model, images), expected, atol=1e-5)
