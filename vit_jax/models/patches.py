"""Cutting an image, or a stem's feature map, into patches."""

import dataclasses

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx

from vit_jax.errors import ConfigError
from vit_jax.models.base import ModelOptions, as_pair, require_at_least, require_not_negative
from vit_jax.models.layers import lecun_normal
from vit_jax.models.norms import LAYER_NORM_EPSILON


@dataclasses.dataclass(frozen=True, kw_only=True)
class PatchOptions(ModelOptions):
    """The options of every model whose tokens are patches."""

    width: int  # D, the size of a token
    patch_size: tuple[int, int]
    norm_epsilon: float = LAYER_NORM_EPSILON  # of the LayerNorms; PyTorch's own is 1e-5

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "patch_size", as_pair("patch_size", self.patch_size))
        require_at_least(self, 1, "width")
        require_not_negative(self, "norm_epsilon")
        for side, name in enumerate(("height", "width")):
            image, patch = self.image_size[side], self.patch_size[side]
            if self.stem_size[side] % patch:
                step = patch * self.stem_stride
                stem = "" if self.stem_stride == 1 else f" times the stem's {self.stem_stride}"
                below, above = image // step * step, (image // step + 1) * step
                nearest = f"sizes that are: {below} and {above}" if below else f"that is: {above}"
                raise ConfigError(
                    f"model.image_size {image} ({name}) is not divisible by model.patch_size "
                    f"{patch}{stem}: the nearest {nearest}."
                )

    @property
    def stem_stride(self) -> int:
        """Pixels per element of the map that is cut into patches; 1: the image itself."""
        return 1

    @property
    def stem_channels(self) -> int:
        """Channels of the map that is cut into patches."""
        return self.channels

    @property
    def stem_size(self) -> tuple[int, int]:
        """Height and width of the map that is cut into patches."""
        height, width = self.image_size
        return -(-height // self.stem_stride), -(-width // self.stem_stride)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        return self.stem_size[0] // self.patch_size[0], self.stem_size[1] // self.patch_size[1]

    @property
    def num_patches(self) -> int:
        """N, the patches of an image."""
        return self.grid[0] * self.grid[1]

    @property
    def num_tokens(self) -> int:
        """Length of the sequence the blocks see."""
        return self.num_patches

    def embedding_macs(self) -> int:
        """Multiply-accumulates of the patch embedding."""
        values = self.patch_size[0] * self.patch_size[1] * self.stem_channels
        return self.num_patches * values * self.width


class PatchEmbedding(nnx.Module):
    """A linear map of each flattened patch: a convolution whose stride is its kernel."""

    def __init__(self, options: PatchOptions, rngs: nnx.Rngs, has_bias: bool = True):
        shape = (*options.patch_size, options.stem_channels, options.width)
        self.kernel = nnx.Param(lecun_normal(rngs.params(), shape))
        if has_bias:
            self.bias = nnx.Param(jnp.zeros(options.width))
        self.has_bias = has_bias
        self.dtype = options.dtype

    def __call__(self, images: jax.Array) -> jax.Array:
        """Images or feature maps [B, H, W, C] -> patches [B, N, D], row by row."""
        kernel = self.kernel[...].astype(self.dtype)
        height, width = kernel.shape[:2]
        patches = rearrange(
            images.astype(self.dtype), "b (h p) (w q) c -> b (h w) (p q c)", p=height, q=width
        )
        patches = patches @ rearrange(kernel, "p q c d -> (p q c) d")
        return patches + self.bias[...].astype(self.dtype) if self.has_bias else patches


def drop_patches(
    tokens: jax.Array, num_prefix: int, rate: float, key: jax.Array | None
) -> jax.Array:
    """Leaves out a random share of each image's patches; the identity without a key.

    Tokens [B, P + N, D] -> [B, P + max(1, ⌊(1 - rate) · N⌋), D]; prefix and order are kept.
    """
    if key is None or rate == 0:
        return tokens
    prefix, patches = tokens[:, :num_prefix], tokens[:, num_prefix:]
    kept = max(1, int(patches.shape[1] * (1 - rate)))
    order = jax.random.uniform(key, patches.shape[:2]).argsort(axis=1)[:, :kept]
    patches = jnp.take_along_axis(patches, jnp.sort(order, axis=1)[..., None], axis=1)
    return jnp.concatenate([prefix, patches], axis=1)
