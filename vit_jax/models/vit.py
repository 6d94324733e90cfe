"""The Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), in one file.

    tokens = [class token; patches · E] + E_pos                    (equation 1)
    tokens = tokens + MSA(LN(tokens)); tokens + MLP(LN(tokens))    (equations 2 and 3), L times
    y      = LN(tokens)[class token]                               (equation 4)

Parameters are float32 and named by their place (`blocks/attention/query/kernel`). The blocks are
stacked: each of their parameters has a leading layer axis, and `jax.lax.scan` runs over it.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx

from vit_jax.errors import ConfigError

LAYER_NORM_EPSILON = 1e-6  # The reference's; PyTorch's default is 1e-5.
CLASS_TOKEN_POOLING, AVERAGE_POOLING = "token", "average"

GELU = {
    "tanh": lambda x: jax.nn.gelu(x, approximate=True),  # the reference
    "erf": lambda x: jax.nn.gelu(x, approximate=False),  # timm, Hugging Face
}
REMAT_POLICIES = {
    "none": None,  # keep every activation
    "full": jax.checkpoint_policies.nothing_saveable,  # recompute each block
    "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,  # keep matrix products
}

xavier_uniform = nnx.initializers.xavier_uniform()
lecun_normal = nnx.initializers.lecun_normal()


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTOptions:
    """Everything that defines a Vision Transformer; each field is a keyword of `create_model`.

    Sizes are given as one integer or as (height, width); they are kept as pairs.
    """

    width: int  # D, the size of a token
    depth: int  # L, the number of blocks
    mlp_width: int  # the MLP's hidden size
    num_heads: int
    patch_size: int | tuple[int, int]
    num_classes: int = 1000  # 0: no head, the model returns its representation
    image_size: int | tuple[int, int] = 224
    channels: int = 3
    pooling: str = CLASS_TOKEN_POOLING  # or "average", over the normalised tokens
    representation_size: int = 0  # width of the tanh layer before the head; 0: none
    dropout_rate: float = 0.0  # after every dense layer but q, k, v, and after the positions
    attention_dropout_rate: float = 0.0  # on the attention weights; 0 in every published recipe
    head_bias: float = 0.0  # initial value of the head's bias
    position_std: float = 0.02  # spread of the initial position embeddings
    gelu: str = "tanh"  # or "erf"
    dtype: str = "float32"  # of the computation; parameters are always float32
    remat: str = "none"  # or "full", "dots": what the backward pass recomputes
    scan_unroll: int = 1  # blocks per iteration of the scan

    def __post_init__(self) -> None:
        for field in ("image_size", "patch_size"):
            object.__setattr__(self, field, as_pair(field, getattr(self, field)))
        for field in ("width", "depth", "mlp_width", "num_heads", "channels", "scan_unroll"):
            if getattr(self, field) < 1:
                raise ConfigError(f"model.{field}={getattr(self, field)}: must be at least 1.")
        if self.width % self.num_heads:
            raise ConfigError(
                f"model.width={self.width} is not divisible by model.num_heads={self.num_heads}."
            )
        for image, patch, side in zip(
            self.image_size, self.patch_size, ("height", "width"), strict=True
        ):
            if image % patch:
                raise ConfigError(
                    f"model.image_size {image} ({side}) is not divisible by model.patch_size "
                    f"{patch}: the nearest sizes that are: {image // patch * patch or patch} "
                    f"and {(image // patch + 1) * patch}."
                )
        for field, allowed in {
            "pooling": (CLASS_TOKEN_POOLING, AVERAGE_POOLING),
            "gelu": tuple(GELU),
            "dtype": ("float32", "bfloat16"),
            "remat": tuple(REMAT_POLICIES),
        }.items():
            if getattr(self, field) not in allowed:
                raise ConfigError(
                    f"model.{field}={getattr(self, field)!r}: must be one of {', '.join(allowed)}."
                )
        for field in ("dropout_rate", "attention_dropout_rate"):
            if not 0 <= getattr(self, field) < 1:
                raise ConfigError(f"model.{field}={getattr(self, field)}: must be in [0, 1).")

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return (
            self.image_size[0] // self.patch_size[0],
            self.image_size[1] // self.patch_size[1],
        )

    @property
    def num_tokens(self) -> int:
        """Length of the sequence the blocks see."""
        return self.grid[0] * self.grid[1] + (self.pooling == CLASS_TOKEN_POOLING)

    def macs(self) -> int:
        """Multiply-accumulates of one image's forward pass; dense layers and attention only."""
        patches = self.grid[0] * self.grid[1]
        embedding = patches * self.patch_size[0] * self.patch_size[1] * self.channels * self.width
        dense = self.num_tokens * (4 * self.width**2 + 2 * self.width * self.mlp_width)
        attention = 2 * self.num_tokens**2 * self.width
        representation = self.width * self.representation_size
        head = (self.representation_size or self.width) * self.num_classes
        return embedding + self.depth * (dense + attention) + representation + head


