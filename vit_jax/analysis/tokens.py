"""What lies between pixels and classes: tokens over depth, as colours, for a class; neighbours."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.analysis.captured import reduced, require_tokens
from vit_jax.analysis.components import principal_axes
from vit_jax.errors import ConfigError
from vit_jax.models.base import BLOCK_OUTPUTS, ImageClassifier
from vit_jax.models.positions import EVERY_LAYER_SHARED
from vit_jax.models.vit import VisionTransformer

TINY = 1e-12


def token_similarity(model: ImageClassifier, images: jax.Array) -> np.ndarray:
    """The mean cosine similarity of an image's patches to one another, after each block.

    Near 1, all tokens say the same: the model's representation has become smooth.

    Args:
      model: whose tokens are patches.
      images: as the model takes them, [B, H, W, C].

    Returns:
      float32 [L], the mean over pairs of different patches and over images.
    """
    transformer = require_tokens(model, "similarity of tokens")
    prefix, count = transformer.options.num_prefix_tokens, transformer.options.num_patches
    if count == 1:
        raise ConfigError(f"similarity of tokens: {model.name} has one patch an image.")

    def similarity(_: Any, outputs: dict[str, Any]) -> jax.Array:
        tokens = jnp.float32(outputs[BLOCK_OUTPUTS])[:, :, prefix:]  # [L, b, N, D]
        units = tokens / jnp.maximum(jnp.linalg.norm(tokens, axis=-1, keepdims=True), TINY)
        together = jnp.square(jnp.linalg.norm(units.sum(axis=2), axis=-1))  # Pairs, own ones too.
        return ((together - count) / (count * (count - 1))).T

    return reduced(transformer, images, (BLOCK_OUTPUTS,), similarity).mean(axis=0)


def patch_colors(model: ImageClassifier, images: jax.Array, layer: int = -1) -> np.ndarray:
    """Patches' features as colours: their first three principal components over all images.

    Patches of like features have like colours, in one image and in another.

    Args:
      model: whose tokens are patches.
      images: as the model takes them, [B, H, W, C].
      layer: the block whose output counts, from 0; -1: the last, after the final norm.

    Returns:
      float32 [B, rows, columns, 3] in 0 … 1: red, green and blue for the three, each scaled by its
      1 and 99 % quantiles.
    """
    transformer = require_tokens(model, "features as colours")
    features = patch_features(transformer, images, layer)
    count, size, width = features.shape
    if count * size < 3:
        raise ConfigError("features as colours: three patches at least are needed.")
    scores = principal_components(features.reshape(-1, width), 3)
    low, high = np.quantile(scores, (0.01, 0.99), axis=0)
    colors = np.clip((scores - low) / np.maximum(high - low, TINY), 0, 1)
    return colors.reshape(count, *transformer.options.grid, 3).astype(np.float32)


def patch_features(model: VisionTransformer, images: jax.Array, layer: int = -1) -> np.ndarray:
    """The patches' tokens after a block, float32 [B, N, D]; after the last, normalised by `norm`."""
    depth, prefix = model.options.depth, model.options.num_prefix_tokens
    if not -1 <= layer < depth:
        raise ConfigError(f"layer={layer}: {model.name} has blocks 0 to {depth - 1}, -1: the last.")

    def features(model: VisionTransformer, outputs: dict[str, Any]) -> jax.Array:
        tokens = jnp.asarray(outputs[BLOCK_OUTPUTS])[layer]
        tokens = model.norm(tokens) if layer == -1 else tokens
        return tokens[:, prefix:].astype(jnp.float32)

    return reduced(model, images, (BLOCK_OUTPUTS,), features)


def class_relevance(model: ImageClassifier, images: jax.Array, classes: np.ndarray) -> np.ndarray:
    """How much each patch speaks for a class, to first order.

    By so much would the class's logit fall if the patch's token, before the last block, became the
    mean of the image's patches. It is Grad-CAM's idea (arXiv 1610.02391) with a gradient for each
    token. Tokens themselves instead of their difference to the mean would give 0: a norm takes out
    their length.

    Args:
      model: whose tokens are patches, with a head.
      images: as the model takes them, [B, H, W, C].
      classes: one an image, int [B].

    Returns:
      float32 [B, rows, columns]; above 0 for the class, below 0 against it.
    """
    transformer = require_tokens(model, "relevance for a class")
    options = transformer.options
    if not options.num_classes:
        raise ConfigError(f"relevance for a class: {model.name} was loaded without a head.")
    structure, parameters = nnx.split(transformer)

    @jax.jit
    def relevance(parameters: Any, image: jax.Array, label: jax.Array) -> jax.Array:
        bound: VisionTransformer = nnx.merge(structure, parameters)
        tokens = before_last_block(bound, image[None])

        def logit(tokens: jax.Array) -> jax.Array:
            last, _ = last_block(bound)(tokens, None, None)
            return bound.classify(bound.pool(last))[0, label]

        prefix = options.num_prefix_tokens
        patches, slopes = tokens[0, prefix:], jax.grad(logit)(tokens)[0, prefix:]
        changes = (patches - patches.mean(axis=0)) * slopes
        return changes.astype(jnp.float32).sum(axis=-1)

    pairs = zip(np.asarray(images), np.asarray(classes), strict=True)
    found = [relevance(parameters, image, label) for image, label in pairs]
    return np.stack(found).reshape(-1, *options.grid)


def before_last_block(model: VisionTransformer, images: jax.Array) -> jax.Array:
    """The input of the last block, [B, S, D]."""
    tokens = model.embed_sequence(model.embed_patches(images))
    if model.options.depth > 1:
        captured = model.encode(tokens, capture=(BLOCK_OUTPUTS,))[1]
        tokens = jnp.asarray(captured[BLOCK_OUTPUTS])[-2]
    if model.options.position_placement == EVERY_LAYER_SHARED:
        tokens = tokens + model.position_table().astype(tokens.dtype)
    return tokens


def last_block(model: VisionTransformer) -> Any:
    """The last of the stacked blocks by itself."""
    structure, stacked = nnx.split(model.blocks)
    return nnx.merge(structure, jax.tree.map(lambda leaf: leaf[-1], stacked))


def principal_components(features: np.ndarray, count: int) -> np.ndarray:
    """Features [N, D] on their `count` first principal components, float32 [N, count].

    A component's sign is such that its largest weight is above 0.
    """
    centered = np.asarray(features, np.float64) - np.mean(features, axis=0, dtype=np.float64)
    return (centered @ principal_axes(features)[:count].T).astype(np.float32)


def nearest_neighbors(
    features: np.ndarray, others: np.ndarray, count: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """The nearest of `others` [M, D] to each of `features` [N, D] by cosine similarity.

    Returns:
      Their indices int [N, count], the nearest first, and similarities float32 [N, count].
    """
    units, other_units = (
        x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), TINY) for x in (features, others)
    )
    similarities = units @ other_units.T
    order = np.argsort(-similarities, axis=1, kind="stable")[:, :count]
    return order, np.take_along_axis(similarities, order, axis=1).astype(np.float32)
