"""A picture of the first batch as the model learns from it: augmented, mixed, with its labels."""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import numpy as np
from jax.sharding import Mesh
from PIL import Image, ImageDraw, ImageFont

from vit_jax.data.dataset import Batch
from vit_jax.devices import sharding
from vit_jax.objectives.base import Objective

NUM_IMAGES = 36
SMALLEST, LARGEST = 96, 192  # Sides of an image in the picture, in pixels.
LINE_HEIGHT = 14

Preview = Callable[[Batch, int], np.ndarray]  # (batch, step) -> uint8 [H, W, 3]


def make_preview(objective: Objective, seed: int, mesh: Mesh) -> Preview:
    """The function (batch, step) -> the picture of the batch that makes update `step`."""

    @functools.partial(jax.jit, static_argnums=1, out_shardings=sharding.replicated(mesh))
    def first_rows(batch: Batch, step: int) -> tuple[jax.Array, jax.Array]:
        prepared = objective.prepare(batch, seed, step - 1)
        return objective.show(jax.tree.map(lambda x: x[:NUM_IMAGES], prepared))

    def preview(batch: Batch, step: int) -> np.ndarray:
        images, values = jax.device_get(first_rows(batch, step))
        pixels = np.rint(np.clip(images, 0, 255)).astype(np.uint8)
        return draw(as_colours(pixels), objective.captions(values))

    return preview


def as_colours(images: np.ndarray) -> np.ndarray:
    """Grey or RGB [N, H, W, 1 or 3] of images of any channels: of more than three the first three."""
    channels = images.shape[-1]
    return images[..., : 3 if channels > 2 else 1]


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
        size = factor * picture.width, factor * picture.height
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
