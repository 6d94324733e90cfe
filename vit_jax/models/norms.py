"""LayerNorm, with a backward pass of its own on NVIDIA GPUs and CPUs, and the batch norm of linear probes.

Differentiated as it is written, LayerNorm's bfloat16 activations become float32 arrays in memory that several
kernels read, in an order of dimensions that transposes them. On a GPU, the pass below reads the input and
the output's gradient once for the sums over rows, once for those over columns, once for the result, and
writes nothing else: of ViT-B/16's step on an H100 it takes a tenth off. On a CPU it spares arrays that only
repeat a number along a row. A TPU's compiler does better by itself. docs/performance.md has the figures.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

LAYER_NORM_EPSILON = 1e-6  # The reference's; PyTorch's default is 1e-5.
BATCH_NORM_EPSILON = 1e-6  # That of MAE's linear probe; PyTorch's default is 1e-5.
BATCH_NORM_MOMENTUM = 0.1  # PyTorch's: the share of the last batch in the running statistics.


class LayerNorm(nnx.LayerNorm):
    """LayerNorm over the last axis, with statistics in float32."""

    def __call__(self, x: jax.Array, *, mask: jax.Array | None = None) -> jax.Array:
        """[..., D] -> the same, in `dtype`."""
        if mask is not None:
            return super().__call__(x, mask=mask)
        assert self.scale is not None
        assert self.bias is not None
        x, scale, bias = (a.astype(self.dtype) for a in (x, self.scale[...], self.bias[...]))
        return normalize(self.epsilon, x, scale, bias)


def layer_norm(features: int, options: Any, rngs: nnx.Rngs) -> LayerNorm:
    """LayerNorm over the last axis; `options`: norm_epsilon, dtype."""
    return LayerNorm(features, epsilon=options.norm_epsilon, dtype=options.dtype, rngs=rngs)


class Kept(NamedTuple):
    """What the backward pass needs.

    Attributes:
      x: the input [..., D], of the computation's type.
      scale: [D], likewise.
      mean, inverse: of each row and 1 / its deviation, [..., 1] float32.
    """

    x: jax.Array
    scale: jax.Array
    mean: jax.Array
    inverse: jax.Array


SCOPE = jax.named_scope("layer_norm")  # In profiles, and in the names of a program's instructions.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def normalize(epsilon: float, x: jax.Array, scale: jax.Array, bias: jax.Array) -> jax.Array:
    """x [..., D] with mean 0 and deviation 1 over the last axis, then scaled and shifted."""
    return forward(epsilon, x, scale, bias)[0]


@SCOPE
def forward(
    epsilon: float, x: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[jax.Array, Kept]:
    """The result, and what its gradient needs.

    A GPU's compiler keeps arrays of two dimensions in their order, and others not.
    """

    def by_rows(x: jax.Array, scale: jax.Array, bias: jax.Array) -> tuple[jax.Array, ...]:
        found = normalize_and_keep(epsilon, x.reshape(-1, x.shape[-1]), scale, bias)
        return tuple(part.reshape(*x.shape[:-1], -1) for part in found)

    plainly = functools.partial(normalize_and_keep, epsilon)
    y, mean, inverse = jax.lax.platform_dependent(x, scale, bias, cuda=by_rows, default=plainly)
    return y, Kept(x, scale, mean, inverse)


def normalize_and_keep(
    epsilon: float, x: jax.Array, scale: jax.Array, bias: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The result as Flax computes it, and each row's mean and 1 / deviation."""
    exact = x.astype(jnp.float32)
    mean = exact.mean(-1, keepdims=True)
    variance = (exact * exact).mean(-1, keepdims=True) - mean * mean
    inverse = jax.lax.rsqrt(jnp.maximum(0.0, variance) + epsilon)  # Rounding may make it negative.
    return ((x - mean) * (inverse * scale) + bias).astype(x.dtype), mean, inverse


@SCOPE
def backward(epsilon: float, kept: Kept, dy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The gradients of x, scale and bias by that of the result."""
    ways = {"cuda": backward_by_rows, "cpu": backward_in_passes}
    default = functools.partial(differentiated, epsilon)
    return jax.lax.platform_dependent(kept, dy, **ways, default=default)


def differentiated(
    epsilon: float, kept: Kept, dy: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`backward`, of the result as it is written."""
    bias = jnp.zeros_like(kept.scale)  # No gradient depends on it.
    operands = (kept.x, kept.scale, bias)
    _, pull = jax.vjp(lambda *operands: normalize_and_keep(epsilon, *operands)[0], *operands)
    return pull(dy)


def backward_by_rows(kept: Kept, dy: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`backward` in three passes over arrays of two dimensions, as a GPU's compiler wants them."""
    x, mean, inverse, dy = (a.reshape(-1, a.shape[-1]) for a in (kept.x, *kept[2:], dy))
    flat = Kept(x, kept.scale, mean, inverse)
    dx, d_scale, d_bias = backward_in_passes(flat, dy, jax.lax.optimization_barrier)
    return dx.reshape(kept.x.shape), d_scale, d_bias


def backward_in_passes(
    kept: Kept, dy: jax.Array, barrier: Callable[[Any], Any] = lambda arrays: arrays
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`backward`, written out.

    A barrier keeps its three passes over bfloat16 arrays from sharing float32 ones.
    """
    x, scale, mean, inverse = kept
    exact_scale, rows = scale.astype(jnp.float32), tuple(range(x.ndim - 1))

    def standardized(x: jax.Array) -> jax.Array:
        return (x - mean) * inverse

    row_mean = (dy * exact_scale).mean(-1, keepdims=True)
    row_slope = (dy * exact_scale * standardized(x)).mean(-1, keepdims=True)
    columns, dy_columns = barrier((x, dy))
    d_scale = (dy_columns * standardized(columns)).sum(rows).astype(scale.dtype)
    d_bias = dy_columns.astype(jnp.float32).sum(rows).astype(scale.dtype)
    row_mean, row_slope, x, dy = barrier((row_mean, row_slope, x, dy))
    dx = inverse * (dy * exact_scale - row_mean - standardized(x) * row_slope)
    return dx.astype(x.dtype), d_scale, d_bias


normalize.defvjp(forward, backward)


class BatchNorm(nnx.Module):
    """Batch normalisation of features [B, R], without scale and shift (arXiv 1502.03167).

    By running statistics, in training too: an example's loss depends neither on the others of its
    batch nor on how devices and micro-batches split it. Of frozen features, as a linear probe's, they
    soon are what a batch's own statistics estimate.

    Attributes:
      mean, variance: [R] float32, moved by `follow` and by no gradient.
    """

    def __init__(self, features: int):
        self.mean = nnx.BatchStat(jnp.zeros(features))
        self.variance = nnx.BatchStat(jnp.ones(features))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Features of mean 0 and variance 1."""
        mean, variance = jax.lax.stop_gradient((self.mean[...], self.variance[...]))
        return (x - mean) / jnp.sqrt(variance + BATCH_NORM_EPSILON)

    @staticmethod
    def follow(statistics: dict, mean: jax.Array, mean_square: jax.Array) -> dict:
        """The next `mean` and `variance`, from a batch's means of features and of their squares."""
        batch = {"mean": mean, "variance": jnp.maximum(mean_square - mean**2, 0)}
        return jax.tree.map(
            lambda old, new: old + BATCH_NORM_MOMENTUM * (new - old), statistics, batch
        )
