"""MLP-Mixer (arXiv 2105.01601), as in the reference repository.

Patches are mixed by an MLP over their positions and one over their features, in turn; there are no
positions, so the image size is fixed by the parameters. Names in published files: `stem/` is our
`embedding/`, `MixerBlock_i/{LayerNorm_0, token_mixing, LayerNorm_1, channel_mixing}` our
`blocks/{norm1, token_mixing, norm2, channel_mixing}`, `Dense_{0,1}` our `dense{1,2}`, and
`pre_head_layer_norm` our `norm`.
"""

import dataclasses
from typing import Any

import jax
from flax import nnx

from vit_jax.models.base import (
    AUTO,
    BLOCK_OUTPUTS,
    PATCH_EMBEDDINGS,
    Constrain,
    ImageClassifier,
    mean_pool,
    require_at_least,
    require_one_of,
    require_rates,
    require_unroll,
)
from vit_jax.models.layers import (
    GELU,
    LINEAR,
    MLP,
    drop_rates,
    lecun_normal,
    scan_blocks,
    split,
    stochastic_depth,
)
from vit_jax.models.norms import layer_norm
from vit_jax.models.patches import PatchEmbedding, PatchOptions


@dataclasses.dataclass(frozen=True, kw_only=True)
class MixerOptions(PatchOptions):
    """Everything that defines an MLP-Mixer; each field is a keyword of `create_model`."""

    depth: int  # the number of blocks
    token_mlp_width: int  # hidden size of the MLP over positions
    mlp_width: int  # hidden size of the MLP over features
    stochastic_depth_rate: float = 0.0  # of dropping a residual branch, from 0 at the first block
    gelu: str = "tanh"  # or "erf"
    scan_unroll: int | str = AUTO  # blocks per iteration of the scan

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, 1, "depth", "token_mlp_width", "mlp_width")
        require_unroll(self)
        require_rates(self, "stochastic_depth_rate")
        require_one_of(self, gelu=GELU)

    def macs(self) -> int:
        """Multiply-accumulates of one image's forward pass; dense layers only."""
        hidden = self.token_mlp_width + self.mlp_width
        blocks = self.depth * 2 * self.num_patches * self.width * hidden
        return self.embedding_macs() + blocks + self.width * self.num_classes


class MixerBlock(nnx.Module):
    """Token mixing, then channel mixing, each normalised and residual.

    Stochastic depth does not rescale the branches that it keeps, as in Big Vision's mlp_mixer.py.
    """

    def __init__(self, options: MixerOptions, rngs: nnx.Rngs):
        inits: dict[str, Any] = {"kernel_init": lecun_normal, "bias_init": nnx.initializers.zeros}
        self.norm1 = layer_norm(options.width, options, rngs)
        self.token_mixing = MLP(
            options.num_patches, options.token_mlp_width, options, rngs, **inits
        )
        self.norm2 = layer_norm(options.width, options, rngs)
        self.channel_mixing = MLP(options.width, options.mlp_width, options, rngs, **inits)

    def __call__(
        self, x: jax.Array, key: jax.Array | None, drop_rate: jax.Array | None
    ) -> jax.Array:
        """Tokens [B, N, D] -> [B, N, D]."""
        key1, key2 = split(key, 2)
        y = self.token_mixing(self.norm1(x).swapaxes(1, 2)).swapaxes(1, 2)
        x = x + stochastic_depth(y, drop_rate, key1, rescaled=False)
        y = self.channel_mixing(self.norm2(x))
        return x + stochastic_depth(y, drop_rate, key2, rescaled=False)


class Mixer(ImageClassifier):
    """Images [B, H, W, C] (normalised, float32) -> logits [B, K] float32."""

    options: MixerOptions

    def __init__(self, options: MixerOptions, rngs: nnx.Rngs):
        super().__init__(options, options.width, rngs)
        self.embedding = PatchEmbedding(options, rngs)
        make_blocks = nnx.vmap(lambda rngs: MixerBlock(options, rngs), axis_size=options.depth)
        self.blocks = make_blocks(rngs.split(options.depth))
        self.norm = layer_norm(options.width, options, rngs)

    def features(
        self,
        images: jax.Array,
        key: jax.Array | None,
        constrain: Constrain,
        capture: tuple[str, ...],
    ) -> tuple[jax.Array, dict[str, Any]]:
        """See `ImageClassifier.features`."""
        options = self.options
        patches = self.embedding(images)
        keys = None if key is None else jax.random.split(key, options.depth)
        rates = drop_rates(options.stochastic_depth_rate, LINEAR, options.depth)

        def apply(block: nnx.Module, tokens: jax.Array, layer: tuple) -> tuple[jax.Array, dict]:
            tokens = constrain(block(tokens, *layer))
            return tokens, {BLOCK_OUTPUTS: tokens} if BLOCK_OUTPUTS in capture else {}

        tokens, captured = scan_blocks(
            self.blocks, constrain(patches), (keys, rates), apply, options
        )
        return mean_pool(self.normalize_tokens(tokens)), {PATCH_EMBEDDINGS: patches, **captured}
