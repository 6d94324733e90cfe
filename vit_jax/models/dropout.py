"""Dropout: masks that are the same however the batch is split over devices."""

import math

import jax
import jax.numpy as jnp

from vit_jax.devices.row_keys import random_words

# How random numbers are made. With 16, threefry makes two words for each row and a hash of these and
# of the position makes an element's; probabilities are multiples of 2^-16. With 32 threefry makes each
# element's, as versions before this option did.
HASHED, THREEFRY = 16, 32
BITS = (HASHED, THREEFRY)
LEVELS = 2**HASHED

# Multipliers and shifts of "triple32", a bijection of 32-bit words in which each bit of the input
# flips each of the output in half of all cases, to 2 % (https://nullprogram.com/blog/2018/07/31/).
MULTIPLIERS = (0xED5AD4BB, 0xAC4C1B51, 0x31848BAB)
SHIFTS = (17, 11, 15)


def dropout(x: jax.Array, rate: float, key: jax.Array | None, bits: int = HASHED) -> jax.Array:
    """Zeroes each element with probability `rate` and rescales; the identity without a key.

    Args:
      x: [B, ...].
      rate: below 1; with 16 bits the nearest multiple of 2^-16, by which the rest is rescaled too.
      key: an ordinary one, or one of a part of the batch; see `vit_jax.devices.row_keys`.
      bits: one of `BITS`.
    """
    if key is None or rate == 0:
        return x
    if bits == THREEFRY:
        keep, scaled = jax.random.bernoulli(key, 1 - rate, x.shape), x / jnp.float32(1 - rate)
    else:
        kept = kept_levels(rate)
        keep = random_numbers(key, x.shape) < jnp.uint32(min(kept * LEVELS, 2**32 - 1))
        scaled = x * jnp.float32(LEVELS / kept)  # In float32: bfloat16's 1 / 0.9 is 1.109.
    return jnp.where(keep, scaled.astype(x.dtype), 0)


def kept_levels(rate: float) -> int:
    """How many of the 2^16 values of a number's upper bits keep an element; at least one does."""
    return max(1, round((1 - rate) * LEVELS))


def random_numbers(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Numbers whose upper 16 bits are random, uint32 [B, ...].

    A hash of the position in the row and of two random words of the row: it needs a tenth of the
    work of threefry, and no memory, where each element has threefry's own.
    """
    first, second = jax.lax.optimization_barrier(random_words(key, shape[:1]))
    first, second = (word.reshape(-1, *[1] * (len(shape) - 1)) for word in (first, second))
    x = position_in_row(shape) + first
    for number, (shift, multiplier) in enumerate(zip(SHIFTS, MULTIPLIERS, strict=True)):
        x = (x ^ (x >> shift)) * jnp.uint32(multiplier)
        x = x + second if number == 0 else x
    return x


def position_in_row(shape: tuple[int, ...]) -> jax.Array:
    """The number of each element among those of its row, uint32 [1, ...]."""
    inner = (1, *shape[1:])
    position = jnp.zeros(inner, jnp.uint32)
    for axis in range(1, len(shape)):
        stride = jnp.uint32(math.prod(shape[axis + 1 :]))
        position += stride * jax.lax.broadcasted_iota(jnp.uint32, inner, axis)
    return position
