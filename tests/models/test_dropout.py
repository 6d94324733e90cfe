"""Dropout masks of hashed positions: exact rates, independence, the same however a batch is split."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.random import threefry2x32_p
from jax.sharding import NamedSharding, PartitionSpec

from tests.models.test_execution import equations
from tests.stages import mesh_of
from vit_jax.devices.row_keys import key_of_part, random_words
from vit_jax.models.dropout import (
    LEVELS,
    MULTIPLIERS,
    SHIFTS,
    dropout,
    kept_levels,
    random_numbers,
)

SHAPE = (16, 17, 64)


def random_levels(key, shape):
    """The random bits that decide, 0 ... 2^16 - 1."""
    return random_numbers(key, shape) >> 16


@pytest.fixture(scope="module")
def levels():
    """Of two layers and two steps, [layer, step, B, S, D]."""
    keys = jax.random.split(jax.random.key(3), (2, 2))
    return np.asarray(jax.jit(jax.vmap(jax.vmap(lambda key: random_levels(key, SHAPE))))(keys))


def test_levels_are_uniform(levels):
    """Their mean, and each of their sixteen bits."""
    assert levels.max() < LEVELS
    error = LEVELS / np.sqrt(12 * levels.size)
    assert abs(levels.mean() - (LEVELS - 1) / 2) < 3 * error
    for bit in range(16):
        assert abs((levels >> bit & 1).mean() - 0.5) < 3.5 * 0.5 / np.sqrt(levels.size), bit


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.937])
def test_the_rate_and_the_mean_are_kept(levels, rate):
    dropped = 1 - kept_levels(rate) / LEVELS
    assert abs(dropped - rate) <= 2.0**-17
    error = np.sqrt(rate * (1 - rate) / levels.size)
    assert abs((levels >= kept_levels(rate)).mean() - rate) < 3 * error
    x = jnp.ones(SHAPE, jnp.bfloat16)
    y = np.asarray(dropout(x, rate, jax.random.key(0)).astype(jnp.float32))
    assert set(np.unique(y)) == {0, np.float32(jnp.bfloat16(1 / (1 - dropped)))}


def test_no_rate_below_one_drops_everything():
    assert kept_levels(1 - 1e-9) == 1


def correlation(first, second):
    return np.corrcoef(first.ravel(), second.ravel())[0, 1]


def test_layers_steps_and_positions_are_independent(levels):
    masks = (levels < kept_levels(0.3)).astype(float)
    bound = 3.5 / np.sqrt(masks[0, 0].size / 4)
    (a, b), (c, d) = masks
    for first, second in itertools.combinations((a, b, c, d), 2):
        assert abs(correlation(first, second)) < bound
    for axis, distance in itertools.product(range(3), (1, 2, 4, 5, 10)):
        near = np.take(a, range(SHAPE[axis] - distance), axis)
        far = np.take(a, range(distance, SHAPE[axis]), axis)
        assert abs(correlation(near, far)) < bound, (axis, distance)


def spread(products):
    """How much larger the correlations above a diagonal spread than chance, in standard errors."""
    above = products[np.triu_indices(len(products), 1)]
    return (above.var() - 1) / np.sqrt(2 / above.size)


@pytest.mark.parametrize("axis", range(3), ids=["rows", "tokens", "channels"])
def test_no_two_rows_tokens_or_channels_are_alike(axis):
    """All pairs at once: a hash that mixed too little would show in some of them."""
    shape = (64, 50, 96)
    kept = random_numbers(jax.random.key(5), shape) < jnp.uint32(kept_levels(0.1) * LEVELS)
    signal = (np.moveaxis(np.asarray(kept), axis, 0).reshape(shape[axis], -1) - 0.9) / 0.3
    assert abs(spread(signal @ signal.T / np.sqrt(signal.shape[1]))) < 4


def test_masks_of_many_keys_are_independent():
    """As of all layers and steps of a run."""
    draw = jax.jit(jax.vmap(lambda key: random_numbers(key, (4, 50, 64))))
    kept = draw(jax.random.split(jax.random.key(7), 64)) < jnp.uint32(kept_levels(0.1) * LEVELS)
    signal = (np.asarray(kept).reshape(64, -1) - 0.9) / 0.3
    assert abs(spread(signal @ signal.T / np.sqrt(signal.shape[1]))) < 4


def test_a_part_of_the_batch_draws_its_rows():
    whole = random_levels(jax.random.key(1), (8, 5, 6))
    parts = [
        random_levels(key_of_part(jax.random.key(1), jnp.int32(p)), (2, 5, 6)) for p in range(4)
    ]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("shape", [(8, 17, 64), (8, 4, 9, 9), (8, 64), (8,), (8, 1, 3)])
def test_every_mesh_draws_the_same_without_an_exchange(shape):
    split = NamedSharding(mesh_of(data=8), PartitionSpec("data"))
    draw = jax.jit(lambda key: random_levels(key, shape), out_shardings=split)
    compiled = draw.lower(jax.random.key(2)).compile()
    np.testing.assert_array_equal(draw(jax.random.key(2)), random_levels(jax.random.key(2), shape))
    assert not any(word in compiled.as_text() for word in ("all-gather", "all-to-all", "permute"))


def test_threefry_turns_once_for_a_row():
    x = jnp.ones((8, 16, 12))
    program = jax.make_jaxpr(lambda key: dropout(x, 0.1, key))(jax.random.key(0))
    turns = equations(program.jaxpr, threefry2x32_p.name)
    assert [turn.outvars[0].aval.size for turn in turns] == [len(x)]


def test_the_hash_is_as_written():
    """One element's number, by Python's integers."""
    key, shape = jax.random.key(4), (3, 5, 7)
    first, second = (np.asarray(word) for word in random_words(key, shape[:1]))
    x = (4 * 7 + 2 + int(first[1])) % 2**32
    for number, (shift, multiplier) in enumerate(zip(SHIFTS, MULTIPLIERS, strict=True)):
        x = (x ^ x >> shift) * multiplier % 2**32
        x = (x + int(second[1])) % 2**32 if number == 0 else x
    assert int(random_numbers(key, shape)[1, 4, 2]) == x


def test_a_longer_sequence_begins_with_the_same_masks():
    """So padding tokens changes nothing for the others."""
    key = jax.random.key(2)
    np.testing.assert_array_equal(
        random_numbers(key, (4, 6, 8))[:, :5], random_numbers(key, (4, 5, 8))
    )


def test_thirty_two_bits_are_the_former_masks():
    x, key = jnp.ones((4, 3, 2)), jax.random.key(5)
    np.testing.assert_array_equal(
        dropout(x, 0.25, key, 32) != 0, jax.random.bernoulli(key, 0.75, x.shape)
    )
