"""A picture of the first batch as the model learns from it: augmented, mixed, with its labels."""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict
from PIL import Image, ImageDraw, ImageFont

from vit_jax.data.dataset import Batch
from vit_jax.devices import sharding
from vit_jax.objectives.losses import make_targets
from vit_jax.objectives.mixing import mixed_images, mixed_targets, pair

NUM_IMAGES = 36
SMALLEST, LARGEST = 96, 192  # Sides of an image in the picture, in pixels.
LINE_HEIGHT = 14

Preview = Callable[[Batch, int], np.ndarray]  # (batch, step) -> uint8 [H, W, 3]


def make_preview(
    config: ConfigDict, num_classes: int, class_names: Sequence[str], mesh: Mesh
) -> Preview:
    """The function (batch, step) -> the picture of the batch that makes update `step`."""

    @functools.partial(jax.jit, static_argnums=1, out_shardings=sharding.replicated(mesh))
    def first_rows(batch: Batch, step: int) -> tuple[jax.Array, jax.Array]:
        paired = pair(batch, step - 1, config.seed, config.objective.mixing)
        first = jax.tree.map(lambda x: x[:NUM_IMAGES], paired)
        encode = functools.partial(make_targets, num_classes=num_classes)
        return mixed_images(first), mixed_targets(first, encode)

    def preview(batch: Batch, step: int) -> np.ndarray:
        images, targets = jax.device_get(first_rows(batch, step))
        captions = [caption(target, class_names) for target in targets]
        return draw(np.rint(images).astype(np.uint8), captions)

    return preview


def caption(target: np.ndarray, class_names: Sequence[str]) -> list[str]:
    """The classes of a target [K], the likeliest first, with their shares if there are several."""
    classes = sorted(np.flatnonzero(target).tolist(), key=lambda index: -target[index])
    names = [class_names[index] if class_names else str(index) for index in classes]
    if len(classes) == 1:
        return names
    return [f"{target[index]:.0%} {name}" for index, name in zip(classes, names, strict=True)]


def draw(images: np.ndarray, captions: Sequence[Sequence[str]]) -> np.ndarray:
    """A grid of images, uint8 [N, H, W, C] with C of 1 or 3, each over its lines of text."""
    lines = max(map(len, captions))
    tiles = [_tile(image, text, lines) for image, text in zip(images, captions, strict=True)]
    return image_grid(np.stack(tiles))


def _tile(image: np.ndarray, text: Sequence[str], lines: int) -> np.ndarray:
    picture = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image).convert("RGB")
    if (side := max(picture.size)) > LARGEST:
        picture.thumbnail((LARGEST, LARGEST))
    elif side < SMALLEST:
        factor = math.ceil(SMALLEST / side)
        size = tuple(factor * side for side in picture.size)
        picture = picture.resize(size, Image.Resampling.NEAREST)
    tile = Image.new("RGB", (picture.width + 2, picture.height + lines * LINE_HEIGHT), "white")
    tile.paste(picture, (1, 1))
    pen, font = ImageDraw.Draw(tile), ImageFont.load_default(size=11)
    for number, line in enumerate(text):
        pen.text((2, picture.height + number * LINE_HEIGHT), line, fill="black", font=font)
    return np.asarray(tile)


def image_grid(images: np.ndarray) -> np.ndarray:
    """Lays out images [N, H, W, C] row by row in a near-square grid [rows·H, columns·W, C]."""
    count, height, width, channels = images.shape
    columns = math.ceil(math.sqrt(count))
    rows = math.ceil(count / columns)
    padded = np.zeros((rows * columns, height, width, channels), images.dtype)
    padded[:count] = images
    grid = padded.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return grid.reshape(rows * height, columns * width, channels)
