"""Self-distillation without labels, DINO's loss with its views (arXiv 2104.14294).

A student sees two large and some small parts of an image, its teacher the large ones only; on each
the student has to say what the teacher says on another. The teacher is the student's average. Its
answers are centred by their running mean and sharpened, so that not all images get the same one.

What is DINO's: loss, head, centring, views and their sizes. What is smaller: views are cut on the
device from the one augmented image that the data gives, mirrored and nothing else, and momentum and
temperatures stay the same over the run.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from vit_jax.errors import ConfigError
from vit_jax.kinds import Count, Fraction, Positive, number, whole
from vit_jax.models.layers import GELU
from vit_jax.network import Network
from vit_jax.objectives import averaged_teacher, patch_pixels
from vit_jax.objectives.base import (
    FORWARD_FLOPS,
    TRAINING_FLOPS,
    Auxiliary,
    Batch,
    Labels,
    Objective,
)
from vit_jax.parameters import OBJECTIVE

STREAM = 0xD190  # Keeps its random keys apart from all others of the seed.
GLOBAL_VIEWS = 2
SMALLEST_SHARE = 0.05  # Of the image's area that a local view shows; global_share is the largest.
KERNEL_STD = 0.02
EPSILON = 1e-12  # Of the L2 norm.


class SelfDistillation(Objective):
    """What the student says of one view, against what its teacher says of another."""

    EVALUATORS: ClassVar[str] = "objective"
    BEST_METRIC: ClassVar[str] = ""  # A lower loss is no better model.
    CLASSIFIES: ClassVar[bool] = False

    @dataclasses.dataclass(frozen=True)
    class Options:
        """The objective's keys of `config.objective`."""

        prototypes: whole(2) = 65_536  # Numbers of an answer.
        head_width: whole(1) = 2_048
        bottleneck_width: whole(1) = 256
        local_views: Count = 8
        local_size: Count = 0  # Sides of local views in pixels; 0: 3/7 of the image's, 96 of 224.
        global_share: Fraction = 0.4  # The smallest share of the area of global views.
        student_temperature: Positive = 0.1
        teacher_temperature: Positive = 0.04
        teacher_momentum: number(0, 1) = 0.996
        center_momentum: number(0, 1) = 0.9

    def __init__(self, options: Options, network: Network, labels: Labels, teacher: str = ""):
        super().__init__(options, network, labels, teacher)
        self.model = patch_pixels.require_sequence(network.options, "self_distillation")
        height, width = patch_pixels.pixels_of_a_patch(self.model)
        wanted = options.local_size or self.model.image_size[0] * 3 // 7
        self.local_size = max(wanted // height, 1) * height, max(wanted // width, 1) * width
        if options.local_size and self.local_size != (options.local_size,) * 2:
            unit = math.lcm(height, width)
            raise ConfigError(
                f"config.objective.local_size={options.local_size}: must be a multiple of the "
                f"{height}x{width} pixels of a patch, such as {max(wanted // unit, 1) * unit}."
            )

    def init(self, key: jax.Array) -> dict:
        """The head: three layers to a bottleneck, and the prototypes."""
        options = self.options
        widths = self._head_widths
        keys = jax.random.split(key, len(widths))
        layers = {
            f"dense{layer}": {
                "kernel": KERNEL_STD * jax.random.normal(keys[layer], shape),
                "bias": jnp.zeros(shape[1]),
            }
            for layer, shape in enumerate(itertools.pairwise(widths))
        }
        prototypes = jax.random.normal(keys[-1], (options.bottleneck_width, options.prototypes))
        return {**layers, "prototypes": {"kernel": prototypes}}

    def state(self, params: dict) -> dict:
        """The teacher's parameters, and the centre [prototypes] of its answers."""
        center = jnp.zeros(self.options.prototypes)
        return {**averaged_teacher.begin(params), "center": center}

    def prepare(self, batch: Batch, seed: int, step: jax.Array | int) -> Batch:
        """Cuts the views: `globals` [B, 2, H, W, C], `locals` [B, V, h, w, C], pixels 0 … 255."""
        options, image = self.options, batch["image"].astype(jnp.float32)
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), STREAM), step)
        keys = jax.random.split(key, GLOBAL_VIEWS + options.local_views)
        large, small = (options.global_share, 1.0), (SMALLEST_SHARE, options.global_share)
        size = self.model.image_size
        views = [random_views(image, k, large, size) for k in keys[:GLOBAL_VIEWS]]
        batch = {**batch, "globals": jnp.stack(views, axis=1)}
        views = [random_views(image, k, small, self.local_size) for k in keys[GLOBAL_VIEWS:]]
        return {**batch, "locals": jnp.stack(views, axis=1)} if views else batch

    def loss(
        self, params: dict, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, Auxiliary]:
        """The mean cross-entropy over pairs of different views, and what `update` needs."""
        options = self.options
        views = [*_views_of(batch["globals"]), *_views_of(batch.get("locals"))]
        keys = [None] * len(views) if key is None else jax.random.split(key, len(views))
        answers = [
            jax.nn.log_softmax(self._answer(params, view, k) / options.student_temperature)
            for view, k in zip(views, keys, strict=True)
        ]
        teacher = [
            self._answer(frozen[averaged_teacher.TEACHER], view, None)
            for view in views[:GLOBAL_VIEWS]
        ]
        wanted = [
            jax.nn.softmax((answer - frozen["center"]) / options.teacher_temperature)
            for answer in teacher
        ]
        terms = [
            -jnp.sum(target * answer, axis=-1)
            for own, target in enumerate(wanted)
            for other, answer in enumerate(answers)
            if other != own
        ]
        entropy = -jnp.sum(wanted[0] * jnp.log(wanted[0] + EPSILON), axis=-1)
        values = {"teacher_entropy": entropy, "answers": jnp.mean(jnp.stack(teacher), axis=0)}
        return jnp.mean(jnp.stack(terms), axis=0), values

    def update(self, state: dict, params: dict, auxiliary: dict) -> dict:
        """Moves the teacher towards the student, and the centre towards the teacher's answers."""
        keep, center = self.options.center_momentum, state["center"]
        state = averaged_teacher.follow(state, params, self.options.teacher_momentum)
        return {**state, "center": keep * center + (1 - keep) * auxiliary["answers"]}

    @property
    def values(self) -> tuple[str, ...]:
        """How undecided the teacher is, in nats: 0 or log(prototypes) are a collapse."""
        return ("teacher_entropy",)

    def training_flops(self) -> int:
        """Those of the student on all views, and of the teacher's forward pass on the global ones."""
        options = self.options
        widths = (*self._head_widths, options.prototypes)
        head = sum(a * b for a, b in itertools.pairwise(widths))
        small = dataclasses.replace(self.model, image_size=self.local_size)
        large = GLOBAL_VIEWS * (self.model.macs() + head)
        student = large + options.local_views * (small.macs() + head)
        return TRAINING_FLOPS * student + FORWARD_FLOPS * large

    def show(self, batch: Batch) -> tuple[jax.Array, jax.Array]:
        """The first global view."""
        return batch["globals"][:, 0], batch["label"]

    def describe(self) -> Sequence[str]:
        """The views, and the size of an answer."""
        (height, width), local = self.local_size, self.options.local_views
        return [
            f"{GLOBAL_VIEWS} global and {local} local views of {height}x{width} px",
            f"{self.options.prototypes:,} prototypes",
        ]

    @property
    def _head_widths(self) -> tuple[int, ...]:
        options, model = self.options, self.model
        tokens = 1 + model.distillation_token  # The representation has both, one after the other.
        representation = tokens * (model.representation_size or model.width)
        return (representation, *[options.head_width] * 2, options.bottleneck_width)

    def _answer(self, params: dict, images: jax.Array, key: jax.Array | None) -> jax.Array:
        """Pixels [B, h, w, C] of any size that patches divide -> [B, prototypes] float32."""
        own, gelu = params[OBJECTIVE], GELU["erf"]
        x = self._representation(params, images, key)
        for name in ("dense0", "dense1", "dense2"):
            x = gelu(x) if name != "dense0" else x
            x = x @ own[name]["kernel"] + own[name]["bias"]
        x = x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), EPSILON)
        kernel = own["prototypes"]["kernel"]
        return x @ (kernel / jnp.linalg.norm(kernel, axis=0))

    def _representation(self, params: dict, images: jax.Array, key: jax.Array | None) -> jax.Array:
        keys = (None, None) if key is None else jax.random.split(key)
        model: Any = self.network.bind(params)
        height, width = patch_pixels.pixels_of_a_patch(self.model)
        grid = images.shape[1] // height, images.shape[2] // width
        patches = model.embed_patches(self.network.normalize(images), self.network.constrain)
        tokens = self.network.constrain(model.embed_sequence(patches, keys[0], grid))
        return model.pool(model.encode(tokens, keys[1], self.network.constrain)[0])


