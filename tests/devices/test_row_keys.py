"""Parts of a batch, computed apart, draw what the whole batch would."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.devices.row_keys import PART_KEYS, _product, key_of_part, random_words

DRAWS = {
    "bernoulli": lambda key, rows: jax.random.bernoulli(key, 0.9, (rows, 3, 5)),
    "uniform": lambda key, rows: jax.random.uniform(key, (rows, 7)),
    "normal": lambda key, rows: jax.random.normal(key, (rows, 2)),
    "split": lambda key, rows: jax.random.uniform(jax.random.split(key, 4)[2], (rows, 2)),
    "folded": lambda key, rows: jax.random.uniform(jax.random.fold_in(key, 9), (rows,)),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_part_draws_its_rows_of_the_whole(draw):
    key = jax.random.key(3)
    parts = [draw(key_of_part(key, jnp.int32(part)), 4) for part in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), draw(key, 12))


def test_a_scan_over_split_keys():
    """As layers do."""

    def draw(key, rows):
        keys = jax.random.split(key, 3)
        return jax.lax.scan(lambda _, k: (None, jax.random.uniform(k, (rows, 2))), None, keys)[1]

    key = jax.random.key(3)
    parts = [jax.jit(draw, static_argnums=1)(key_of_part(key, jnp.int32(p)), 2) for p in (0, 1)]
    np.testing.assert_array_equal(np.concatenate(parts, axis=1), draw(key, 4))


def test_each_element_has_words_of_its_own_and_a_part_those_of_its_rows():
    @jax.jit
    def draw(key):
        part = key_of_part(key, jnp.int32(1))
        return random_words(key, (4, 2, 3)), random_words(part, (2, 2, 3))

    words, part = (np.stack(found, axis=-1) for found in draw(jax.random.key(3)))
    assert len({*map(tuple, words.reshape(-1, 2).tolist())}) == 24
    np.testing.assert_array_equal(part, words[2:])
    first = jax.random.key_data(jax.random.key(3, impl=PART_KEYS))
    assert first.tolist() == [*jax.random.key_data(jax.random.key(3)).tolist(), 0]
    with pytest.raises(NotImplementedError, match="32 bits at a time"):
        jax.random.bits(key_of_part(jax.random.key(3), jnp.int32(1)), (2,), jnp.uint8)


def test_what_is_no_rows_draw_is_everyones():
    key = jax.random.key(3)
    for part in (0, 5):
        assert jax.random.uniform(key_of_part(key, jnp.int32(part))) == jax.random.uniform(key)


@pytest.mark.parametrize(("a", "b"), [(3, 5), (2**24 - 1, 2**32 - 1), (70_000, 605_184_123)])
def test_positions_beyond_32_bits_are_counted_on(a, b):
    """255 parts of B/16's widest dropout, 64 x 197 x 3072, are more than 2^32 elements."""
    high, low = _product(jnp.uint32(a), b)
    assert (int(high) << 32) + int(low) == a * b
