"""Dropout, stochastic depth, patch dropout, LayerScale, query/key norm, registers and pooling."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.models.filled import (
    filled_model,
    flat_parameters,
    intermediates,
    predict,
    random_images,
    with_parameters,
)
from vit_jax.models.base import mean_pool
from vit_jax.models.dropout import dropout
from vit_jax.models.layers import drop_rates, stochastic_depth
from vit_jax.models.vit import drop_patches

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


def test_dropout_is_drawn_for_each_element_by_itself():
    """No two slices along any axis agree more than by chance: 4,096 elements, 5 standard errors."""
    dropped = np.asarray(dropout(jnp.ones((64, 64, 64)), 0.25, jax.random.key(0))) == 0
    for axis in range(3):
        first, second, *_ = np.moveaxis(dropped, axis, 0)
        assert abs(correlation(first, second)) < 5 / 64


def correlation(first, second):
    return np.corrcoef(first.ravel(), second.ravel())[0, 1]


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


def test_features_are_averaged_in_float32():
    """What bfloat16 has no number for: its neighbours of 1 are 1 / 128 apart."""
    x = np.float32([[[1, 3], [1, 4]], [[1 + 1 / 128, 5], [1, 6]]]).reshape(1, 2, 2, 2)
    for dtype in (jnp.float32, jnp.bfloat16):
        mean = mean_pool(jnp.asarray(x, dtype))
        assert mean.dtype == jnp.float32
        np.testing.assert_array_equal(mean, [[1 + 1 / 512, 4.5]])


def test_stochastic_depth_drops_whole_images_and_keeps_the_mean():
    x = jnp.ones((4000, 3, 5))
    dropped = np.asarray(stochastic_depth(x, jnp.float32(0.25), jax.random.key(0)))
    images = dropped.reshape(4000, -1)
    assert (images == images[:, :1]).all()
    np.testing.assert_allclose(np.unique(images), [0, 4 / 3], rtol=1e-6)
    assert (images[:, 0] == 0).mean() == pytest.approx(0.25, abs=0.03)


def test_drop_rates_are_linear_over_the_depth_or_constant():
    np.testing.assert_allclose(drop_rates(0.3, "linear", 4), [0, 0.1, 0.2, 0.3], rtol=1e-6)
    np.testing.assert_allclose(drop_rates(0.3, "constant", 3), [0.3] * 3)
    assert drop_rates(0.0, "linear", 4) is None


def test_the_mixer_drops_branches_and_does_not_rescale_the_others():
    """Big Vision's mlp_mixer.py: of four outcomes of the last block all are sums of whole branches."""
    sizes = {"width": 16, "mlp_width": 24, "token_mlp_width": 8, "num_classes": 0, "image_size": 32}
    model = filled_model("Mixer-B/16", **sizes, depth=2, stochastic_depth_rate=0.5)
    plain = filled_model("Mixer-B/16", **sizes, depth=2)
    images = np.repeat(random_images(model.options, 1), 800, axis=0)
    np.testing.assert_array_equal(predict(model, images[:2]), predict(plain, images[:2]))
    graphdef, state = nnx.split(model)
    outputs = jax.jit(
        lambda state, key: nnx.merge(graphdef, state).outputs(
            images, key=key, capture=("block_outputs",)
        )
    )
    tokens = outputs(state, jax.random.key(0))
    first, last = np.asarray(tokens["block_outputs"])  # The first block's rate is 0.
    np.testing.assert_allclose(first, np.broadcast_to(first[:1], first.shape), rtol=0, atol=1e-5)
    block = jax.tree.map(lambda array: array[1], nnx.state(model.blocks))
    block = nnx.merge(nnx.graphdef(model.blocks), block)
    x = jnp.asarray(first[:1])
    mixed = jax.jit(lambda x: block.token_mixing(block.norm1(x).swapaxes(1, 2)))(x).swapaxes(1, 2)
    mix_channels = jax.jit(lambda x: block.channel_mixing(block.norm2(x)))
    outcomes = [start + share * mix_channels(start) for start in (x, x + mixed) for share in (0, 1)]
    errors = np.stack([abs(last - np.asarray(o)).max(axis=(1, 2)) for o in outcomes])
    assert errors.min(axis=0).max() < 1e-4
    counts = np.bincount(errors.argmin(axis=0), minlength=4)
    np.testing.assert_allclose(counts / 800, 0.25, atol=0.06)


