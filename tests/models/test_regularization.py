"""Dropout, stochastic depth, patch dropout, LayerScale, query/key norm, registers and pooling."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.models.filled import (
    filled_model,
    flat_parameters,
    intermediates,
    predict,
    random_images,
    with_parameters,
)
from vit_jax.models import model_options
from vit_jax.models.layers import dropout, stochastic_depth
from vit_jax.models.vit import drop_patches, drop_rates

TINY = {
    "width": 16,
    "depth": 2,
    "mlp_width": 24,
    "num_heads": 2,
    "num_classes": 3,
    "image_size": (8, 12),
    "patch_size": 4,
}


def layer_norm(x, scale, bias):
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-6) * scale + bias


def test_dropout_zeroes_elements_and_keeps_the_mean():
    x = jnp.ones((100, 1000))
    dropped = np.asarray(dropout(x, 0.25, jax.random.key(0)))
    np.testing.assert_allclose(np.unique(dropped), [0, 4 / 3], rtol=1e-6)
    assert (dropped == 0).mean() == pytest.approx(0.25, abs=0.005)
    assert dropout(x, 0.25, None) is x


def test_what_is_kept_is_rescaled_in_float32():
    x = jnp.full((64, 64), 100, jnp.bfloat16)
    expected = jnp.float32(100 / 0.9).astype(jnp.bfloat16)  # 100 / bfloat16(0.9) rounds to more.
    for dropped in (
        dropout(x, 0.1, jax.random.key(0)),
        stochastic_depth(x, jnp.float32(0.1), jax.random.key(0)),
    ):
        assert dropped.dtype == jnp.bfloat16
        assert set(np.unique(dropped.astype(jnp.float32))) == {0, float(expected)}


def test_the_norm_after_pooling_keeps_float32_in_a_bfloat16_model():
    options = {**TINY, "pooling": "average", "norm_after_pooling": True}
    model = filled_model("ViT-B/16", **options, dtype="bfloat16")
    values = intermediates(model, random_images(model.options), "pre_logits")["pre_logits"]
    assert (values.astype(jnp.bfloat16) != values).any()


def test_stochastic_depth_drops_whole_images_and_keeps_the_mean():
    x = jnp.ones((4000, 3, 5))
    dropped = np.asarray(stochastic_depth(x, jnp.float32(0.25), jax.random.key(0)))
    images = dropped.reshape(4000, -1)
    assert (images == images[:, :1]).all()
    np.testing.assert_allclose(np.unique(images), [0, 4 / 3], rtol=1e-6)
    assert (images[:, 0] == 0).mean() == pytest.approx(0.25, abs=0.03)


def test_drop_rates_are_linear_over_the_depth_or_constant():
    def rates(depth, **options):
        options = {**TINY, **options, "stochastic_depth_rate": 0.3}
        return drop_rates(model_options("ViT-B/16", **{**options, "depth": depth}))

    np.testing.assert_allclose(rates(4), [0, 0.1, 0.2, 0.3], rtol=1e-6)
    np.testing.assert_allclose(rates(3, stochastic_depth_schedule="constant"), [0.3] * 3)
    assert drop_rates(model_options("ViT-B/16", **TINY)) is None


def test_stochastic_depth_acts_in_training_only():
    model = filled_model("ViT-B/16", **TINY, stochastic_depth_rate=0.9)
    images = np.repeat(random_images(model.options, 1), 64, axis=0)
    evaluated = predict(model, images)
    np.testing.assert_allclose(evaluated - evaluated[:1], 0, atol=1e-5)
    trained = predict(model, images, jax.random.key(0))
    outcomes = np.unique(np.round(trained[:, 0], 3))
    assert 2 <= len(outcomes) <= 4  # Block 1 never drops; block 2 drops two branches or one.


@pytest.mark.parametrize(("rate", "kept"), [(0.5, 6), (0.3, 8), (0.99, 1)])
def test_patch_dropout_keeps_the_prefix_and_a_share_of_the_patches_in_order(rate, kept):
    tokens = jnp.broadcast_to(jnp.arange(14.0)[None, :, None], (200, 14, 3))
    left = np.asarray(drop_patches(tokens, 2, rate, jax.random.key(0)))[..., 0]
    assert left.shape == (200, 2 + kept)
    np.testing.assert_array_equal(left[:, :2], [[0, 1]] * 200)
    assert (np.diff(left, axis=1) > 0).all()
    frequency = np.bincount(left[:, 2:].astype(int).ravel(), minlength=14)[2:] / 200
    np.testing.assert_allclose(frequency, kept / 12, atol=0.15)
    assert drop_patches(tokens, 2, rate, None) is tokens


def test_layer_scale_multiplies_both_branches():
    model = filled_model("ViT-B/16", **TINY, layer_scale=0.1)
    images = random_images(model.options)
    zero = {f"blocks/layer_scale{branch}": np.zeros((2, 16), np.float32) for branch in (1, 2)}
    outputs = intermediates(with_parameters(model, zero), images, "block_outputs")["block_outputs"]
    np.testing.assert_array_equal(outputs[0], outputs[1])  # Both blocks are the identity.

    one = {f"blocks/layer_scale{branch}": np.ones((2, 16), np.float32) for branch in (1, 2)}
    plain = with_parameters(filled_model("ViT-B/16", **TINY), flat_parameters(model))
    np.testing.assert_allclose(
        predict(with_parameters(model, one), images), predict(plain, images), atol=1e-5
    )


def test_query_key_norm_makes_attention_blind_to_the_scale_of_queries():
    names = ("attention_weights",)
    for normalized in (True, False):
        model = filled_model("ViT-B/16", **TINY, query_key_norm=normalized)
        images, parameters = random_images(model.options), flat_parameters(model)
        larger = {
            f"blocks/attention/query/{part}": 5 * parameters[f"blocks/attention/query/{part}"]
            for part in ("kernel", "bias")
        }
        before = intermediates(model, images, *names)["attention_weights"][0]
        after = intermediates(with_parameters(model, larger), images, *names)["attention_weights"][
            0
        ]
        assert (np.abs(before - after).max() < 1e-3) == normalized


def test_prefix_tokens_are_seen_by_the_blocks_but_not_pooled():
    model = filled_model("ViT-B/16", **TINY, pooling="average", class_token=True, num_registers=2)
    images, parameters = random_images(model.options), flat_parameters(model)
    values = intermediates(model, images, "block_outputs", "pre_logits")
    tokens = np.asarray(values["block_outputs"][-1])
    assert tokens.shape == (2, 9, 16)
    expected = layer_norm(tokens, parameters["norm/scale"], parameters["norm/bias"])[:, 3:].mean(1)
    np.testing.assert_allclose(values["pre_logits"], expected, atol=1e-5)
    changed = with_parameters(model, {"registers": -parameters["registers"]})
    assert np.abs(predict(changed, images) - predict(model, images)).max() > 1e-3


def test_the_norm_after_pooling_sees_the_mean():
    model = filled_model("ViT-B/16", **TINY, pooling="average", norm_after_pooling=True)
    images, parameters = random_images(model.options), flat_parameters(model)
    values = intermediates(model, images, "block_outputs", "pre_logits")
    mean = np.asarray(values["block_outputs"][-1]).mean(1)
    expected = layer_norm(mean, parameters["norm/scale"], parameters["norm/bias"])
    np.testing.assert_allclose(values["pre_logits"], expected, atol=1e-5)


def test_attention_dropout_and_dropout_act_in_training_only():
    for rate in ("attention_dropout_rate", "dropout_rate"):
        model = filled_model("ViT-B/16", **TINY, **{rate: 0.5})
        plain = filled_model("ViT-B/16", **TINY)
        images = random_images(model.options)
        np.testing.assert_allclose(predict(model, images), predict(plain, images), atol=1e-6)
        keys = jax.random.key(0), jax.random.key(1)
        first, again, other = (predict(model, images, key) for key in (*keys[:1], *keys))
        np.testing.assert_array_equal(first, again)
        assert np.abs(first - other).max() > 1e-3
