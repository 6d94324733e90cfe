"""Axial attention (appendix D.6 of arXiv 2010.11929): along rows and along columns of the grid.

Axial-ViT: each block is a ViT block whose attention sees the tokens of one row, then a second,
with its own MLP, that sees those of one column. AxialResNet (arXiv 2003.07853): a ResNet whose
3×3 convolutions are replaced by row and column attention with relative positions.

Where the paper is silent, this is the choice:
  - Axial-ViT has no class token, which belongs to no row: the patches are averaged, or pooled by
    attention. Learned 1-D positions are added at the stem, as in ViT.
  - AxialResNet is the post-activation ResNet-50 of the hybrids and keeps its root and its 1×1
    convolutions, standardised. As in arXiv 2003.07853: queries and keys have half the values'
    features, all three have relative positions, 8 heads, norms on the projections and on the
    output, a 2×2 average pool where the convolution was strided. Its batch norms are GroupNorms
    over a row's or a column's features, and the norm of the three logits is left out, as in the
    ViT authors' port (scenic). Relative positions tie the parameters to the image size.
"""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from einops import rearrange
from flax import nnx

from vit_jax.errors import ConfigError
from vit_jax.models.base import (
    ATTENTION_WEIGHTS,
    BLOCK_OUTPUTS,
    PATCH_EMBEDDINGS,
    PRE_LOGITS,
    Constrain,
    require_at_least,
    unconstrained,
)
from vit_jax.models.blocks import Block
from vit_jax.models.layers import lecun_normal, split
from vit_jax.models.positions import EVERY_LAYER, NO_BIAS, RELATIVE, ROTARY
from vit_jax.models.resnet import GroupNorm, PostActivationUnit, ResNet, ResNetOptions, UnitShape
from vit_jax.models.softmax import softmax
from vit_jax.models.vit import AVERAGE_POOLING, VisionTransformer, ViTOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxialViTOptions(ViTOptions):
    """Everything that defines an Axial-ViT; `depth` counts pairs of a row and a column block."""

    pooling: str = AVERAGE_POOLING

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_prefix_tokens:
            raise ConfigError(
                "axial attention sees patches only: model.pooling must be 'average' or "
                "'attention', without model.class_token and model.num_registers."
            )
        if self.positions in (RELATIVE, *ROTARY) or self.position_placement == EVERY_LAYER:
            raise ConfigError(
                f"model.positions={self.positions!r} with model.position_placement="
                f"{self.position_placement!r} is not defined for axial attention: add a table at "
                "the 'stem' or 'every_layer_shared'."
            )
        if self.relative_position_bias != NO_BIAS:
            raise ConfigError(
                f"model.relative_position_bias={self.relative_position_bias!r} is of offsets in rows "
                "and columns at once, and axial attention sees one line: leave it 'none'."
            )
        if self.patch_dropout_rate:
            raise ConfigError("model.patch_dropout_rate: axial attention needs the whole grid.")

    def encoder_macs(self) -> int:
        """Multiply-accumulates of the blocks."""
        dense = 2 * (4 * self.width**2 + 2 * self.width * self.mlp_width)
        attention = 2 * sum(self.grid) * self.width
        return self.depth * self.num_patches * (dense + attention)


class AxialBlock(nnx.Module):
    """A ViT block along the rows, then one along the columns."""

    def __init__(self, options: AxialViTOptions, rngs: nnx.Rngs):
        self.row = Block(options, rngs)
        self.column = Block(options, rngs)
        self.grid = options.grid

    def __call__(
        self, x: jax.Array, key: jax.Array | None, drop_rate: jax.Array | None
    ) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """Tokens [B, R · C, D] -> the same, and the weights along rows and columns."""
        row_key, column_key = split(key, 2)
        rows = rearrange(x, "b (r c) d -> b r c d", r=self.grid[0])
        rows, row_weights = self.row(rows, row_key, drop_rate)
        columns = rows.swapaxes(1, 2)
        columns, column_weights = self.column(columns, column_key, drop_rate)
        return rearrange(columns, "b c r d -> b (r c) d"), (row_weights, column_weights)


class AxialViT(VisionTransformer):
    """Images [B, H, W, C] (normalised, float32) -> logits [B, K] float32.

    The intermediate "attention_weights" has a pair a block: [B, R, heads, C, C] along the rows
    and [B, C, heads, R, R] along the columns.
    """

    BLOCK: ClassVar[type[nnx.Module]] = AxialBlock

    def encode(
        self,
        tokens: jax.Array,
        key: jax.Array | None = None,
        constrain: Constrain = unconstrained,
        capture: tuple[str, ...] = (),
    ) -> tuple[jax.Array, dict[str, Any]]:
        """See `VisionTransformer.encode`."""
        tokens, captured = super().encode(tokens, key, constrain, capture)
        if ATTENTION_WEIGHTS in captured:
            rows, columns = captured[ATTENTION_WEIGHTS]
            captured[ATTENTION_WEIGHTS] = list(zip(rows, columns, strict=True))
        return tokens, captured


