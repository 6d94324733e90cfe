"""Pictures out of arrays: images beside what was computed of their patches, in rows of tiles."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from PIL import Image

SIDE = 128  # Of a tile's longer side, in pixels.
GAP = 4
WHITE, GREY = 255, 160
WARM, COLD = np.array([213, 94, 0]), np.array([0, 114, 178])  # Of `figures.PALETTE`.
STRENGTH = 0.75  # Of a colour over an image, at most.


def as_tile(image: np.ndarray) -> np.ndarray:
    """An image 0 … 255 [H, W, 1 or 3] with `SIDE` pixels at its longer side, uint8 [h, w, 3]."""
    pixels = np.clip(image, 0, WHITE).astype(np.uint8)
    size = tile_size(image.shape[:2])
    small = max(image.shape[:2]) < SIDE
    method = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
    whole = Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).convert("RGB")
    return np.asarray(whole.resize(size, method))


def tile_size(shape: tuple[int, int]) -> tuple[int, int]:
    """Width and height of the tile of an image with so many rows and columns."""
    height, width = (max(1, round(SIDE * side / max(shape))) for side in shape)
    return width, height


def enlarged(values: np.ndarray, tile: np.ndarray) -> np.ndarray:
    """Values of patches [rows, columns], one for each of a tile's pixels, float32 [h, w]."""
    image = Image.fromarray(values.astype(np.float32))
    return np.asarray(image.resize(tile.shape[1::-1], Image.Resampling.LANCZOS))


def lit(image: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """An image's tile, as bright as shares of its patches [rows, columns] are large."""
    tile = as_tile(image)
    light = enlarged(shares, tile)
    light = (light - light.min()) / max(float(np.ptp(light)), 1e-12)
    return (tile * light[..., None]).astype(np.uint8)


def coloured(image: np.ndarray, values: np.ndarray) -> np.ndarray:
    """An image's tile in grey, warm where values of its patches are above 0 and cold below."""
    tile = as_tile(image)
    strengths = enlarged(values / max(float(np.abs(values).max()), 1e-12), tile)
    alpha = STRENGTH * np.clip(np.abs(strengths), 0, 1)[..., None]
    grey = np.repeat(tile.mean(axis=-1, keepdims=True), 3, axis=-1)
    tint = np.where(strengths[..., None] > 0, WARM, COLD)
    return ((1 - alpha) * grey + alpha * tint).astype(np.uint8)


def patches_as_tile(image: np.ndarray, colors: np.ndarray) -> np.ndarray:
    """A tile as large as an image's, of colours 0 … 1 of its patches [rows, columns, 3]."""
    size = tile_size(image.shape[:2])
    pixels = Image.fromarray((WHITE * colors).astype(np.uint8))
    return np.asarray(pixels.resize(size, Image.Resampling.NEAREST))


def framed(tile: np.ndarray) -> np.ndarray:
    """A tile with a thin grey frame, so that white ones are seen on white."""
    inside = tile[1:-1, 1:-1]
    return np.pad(inside, ((1, 1), (1, 1), (0, 0)), constant_values=GREY)


def side_by_side(tiles: Sequence[np.ndarray]) -> np.ndarray:
    """Tiles of one size in a row, with a gap between them."""
    return _joined(tiles, axis=1)


def in_rows(tiles: Sequence[np.ndarray], columns: int) -> np.ndarray:
    """Tiles of one size in rows of `columns`."""
    blank = [np.full_like(tiles[0], WHITE)] * (-len(tiles) % columns)
    filled = [*tiles, *blank]
    rows = [
        _joined(filled[start : start + columns], axis=1, gap=3 * GAP)
        for start in range(0, len(filled), columns)
    ]
    return _joined(rows, axis=0)


def _joined(tiles: Sequence[np.ndarray], axis: int, gap: int = GAP) -> np.ndarray:
    shape = list(tiles[0].shape)
    shape[axis] = gap
    between = np.full(shape, WHITE, np.uint8)
    parts = [part for tile in tiles for part in (between, tile)][1:]
    return np.concatenate(parts, axis=axis)