@pytest.mark.parametrize(("name", "depth"), [("ViT-B/16", 2), ("Axial-ViT-B/16", 1)])
def test_every_branch_of_every_image_is_dropped_by_itself(name, depth):
    """Four branches make sixteen outcomes, all as likely; in training only."""
    options = {**TINY, "depth": depth, "stochastic_depth_rate": 0.5}
    model = filled_model(name, **options, stochastic_depth_schedule="constant")
    images = np.repeat(random_images(model.options, 1), 1600, axis=0)
    evaluated = predict(model, images)
    np.testing.assert_allclose(evaluated - evaluated[:1], 0, atol=1e-5)
    trained = predict(model, images, jax.random.key(0))
    _, outcomes, counts = np.unique(
        np.round(trained[:, 0], 3), return_inverse=True, return_counts=True
    )
    assert len(counts) == 16
    standard_error = np.sqrt(1600 / 16 * (15 / 16))
    np.testing.assert_allclose(counts, 100, atol=4 * standard_error)
    same = (outcomes[1:] == outcomes[:-1]).mean()  # Neighbours agree by chance only.
    assert same == pytest.approx(1 / 16, abs=4 * np.sqrt(15 / 16**2 / 1600))


# Where dropout acts, by the parameter that is added before it or summed over it: its gradient is
# exactly 0 where its element is dropped.
VIT_SITES = [
    "blocks/attention/value/bias",
    "blocks/attention/out/bias",
    "blocks/mlp/dense1/bias",
    "blocks/mlp/dense2/bias",
]
AXIAL_SITES = [
    site.replace("blocks/", f"blocks/{axis}/") for axis in ("row", "column") for site in VIT_SITES
]


@pytest.mark.parametrize(
    ("name", "sites"), [("ViT-B/16", VIT_SITES), ("Axial-ViT-B/16", AXIAL_SITES)]
)
def test_no_two_dropouts_share_their_random_numbers(name, sites):
    """One token of 16 features, 16 heads of one feature each, 64 keys."""
    one_token = {"image_size": 2, "patch_size": 2, "pooling": "average", "num_classes": 3}
    sizes = {"width": 16, "depth": 2, "mlp_width": 16, "num_heads": 16}
    rates = {"dropout_rate": 0.5, "attention_dropout_rate": 0.25}
    model = filled_model(name, **one_token, **sizes, **rates)
    graphdef, state = nnx.split(model)
    images = random_images(model.options, 1)

    def slopes(key):
        return jax.grad(lambda state: nnx.merge(graphdef, state)(images, key=key)[0, 0])(state)

    keys = jax.random.split(jax.random.key(0), 64)
    found = jax.jit(lambda keys: jax.lax.map(slopes, keys))(keys)
    slope_of = {"/".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(found)}
    dropped = {"embedding": np.asarray(slope_of["embedding/bias"]) == 0}
    for site in sites:
        for layer in range(2):
            dropped[site, layer] = np.asarray(slope_of[site])[:, layer].reshape(64, 16) == 0
    for site, mask in dropped.items():
        rate = 0.25 if "value/bias" in site[0] else 0.5
        assert mask.mean() == pytest.approx(rate, abs=4 * np.sqrt(rate * (1 - rate) / 1024)), site
        assert abs(correlation(mask[1:], mask[:-1])) < 5 / np.sqrt(1008), site  # Of two keys.
    for (first, a), (second, b) in itertools.combinations(dropped.items(), 2):
        assert abs(correlation(a, b)) < 5 / np.sqrt(1024), (first, second)


def test_every_image_leaves_out_patches_of_its_own_in_training():
    model = filled_model("ViT-B/16", **TINY, patch_dropout_rate=0.5)
    images = np.repeat(random_images(model.options, 1), 16, axis=0)
    graphdef, state = nnx.split(model)

    @jax.jit
    def slopes(images, key):
        return jax.grad(lambda images: nnx.merge(graphdef, state)(images, key=key).sum())(images)

    def seen(key):
        """Which of the 2 x 3 patches change anything, [16, 6]."""
        patches = np.asarray(slopes(images, key)).reshape(16, 2, 4, 3, 4, 3) != 0
        return patches.any((2, 4, 5)).reshape(16, 6)

    left = seen(jax.random.key(0))
    assert left.sum(1).tolist() == [3] * 16
    assert len(np.unique(left, axis=0)) > 5
    assert (left != seen(jax.random.key(1))).any()
    assert seen(None).all()


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
