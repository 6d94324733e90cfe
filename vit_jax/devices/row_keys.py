"""Random keys for a part of a batch that is computed apart from the rest.

With ordinary keys, draws of shape [rows, ...] are split over devices as the batch is: each device
computes the random numbers of its rows. Where the parts of a batch are computed apart, as under
`jax.shard_map`, each part draws by itself. With `key_of_part` part p of P then gets what rows
p · rows / P and on have of the whole batch's draw, to the bit, and computes no others.
"""

import math

import jax
import jax.numpy as jnp
from jax.extend import random as prng


def key_of_part(key: jax.Array, part: jax.Array) -> jax.Array:
    """The key that draws for one of equal parts of a batch.

    Args:
      key: an ordinary (threefry) key, of the whole batch.
      part: int32 [], which part.

    Returns:
      A key whose draws [rows of the part, ...] are the part's rows of `key`'s; draws of shape [] are
      the same for all parts. Keys that are split from it, or folded, are such keys too.
    """
    data = jnp.append(jax.random.key_data(key), part.astype(jnp.uint32))
    return jax.random.wrap_key_data(data, impl=PART_KEYS)


def random_words(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Two independent words for each element, uint32 [B, ...], from one turn of threefry.

    The counter is the element's row, among all of the batch, and its position in the row; so the
    words are the same however the array is split, and a part's key draws the part's.
    """
    data = jax.random.key_data(key)
    part = data[2] if len(data) == 3 else jnp.uint32(0)
    row = jax.lax.broadcasted_iota(jnp.uint32, shape, 0) + part * jnp.uint32(shape[0])
    position = jnp.zeros(shape, jnp.uint32)
    for axis in range(1, len(shape)):
        stride = jnp.uint32(math.prod(shape[axis + 1 :]))
        position += stride * jax.lax.broadcasted_iota(jnp.uint32, shape, axis)
    first, second = (jnp.broadcast_to(word, shape) for word in data[:2])
    return tuple(prng.threefry2x32_p.bind(first, second, row, position))


def _random_bits(data: jax.Array, bit_width: int, shape: tuple[int, ...]) -> jax.Array:
    """As threefry's, of the elements that follow those of the parts before."""
    if bit_width != 32:
        raise NotImplementedError("Keys of parts draw 32 bits at a time.")
    first, second, part = data
    size = math.prod(shape)
    high, low = _product(part, size) if shape else (jnp.uint32(0), jnp.uint32(0))
    within = jax.lax.iota(jnp.uint32, size).reshape(shape)
    counts = within + low
    carried = jnp.broadcast_to(high, shape) + (counts < within)
    first, second = (jnp.broadcast_to(word, shape) for word in (first, second))
    bits = prng.threefry2x32_p.bind(first, second, carried.astype(jnp.uint32), counts)
    return bits[0] ^ bits[1]


def _product(a: jax.Array, b: int) -> tuple[jax.Array, jax.Array]:
    """The upper and lower 32 bits of a product of two 32-bit integers."""
    a1, a0 = a >> 16, a & 0xFFFF
    b1, b0 = jnp.uint32(b >> 16), jnp.uint32(b & 0xFFFF)
    middle = a1 * b0 + (a0 * b0 >> 16)
    other = a0 * b1 + (middle & 0xFFFF)
    return a1 * b1 + (middle >> 16) + (other >> 16), a * jnp.uint32(b)


def _ordinary(data: jax.Array) -> jax.Array:
    return jax.random.wrap_key_data(data[:2], impl="threefry2x32")


def _split(data: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    keys = jax.random.key_data(jax.random.split(_ordinary(data), shape))
    return jnp.concatenate([keys, jnp.broadcast_to(data[2:], (*shape, 1))], axis=-1)


def _fold_in(data: jax.Array, number: int) -> jax.Array:
    key = jax.random.key_data(jax.random.fold_in(_ordinary(data), number))
    return jnp.concatenate([key, data[2:]])


def _seed(number: jax.Array) -> jax.Array:
    return jnp.append(jax.random.key_data(jax.random.key(number)), jnp.uint32(0))


PART_KEYS = prng.define_prng_impl(
    key_shape=(3,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="part_of_a_batch",
    tag="part",
)
