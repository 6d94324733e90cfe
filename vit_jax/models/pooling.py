"""Pooling of tokens by attention."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.layers import MLP, Attention, xavier_uniform
from vit_jax.models.norms import layer_norm


class AttentionPooling(nnx.Module):
    """Multi-head attention pooling (MAP, arXiv 2106.04560): a learned probe attends to the tokens.

    No residual around the attention, one around the MLP, and no dropout.

    Args:
      options: width, mlp_width, and those of `Attention`.
      rngs: for the initial parameters.
    """

    def __init__(self, options: Any, rngs: nnx.Rngs):
        self.probe = nnx.Param(xavier_uniform(rngs.params(), (1, 1, options.width)))
        self.attention = Attention(options, rngs)
        self.norm = layer_norm(options.width, options, rngs)
        self.mlp = MLP(options.width, options.mlp_width, options, rngs)

    def __call__(self, tokens: jax.Array) -> jax.Array:
        """[B, N, D] -> [B, D]."""
        probe = jnp.broadcast_to(
            self.probe[...].astype(tokens.dtype), (len(tokens), 1, tokens.shape[-1])
        )
        x, _ = self.attention(probe, memory=tokens)
        return (x + self.mlp(self.norm(x)))[:, 0]
