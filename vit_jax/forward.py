"""From pixels to logits: the one function that training, evaluation and prediction compute."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh

from vit_jax.devices import sharding
from vit_jax.model_file import Preprocessing

Forward = Callable[..., jax.Array]  # (params, images uint8, key=None) -> logits [B, K]


def make_forward(graphdef: nnx.GraphDef, preprocessing: Preprocessing, mesh: Mesh) -> Forward:
    """The function (params, images uint8 [B, H, W, C], key=None) -> logits [B, K] float32.

    A random key turns on training mode. Activations are split over the mesh as the batch is.
    """
    rows = sharding.batch_sharding(mesh)

    def constrain(activations: jax.Array) -> jax.Array:
        return jax.lax.with_sharding_constraint(activations, rows)

    def forward(params: dict, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        normalized = normalize(images, preprocessing)
        return nnx.merge(graphdef, params)(normalized, key=key, constrain=constrain)

    return forward


def normalize(images: jax.Array, preprocessing: Preprocessing) -> jax.Array:
    """Images uint8 [B, H, W, C] as the model expects them, float32."""
    mean, std = np.float32(preprocessing.mean), np.float32(preprocessing.std)
    return (images.astype(jnp.float32) / 255 - mean) / std
