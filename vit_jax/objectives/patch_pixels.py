"""The pixels of patches, for objectives that predict them: cut out, put back, averaged.

Rows and patches are in the model's order. A hybrid's patches are those of the image that lie under
the patches of its stem's map.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange

from vit_jax.errors import ConfigError
from vit_jax.models.axial import AxialViTOptions
from vit_jax.models.base import ModelOptions
from vit_jax.models.patches import PatchOptions
from vit_jax.models.positions import why_all_patches
from vit_jax.models.vit import ATTENTION_POOLING, ViTOptions

Grid = tuple[int, int]


def pixels_of_a_patch(options: PatchOptions) -> tuple[int, int]:
    """Height and width, in pixels, of the part of the image that a patch stands for.

    Raises ConfigError if the grid of patches does not divide the image.
    """
    sides = zip(options.image_size, options.grid, strict=True)
    if any(pixels % count for pixels, count in sides):
        raise ConfigError(
            f"model.image_size={options.image_size} is no multiple of the grid of patches "
            f"{options.grid}: each patch must stand for the same number of pixels."
        )
    (height, width), (rows, columns) = options.image_size, options.grid
    return height // rows, width // columns


def require_patches(options: ModelOptions, objective: str) -> ViTOptions:
    """The options of a model that sees patches, all of them; raises ConfigError for another one."""
    if not isinstance(options, ViTOptions):
        raise ConfigError(
            f"config.objective.name={objective!r} needs a model whose tokens are patches: a Vision "
            "Transformer or a hybrid."
        )
    if options.patch_dropout_rate:
        raise ConfigError(
            f"config.objective.name={objective!r} chooses the patches itself: set "
            "config.model.patch_dropout_rate=0."
        )
    return options


def refuse_layers_of_pooling(model: ViTOptions, objective: str) -> None:
    """Raises ConfigError for a model with layers behind its tokens, which would not be trained."""
    if model.pooling == ATTENTION_POOLING or model.representation_size:
        raise ConfigError(
            f"config.objective.name={objective!r} looks at tokens and trains no layers of pooling: "
            "leave config.model.pooling='attention' and config.model.representation_size to "
            "fine-tuning."
        )


def require_sequence(options: ModelOptions, objective: str) -> ViTOptions:
    """The options of a model that takes any number of patches; raises ConfigError for another one."""
    model = require_patches(options, objective)
    if reason := why_all_patches(model):
        raise ConfigError(
            f"config.objective.name={objective!r} changes the number of patches, and {reason} needs "
            "all of them: take positions that are added at the 'stem'."
        )
    if isinstance(model, AxialViTOptions):
        raise ConfigError(
            f"config.objective.name={objective!r} changes the number of patches, and axial "
            "attention needs whole rows and columns: choose a Vision Transformer or a hybrid."
        )
    return model


def cut(images: jax.Array, grid: Grid) -> jax.Array:
    """Images [B, H, W, C] -> patches [B, N, P, Q, C]."""
    rows, columns = grid
    return rearrange(images, "b (h p) (w q) c -> b (h w) p q c", h=rows, w=columns)


def join(patches: jax.Array, grid: Grid) -> jax.Array:
    """Patches [B, N, P, Q, C] -> images [B, H, W, C]; the inverse of `cut`."""
    rows, columns = grid
    return rearrange(patches, "b (h w) p q c -> b (h p) (w q) c", h=rows, w=columns)


def take(values: jax.Array, positions: jax.Array) -> jax.Array:
    """Of each row, the values at some positions: [B, N, ...], int [B, K] -> [B, K, ...]."""
    return jax.vmap(lambda row, index: row[index])(values, positions)


def put(values: jax.Array, positions: jax.Array, new: jax.Array) -> jax.Array:
    """`values` [B, N, ...] with `new` [B, K, ...] at the positions int [B, K] of each row."""
    return jax.vmap(lambda row, index, part: row.at[index].set(part))(values, positions, new)


def random_order(key: jax.Array, shape: tuple[int, int]) -> jax.Array:
    """A random permutation of 0 … N - 1 for each row, int32 [B, N]."""
    return jax.random.uniform(key, shape).argsort(axis=1).astype(jnp.int32)


def averaged(patches: jax.Array, cells: int) -> jax.Array:
    """Patches [..., P, Q, C] -> the means of `cells` × `cells` equal parts, float32."""
    height, width = patches.shape[-3:-1]
    rows, columns = averaging(height, cells), averaging(width, cells)
    means = jnp.einsum(
        "ip,...pqc,jq->...ijc",
        *(rows, patches.astype(jnp.float32), columns),
        precision=jax.lax.Precision.HIGHEST,  # Colours are cut into levels: an edge has a side.
    )
    return means


def averaging(size: int, cells: int) -> np.ndarray:
    """The matrix [cells, size] float32 of means over equal parts of a side.

    A pixel that two parts share counts in each by its share; each part is `size / cells` long.
    """
    length = size / cells
    starts = length * np.arange(cells)[:, None]
    pixels = np.arange(size)
    overlap = np.minimum(starts + length, pixels + 1) - np.maximum(starts, pixels)
    return (np.clip(overlap, 0, None) / length).astype(np.float32)
