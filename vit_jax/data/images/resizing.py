"""From a region of an image to an image of another size, antialiased or not."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from operator import truediv
from typing import Protocol

import cv2
import numpy as np
from PIL import Image

from vit_jax.data.images.area import resize_by_area
from vit_jax.data.images.jpeg import Jpeg, upright
from vit_jax.data.images.picture import Picture, Raw, as_array, as_pillow, is_pictured, size_of
from vit_jax.model_file import AREA

Size = tuple[int, int]  # (height, width), in pixels.
Box = tuple[int, int, int, int]  # (top, left, height, width), in pixels.
Resizer = Callable[..., np.ndarray]  # (Picture, size, box=None) -> uint8 [*size, C].

_PILLOW_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_OPENCV_FLAGS = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}

# A JPEG is decoded to half, a quarter or an eighth of its size where at least this reduction is left
# for the filter: for the half, where the box has three times the result's sides. Crops to 64, 96 and
# 224 pixels then differ from Pillow's by less than 3 grey levels; with 1.25 by 3.3, with 1 by 4.7.
_LEAST_REDUCTION = 1.5
_LEAST_REDUCTION_FAST = 1.25
_LONGEST = 16  # Times the size that is cut out, or the width: what is made of a strip.
_GREATEST_REDUCTION = 8  # What this filter does in time; Pillow's costs the same for any.


class Resampling(Protocol):
    """How pixels are computed from pixels: `config.data` says so, and a model's preprocessing."""

    interpolation: str
    antialias: bool


def resizer(how: Resampling) -> Resizer:
    """The function (Picture, size, box=None) -> uint8 [*size, C]."""
    return functools.partial(_resize, interpolation=how.interpolation, antialias=how.antialias)


def without_excess(
    sides: Size, scaled: Size, size: Size, position: Callable[[], float]
) -> tuple[Size, Box]:
    """The size to resize an image to, and the box of it, before `size` is cut out of the result.

    Nearly always `scaled` and the whole. But brought to some width, a strip of a few pixels would
    fill the memory: of one, a part that is still much longer than `size`.

    Args:
        sides: (height, width) of the image.
        scaled: those that the whole would have.
        size: what is cut out later.
        position: of the part of a strip in it, from 0 (its top or left end) to 1.
    """
    longest = _LONGEST * max(*size, min(scaled))
    if max(scaled) <= longest:
        return scaled, (0, 0, *sides)
    short = tuple(min(side, longest) for side in scaled)
    kept = tuple(
        round(side * part / whole) for side, part, whole in zip(sides, short, scaled, strict=True)
    )
    at = position()
    return short, (
        *(int((side - part) * at) for side, part in zip(sides, kept, strict=True)),
        *kept,
    )


def _resize(
    image: Picture,
    size: Size,
    box: Box | None = None,
    *,
    interpolation: str,
    antialias: bool,
) -> np.ndarray:
    """Resizes the region `box`, default all, of an image to `size`; uint8 in and out.

    With `antialias`, by Pillow's filter, whose support grows with the reduction, or for a JPEG or raw
    pixels by one that comes close to it. Without it, the region is cropped and sampled at half-pixel centres,
    as TensorFlow and OpenCV do by default. By "area", the region is cropped, and each pixel is the
    mean over what it covers.
    """
    box = box or (0, 0, *size_of(image))
    top, left, height, width = box
    if isinstance(image, np.ndarray) and not is_pictured(image):
        return _resize_channels(image, size, box, interpolation, antialias)
    if antialias and interpolation != AREA and (height, width) != size:
        if isinstance(image, Jpeg):
            resized = _resize_jpeg(image, size, box, interpolation)
            if resized is not None:
                return resized
        elif isinstance(image, Raw) and max(map(truediv, box[2:], size)) <= _GREATEST_REDUCTION:
            return resample(image.pixels, size, box, interpolation)
        region = (left, top, left + width, top + height)
        filter_ = _PILLOW_FILTERS[interpolation]
        return as_array(as_pillow(image).resize(size[::-1], filter_, box=region))
    array = as_array(image)[top : top + height, left : left + width]
    if (height, width) == size:
        return array
    if interpolation == AREA:
        return resize_by_area(array, size)
    flag = _OPENCV_FLAGS[interpolation]
    return cv2.resize(array, size[::-1], interpolation=flag).reshape(*size, -1)


def _resize_channels(
    image: np.ndarray, size: Size, box: Box, interpolation: str, antialias: bool
) -> np.ndarray:
    """As `_resize`, each channel by itself, as floats where the image is."""
    resized = np.empty((*size, image.shape[2]), image.dtype)
    for channel in range(image.shape[2]):
        plane = Image.fromarray(np.ascontiguousarray(image[..., channel]))  # Mode "L" or "F".
        resized[..., channel] = _resize_plane(plane, size, box, interpolation, antialias)
    return resized


def _resize_plane(
    plane: Image.Image, size: Size, box: Box, interpolation: str, antialias: bool
) -> np.ndarray:
    top, left, height, width = box
    if (height, width) == size:
        return np.asarray(plane)[top : top + height, left : left + width]
    if antialias and interpolation != AREA:
        region = (left, top, left + width, top + height)
        return np.asarray(plane.resize(size[::-1], _PILLOW_FILTERS[interpolation], box=region))
    part = np.asarray(plane)[top : top + height, left : left + width]
    if interpolation == AREA:
        return resize_by_area(part[..., np.newaxis], size)[..., 0]
    return cv2.resize(part, size[::-1], interpolation=_OPENCV_FLAGS[interpolation])


# ---------------------------------------------------------------------------- JPEG