def _views_of(views: jax.Array | None) -> list[jax.Array]:
    """[B, V, h, w, C] -> V times [B, h, w, C]."""
    return [] if views is None else list(views.swapaxes(0, 1))


def random_views(
    images: jax.Array, key: jax.Array, shares: tuple[float, float], size: tuple[int, int]
) -> jax.Array:
    """A random box of each image, mirrored every other time, resized.

    Args:
      images: float32 [B, H, W, C].
      key: a random key.
      shares: of the area, the smallest and the largest; the box has the image's proportions.
      size: height and width of the views.

    Returns:
      float32 [B, *size, C], bilinear and antialiased.
    """
    share_key, corner_key, mirror_key = jax.random.split(key, 3)
    count, height, width, channels = images.shape
    sides = jnp.sqrt(jax.random.uniform(share_key, (count, 1), minval=shares[0], maxval=shares[1]))
    corners = jax.random.uniform(corner_key, (count, 2)) * (1 - sides)  # Shares of the sides.
    whole_size = jnp.array((height, width), jnp.float32)
    scale = jnp.array(size, jnp.float32) / (sides * whole_size)
    offset = -corners * whole_size * scale

    def view(image: jax.Array, scale: jax.Array, offset: jax.Array) -> jax.Array:
        shape = (*size, channels)
        return jax.image.scale_and_translate(image, shape, (0, 1), scale, offset, "linear")

    views = jax.vmap(view)(images, scale, offset)
    mirrored = jax.random.bernoulli(mirror_key, 0.5, (count, 1, 1, 1))
    return jnp.where(mirrored, views[:, :, ::-1], views)
