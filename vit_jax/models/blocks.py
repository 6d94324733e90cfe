"""The block of a Vision Transformer's encoder."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.models.dropout import dropout
from vit_jax.models.layers import (
    DENSE_MLP,
    MLP,
    SWIGLU,
    Attention,
    SwiGLU,
    split,
    stochastic_depth,
)
from vit_jax.models.norms import layer_norm
from vit_jax.models.positions import (
    EVERY_LAYER,
    RELATIVE,
    ROTARY,
    bias_table,
    learned_positions,
    position_table,
    relative_position_bias,
)

MLPS = {DENSE_MLP: MLP, SWIGLU: SwiGLU}


class Block(nnx.Module):
    """One encoder block (equations 2 and 3): attention and MLP, each normalised and residual."""

    def __init__(self, options: Any, rngs: nnx.Rngs):
        self.options = options
        relative = options.positions == RELATIVE
        self.norm1 = layer_norm(options.width, options, rngs)
        self.attention = Attention(
            options,
            rngs,
            qkv_bias=options.qkv_bias,
            query_key_norm=options.query_key_norm,
            relative_length=options.num_tokens if relative else 0,
            rotary=options.positions in ROTARY,
            out_norm=options.attention_norm,
        )
        self.norm2 = layer_norm(options.width, options, rngs)
        self.mlp = MLPS[options.mlp](
            options.width,
            options.mlp_width,
            options,
            rngs,
            dropout_rate=options.dropout_rate,
            dropout_bits=options.dropout_bits,
            inner_norm=options.mlp_norm,
        )
        if options.layer_scale:
            self.layer_scale1 = nnx.Param(jnp.full(options.width, options.layer_scale, jnp.float32))
            self.layer_scale2 = nnx.Param(jnp.full(options.width, options.layer_scale, jnp.float32))
        if options.position_placement == EVERY_LAYER:
            self.position_embedding = learned_positions(options, rngs)
        if options.relative_position_bias == EVERY_LAYER:
            self.relative_position_bias = bias_table(options)

    def __call__(
        self,
        x: jax.Array,
        key: jax.Array | None,
        drop_rate: jax.Array | None,
        bias: jax.Array | None = None,
    ) -> tuple[jax.Array, jax.Array]:
        """Tokens [B, ..., S, D] -> the same, and the weights [B, ..., H, S, S] float32.

        `bias` [H, S, S] is added to attention's logits, where all layers share it.
        """
        attention_key, dropout_key, mlp_key, depth_key1, depth_key2 = split(key, 5)
        if self.options.position_placement == EVERY_LAYER:
            table = position_table(self.position_embedding, self.options)
            x = x + table.astype(x.dtype)
        if self.options.relative_position_bias == EVERY_LAYER:
            bias = relative_position_bias(self.relative_position_bias[...], self.options)
        y, weights = self.attention(self.norm1(x), attention_key, bias=bias)
        y = dropout(y, self.options.dropout_rate, dropout_key, self.options.dropout_bits)
        y = y * self.layer_scale1[...].astype(y.dtype) if self.options.layer_scale else y
        x = x + stochastic_depth(y, drop_rate, depth_key1)
        y = self.mlp(self.norm2(x), mlp_key)
        y = y * self.layer_scale2[...].astype(y.dtype) if self.options.layer_scale else y
        return x + stochastic_depth(y, drop_rate, depth_key2), weights
