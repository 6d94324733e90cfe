"""RandAugment as TensorFlow's code has it: AugReg (2106.10270), plain ViT (2205.01580), Big Vision.

Pixel for pixel: float32 where it computes in float32, truncation where it truncates, and its quirks
(the notes below). Pillow's RandAugment, timm's and torchvision's, is another algorithm.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import cv2
import numpy as np

from vit_jax.kinds import Amount, Few

FILL = 128  # Outside the image, and where it is cut out.
TRANSLATION = 100  # Pixels at magnitude 10.
CUTOUT = 40  # Half the side of the square at magnitude 10, in pixels.

_LEVELS = np.arange(256, dtype=np.uint8)
_HALF = np.nextafter(np.float32(0.5), np.float32(0))  # Rounds to nearest, halves away from zero.


def randaug_tf(
    image: np.ndarray,
    rng: np.random.Generator,
    /,
    layers: Few = 2,
    magnitude: Amount = 10.0,
) -> np.ndarray:
    """RandAugment as in TensorFlow: `layers` of 16 operations in turn, each at `magnitude` of 10.

    Every operation is as probable, and always applied. Magnitudes may exceed 10. At 0 it still
    changes images: colours go down to a tenth, Solarize inverts, Posterize keeps one bit.

    Args:
        image: uint8 [H, W, 1 or 3].
        rng: chooses the operations, their signs and positions.
        layers: how many operations.
        magnitude: M of the papers; 10 or 15 of AugReg's (2, M).
    """
    names = list(OPERATIONS)
    for _ in range(layers):
        operation = OPERATIONS[names[rng.integers(len(names))]]
        argument = operation.argument(magnitude / 10, rng)
        image = operation.apply(image, argument)
    return image


# ---------------------------------------------------------------------------- one value at a time


def _look_up(image: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Maps each value v to levels[v], or levels[v, channel]."""
    table = levels if levels.ndim == 1 else levels[:, np.newaxis]
    return cv2.LUT(np.ascontiguousarray(image), table).reshape(image.shape)


def _histograms(image: np.ndarray) -> np.ndarray:
    """The counts of each value in each channel: int [256, C]."""
    channels = range(image.shape[2])
    counts = [np.bincount(image[..., c].ravel(), minlength=256) for c in channels]
    return np.stack(counts, axis=1)


def autocontrast(image: np.ndarray, argument: None = None) -> np.ndarray:
    """Stretches each channel's values to 0 … 255."""
    present = _histograms(image) > 0
    lowest = present.argmax(0).astype(np.float32)
    highest = 255 - present[::-1].argmax(0).astype(np.float32)
    scale = np.float32(255) / np.maximum(highest - lowest, 1)
    values = _LEVELS[:, np.newaxis].astype(np.float32)
    stretched = np.clip(values * scale - lowest * scale, 0, 255)
    return _look_up(image, np.where(highest > lowest, stretched, values).astype(np.uint8))


def equalize(image: np.ndarray, argument: None = None) -> np.ndarray:
    """Spreads each channel's values so that all become as frequent, as far as they can."""
    counts = _histograms(image)
    levels = np.empty_like(counts)
    for channel, count in enumerate(counts.T):
        step = (count.sum() - count[count > 0][-1]) // 255
        shifted = np.concatenate([[0], np.cumsum(count)[:-1]])
        levels[:, channel] = (shifted + step // 2) // step if step else _LEVELS
    return _look_up(image, np.clip(levels, 0, 255).astype(np.uint8))


def invert(image: np.ndarray, argument: None = None) -> np.ndarray:
    """Light becomes dark."""
    return 255 - image


def posterize(image: np.ndarray, bits: int) -> np.ndarray:
    """Keeps the `bits` highest bits; one where none is asked for, as TensorFlow's shifts do."""
    shift = min(max(8 - bits, 0), 7)
    return image >> shift << shift


def solarize(image: np.ndarray, threshold: int) -> np.ndarray:
    """Inverts values of at least `threshold`, a uint8: 256 is 0, and inverts all of them."""
    threshold %= 256
    return _look_up(image, np.where(threshold > _LEVELS, _LEVELS, 255 - _LEVELS))


def solarize_add(image: np.ndarray, addition: int) -> np.ndarray:
    """Adds to the values under 128."""
    added = np.minimum(_LEVELS.astype(np.int64) + addition, 255)
    return _look_up(image, np.where(_LEVELS < 128, added, _LEVELS).astype(np.uint8))


def brightness(image: np.ndarray, factor: float) -> np.ndarray:
    """Blends with black."""
    return _look_up(image, _blend(np.zeros_like(_LEVELS), _LEVELS, factor))


def contrast(image: np.ndarray, factor: float) -> np.ndarray:
    """Blends with one grey: the number of pixels / 256, where Pillow takes their mean."""
    height, width = image.shape[:2]
    grey = np.full_like(_LEVELS, min(height * width / 256, 255))
    return _look_up(image, _blend(grey, _LEVELS, factor))


# ---------------------------------------------------------------------------- with its neighbours


def _blend(image1: np.ndarray, image2: np.ndarray, factor: float) -> np.ndarray:
    """image1 at factor 0, image2 at 1, and on beyond it."""
    if factor in (0, 1):
        return (image1, image2)[int(factor)]
    start = image1.astype(np.float32)
    blended = np.subtract(image2, start, dtype=np.float32)
    blended *= np.float32(factor)
    blended += start
    return np.clip(blended, 0, 255, out=blended).astype(np.uint8)


def color(image: np.ndarray, factor: float) -> np.ndarray:
    """Blends with its grey."""
    if image.shape[2] == 1:
        return image
    unit = np.multiply(image, np.float32(1 / 255), dtype=np.float32)
    unit *= np.array([0.2989, 0.587, 0.114], np.float32)
    grey = (unit[..., :1] + unit[..., 1:2] + unit[..., 2:]) * np.float32(255.5)
    return _blend(grey.astype(np.uint8), image, factor)


def sharpness(image: np.ndarray, factor: float) -> np.ndarray:
    """Blends with its smoothed self, which has the image's own border."""
    if min(image.shape[:2]) < 3:
        return image
    edge = np.multiply(image, np.float32(1) / np.float32(13), dtype=np.float32)
    centre = np.multiply(image[1:-1, 1:-1], np.float32(5) / np.float32(13), dtype=np.float32)
    height, width = centre.shape[:2]
    # One by one in this order: float32 sums depend on it, and are truncated.
    total = np.zeros_like(centre)
    for row, column in np.ndindex(3, 3):
        middle = row == column == 1
        total += centre if middle else edge[row : row + height, column : column + width]
    smooth = image.copy()
    smooth[1:-1, 1:-1] = np.minimum(total, 255, out=total)
    return _blend(smooth, image, factor)


# ---------------------------------------------------------------------------- geometry


def _transform(image: np.ndarray, matrix: tuple[float, ...]) -> np.ndarray:
    """Takes pixel (x, y) from the one nearest to (a·x + b·y + c, d·x + e·y + f)."""
    height, width = image.shape[:2]
    a, b, c, d, e, f = (np.float32(value) for value in matrix)
    x, y = np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32)[:, np.newaxis]
    sources = np.empty((height, width, 2), np.int16)
    for axis, source in enumerate((a * x + b * y + c, d * x + e * y + f)):
        sources[..., axis] = np.clip(source + np.copysign(_HALF, source), -9999, 32767)
    border = {"borderMode": cv2.BORDER_CONSTANT, "borderValue": (FILL,) * 3}
    image = np.ascontiguousarray(image)
    return cv2.remap(image, sources, None, cv2.INTER_NEAREST, **border).reshape(image.shape)


