"""Crops of training images: each takes an image of any size to the model's.

A new one is a function (image, rng, size, resize, its own arguments) and one line in `CROPS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from vit_jax.data.images.picture import Picture, size_of
from vit_jax.data.images.resizing import Box, Resizer, Size, without_excess
from vit_jax.errors import ConfigError
from vit_jax.kinds import Pixels, Share

LEAST_RATIO, GREATEST_RATIO = 3 / 4, 4 / 3  # Width / height of a box.


# ---------------------------------------------------------------------------- boxes


def inception_box(
    rng: np.random.Generator, height: int, width: int, min_area: float, max_area: float
) -> Box:
    """Draws a box as TensorFlow's `sample_distorted_bounding_box` does.

    The aspect ratio is uniform, then the height is uniform between the least and the greatest that
    the area range and the image admit: smaller boxes than torchvision's, whose area is uniform.

    Args:
        rng: the source of randomness.
        height: of the image.
        width: of the image.
        min_area: least share of the image's area.
        max_area: greatest share of the image's area.

    Returns:
        (top, left, height, width) of a box inside the image; the whole image if 100 draws fail.
    """
    least, greatest = min_area * height * width, max_area * height * width
    for _ in range(100):
        ratio = rng.uniform(LEAST_RATIO, GREATEST_RATIO)
        lowest = round((least / ratio) ** 0.5)
        highest = round((greatest / ratio) ** 0.5)
        if round(highest * ratio) > width:
            highest = int((width + 0.5 - 1e-7) / ratio)
            highest -= round(highest * ratio) > width
        highest = min(highest, height)
        box_height = int(rng.integers(lowest, highest + 1)) if lowest < highest else highest
        # Rounding may have left the range by one row.
        area = box_height * round(box_height * ratio)
        box_height += int(area < least) - int(area > greatest)
        box_width = round(box_height * ratio)
        if not least <= box_height * box_width <= greatest:
            continue
        if not (0 < box_height <= height and 0 < box_width <= width):
            continue
        # As in TensorFlow, the last offset is never drawn.
        top = int(rng.integers(height - box_height)) if box_height < height else 0
        left = int(rng.integers(width - box_width)) if box_width < width else 0
        return top, left, box_height, box_width
    return 0, 0, height, width


def random_resized_box(
    rng: np.random.Generator, height: int, width: int, min_area: float, max_area: float
) -> Box:
    """Draws a box as torchvision's `RandomResizedCrop` and timm do.

    The area is uniform and the aspect ratio log-uniform. If 10 draws do not fit, the largest
    central box of an admissible ratio. Arguments and result as in `inception_box`.
    """
    for _ in range(10):
        area = rng.uniform(min_area, max_area) * height * width
        ratio = math.exp(rng.uniform(math.log(LEAST_RATIO), math.log(GREATEST_RATIO)))
        box_height, box_width = round((area / ratio) ** 0.5), round((area * ratio) ** 0.5)
        if 0 < box_height <= height and 0 < box_width <= width:
            top, left = _random_offset(rng, (height, width), (box_height, box_width))
            return top, left, box_height, box_width
    box_height = min(height, round(width / LEAST_RATIO))
    box_width = min(width, round(height * GREATEST_RATIO))
    return (height - box_height) // 2, (width - box_width) // 2, box_height, box_width


def _random_offset(rng: np.random.Generator, whole: Size, part: Size) -> tuple[int, int]:
    """(top, left) of a window of size `part`, uniform over all that lie in `whole`."""
    rows, columns = whole[0] - part[0] + 1, whole[1] - part[1] + 1
    return divmod(int(rng.integers(rows * columns)), columns)


# ---------------------------------------------------------------------------- crops


def inception(
    image: Picture,
    rng: np.random.Generator,
    size: Size,
    resize: Resizer,
    /,
    min_area: Share = 0.05,
    max_area: Share = 1.0,
) -> np.ndarray:
    """TensorFlow's random box (sample_distorted_bounding_box), resized.

    Of every recipe of Google's: the paper, BiT, AugReg, Big Vision.
    """
    _check_areas(min_area, max_area)
    return resize(image, size, inception_box(rng, *size_of(image), min_area, max_area))


def random_resized(
    image: Picture,
    rng: np.random.Generator,
    size: Size,
    resize: Resizer,
    /,
    min_area: Share = 0.08,
    max_area: Share = 1.0,
) -> np.ndarray:
    """torchvision's random box (RandomResizedCrop), resized.

    Of DeiT, DeiT-III and timm.
    """
    _check_areas(min_area, max_area)
    return resize(image, size, random_resized_box(rng, *size_of(image), min_area, max_area))


def simple_random(
    image: Picture,
    rng: np.random.Generator,
    size: Size,
    resize: Resizer,
    /,
    padding: Pixels = 4,
) -> np.ndarray:
    """The shorter side resized to the model's, mirrored outwards by `padding` pixels, cut at random.

    DeiT-III's simple random crop (2204.07118).
    """
    sides = size_of(image)
    array = resize(image, *without_excess(sides, _covering(sides, size), size, rng.random))
    whole = tuple(side + 2 * padding for side in array.shape[:2])
    top, left = _random_offset(rng, whole, size)
    # Reflecting row and column numbers is reflecting the image.
    rows, columns = (np.pad(np.arange(side), padding, mode="reflect") for side in array.shape[:2])
    return array[rows[top : top + size[0]]][:, columns[left : left + size[1]]]


def resize_crop(
    image: Picture,
    rng: np.random.Generator,
    size: Size,
    resize: Resizer,
    /,
    side: Pixels,
) -> np.ndarray:
    """The whole image resized to `side` × `side`, cut at random.

    BiT's, for fine-tuning: 448 to 384, 160 to 128.
    """
    _check_side(side, size)
    return _random_window(resize(image, (side, side)), rng, size)


def resize_small_crop(
    image: Picture,
    rng: np.random.Generator,
    size: Size,
    resize: Resizer,
    /,
    side: Pixels,
) -> np.ndarray:
    """The shorter side resized to `side`, cut at random.

    Big Vision's `resize_small`, for fine-tuning.
    """
    _check_side(side, size)
    sides = size_of(image)
    scaled = tuple(round(one * side / min(sides)) for one in sides)
    array = resize(image, *without_excess(sides, scaled, size, rng.random))
    return _random_window(array, rng, size)


def pad(
    image: Picture,
    rng: np.random.Generator,
    size: Size,
    resize: Resizer,
    /,
    padding: Pixels = 4,
) -> np.ndarray:
    """The whole image resized, bordered by `padding` black pixels, cut at random."""
    array = np.pad(resize(image, size), ((padding, padding), (padding, padding), (0, 0)))
    return _random_window(array, rng, size)


def resize(image: Picture, rng: np.random.Generator, size: Size, resize: Resizer, /) -> np.ndarray:
    """The whole image resized, nothing cut."""
    del rng
    return resize(image, size)


CROPS: dict[str, Callable[..., np.ndarray]] = {
    "inception": inception,
    "random_resized": random_resized,
    "simple_random": simple_random,
    "resize_crop": resize_crop,
    "resize_small_crop": resize_small_crop,
    "pad": pad,
    "resize": resize,
}


def _check_areas(min_area: float, max_area: float) -> None:
    if not 0 < min_area <= max_area:
        raise ConfigError(
            f"config.data.train_crop: min_area={min_area}, max_area={max_area}: must be "
            "0 < min_area <= max_area <= 1."
        )


def _check_side(side: int, size: Size) -> None:
    if side < max(size):
        raise ConfigError(
            f"config.data.train_crop: side={side} is smaller than the {size[0]}×{size[1]} pixels "
            "that are cut out: make it larger."
        )


def _covering(sides: Size, size: Size) -> Size:
    """The least size with the proportions of `sides` that covers `size`, rounded down."""
    (height, width), (rows, columns) = sides, size
    if rows * width >= columns * height:
        return rows, width * rows // height
    return height * columns // width, columns


def _random_window(array: np.ndarray, rng: np.random.Generator, size: Size) -> np.ndarray:
    """A part of `array` of the given size, uniform over all positions."""
    top, left = _random_offset(rng, array.shape[:2], size)
    return array[top : top + size[0], left : left + size[1]]