@dataclasses.dataclass(frozen=True, kw_only=True)
class AxialResNetOptions(ResNetOptions):
    """Everything that defines an AxialResNet; each field is a keyword of `create_model`."""

    num_heads: int = 8
    preactivation: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "num_heads")
        if self.preactivation:
            raise ConfigError("model.preactivation: an AxialResNet is post-activation only.")
        if self.root_width % (2 * self.num_heads):
            raise ConfigError(
                f"model.num_heads={self.num_heads}: twice it must divide {self.root_width}, the "
                "width of the first stage."
            )

    def unit_macs(self, unit: UnitShape) -> int:
        """Multiply-accumulates of one unit."""
        before, after = unit.size[0] * unit.size[1], unit.out_size[0] * unit.out_size[1]
        projection = unit.channels * unit.out_channels if unit.projects else 0
        # Per axis: queries, keys and values; 3 logits of half the width; 2 sums of values.
        attention = 2 * 2 * unit.width**2 + 3.5 * sum(unit.size) * unit.width
        inner = unit.channels * unit.width + int(attention)
        return before * inner + after * (unit.width * unit.out_channels + projection)


class RelativeAttention(nnx.Module):
    """Attention along a sequence, with relative positions of queries, keys and values.

    logits_ij = q_i · k_j + q_i · r^k_{i-j} + k_j · r^q_{i-j}, as in arXiv 2003.07853 without a
    division by the square root of the width, and output_i = Σ_j weights_ij (v_j + r^v_{i-j}).
    """

    def __init__(self, length: int, width: int, options: AxialResNetOptions, rngs: nnx.Rngs):
        self.kernel = nnx.Param(lecun_normal(rngs.params(), (width, 2 * width)))
        self.norm_projection = GroupNorm(2 * width, options)
        head_width = width // options.num_heads
        table = jax.random.normal(rngs.params(), (2 * length - 1, 2 * head_width))
        self.relative_positions = nnx.Param(table / np.sqrt(head_width))
        self.norm_out = GroupNorm(width, options)
        self.num_heads, self.dtype = options.num_heads, options.dtype

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """[B, L, C] -> [B, L, C], and the weights [B, heads, L, L] float32."""
        length, half = x.shape[1], x.shape[2] // (2 * self.num_heads)
        kernel = self.kernel[...].astype(self.dtype)
        projected = jnp.matmul(x, kernel, preferred_element_type=jnp.float32)
        # Float32 from here: XLA lacks some of these products of bfloat16 on CPUs.
        projected = self.norm_projection(projected).astype(jnp.float32)
        projected = rearrange(projected, "b l (h c) -> b l h c", h=self.num_heads)
        query, key, value = jnp.split(projected, (half, 2 * half), axis=-1)
        offsets = np.arange(length)[:, None] - np.arange(length) + length - 1
        relative = self.relative_positions[...][offsets]
        query_position, key_position, value_position = jnp.split(
            relative, (half, 2 * half), axis=-1
        )
        logits = (
            jnp.einsum("bihc,bjhc->bhij", query, key)
            + jnp.einsum("bihc,ijc->bhij", query, key_position)
            + jnp.einsum("bjhc,ijc->bhij", key, query_position)
        )
        weights = softmax(logits)
        y = jnp.einsum("bhij,bjhc->bihc", weights, value)
        y = y + jnp.einsum("bhij,ijc->bihc", weights, value_position)
        return self.norm_out(rearrange(y, "b l h c -> b l (h c)")), weights


class AxialUnit(PostActivationUnit):
    """The post-activation unit, with attention along both axes instead of its 3×3 convolution."""

    def init_middle(self, shape: UnitShape, options: AxialResNetOptions, rngs: nnx.Rngs) -> None:
        """Makes the attention along both axes."""
        self.column_attention = RelativeAttention(shape.size[0], shape.width, options, rngs)
        self.row_attention = RelativeAttention(shape.size[1], shape.width, options, rngs)
        self.stride = shape.stride

    def __call__(self, x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        """[B, H, W, C] -> [B, H', W', 4 · width], and the weights along rows and columns."""
        shortcut = self.norm_projection(self.projection(x)) if self.projects else x
        y = jax.nn.relu(self.norm1(self.conv1(x)))
        height, width = y.shape[1:3]
        y, column_weights = self.column_attention(rearrange(y, "b h w c -> (b w) h c"))
        y, row_weights = self.row_attention(rearrange(y, "(b w) h c -> (b h) w c", w=width))
        y = rearrange(y, "(b h) w c -> b h w c", h=height)
        if self.stride > 1:
            window = (self.stride, self.stride)
            y = nnx.avg_pool(y, window, strides=window, padding="SAME", count_include_pad=False)
        y = self.norm3(self.conv3(jax.nn.relu(y)))
        weights = (
            rearrange(row_weights, "(b h) ... -> b h ...", h=height),
            rearrange(column_weights, "(b w) ... -> b w ...", w=width),
        )
        return jax.nn.relu(shortcut + y), weights


class AxialResNet(ResNet):
    """Images [B, H, W, C] (normalised, float32) -> logits [B, K] float32.

    The intermediate "attention_weights" has a pair a unit: [B, H, heads, W, W] along the rows
    and [B, W, heads, H, H] along the columns.
    """

    INTERMEDIATES: ClassVar = (PATCH_EMBEDDINGS, BLOCK_OUTPUTS, ATTENTION_WEIGHTS, PRE_LOGITS)

    @staticmethod
    def unit(options: AxialResNetOptions) -> type[nnx.Module]:
        """The module of a unit."""
        return AxialUnit
