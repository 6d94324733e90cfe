"""Fused attention: kernels that never write the attention weights to memory.

    fused(query, key, value): [..., Q, H, d], [..., K, H, d], [..., K, H, d] -> [..., Q, H, d]

Queries are divided by √d already. Values and gradients are those of the plain form but for the
rounding of weights before they are normalised instead of after.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

XLA, CUDNN = "xla", "cudnn"  # The plain form; NVIDIA's library.
FUSED_PRIMITIVE = "dot_product_attention_fwd"  # Part of the name of the kernel's primitive in JAX.

CUDNN_MULTIPLE, CUDNN_LARGEST = 8, 128  # Of a head's width.


def cudnn_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    *,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
    """By NVIDIA's library, for bfloat16 or float16.

    In training it takes even lengths only: odd ones are padded, and the padding is left out of the
    sums. `implementation` is JAX's name of what computes it.
    """
    leading = query.shape[:-3]
    query, key, value = (x.reshape(-1, *x.shape[-3:]) for x in (query, key, value))
    (batch, queries), keys = query.shape[:2], key.shape[1]
    lengths: dict[str, Any] = {}
    if queries % 2 or keys % 2:
        lengths = {
            "query_seq_lengths": jnp.full(batch, queries, jnp.int32),
            "key_value_seq_lengths": jnp.full(batch, keys, jnp.int32),
        }
    y = jax.nn.dot_product_attention(
        *(even_length(x) for x in (query, key, value)),
        scale=1.0,
        implementation=implementation,
        **lengths,
    )
    return y[:, :queries].reshape(*leading, *y[:, :queries].shape[1:])


def even_length(x: jax.Array) -> jax.Array:
    """[B, S, H, d] with zeros after an odd sequence."""
    return jnp.pad(x, ((0, 0), (0, x.shape[1] % 2), (0, 0), (0, 0)))


FUSED: dict[str, Callable[..., jax.Array]] = {CUDNN: cudnn_attention}
ATTENTIONS = (XLA, *FUSED)


def cudnn_obstacle(head_width: int, dtype: str) -> str:
    """Why NVIDIA's library does not take such heads, or ""."""
    if dtype != "bfloat16":
        return f"it does not compute in {dtype}"
    if head_width % CUDNN_MULTIPLE or head_width > CUDNN_LARGEST:
        return (
            f"heads have a width of {head_width}, not a multiple of {CUDNN_MULTIPLE} up to "
            f"{CUDNN_LARGEST}"
        )
    return ""