def as_pair(name: str, size: int | tuple[int, int]) -> tuple[int, int]:
    """`size` as (height, width); raises ConfigError for anything but positive integers."""
    pair = (size, size) if isinstance(size, int) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int) and side > 0 for side in pair):
        raise ConfigError(f"model.{name}={size!r}: must be a positive integer or a pair of them.")
    return pair


def dropout(x: jax.Array, rate: float, key: jax.Array | None) -> jax.Array:
    """Zeroes each element with probability `rate` and rescales; the identity without a key."""
    if key is None or rate == 0:
        return x
    keep = jax.random.bernoulli(key, 1 - rate, x.shape)
    return jnp.where(keep, x / (1 - rate), 0)


def split(key: jax.Array | None, num: int) -> list[jax.Array | None]:
    """`num` keys from one; no keys from none."""
    return [None] * num if key is None else list(jax.random.split(key, num))


def layer_norm(options: ViTOptions, rngs: nnx.Rngs) -> nnx.LayerNorm:
    """LayerNorm over the tokens' features, with statistics in float32."""
    return nnx.LayerNorm(options.width, epsilon=LAYER_NORM_EPSILON, dtype=options.dtype, rngs=rngs)


class PatchEmbedding(nnx.Module):
    """A linear map of each flattened patch: a convolution whose stride is its kernel."""

    def __init__(self, options: ViTOptions, rngs: nnx.Rngs):
        shape = (*options.patch_size, options.channels, options.width)
        self.kernel = nnx.Param(lecun_normal(rngs.params(), shape))
        self.bias = nnx.Param(jnp.zeros(options.width))
        self.dtype = options.dtype

    def __call__(self, images: jax.Array) -> jax.Array:
        """Images [B, H, W, C] -> patches [B, rows · columns, D], row by row."""
        kernel = self.kernel[...].astype(self.dtype)
        height, width = kernel.shape[:2]
        patches = rearrange(
            images.astype(self.dtype), "b (h p) (w q) c -> b (h w) (p q c)", p=height, q=width
        )
        return patches @ rearrange(kernel, "p q c d -> (p q c) d") + self.bias[...].astype(
            self.dtype
        )


