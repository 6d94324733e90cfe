"""Masked autoencoders, MAE (arXiv 2111.06377): most patches are left out, and their pixels predicted.

The model sees a random quarter of the patches, with their positions. A small decoder gets its tokens,
a learned [mask] token wherever a patch was left out, and fixed positions; it predicts every patch's
pixels, and those that were left out count. Targets are the pixels that the model sees, normalised
within each patch by its own mean and variance.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from vit_jax.errors import ConfigError
from vit_jax.kinds import Flag, Fraction, whole
from vit_jax.models.attention import CUDNN, XLA, cudnn_obstacle
from vit_jax.models.base import Constrain
from vit_jax.models.layers import scan_blocks, xavier_uniform
from vit_jax.models.norms import layer_norm
from vit_jax.models.positions import sincos_2d
from vit_jax.models.vit import Block, ViTOptions
from vit_jax.network import Network
from vit_jax.objectives import patch_pixels
from vit_jax.objectives.base import TRAINING_FLOPS, Auxiliary, Batch, Labels, Objective
from vit_jax.parameters import OBJECTIVE

STREAM = 0x3AE0  # Keeps its random keys apart from all others of the seed.
EPSILON = 1e-6  # Added to a patch's variance.
MLP_RATIO = 4
GREY = 128.0  # Of patches that are left out, in pictures.


class Decoder(nnx.Module):
    """Blocks on the tokens of all positions, and a linear head for their pixels."""

    def __init__(self, options: ViTOptions, encoder_width: int, size: int, rngs: nnx.Rngs):
        """Draws its parameters.

        Args:
          options: of its blocks.
          encoder_width: of the tokens that it is given.
          size: numbers that it predicts for each patch.
          rngs: random keys.
        """
        self.options = options
        kwargs: dict[str, Any] = {"kernel_init": xavier_uniform, "rngs": rngs}
        self.embedding = nnx.Linear(encoder_width, options.width, dtype=options.dtype, **kwargs)
        self.mask = nnx.Param(0.02 * jax.random.normal(rngs.params(), (options.width,)))
        make_blocks = nnx.vmap(lambda rngs: Block(options, rngs), axis_size=options.depth)
        self.blocks = make_blocks(rngs.split(options.depth))
        self.norm = layer_norm(options.width, options, rngs)
        self.head = nnx.Linear(options.width, size, **kwargs)  # float32, as losses are.

    def __call__(
        self, tokens: jax.Array, kept: jax.Array, masked: jax.Array, constrain: Constrain
    ) -> jax.Array:
        """Predicts every patch.

        Args:
          tokens: of the encoder, [B, P + K, E]: those before the patches, and the patches kept.
          kept, masked: positions of the patches that were kept and left out, int32 [B, K], [B, M].
          constrain: as a model's.

        Returns:
          float32 [B, K + M, size].
        """
        num_prefix = tokens.shape[1] - kept.shape[1]
        x = self.embedding(tokens)
        prefix, patches = x[:, :num_prefix], x[:, num_prefix:]
        shape = (*masked.shape, self.options.width)
        masks = jnp.broadcast_to(self.mask[...].astype(x.dtype), shape)
        order = jnp.concatenate([kept, masked], axis=1)
        patches = jnp.concatenate([patches, masks], axis=1)
        patches = patch_pixels.put(jnp.zeros_like(patches), order, patches)
        patches = patches + sincos_2d(*self.options.grid, self.options.width).astype(x.dtype)
        x = constrain(jnp.concatenate([prefix, patches], axis=1))

        def apply(block: Block, x: jax.Array, layer: None) -> tuple[jax.Array, None]:
            return constrain(block(x, None, None)[0]), None

        x, _ = scan_blocks(self.blocks, x, None, apply, self.options)
        return self.head(self.norm(x)[:, num_prefix:].astype(jnp.float32))


class MaskedAutoencoder(Objective):
    """Predicts the pixels of patches that the model has not seen."""

    EVALUATORS: ClassVar[str] = "objective"
    BEST_METRIC: ClassVar[str] = "-eval/loss"
    CLASSIFIES: ClassVar[bool] = False

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The objective's keys of `config.objective`."""

        mask_ratio: Fraction = 0.75  # Share of the patches that the model does not see.
        normalize_patches: Flag = True  # Targets have mean 0 and variance 1 within each patch.
        decoder_width: whole(8) = 512
        decoder_depth: whole(1) = 8
        decoder_heads: whole(1) = 16

    def __init__(self, options: Options, network: Network, labels: Labels, teacher: str = ""):
        super().__init__(options, network, labels, teacher)
        self.model = patch_pixels.require_sequence(network.options, "masked_autoencoder")
        patch_pixels.refuse_layers_of_pooling(self.model, "masked_autoencoder")
        self.patch = patch_pixels.pixels_of_a_patch(self.model)
        count = self.model.num_patches
        self.num_masked = min(count - 1, max(1, round(options.mask_ratio * count)))
        if not self.num_masked:
            raise ConfigError(
                "config.objective.name='masked_autoencoder': this model has one patch an image, and "
                "none to leave out: choose a smaller model.patch_size."
            )
        self.decoder_options = self._decoder_options()
        self.decoder = nnx.split(nnx.eval_shape(lambda: self._make_decoder(jax.random.key(0))))[0]

    def init(self, key: jax.Array) -> dict:
        """The decoder's parameters."""
        return nnx.to_pure_dict(nnx.split(self._make_decoder(key))[1])

    def prepare(self, batch: Batch, seed: int, step: jax.Array | int) -> Batch:
        """Draws which patches the model sees: `kept` int32 [B, K], the others `masked` [B, M]."""
        stream = jax.random.fold_in(jax.random.key(seed), STREAM)
        shape = (len(batch["image"]), self.model.num_patches)
        order = patch_pixels.random_order(jax.random.fold_in(stream, step), shape)
        masked, kept = order[:, : self.num_masked], order[:, self.num_masked :]
        return {**batch, "kept": kept, "masked": masked}

    def loss(
        self, params: dict, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Auxiliary]:
        """The mean squared error over the pixels of the patches that were left out."""
        del frozen
        predictions = patch_pixels.take(self._predictions(params, batch, key), batch["masked"])
        targets = patch_pixels.take(self._targets(batch)[0], batch["masked"])
        return jnp.square(predictions - targets).mean(axis=(1, 2)), {}

    def pictures(self, params: dict, frozen: dict, batch: Batch) -> jax.Array:
        """The image, the part that the model saw, and the whole as it is predicted."""
        _, mean, deviation = self._targets(batch)
        predictions = self._predictions(params, batch, None) * deviation + mean
        std, means = map(jnp.asarray, self._normalization())
        shape = (*predictions.shape[:2], *self.patch, self.model.channels)
        pixels = jnp.clip((predictions.reshape(shape) * std + means) * 255, 0, 255)
        whole_image = patch_pixels.cut(batch["image"].astype(jnp.float32), self.model.grid)
        seen = patch_pixels.take(whole_image, batch["kept"])
        drawn = patch_pixels.join(patch_pixels.put(pixels, batch["kept"], seen), self.model.grid)
        columns = [batch["image"], self._seen(batch), drawn]
        return jnp.concatenate([column.astype(jnp.float32) for column in columns], axis=2)

    def training_flops(self) -> int:
        """Those of the model on the patches that it sees, and of the decoder on all."""
        model, decoder = self.model, self.decoder_options
        count, prefix = model.num_patches, model.num_prefix_tokens
        seen = prefix + count - self.num_masked
        encoder = model.macs() - model.encoder_macs() + model.sequence_macs(seen)
        embedding = seen * model.width * decoder.width
        head = count * decoder.width * self._pixels_of_a_patch
        own = embedding + decoder.sequence_macs(prefix + count) + head
        return TRAINING_FLOPS * (encoder + own)

    def show(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The images without the patches that are left out."""
        return self._seen(batch), batch["label"]

    def describe(self) -> Sequence[str]:
        """How much is left out, and the decoder."""
        decoder = f"{self.options.decoder_depth} blocks of width {self.options.decoder_width}"
        return [f"{self.num_masked} of {self.model.num_patches} patches left out", decoder]

    @property
    def _pixels_of_a_patch(self) -> int:
        return self.patch[0] * self.patch[1] * self.model.channels

    def _decoder_options(self) -> ViTOptions:
        options = self.options
        return ViTOptions(
            width=options.decoder_width,
            depth=options.decoder_depth,
            num_heads=options.decoder_heads,
            mlp_width=MLP_RATIO * options.decoder_width,
            patch_size=self.patch,
            image_size=self.model.image_size,
            channels=self.model.channels,
            gelu=self.model.gelu,
            dtype=self.model.dtype,
            attention=self._decoder_attention(),
            remat=self.model.remat,
            scan_unroll=self.model.scan_unroll,
            positions="sincos_2d",
        )

    def _decoder_attention(self) -> str:
        """The encoder's, unless its kernel does not take the decoder's heads."""
        head_width = self.options.decoder_width // self.options.decoder_heads
        obstacle = cudnn_obstacle(head_width, self.model.dtype)
        return XLA if self.model.attention == CUDNN and obstacle else self.model.attention

    def _make_decoder(self, key: jax.Array) -> Decoder:
        size, rngs = self._pixels_of_a_patch, nnx.Rngs(key)
        return Decoder(self.decoder_options, self.model.width, size, rngs)

    def _predictions(self, params: dict, batch: Batch, key: jax.Array | None) -> jax.Array:
        """Of all patches, float32 [B, N, P·Q·C]."""
        keys = (None, None) if key is None else jax.random.split(key)
        model: Any = self.network.bind(params)
        constrain, num_prefix = self.network.constrain, self.model.num_prefix_tokens
        patches = model.embed_patches(self.network.normalize(batch["image"]), constrain)
        tokens = model.embed_sequence(patches, keys[0])
        seen = patch_pixels.take(tokens[:, num_prefix:], batch["kept"])
        tokens = constrain(jnp.concatenate([tokens[:, :num_prefix], seen], axis=1))
        tokens = model.encode(tokens, keys[1], constrain)[0]
        tokens = model.norm(tokens) if self.model.final_norm else tokens
        decoder = nnx.merge(self.decoder, params[OBJECTIVE])
        return decoder(tokens, batch["kept"], batch["masked"], constrain)

    def _targets(self, batch: Batch) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Of all patches, float32 [B, N, P·Q·C], and the mean and deviation [B, N, 1] taken out."""
        pixels = patch_pixels.cut(self.network.normalize(batch["image"]), self.model.grid)
        pixels = pixels.reshape(*pixels.shape[:2], -1)
        if not self.options.normalize_patches:
            return pixels, jnp.zeros_like(pixels[..., :1]), jnp.ones_like(pixels[..., :1])
        mean = pixels.mean(axis=-1, keepdims=True)
        variance = pixels.var(axis=-1, keepdims=True, ddof=min(1, pixels.shape[-1] - 1))
        deviation = jnp.sqrt(variance + EPSILON)
        return (pixels - mean) / deviation, mean, deviation

    def _normalization(self) -> tuple[Any, Any]:
        preprocessing = self.network.preprocessing
        return preprocessing.std, preprocessing.mean

    def _seen(self, batch: Batch) -> jax.Array:
        pixels = patch_pixels.cut(batch["image"].astype(jnp.float32), self.model.grid)
        grey = jnp.full((*batch["masked"].shape, *pixels.shape[2:]), GREY)
        return patch_pixels.join(patch_pixels.put(pixels, batch["masked"], grey), self.model.grid)
