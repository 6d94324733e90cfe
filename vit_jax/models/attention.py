"""Fused attention: kernels that never write the attention weights to memory.

    fused(query, key, value, lengths): [..., Q, H, d], [..., K, H, d], [..., K, H, d] -> [..., Q, H, d]

Products of queries and keys are divided by √d. `lengths` are those of queries and keys; what lies beyond
is padding, which no query looks at; its results and gradients are zeros (JAX's own tests of NVIDIA's
kernel compare them, and so does benchmarks/gpu.py). Values and gradients are those of the
plain form but for the rounding of weights before they are normalised instead of after.
"""

from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

XLA, CUDNN = "xla", "cudnn"  # The plain form; NVIDIA's library.
JOINT = "joint"  # The plain form, with one product for queries, keys and values.
FUSED_PRIMITIVE = "dot_product_attention_fwd"  # Part of the name of the kernel's primitive in JAX.

CUDNN_MULTIPLE, CUDNN_LARGEST = 8, 128  # Of a head's width.

Fused = Callable[[jax.Array, jax.Array, jax.Array, tuple[int, int]], jax.Array]


def cudnn_attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    lengths: tuple[int, int],
    *,
    implementation: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
    """By NVIDIA's library, for bfloat16 or float16.

    In training it takes even lengths only: odd ones are padded. `implementation` is JAX's name of what
    computes it.
    """
    given = query.shape
    query, key, value = (even_length(x.reshape(-1, *x.shape[-3:]), 1) for x in (query, key, value))
    padded: dict[str, Any] = {}
    if lengths != (query.shape[1], key.shape[1]):
        names = ("query_seq_lengths", "key_value_seq_lengths")
        padded = {
            name: jnp.full(len(query), length, jnp.int32)
            for name, length in zip(names, lengths, strict=True)
        }
    y = jax.nn.dot_product_attention(query, key, value, implementation=implementation, **padded)
    return y[:, : given[-3]].reshape(given)


def even_length(x: jax.Array, axis: int) -> jax.Array:
    """The array with zeros after an axis of odd length."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, x.shape[axis] % 2)
    return jnp.pad(x, widths)


FUSED: dict[str, Fused] = {CUDNN: cudnn_attention}
ATTENTIONS = (XLA, JOINT, *FUSED)


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