def _resize_jpeg(jpeg: Jpeg, size: Size, box: Box, interpolation: str) -> np.ndarray | None:
    """Decodes what the box needs, and resizes it; None if that is left to Pillow.

    Pillow reads what is damaged or unusual, and makes great reductions.
    """
    top, left, height, width = jpeg.stored_box(box)
    rows, columns = jpeg.stored_box((0, 0, *size))[2:]
    reductions = height / rows, width / columns
    least = _LEAST_REDUCTION_FAST if jpeg.fast else _LEAST_REDUCTION
    factor = next(f for f in jpeg.factors if f == 1 or min(reductions) >= f * least)
    if max(reductions) > factor * _GREATEST_REDUCTION:
        return None
    try:  # The filter reaches up to two rows of the result beyond the box.
        pixels = jpeg.decode(factor, last_row=top + height + math.ceil(2 * reductions[0]))
    except ValueError:
        return None
    scaled = tuple(side / factor for side in (top, left, height, width))
    return upright(resample(pixels, (rows, columns), scaled, interpolation), jpeg.orientation)


# ---------------------------------------------------------------------------- antialiasing


def resample(
    image: np.ndarray, size: Size, box: tuple[float, float, float, float], interpolation: str
) -> np.ndarray:
    """Resizes a region as Pillow does, nearly, in a fifth of its time.

    A short filter, then OpenCV's interpolation: the filter is such that the two together come close
    to Pillow's kernel, which grows with the reduction. Over crops of photographs the result differs
    from Pillow's by 0.4 grey levels on average.

    Args:
        image: uint8 [H, W, C].
        size: of the result.
        box: (top, left, height, width) in pixels, fractions allowed. Beyond it, the filter sees the
            image; the interpolation repeats the box's edge.
        interpolation: "bilinear" or "bicubic".

    Returns:
        uint8 [*size, C].
    """
    rows, columns = (
        _Axis.of(image.shape[axis], box[axis], box[axis + 2], size[axis], interpolation)
        for axis in (0, 1)
    )
    part = image[rows.window, columns.window]
    if max(len(rows.taps), len(columns.taps)) > 1:
        part = cv2.sepFilter2D(part, -1, columns.taps, rows.taps, borderType=cv2.BORDER_REPLICATE)
    part = part[rows.box, columns.box]
    flag = _OPENCV_FLAGS[interpolation]
    resized = cv2.resize(part, None, fx=columns.scale, fy=rows.scale, interpolation=flag)
    return resized.reshape(*resized.shape[:2], -1)[: size[0], : size[1]]


@dataclasses.dataclass(frozen=True)
class _Axis:
    """How one axis is resized: its window is filtered, then the box in the window interpolated."""

    window: slice  # Of the image.
    box: slice  # Of the window.
    taps: np.ndarray
    scale: float  # Pixels of the result for each of the image.

    @classmethod
    def of(cls, whole: int, start: float, extent: float, number: int, interpolation: str) -> _Axis:
        """Plans to make `number` pixels of `extent` from `start` on, of a side of `whole` pixels."""
        first, stop = round(start), math.ceil(start + extent)
        # Rounded, so that few filters are made.
        ratio = max(1, round(32 * extent / number) / 32)
        taps = _taps(ratio, round(8 * (start - first)) / 8, interpolation)
        window_first = max(0, first - len(taps) // 2)
        window = slice(window_first, min(whole, stop + len(taps) // 2))
        box = slice(first - window_first, stop - window_first)
        return cls(window, box, taps, number / extent)


def _linear(x: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - np.abs(x))


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' kernel (1981), equation 4."""
    x = np.abs(x)
    near, far = ((a + 2) * x - (a + 3)) * x * x + 1, a * (((x - 5) * x + 8) * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0))


# Pillow's kernel, its radius, OpenCV's, and the reduction from which on a filter has to make up for
# the difference: a triangle filtered by three taps is one of up to twice the width; cubics are not.
_KERNELS: dict[str, tuple[Callable, int, Callable, float]] = {
    "bilinear": (_linear, 1, _linear, 1.0),
    "bicubic": (functools.partial(_cubic, a=-0.5), 2, functools.partial(_cubic, a=-0.75), 0.5),
}


@functools.lru_cache(maxsize=4096)
def _taps(ratio: float, shift: float, interpolation: str) -> np.ndarray:
    """The filter that with OpenCV's interpolation comes closest to Pillow's kernel (least squares).

    Args:
        ratio: of the reduction, at least 1.
        shift: by how many pixels the result lies further to the right or down than OpenCV samples.
        interpolation: "bilinear" or "bicubic".

    Returns:
        float32 [odd], whole 1/256, of sum 1.
    """
    pillow, radius, opencv, free = _KERNELS[interpolation]
    half = math.ceil((ratio - free) * radius + abs(shift))
    reach = half + math.ceil(ratio * radius) + 2
    offsets = np.arange(-half, half + 1)
    pixels = np.arange(-reach, reach + 1)
    positions = (np.arange(8) + 0.5)[:, np.newaxis] / 8  # Of samples between pixels 0 and 1.
    wanted = pillow((pixels - positions - shift) / ratio)
    wanted /= wanted.sum(1, keepdims=True)
    # How much pixel p contributes to each sample through tap t.
    given = opencv(pixels[:, np.newaxis] - offsets - positions[..., np.newaxis])
    taps = np.linalg.lstsq(given.reshape(-1, len(offsets)), wanted.ravel())[0]
    # OpenCV rounds to 1/256, whatever the sum is then.
    taps = np.round(256 * taps / taps.sum())
    taps[half] += 256 - taps.sum()
    used = np.abs(offsets[taps != 0]).max()
    return (taps[half - used : half + used + 1] / 256).astype(np.float32)