def rotate(image: np.ndarray, degrees: float) -> np.ndarray:
    """Turns the image about its centre."""
    height, width = (np.float32(side - 1) for side in image.shape[:2])
    angle = np.float32(degrees) * np.float32(np.pi / 180)
    cos, sin = np.cos(angle), np.sin(angle)
    x_offset = (width - (cos * width - sin * height)) / 2
    y_offset = (height - (sin * width + cos * height)) / 2
    return _transform(image, (cos, -sin, x_offset, sin, cos, y_offset))


def shear_x(image: np.ndarray, level: float) -> np.ndarray:
    """Moves each row in proportion to its number."""
    return _transform(image, (1, level, 0, 0, 1, 0))


def shear_y(image: np.ndarray, level: float) -> np.ndarray:
    """Moves each column in proportion to its number."""
    return _transform(image, (1, 0, 0, level, 1, 0))


def translate_x(image: np.ndarray, pixels: float) -> np.ndarray:
    """Moves the image to the left."""
    return _transform(image, (1, 0, pixels, 0, 1, 0))


def translate_y(image: np.ndarray, pixels: float) -> np.ndarray:
    """Moves the image up."""
    return _transform(image, (1, 0, 0, 0, 1, pixels))


def cutout(image: np.ndarray, square: tuple[int, float, float]) -> np.ndarray:
    """Greys a square: (half its side, where its centre is, as shares of height and width)."""
    half, *shares = square
    rows, columns = (
        slice(max(0, int(share * side) - half), int(share * side) + half)
        for share, side in zip(shares, image.shape, strict=False)
    )
    image = image.copy()
    image[rows, columns] = FILL
    return image


# ---------------------------------------------------------------------------- the sixteen


class _Operation(NamedTuple):
    """`apply(image, argument)`, with the argument drawn for a magnitude: 1 is 10 of 10."""

    apply: Callable[[np.ndarray, Any], np.ndarray]
    argument: Callable[[float, np.random.Generator], Any]


def _none(magnitude: float, rng: np.random.Generator) -> None:
    """For operations that have no argument."""


def _whole(greatest: int, magnitude: float, rng: np.random.Generator) -> int:
    return int(magnitude * greatest)


def _factor(magnitude: float, rng: np.random.Generator) -> float:
    return magnitude * 1.8 + 0.1


def _signed(greatest: float, magnitude: float, rng: np.random.Generator) -> float:
    return magnitude * greatest * (1 if rng.random() < 0.5 else -1)


def _square(magnitude: float, rng: np.random.Generator) -> tuple[int, float, float]:
    return int(magnitude * CUTOUT), rng.random(), rng.random()


OPERATIONS = {
    "AutoContrast": _Operation(autocontrast, _none),
    "Equalize": _Operation(equalize, _none),
    "Invert": _Operation(invert, _none),
    "Rotate": _Operation(rotate, functools.partial(_signed, 30)),
    "Posterize": _Operation(posterize, functools.partial(_whole, 4)),
    "Solarize": _Operation(solarize, functools.partial(_whole, 256)),
    "Color": _Operation(color, _factor),
    "Contrast": _Operation(contrast, _factor),
    "Brightness": _Operation(brightness, _factor),
    "Sharpness": _Operation(sharpness, _factor),
    "ShearX": _Operation(shear_x, functools.partial(_signed, 0.3)),
    "ShearY": _Operation(shear_y, functools.partial(_signed, 0.3)),
    "TranslateX": _Operation(translate_x, functools.partial(_signed, TRANSLATION)),
    "TranslateY": _Operation(translate_y, functools.partial(_signed, TRANSLATION)),
    "Cutout": _Operation(cutout, _square),
    "SolarizeAdd": _Operation(solarize_add, functools.partial(_whole, 110)),
}