class Attention(nnx.Module):
    """Multi-head self-attention (equations 5 to 8); softmax in float32."""

    def __init__(self, options: ViTOptions, rngs: nnx.Rngs):
        width, heads, dtype = options.width, options.num_heads, options.dtype
        kwargs = {"kernel_init": xavier_uniform, "dtype": dtype, "rngs": rngs}
        self.query = nnx.LinearGeneral(width, (heads, width // heads), **kwargs)
        self.key = nnx.LinearGeneral(width, (heads, width // heads), **kwargs)
        self.value = nnx.LinearGeneral(width, (heads, width // heads), **kwargs)
        self.out = nnx.LinearGeneral((heads, width // heads), width, axis=(-2, -1), **kwargs)
        self.dropout_rate = options.attention_dropout_rate

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """Tokens [B, S, D] -> [B, S, D]."""
        query, key_, value = self.query(x), self.key(x), self.value(x)
        query = query / jnp.sqrt(query.shape[-1]).astype(query.dtype)
        logits = jnp.einsum("bqhd,bkhd->bhqk", query, key_, preferred_element_type=jnp.float32)
        weights = dropout(jax.nn.softmax(logits), self.dropout_rate, key).astype(value.dtype)
        return self.out(jnp.einsum("bhqk,bkhd->bqhd", weights, value))


class MLP(nnx.Module):
    """Dense, GELU, Dense, with dropout after both."""

    def __init__(self, options: ViTOptions, rngs: nnx.Rngs):
        kwargs = {
            "kernel_init": xavier_uniform,
            "bias_init": nnx.initializers.normal(1e-6),
            "dtype": options.dtype,
            "rngs": rngs,
        }
        self.dense1 = nnx.Linear(options.width, options.mlp_width, **kwargs)
        self.dense2 = nnx.Linear(options.mlp_width, options.width, **kwargs)
        self.gelu, self.dropout_rate = options.gelu, options.dropout_rate

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """Tokens [B, S, D] -> [B, S, D]."""
        key1, key2 = split(key, 2)
        x = dropout(GELU[self.gelu](self.dense1(x)), self.dropout_rate, key1)
        return dropout(self.dense2(x), self.dropout_rate, key2)


class Block(nnx.Module):
    """One encoder block (equations 2 and 3): attention and MLP, each normalised and residual."""

    def __init__(self, options: ViTOptions, rngs: nnx.Rngs):
        self.norm1 = layer_norm(options, rngs)
        self.attention = Attention(options, rngs)
        self.norm2 = layer_norm(options, rngs)
        self.mlp = MLP(options, rngs)
        self.dropout_rate = options.dropout_rate

    def __call__(self, x: jax.Array, key: jax.Array | None) -> jax.Array:
        """Tokens [B, S, D] -> [B, S, D]."""
        attention_key, dropout_key, mlp_key = split(key, 3)
        y = self.attention(self.norm1(x), attention_key)
        x = x + dropout(y, self.dropout_rate, dropout_key)
        return x + self.mlp(self.norm2(x), mlp_key)


class VisionTransformer(nnx.Module):
    """Images [B, H, W, C] (normalised, float32) -> logits [B, K] float32."""

    def __init__(self, options: ViTOptions, rngs: nnx.Rngs):
        self.options = options
        self.embedding = PatchEmbedding(options, rngs)
        if options.pooling == CLASS_TOKEN_POOLING:
            self.class_token = nnx.Param(jnp.zeros((1, 1, options.width)))
        self.position_embedding = nnx.Param(
            options.position_std
            * jax.random.normal(rngs.params(), (1, options.num_tokens, options.width))
        )
        make_blocks = nnx.vmap(lambda rngs: Block(options, rngs), axis_size=options.depth)
        self.blocks = make_blocks(rngs.split(options.depth))
        self.norm = layer_norm(options, rngs)
        if options.representation_size:
            self.pre_logits = nnx.Linear(
                options.width, options.representation_size, kernel_init=lecun_normal, rngs=rngs
            )
        if options.num_classes:
            self.head = nnx.Linear(
                options.representation_size or options.width,
                options.num_classes,
                kernel_init=nnx.initializers.zeros,
                bias_init=nnx.initializers.constant(options.head_bias),
                rngs=rngs,
            )

    def __call__(
        self,
        images: jax.Array,
        *,
        key: jax.Array | None = None,
        constrain: Callable[[jax.Array], jax.Array] = lambda x: x,
    ) -> jax.Array:
        """Classifies images.

        Args:
          images: [B, H, W, C] float32, normalised as the weights expect (default [-1, 1]), of
            the size in `options.image_size`.
          key: a random key turns on training mode (dropout); without one the model is
            deterministic.
          constrain: applied to the tokens [B, S, D] after the embedding and each block; where the
            trainer pins their sharding.

        Returns:
          Logits [B, num_classes] float32, or with `num_classes=0` the representation.
        """
        embed_key, encode_key = split(key, 2)
        tokens = constrain(self.embed(images, embed_key))
        tokens = self.encode(tokens, encode_key, constrain)
        representation = self.pool(tokens)
        return self.head(representation) if self.options.num_classes else representation

    def embed(self, images: jax.Array, key: jax.Array | None = None) -> jax.Array:
        """Images [B, H, W, C] -> tokens [B, S, D] with their positions (equation 1)."""
        if images.shape[1:] != (*self.options.image_size, self.options.channels):
            raise ConfigError(
                f"images of shape {images.shape[1:]} given to a model for "
                f"{(*self.options.image_size, self.options.channels)} (height, width, channels)."
            )
        tokens = self.embedding(images)
        if self.options.pooling == CLASS_TOKEN_POOLING:
            class_token = self.class_token[...].astype(tokens.dtype)
            class_token = jnp.broadcast_to(class_token, (len(tokens), 1, tokens.shape[-1]))
            tokens = jnp.concatenate([class_token, tokens], axis=1)
        tokens = tokens + self.position_embedding[...].astype(tokens.dtype)
        return dropout(tokens, self.options.dropout_rate, key)

    def encode(
        self,
        tokens: jax.Array,
        key: jax.Array | None = None,
        constrain: Callable[[jax.Array], jax.Array] = lambda x: x,
    ) -> jax.Array:
        """Tokens [B, S, D] through all blocks and the final norm (equations 2 to 4)."""
        graphdef, parameters = nnx.split(self.blocks)

        def run_block(tokens: jax.Array, layer: tuple) -> tuple[jax.Array, None]:
            layer_parameters, layer_key = layer
            block = nnx.merge(graphdef, layer_parameters)
            return constrain(block(tokens, layer_key)), None

        if self.options.remat != "none":
            run_block = jax.checkpoint(
                run_block, policy=REMAT_POLICIES[self.options.remat], prevent_cse=False
            )
        keys = None if key is None else jax.random.split(key, self.options.depth)
        unroll = min(self.options.scan_unroll, self.options.depth)
        tokens, _ = jax.lax.scan(run_block, tokens, (parameters, keys), unroll=unroll)
        return self.norm(tokens)

    def pool(self, tokens: jax.Array) -> jax.Array:
        """Encoded tokens [B, S, D] -> representation [B, R] float32, the input of the head."""
        if self.options.pooling == CLASS_TOKEN_POOLING:
            pooled = tokens[:, 0].astype(jnp.float32)
        else:
            pooled = tokens.astype(jnp.float32).mean(axis=1)
        return jnp.tanh(self.pre_logits(pooled)) if self.options.representation_size else pooled
