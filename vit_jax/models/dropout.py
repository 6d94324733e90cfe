"""Dropout: masks that are the same however the batch is split over devices."""

import jax
import jax.numpy as jnp

from vit_jax.devices.row_keys import random_words

# Random bits for each element. With 16, a turn of threefry makes four elements' and probabilities are
# multiples of 2^-16; with 32 it makes one, as versions before this option did.
PACKED, SINGLE = 16, 32
BITS = (PACKED, SINGLE)
LEVELS = 2**PACKED
MASKS_PER_TURN = 64 // PACKED


def dropout(x: jax.Array, rate: float, key: jax.Array | None, bits: int = PACKED) -> jax.Array:
    """Zeroes each element with probability `rate` and rescales; the identity without a key.

    Args:
      x: [B, ...].
      rate: below 1; with 16 bits the nearest multiple of 2^-16, by which the rest is rescaled too.
      key: an ordinary one, or one of a part of the batch; see `vit_jax.devices.row_keys`.
      bits: one of `BITS`.
    """
    if key is None or rate == 0:
        return x
    if bits == SINGLE:
        keep, share = jax.random.bernoulli(key, 1 - rate, x.shape), 1 - rate
    else:
        kept = kept_levels(rate)
        keep, share = random_levels(key, x.shape) < jnp.uint32(kept), kept / LEVELS
    scaled = (x / jnp.float32(share)).astype(x.dtype)  # bfloat16 would divide by 0.8984 for 0.9.
    return jnp.where(keep, scaled, 0)


def kept_levels(rate: float) -> int:
    """How many of the 2^16 values of an element's bits keep it; at least one does."""
    return max(1, round((1 - rate) * LEVELS))


def random_levels(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Uniform integers 0 ... 2^16 - 1, uint32 [B, ...].

    Four elements that share a turn of threefry lie a quarter of an axis apart: not of the last one,
    whose neighbours a vector unit holds, nor of the first, the batch's, unless there is no other.
    """
    axis = max(len(shape) - 2, min(1, len(shape) - 1))
    quarter = -(-shape[axis] // MASKS_PER_TURN)
    words = random_words(key, (*shape[:axis], quarter, *shape[axis + 1 :]))
    # Else the compiler makes every word anew for each of the elements that share it.
    words = jax.lax.optimization_barrier(words)
    halves = [half for word in words for half in (word & (LEVELS - 1), word >> PACKED)]
    return jax.lax.slice_in_dim(jnp.concatenate(halves, axis), 0, shape[axis], axis=axis)
