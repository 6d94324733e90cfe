"""The spread of every initial parameter, per layer, at full size."""

import math

import jax
import numpy as np
import pytest
from flax import nnx

from tests.models.filled import flat_parameters
from vit_jax.models import create_model, model_options
from vit_jax.models.registry import build_model
from vit_jax.models.resnet import PostActivationUnit, ResNetOptions


def lecun(shape):
    return math.sqrt(1 / math.prod(shape[:-1]))


def xavier(shape):
    return math.sqrt(2 / (shape[0] + shape[-1]))


def flat_xavier(shape):
    """Of a (D, heads, d) or (heads, d, D) kernel, as the matrix between D and heads · d."""
    width = max(shape[0], shape[-1])
    return math.sqrt(2 / (width + math.prod(shape) // width))


# The end of a parameter's name -> its standard deviation, or the one value it starts with.
SPREADS = {
    "attention/query/kernel": flat_xavier,
    "attention/key/kernel": flat_xavier,
    "attention/value/kernel": flat_xavier,
    "attention/out/kernel": flat_xavier,
    "/mlp/dense1/kernel": xavier,
    "/mlp/dense2/kernel": xavier,
    "/mlp/dense1/bias": lambda shape: 1e-6,
    "/mlp/dense2/bias": lambda shape: 1e-6,
    "probe": flat_xavier,
    "registers": lambda shape: 1e-6,
    "position_embedding": lambda shape: 0.02,
    "position_embedding/rows": lambda shape: 0.02,
    "position_embedding/columns": lambda shape: 0.02,
    "attention/relative_positions": lambda shape: 0.02,
    "row_attention/relative_positions": lambda shape: math.sqrt(2 / shape[-1]),
    "column_attention/relative_positions": lambda shape: math.sqrt(2 / shape[-1]),
    "row_attention/kernel": lecun,
    "column_attention/kernel": lecun,
    "embedding/kernel": lecun,
    "pre_logits/kernel": lecun,
    "mixing/dense1/kernel": lecun,
    "mixing/dense2/kernel": lecun,
    "conv_root/kernel": lecun,
    "conv1/kernel": lecun,
    "conv2/kernel": lecun,
    "conv3/kernel": lecun,
    "/projection/kernel": lecun,
}
VALUES = {"class_token": 0, "scale": 1, "layer_scale1": 1e-4, "layer_scale2": 1e-4}
VALUES |= {"bias": 0, "head/kernel": 0, "head/bias": -10}
POST_ACTIVATION = {"norm3/scale": 0}


# What the reference draws uniformly, and from a normal distribution cut off at two deviations.
LIMITS = {xavier: math.sqrt(3), flat_xavier: math.sqrt(3), lecun: 2 / 0.87962566}
ENOUGH = 20_000  # Numbers that estimate a deviation to within 2 %, at 4 standard errors.


def lookup(table, name):
    """The entry with the longest key that `name` ends with."""
    keys = [key for key in table if ("/" + name).endswith(key)]
    return table[max(keys, key=len)] if keys else None


def layers_of(name, array):
    return list(array) if name.startswith("blocks/") else [array]


def pooled_seeds(name, options, num=32):
    """The random parameters of fewer than `ENOUGH` numbers a layer, [..., num] of as many seeds."""

    def draw(key):
        parameters = flat_parameters(build_model(name, key, options))
        return {
            place: array
            for place, array in parameters.items()
            if lookup(SPREADS, place) and layers_of(place, array)[0].size < ENOUGH
        }

    return jax.jit(jax.vmap(draw, out_axes=-1))(jax.random.split(jax.random.key(0), num))


def check_spread(place, layer, spread, expected):
    assert layer.size >= ENOUGH, place
    assert layer.std() == pytest.approx(expected, rel=0.02), place
    assert abs(layer.mean()) * math.sqrt(layer.size) < 5 * expected, place
    if spread in LIMITS:
        assert np.abs(layer).max() == pytest.approx(LIMITS[spread] * expected, rel=0.03), place


def check_initialization(name, values=VALUES, **options):
    """Checks each layer of each parameter; returns the names of the random ones."""
    complete = model_options(name, head_bias=-10.0, **options)
    draw = jax.jit(lambda key: flat_parameters(build_model(name, key, complete)))
    random = set()
    small = pooled_seeds(name, complete)
    for place, array in jax.device_get(draw(jax.random.key(0))).items():
        spread, value = lookup(SPREADS, place), lookup(values, place)
        drawn = np.asarray(small.get(place, array))
        for layer, many in zip(layers_of(place, array), layers_of(place, drawn), strict=True):
            if spread is None:
                assert (layer == np.float32(value)).all(), place
            else:
                check_spread(place, many, spread, spread(layer.shape))
                random.add(place)
    return random


def test_vit_at_full_width():
    names = check_initialization("ViT-B/16", depth=2, representation_size=768)
    assert len(names) == 11  # The rest starts with one value.


def test_registers_and_probe_of_a_small_model():
    """What few models have; of so many seeds that 64 numbers each tell the spread."""
    sizes = {"image_size": 16, "width": 64, "depth": 1, "mlp_width": 64, "num_heads": 2}
    options = model_options("ViT-B/16", pooling="attention", num_registers=2, **sizes)

    def draw(key):
        parameters = flat_parameters(build_model("ViT-B/16", key, options))
        return {name: parameters[name] for name in ("registers", "attention_pooling/probe")}

    drawn = jax.jit(jax.vmap(draw))(jax.random.split(jax.random.key(0), 320))
    for name, array in drawn.items():
        spread = lookup(SPREADS, name)
        check_spread(name, np.asarray(array), spread, spread(array.shape[1:]))


def test_all_kernels_from_one_distribution():
    """DeiT's: a normal distribution of 0.02 cut at two deviations, which leaves 0.0176."""
    sizes = {"depth": 2, "width": 256, "mlp_width": 512, "num_heads": 4}
    options = model_options("ViT-B/16", kernel_std=0.02, layer_scale=1e-4, **sizes)
    drawn = jax.jit(lambda key: flat_parameters(build_model("ViT-B/16", key, options)))
    kernels = 0
    for place, array in jax.device_get(drawn(jax.random.key(0))).items():
        if not place.endswith(("kernel", "class_token")):
            continue
        for layer in layers_of(place, array):
            rel = 0.02 if layer.size >= ENOUGH else 0.2
            assert layer.std() == pytest.approx(0.02 * 0.87962566, rel=rel), place
            assert np.abs(layer).max() <= 0.04
        first, last = layers_of(place, array)[0], layers_of(place, array)[-1]
        assert first is last or (first != last).mean() > 0.99, place
        kernels += 1
    assert kernels == 9  # Patches, class token, six of a block, head.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ViT-B/16", {}),
        ("ViT-B/16", {"pooling": "attention", "num_registers": 4, "layer_scale": 1e-4}),
        ("ViT-B/16", {"positions": "relative", "query_key_norm": True}),
        ("ViT-B/16", {"positions": "learned_2d", "position_placement": "every_layer"}),
        ("ViT-L/32", {"depth": 2}),
        ("BiT-R50x1", {}),
        ("Mixer-B/16", {}),
        ("Axial-ViT-B/16", {"depth": 2}),
    ],
)
def test_full_size(name, options):
    check_initialization(name, **options)


def test_a_post_activation_unit_starts_as_its_shortcut():
    options = ResNetOptions(stage_depths=(1,), width_factor=0.5, preactivation=False)
    unit = PostActivationUnit(options.units[0], options, nnx.Rngs(0))
    assert not unit.norm3.scale[...].any()
    assert (unit.norm2.scale[...] == 1).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["R50+ViT-B/16", "BiT-v1-R50x1", "AxialResNet50"])
def test_the_last_norm_of_a_post_activation_unit_starts_at_zero(name):
    check_initialization(name, VALUES | POST_ACTIVATION)


@pytest.mark.slow
def test_seeds_give_other_parameters_and_layers_differ():
    options = {"width": 16, "depth": 2, "mlp_width": 24, "num_heads": 2, "image_size": 32}
    first, again, other = (
        flat_parameters(create_model("ViT-B/16", seed=seed, **options)) for seed in (0, 0, 1)
    )
    for name in SPREADS:
        for key in (key for key in first if ("/" + key).endswith(name)):
            np.testing.assert_array_equal(first[key], again[key])
            assert (first[key] != other[key]).all()
            if key.startswith("blocks/"):
                assert (first[key][0] != first[key][1]).all()
