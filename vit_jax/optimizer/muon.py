"""Muon: momentum, orthogonalised by five Newton-Schulz iterations, for hidden layers' matrices.

After Jordan et al. (kellerjordan.github.io/posts/muon), with the scale of Moonlight (2502.16982):
0.2 sqrt(max(rows, columns)) gives an update the root mean square of AdamW's, so that both can share
a learning rate and a weight decay. All other parameters are AdamW's: biases, norms, embeddings, and
as usual with Muon the first and the last layer.

What is one matrix: each of query, key and value is [width, heads x head width], all heads together;
attention's output is [heads x head width, width]; a convolution's filters are
[height x width x channels in, channels out].
"""

import math
import re

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers

from vit_jax.parameters import is_stacked, path_name

OUTER_LAYERS = r"^(embedding|head)/|/conv_root/"  # The first and the last.
CONSISTENT_RMS = 0.2


def matrix_view(name: str, ndim: int) -> MuonDimensionNumbers | None:
    """Which dimensions are a matrix's rows and columns; None for what is no matrix of Muon's.

    Any other dimension, such as the layer axis, counts separate matrices.
    """
    if not name.endswith("kernel") or re.search(OUTER_LAYERS, name):
        return None
    first = int(is_stacked(name))
    num_rows = 1 if re.search(r"(query|key|value)/kernel$", name) else ndim - 1 - first
    dimensions = tuple(range(first, ndim))
    return MuonDimensionNumbers(dimensions[:num_rows], dimensions[num_rows:])


def scale_by_muon(
    momentum: float, b1: float, b2: float, momentum_dtype: jnp.dtype
) -> optax.GradientTransformation:
    """The direction: Muon's for matrices, Adam's with `b1` and `b2` for the rest."""

    def views(params: dict) -> dict:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: matrix_view(path_name(path), leaf.ndim), params
        )

    def labels(params: dict) -> dict:
        return jax.tree_util.tree_map_with_path(
            lambda path, leaf: "matrix" if matrix_view(path_name(path), leaf.ndim) else "rest",
            params,
        )

    orthogonalized = optax.contrib.scale_by_muon(
        beta=momentum, mu_dtype=momentum_dtype, weight_dimension_numbers=views
    )
    matrix = optax.named_chain(
        ("orthogonalized", orthogonalized), ("scaled", optax.stateless(scale_by_shape))
    )
    rest = optax.scale_by_adam(b1, b2, eps=1e-8, mu_dtype=momentum_dtype)
    return optax.partition({"matrix": matrix, "rest": rest}, labels)


def scale_by_shape(updates: dict, params: dict) -> dict:
    """Orthogonal matrices times 0.2 sqrt(max(rows, columns)): section 2.2 of 2502.16982."""
    del params

    def scale(path: tuple, update: jax.Array) -> jax.Array:
        view = matrix_view(path_name(path), update.ndim)
        rows, columns = (math.prod(update.shape[d] for d in dimensions) for dimensions in view)
        return CONSISTENT_RMS * max(rows, columns) ** 0.5 * update

    return jax.tree_util.tree_map_with_path(scale, updates)
