"""Sheets of pictures: images in a grid, each over lines of text."""

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

SMALLEST, LARGEST = 96, 192  # Sides of an image in the picture, in pixels.
LINE_HEIGHT = 14


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


def as_pixels(images: np.ndarray) -> np.ndarray:
    """Grey or RGB, uint8 [N, H, W, 1 or 3], of images in 0 … 255 of any type and channels.

    Of more than three channels the first three are shown, of two the first.
    """
    shown = images[..., : 3 if images.shape[-1] > 2 else 1]
    return np.rint(np.clip(shown, 0, 255)).astype(np.uint8)
