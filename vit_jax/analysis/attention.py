"""How far attention reaches, and what it reaches in the end (Figures 6, 7, 11 and 14)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from vit_jax.analysis.captured import reduced, require_attention
from vit_jax.models.base import ATTENTION_WEIGHTS, BLOCK_OUTPUTS, ImageClassifier
from vit_jax.models.vit import (
    ATTENTION_POOLING,
    CLASS_TOKEN_POOLING,
    VisionTransformer,
)

TINY = 1e-12  # Below it, nothing is attended to: not even divided by.


def attention_distance(model: ImageClassifier, images: jax.Array) -> np.ndarray:
    """The mean distance in pixels over which each head attends (Figures 7 right and 11).

    Of each patch's attention to the others, weighted by it: the class token and registers are left
    out, and what remains is not normalised anew. The mean is over patches and images.

    Args:
      model: with attention over all patches.
      images: as the model takes them, [B, H, W, C].

    Returns:
      float32 [L, H].

    Raises:
      ConfigError: the model has no such attention.
    """
    transformer = require_attention(model, "attention distance")
    options = transformer.options
    distances, prefix = patch_distances(options), options.num_prefix_tokens

    def distance(_: Any, outputs: dict[str, Any]) -> jax.Array:
        weights = jnp.asarray(outputs[ATTENTION_WEIGHTS])[..., prefix:, prefix:]  # [L, b, H, N, N]
        return jnp.einsum("lbhij,ij->blh", weights, distances) / options.num_patches

    return reduced(transformer, images, (ATTENTION_WEIGHTS,), distance).mean(axis=0)


def patch_distances(options: Any) -> np.ndarray:
    """Between the middles of patches, in pixels of the image, float32 [N, N]."""
    rows, columns = options.grid
    height, width = options.image_size[0] / rows, options.image_size[1] / columns
    y, x = np.mgrid[:rows, :columns].reshape(2, -1)
    vertical, horizontal = (y[:, None] - y) * height, (x[:, None] - x) * width
    return np.hypot(vertical, horizontal).astype(np.float32)


def attention_rollout(model: ImageClassifier, images: jax.Array) -> np.ndarray:
    """The patches that the output attends to through all layers (Figures 6 and 14).

    Layer by layer, the mean over heads, with the identity for the residual added and rows that sum
    to 1, is multiplied. The class token's row counts; with average pooling the mean of the patches'
    rows, with attention pooling their mean by the probe's own attention.

    Args:
      model: with attention over all patches.
      images: as the model takes them, [B, H, W, C].

    Returns:
      float32 [B, rows, columns], each divided by its largest value.

    Raises:
      ConfigError: the model has no such attention.
    """
    transformer = require_attention(model, "attention rollout")
    options = transformer.options

    def rollout(model: VisionTransformer, outputs: dict[str, Any]) -> jax.Array:
        flow = rolled_out(jnp.asarray(outputs[ATTENTION_WEIGHTS]))
        readers = reading_weights(model, outputs, len(flow))
        seen = jnp.einsum("bi,bij->bj", readers, flow)[:, options.num_prefix_tokens :]
        seen = seen / jnp.maximum(seen.max(axis=1, keepdims=True), TINY)
        return seen.reshape(-1, *options.grid)

    return reduced(transformer, images, needed_for_reading(options), rollout)


def attention_maps(model: ImageClassifier, images: jax.Array) -> np.ndarray:
    """The patches that the output would read in each layer, head by head.

    The class token's attention; with average pooling the mean of the patches', with attention
    pooling their mean by the probe's own.

    Args:
      model: with attention over all patches.
      images: as the model takes them, [B, H, W, C].

    Returns:
      float32 [B, L, H, rows, columns].

    Raises:
      ConfigError: the model has no such attention.
    """
    transformer = require_attention(model, "attention maps")
    options = transformer.options

    def maps(model: VisionTransformer, outputs: dict[str, Any]) -> jax.Array:
        weights = jnp.asarray(outputs[ATTENTION_WEIGHTS])
        readers = reading_weights(model, outputs, weights.shape[1])
        seen = jnp.einsum("bi,lbhij->blhj", readers, weights)[..., options.num_prefix_tokens :]
        return seen.reshape(*seen.shape[:3], *options.grid)

    return reduced(transformer, images, needed_for_reading(options), maps)


def rolled_out(weights: jax.Array) -> jax.Array:
    """Attention weights [L, B, H, S, S] -> how each output depends on each input, [B, S, S]."""
    identity = jnp.eye(weights.shape[-1])

    def through(flow: jax.Array, layer: jax.Array) -> tuple[jax.Array, None]:
        mixed = layer.mean(axis=1) + identity
        return (mixed / mixed.sum(axis=-1, keepdims=True)) @ flow, None

    start = jnp.broadcast_to(identity, (weights.shape[1], *identity.shape))
    return jax.lax.scan(through, start, weights)[0]


def needed_for_reading(options: Any) -> tuple[str, ...]:
    """The intermediates that `reading_weights` and attention's figures take."""
    return (ATTENTION_WEIGHTS, *((BLOCK_OUTPUTS,) * (options.pooling == ATTENTION_POOLING)))


def reading_weights(model: VisionTransformer, outputs: dict[str, Any], count: int) -> jax.Array:
    """How much each token of the last block has in the representation, [B, S]; rows sum to 1."""
    options = model.options
    if options.pooling == CLASS_TOKEN_POOLING:
        return jnp.zeros((count, options.num_tokens)).at[:, 0].set(1.0)
    prefix = jnp.zeros((count, options.num_prefix_tokens))
    patches = jnp.full((count, options.num_patches), 1 / options.num_patches)
    if options.pooling == ATTENTION_POOLING:
        tokens = model.norm(jnp.asarray(outputs[BLOCK_OUTPUTS])[-1])
        patches = probe_attention(model, tokens[:, options.num_prefix_tokens :])
    return jnp.concatenate([prefix, patches], axis=1)


def probe_attention(model: VisionTransformer, patches: jax.Array) -> jax.Array:
    """The attention of the pooling's probe to the patches [B, N, D], mean over heads, [B, N]."""
    pooling = model.attention_pooling
    probe = pooling.probe[...].astype(patches.dtype)
    probe = jnp.broadcast_to(probe, (len(patches), 1, patches.shape[-1]))
    return pooling.attention(probe, memory=patches)[1].mean(axis=1)[:, 0]
