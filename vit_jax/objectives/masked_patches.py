"""Masked patch prediction, the paper's self-supervision (section 4.6, appendix B.1.2).

Half of the patch embeddings are corrupted before positions are added: 80 % of them become a learned
[mask] embedding, 10 % the embedding of another patch, 10 % stay. The corrupted patches' pixels are
predicted from the tokens at their positions.

Where the paper is silent, this is the choice:
  - exactly the same number of patches is corrupted in each image, and another patch is one of the
    same image, so that a batch can be split anywhere;
  - a head of one linear layer reads the last block's tokens after the final norm, and the class
    token has no part in the loss;
  - a 3-bit colour is the mean of a channel, 0 … 1, cut into eight equal levels, and the targets are
    the augmented image's before it is normalised;
  - the loss is the mean over an image's corrupted patches, and over what each predicts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import optax

from vit_jax.errors import ConfigError
from vit_jax.kinds import Fraction, one_of
from vit_jax.models.layers import lecun_normal
from vit_jax.network import Network
from vit_jax.objectives import patch_pixels
from vit_jax.objectives.base import TRAINING_FLOPS, Auxiliary, Batch, Labels, Objective
from vit_jax.parameters import OBJECTIVE

STREAM = 0x4DA5  # Keeps its random keys apart from all others of the seed.
MASKED, EXCHANGED = 0.8, 0.1  # Of the corrupted patches; the rest stay (appendix B.1.2).
LEVELS = 8  # Of a channel: 3 bits.
MOST_CHANNELS = 4  # 8⁴ = 4,096 colours.
GREY = 128.0  # Of [mask] in pictures.


class Target(Protocol):
    """The thing that is predicted of a patch.

    Attributes:
      size: numbers that the head returns for a patch.
      values: the names of what `loss` returns besides.
    """

    size: int
    values: tuple[str, ...]

    def loss(self, predictions: jax.Array, patches: jax.Array) -> tuple[jax.Array, Auxiliary]:
        """The mean loss [B] of an image's predictions, and named values [B].

        Args:
          predictions: float32 [B, K, size].
          patches: pixels 0 … 255, [B, K, P, Q, C].
        """
        ...

    def draw(self, predictions: jax.Array, patches: jax.Array) -> jax.Array:
        """The pixels [B, K, P, Q, C] that predictions stand for; `patches` have their shape."""
        ...


class Colors:
    """The colours of a patch's `cells` × `cells` parts, each one of 8 to the power of C classes."""

    values: tuple[str, ...] = ("accuracy",)

    def __init__(self, cells: int, channels: int):
        if channels > MOST_CHANNELS:
            raise ConfigError(
                f"config.objective.target: colours are classes up to {MOST_CHANNELS} channels, and "
                f"model.channels={channels}: set --config.objective.target=pixels."
            )
        self.cells, self.channels = cells, channels
        self.num_colors = LEVELS**channels
        self.size = cells**2 * self.num_colors

    def loss(self, predictions: jax.Array, patches: jax.Array) -> tuple[jax.Array, Auxiliary]:
        """Softmax cross-entropy, and the share of the right colours."""
        logits, colors = self._logits(predictions), self.colors(patches)
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, colors)
        right = logits.argmax(axis=-1) == colors
        return losses.mean(axis=(1, 2)), {"accuracy": right.mean(axis=(1, 2))}

    def colors(self, patches: jax.Array) -> jax.Array:
        """Pixels 0 … 255 [B, K, P, Q, C] -> classes int32 [B, K, cells²]; the first channel leads."""
        means = patch_pixels.averaged(patches, self.cells) / 255
        levels = jnp.clip(jnp.floor(LEVELS * means), 0, LEVELS - 1).astype(jnp.int32)
        weights = LEVELS ** jnp.arange(self.channels)[::-1]
        colors = (levels * weights).sum(axis=-1)
        return colors.reshape(*colors.shape[:2], -1)

    def draw(self, predictions: jax.Array, patches: jax.Array) -> jax.Array:
        """The middles of the likeliest colours' levels."""
        best = self._logits(predictions).argmax(axis=-1)
        levels = best[..., None] // LEVELS ** jnp.arange(self.channels)[::-1] % LEVELS
        colors = (levels + 0.5) * (255 / LEVELS)
        cells = colors.reshape(*best.shape[:2], self.cells, self.cells, self.channels)
        return jax.image.resize(cells, patches.shape, "nearest")

    def _logits(self, predictions: jax.Array) -> jax.Array:
        return predictions.reshape(*predictions.shape[:2], self.cells**2, self.num_colors)


