"""Resizing by area: each pixel of the result is the mean over the region that it covers.

As `tf.image.resize(method="area")` defines it: pixels that lie in a region in part count in part.
"""

from __future__ import annotations

import functools

import cv2
import numpy as np


def resize_by_area(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Resizes uint8 or float32 [H, W, C] to [*size, C]; uint8 is rounded to the nearest level."""
    if size[0] <= image.shape[0] and size[1] <= image.shape[1]:
        return cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA).reshape(*size, -1)
    # Where a side grows, OpenCV interpolates instead.
    height, width, channels = image.shape
    rows = _shares(height, size[0]) @ image.reshape(height, -1).astype(np.float32)
    rows = rows.reshape(size[0], width, channels)
    resized = _shares(width, size[1]) @ rows
    return np.rint(resized).astype(np.uint8) if image.dtype == np.uint8 else resized


@functools.lru_cache(maxsize=64)
def _shares(old: int, new: int) -> np.ndarray:
    """The share of each of `old` pixels in each of `new` ones, float32 [new, old]; rows sum to 1."""
    edges = np.arange(new + 1) * (old / new)
    pixels = np.arange(old)
    start = np.maximum(edges[:-1, np.newaxis], pixels)
    stop = np.minimum(edges[1:, np.newaxis], pixels + 1)
    return (np.maximum(0, stop - start) * (new / old)).astype(np.float32)
