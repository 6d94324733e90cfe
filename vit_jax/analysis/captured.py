"""Intermediates of many images, a few at a time, so that they fit in memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import nnx

from vit_jax.errors import ConfigError
from vit_jax.models.axial import AxialViT
from vit_jax.models.base import ATTENTION_WEIGHTS, BLOCK_OUTPUTS, ImageClassifier
from vit_jax.models.vit import VisionTransformer

MEMORY_BYTES = 2**29  # That the intermediates of a chunk of images may take.
FLOAT_BYTES = 4
WORKSPACE = 16  # Of a forward pass, in sizes of the image.

# Parameters' model, and the captured values of some images, to anything with a leading image axis.
Reduction = Callable[[Any, dict[str, Any]], Any]


def require_tokens(model: ImageClassifier, figure: str) -> VisionTransformer:
    """The model if its tokens are patches, one sequence of them; raises ConfigError if not."""
    if not isinstance(model, VisionTransformer):
        raise ConfigError(
            f"{figure} is defined for a Vision Transformer or a hybrid: {model.name} has no attention "
            "over patches."
        )
    return model


def require_attention(model: ImageClassifier, figure: str) -> VisionTransformer:
    """The model if all its tokens attend to all; raises ConfigError if not."""
    transformer = require_tokens(model, figure)
    if isinstance(model, AxialViT):
        raise ConfigError(
            f"{figure} is defined for attention over all patches: {model.name} attends along rows "
            "and columns."
        )
    return transformer


def reduced(
    model: ImageClassifier, images: jax.Array, names: tuple[str, ...], reduction: Reduction
) -> Any:
    """A function of each image's intermediates, for all images.

    Args:
      model: with its parameters.
      images: as the model takes them, [B, H, W, C].
      names: of the intermediates, see `ImageClassifier.intermediates`.
      reduction: (model, intermediates of b images) -> arrays [b, ...]; inside one compiled program.

    Returns:
      What `reduction` returns, float32 [B, ...] as numpy arrays.
    """
    structure, parameters = nnx.split(model)

    @jax.jit
    def few(parameters: Any, images: jax.Array) -> Any:
        bound = nnx.merge(structure, parameters)
        return reduction(bound, bound.outputs(images, capture=names))

    size = min(chunk_size(model, names), len(images))
    parts = []
    for start in range(0, len(images), size):
        part = np.asarray(images[start : start + size])
        padded = np.pad(part, ((0, size - len(part)), *[(0, 0)] * 3))  # One program for all.
        parts.append(jax.device_get(few(parameters, padded)))
    return jax.tree.map(lambda *chunks: np.concatenate(chunks)[: len(images)], *parts)


def chunk_size(model: ImageClassifier, names: tuple[str, ...]) -> int:
    """How many images' intermediates fit in `MEMORY_BYTES`; at least one."""
    options: Any = model.options
    numbers = WORKSPACE * math.prod(options.image_size) * options.channels
    if ATTENTION_WEIGHTS in names:
        numbers += options.depth * options.num_heads * options.num_tokens**2
    if BLOCK_OUTPUTS in names:
        numbers += options.depth * options.num_tokens * options.width
    return max(1, MEMORY_BYTES // (numbers * FLOAT_BYTES))