class Pixels:
    """All pixels of a patch, 0 … 1, by the mean of squared differences."""

    values: tuple[str, ...] = ()

    def __init__(self, patch: tuple[int, int], channels: int):
        self.size = patch[0] * patch[1] * channels

    def loss(self, predictions: jax.Array, patches: jax.Array) -> tuple[jax.Array, Auxiliary]:
        """The mean squared difference."""
        wanted = patches.reshape(predictions.shape) / 255
        return jnp.square(predictions - wanted).mean(axis=(1, 2)), {}

    def draw(self, predictions: jax.Array, patches: jax.Array) -> jax.Array:
        """The predictions themselves."""
        return 255 * jnp.clip(predictions, 0, 1).reshape(patches.shape)


MEAN_COLOR = "mean_color"
TARGETS: dict[str, Callable[[tuple[int, int], int], Target]] = {
    MEAN_COLOR: lambda patch, channels: Colors(1, channels),
    "downsized": lambda patch, channels: Colors(4, channels),
    "pixels": Pixels,
}


class MaskedPatches(Objective):
    """Predicts what corrupted patches showed."""

    EVALUATORS: ClassVar[str] = "objective"
    BEST_METRIC: ClassVar[str] = "-eval/loss"
    CLASSIFIES: ClassVar[bool] = False

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The objective's keys of `config.objective`."""

        target: one_of(*TARGETS) = MEAN_COLOR  # downsized: 4×4 colours; pixels: regression
        corruption_rate: Fraction = 0.5  # Share of the patches; 0.15 in the paper's ablation.

    def __init__(self, options: Options, network: Network, labels: Labels, teacher: str = ""):
        super().__init__(options, network, labels, teacher)
        model = patch_pixels.require_patches(network.options, "masked_patches")
        patch_pixels.refuse_layers_of_pooling(model, "masked_patches")
        patch = patch_pixels.pixels_of_a_patch(model)
        self.grid, self.width = model.grid, model.width
        self.num_patches, self.num_prefix = model.num_patches, model.num_prefix_tokens
        self.target: Target = TARGETS[options.target](patch, model.channels)
        self.num_corrupted = max(1, round(options.corruption_rate * self.num_patches))

    def init(self, key: jax.Array) -> dict:
        """The [mask] embedding [D], and the linear head."""
        mask_key, head_key = jax.random.split(key)
        kernel = lecun_normal(head_key, (self.width, self.target.size), jnp.float32)
        return {
            "mask": 0.02 * jax.random.normal(mask_key, (self.width,)),
            "head": {"kernel": kernel, "bias": jnp.zeros(self.target.size)},
        }

    def prepare(self, batch: Batch, seed: int, step: jax.Array | int) -> Batch:
        """Draws the corruption of each image.

        Adds `positions` int32 [B, K] of the corrupted patches, and `sources` int32 [B, N]: whose
        embedding stands at each position; N is [mask].
        """
        stream = jax.random.fold_in(jax.random.key(seed), STREAM)
        positions, sources = corruption(
            jax.random.fold_in(stream, step),
            (len(batch["image"]), self.num_patches),
            self.num_corrupted,
        )
        return {**batch, "positions": positions, "sources": sources}

    def loss(
        self, params: dict, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Auxiliary]:
        """The target's loss at the corrupted positions."""
        del frozen
        predictions, patches = self._predictions(params, batch, key)
        return self.target.loss(predictions, patches)

    @property
    def values(self) -> tuple[str, ...]:
        """Those of the target."""
        return self.target.values

    def pictures(self, params: dict, frozen: dict, batch: Batch) -> jax.Array:
        """The image, its corruption, and the predictions laid over the image."""
        predictions, patches = self._predictions(params, batch, None)
        whole = patch_pixels.cut(batch["image"].astype(jnp.float32), self.grid)
        drawn = patch_pixels.put(whole, batch["positions"], self.target.draw(predictions, patches))
        columns = [batch["image"], self._corrupted(batch), patch_pixels.join(drawn, self.grid)]
        return jnp.concatenate([column.astype(jnp.float32) for column in columns], axis=2)

    def training_flops(self) -> int:
        """Those of the model and of its head."""
        head = self.num_corrupted * self.width * self.target.size
        return super().training_flops() + TRAINING_FLOPS * head

    def show(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The corrupted images; a patch that became [mask] is grey."""
        return self._corrupted(batch), batch["label"]

    def describe(self) -> Sequence[str]:
        """The target, and how much is corrupted."""
        return [f"{self.options.target} of {self.num_corrupted} of {self.num_patches} patches"]

    def _predictions(
        self, params: dict, batch: Batch, key: jax.Array | None
    ) -> tuple[jax.Array, jax.Array]:
        """Predictions float32 [B, K, size] and the pixels [B, K, P, Q, C] of what they predict."""
        keys = (None, None) if key is None else jax.random.split(key)
        model: Any = self.network.bind(params)
        own = params[OBJECTIVE]
        constrain = self.network.constrain
        patches = model.embed_patches(self.network.normalize(batch["image"]), constrain)
        patches = exchanged(patches, own["mask"], batch["sources"])
        tokens = constrain(model.embed_sequence(patches, keys[0]))
        tokens, _ = model.encode(tokens, keys[1], constrain)
        tokens = model.norm(tokens) if model.options.final_norm else tokens
        tokens = tokens[:, self.num_prefix :]
        tokens = patch_pixels.take(tokens, batch["positions"]).astype(jnp.float32)
        predictions = tokens @ own["head"]["kernel"] + own["head"]["bias"]
        pixels = patch_pixels.cut(batch["image"], self.grid)
        return predictions, patch_pixels.take(pixels, batch["positions"])

    def _corrupted(self, batch: Batch) -> jax.Array:
        pixels = patch_pixels.cut(batch["image"].astype(jnp.float32), self.grid)
        grey = jnp.full(pixels.shape[2:], GREY)
        return patch_pixels.join(exchanged(pixels, grey, batch["sources"]), self.grid)


def corruption(
    key: jax.Array, shape: tuple[int, int], num_corrupted: int
) -> tuple[jax.Array, jax.Array]:
    """Which patches are corrupted, and what stands there instead.

    Args:
      key: a random key.
      shape: (B, N), images and patches of each.
      num_corrupted: K, of each image.

    Returns:
      Their positions int32 [B, K], and for every position int32 [B, N] the patch whose embedding
      stands there: itself, another one, or N for [mask].
    """
    order_key, kind_key, other_key = jax.random.split(key, 3)
    count = shape[1]
    positions = patch_pixels.random_order(order_key, shape)[:, :num_corrupted]
    kinds = jax.random.uniform(kind_key, positions.shape)
    steps = jax.random.randint(other_key, positions.shape, 1, max(2, count))  # To another patch.
    others = jnp.where(kinds < MASKED + EXCHANGED, (positions + steps) % count, positions)
    changed = jnp.where(kinds < MASKED, count, others)
    unchanged = jnp.broadcast_to(jnp.arange(count, dtype=jnp.int32), shape)
    return positions, patch_pixels.put(unchanged, positions, changed)


def exchanged(patches: jax.Array, mask: jax.Array, sources: jax.Array) -> jax.Array:
    """Patches [B, N, ...] with those of `sources` [B, N] in their stead; N: `mask` [...]."""
    mask = jnp.broadcast_to(mask.astype(patches.dtype), (len(patches), 1, *patches.shape[2:]))
    return patch_pixels.take(jnp.concatenate([patches, mask], axis=1), sources)
