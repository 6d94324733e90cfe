"""The product of rows with a layer's kernel, with a gradient that a CPU's library computes quickly.

The gradient of a kernel sums over rows, the first axis of both of its factors. A CPU's library copies
what it does not sum along the last axis; to transpose the narrower factor before costs less.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def kernel_product(
    x: jax.Array, kernel: jax.Array, dimension_numbers: tuple, **options: Any
) -> jax.Array:
    """[..., D] x [D, E] -> [..., E], as `jax.lax.dot_general`; the `dot_general` of a Flax layer.

    Args:
      x: the rows.
      kernel: of the same type.
      dimension_numbers: those of exactly this product.
      **options: other options of `jax.lax.dot_general`.
    """
    # The gradients are as precise as the product, wherever they are traced.
    options["precision"] = options.get("precision") or default_precision()
    options["dimension_numbers"] = dimension_numbers
    return product(tuple(sorted(options.items())), x, kernel)


def default_precision() -> str | None:
    """That of products without one of their own, where this is traced."""
    return jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def product(options: tuple[tuple[str, Any], ...], x: jax.Array, kernel: jax.Array) -> jax.Array:
    """`jax.lax.dot_general` with named options."""
    return lax.dot_general(x, kernel, **dict(options))


def forward(options: tuple, x: jax.Array, kernel: jax.Array) -> tuple:
    """The result, and what its gradients need."""
    return product(options, x, kernel), (x, kernel)


def backward(options: tuple, factors: tuple[jax.Array, jax.Array], dy: jax.Array) -> tuple:
    """The gradients of rows and kernel by that of the result."""

    def plain(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return lax.dot_general(x, kernel, **dict(options))

    def as_in_jax(x: jax.Array, kernel: jax.Array, dy: jax.Array) -> jax.Array:
        return jax.vjp(lambda kernel: plain(x, kernel), kernel)[1](dy)[0]

    def transposed_before(x: jax.Array, kernel: jax.Array, dy: jax.Array) -> jax.Array:
        multiply = functools.partial(jnp.matmul, precision=dict(options)["precision"])
        x, dy = x.reshape(-1, x.shape[-1]), dy.reshape(-1, dy.shape[-1])
        if x.shape[1] > dy.shape[1]:
            return multiply(lax.optimization_barrier(dy.T), x).T
        return multiply(lax.optimization_barrier(x.T), dy)

    x, kernel = factors
    (dx,) = jax.vjp(lambda x: plain(x, kernel), x)[1](dy)
    dkernel = lax.platform_dependent(x, kernel, dy, cpu=transposed_before, default=as_in_jax)
    return dx, dkernel


product.defvjp(forward, backward)
