"""The treatment of each image on the host: decoded, cropped or resized, mirrored, augmented.

Everything is a function of the image and, in training, of a NumPy Generator. Pixels stay in 0 … 255,
uint8 or, where `data.dtype` says so, float32: the device normalises them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import cv2
import ml_collections
import numpy as np

from vit_jax.data.images.augmentation import ANY_PIXELS, AUGMENTATIONS
from vit_jax.data.images.crops import CROPS
from vit_jax.data.images.limits import MAX_IMAGE_GIB
from vit_jax.data.images.picture import Decoding, open_picture, size_of
from vit_jax.data.images.resizing import Resizer, resizer, without_excess
from vit_jax.errors import ConfigError
from vit_jax.grammar import Operation, parse
from vit_jax.model_file import HUGGINGFACE, NEAREST, TORCHVISION, Preprocessing


def train_operations(data: ml_collections.ConfigDict) -> tuple[Operation, tuple[Operation, ...]]:
    """The crop of `data.train_crop`, and the chain of `data.augmentation`.

    Raises:
        ConfigError: one of them cannot be read.
    """
    crops = parse(data.train_crop, CROPS, "config.data.train_crop")
    if len(crops) != 1:
        raise ConfigError(
            f"config.data.train_crop={data.train_crop!r}: must be one of {', '.join(CROPS)}, with "
            "its arguments if any."
        )
    return crops[0], parse(data.augmentation, AUGMENTATIONS, "config.data.augmentation")


def describe_training(data: ml_collections.ConfigDict) -> list[str]:
    """A line for each thing that happens to a training image, in order."""
    crop, augmentations = train_operations(data)
    flip = ["flip: every other image mirrored, at random"] if data.flip else []
    copies = data.repeated_augmentation
    repeated = [f"repeated {copies} times in a batch, each time anew"] if copies > 1 else []
    chain = (operation.describe() for operation in augmentations)
    return [crop.describe(), *flip, *chain, *repeated]


def train_transform(
    data: ml_collections.ConfigDict, image_size: tuple[int, int], channels: int
) -> functools.partial[np.ndarray]:
    """Builds the training transform: crop, mirror every other image, augment.

    Returns:
        A picklable function of (encoded file or array [H, W, C] of what one holds, Generator) to
        `data.dtype` [*image_size, channels].

    Raises:
        ConfigError: an operation cannot work.
    """
    crop, augmentations = train_operations(data)
    _check_memory(image_size, channels, data.max_image_gib)
    _check_pixels(augmentations, data.dtype, channels)
    transform = functools.partial(
        _train,
        channels=channels,
        how=decoding_of(data),
        size=image_size,
        resize=resizer(data),
        crop=crop,
        flip=data.flip,
        augmentations=augmentations,
    )
    # What cannot work is an error now, not in a thread.
    transform(np.zeros((*image_size, channels), np.uint8), np.random.default_rng(0))
    return transform


def _check_memory(image_size: tuple[int, int], channels: int, max_gib: float) -> None:
    """Raises ConfigError for images of the model's size that would fill the memory."""
    gib = image_size[0] * image_size[1] * channels / 2**30
    if gib > max_gib:
        raise ConfigError(
            f"config.model.image_size={image_size} with {channels:,} channels: an image would take "
            f"{gib:.3g} GiB, more than config.data.max_image_gib={max_gib:g}."
        )


def _check_pixels(augmentations: tuple[Operation, ...], dtype: str, channels: int) -> None:
    """Raises ConfigError for an augmentation that these pixels are not for."""
    for operation in augmentations:
        if operation.name not in ANY_PIXELS and not (dtype == "uint8" and channels in (1, 3)):
            raise ConfigError(
                f"config.data.augmentation: {operation.name} is for grey and RGB of 8 bits, not for "
                f"{channels} channels of {dtype} (config.model.channels, config.data.dtype): leave "
                f"it out; for these there is {', '.join(ANY_PIXELS)}."
            )


def _train(
    image: bytes | np.ndarray,
    rng: np.random.Generator,
    *,
    channels: int,
    how: Decoding,
    size: tuple[int, int],
    resize: Resizer,
    crop: Operation,
    flip: bool,
    augmentations: tuple[Operation, ...],
) -> np.ndarray:
    array = crop(open_picture(image, channels, how), rng, size, resize)
    if flip and rng.random() < 0.5:
        array = mirrored(array)
    for augment in augmentations:
        array = augment(array, rng)
    return array


_MOST_FLIPPED_CHANNELS = 128  # CV_CN_MAX of OpenCV 5, whose `flip` refuses more.

# How the sides of a resized picture, and the offset of its centre, become integers.
_ROUNDINGS: dict[str, tuple[Callable[[float], int], Callable[[float], int]]] = {
    NEAREST: (round, math.floor),
    TORCHVISION: (math.floor, round),
    HUGGINGFACE: (math.floor, math.floor),
}


def mirrored(image: np.ndarray) -> np.ndarray:
    """An image [H, W, C] with its left at its right, as a copy.

    With few channels NumPy takes 12 times as long as OpenCV to copy the view that it makes.
    """
    if image.shape[2] > _MOST_FLIPPED_CHANNELS:
        return np.ascontiguousarray(image[:, ::-1])
    return cv2.flip(image, 1).reshape(image.shape)


def decoding_of(data: ml_collections.ConfigDict) -> Decoding:
    """How `config.data` decodes image files."""
    return Decoding(
        int(data.max_image_gib * 2**30),
        data.bit_depth,
        tuple(data.value_range),
        data.dtype,
        data.decode == "fast",
    )


def preprocessing_of(data: ml_collections.ConfigDict) -> Preprocessing:
    """How `config.data` prepares images for evaluation and for use."""
    return Preprocessing(
        mean=tuple(data.mean),
        std=tuple(data.std),
        crop=data.eval_crop,
        resize=data.eval_resize,
        interpolation=data.interpolation
        if data.eval_interpolation == "same"
        else data.eval_interpolation,
        antialias=data.antialias,
        bit_depth=data.bit_depth,
        value_range=tuple(data.value_range),
        dtype=data.dtype,
    )


def eval_transform(
    preprocessing: Preprocessing,
    image_size: tuple[int, int],
    channels: int,
    max_image_gib: float = MAX_IMAGE_GIB,
) -> functools.partial[np.ndarray]:
    """Builds the evaluation transform.

    "resize" resizes the whole image; "center" brings the smaller side to `preprocessing.resize`,
    then cuts `image_size` out of the middle.

    Returns:
        A picklable function of an encoded file, or an array [H, W, C] of what one holds, to
        `preprocessing.dtype` [*image_size, channels].

    Raises:
        ConfigError: `resize` is smaller than the crop.
    """
    height, width = image_size
    smaller_side = preprocessing.resize if preprocessing.crop == "center" else None
    if smaller_side is not None and smaller_side < max(height, width):
        raise ConfigError(
            f"config.data.eval_resize={smaller_side} is smaller than the {height}×{width} pixels "
            "that config.data.eval_crop=center cuts out: make it larger, or set "
            "--config.data.eval_crop=resize."
        )
    return functools.partial(
        _evaluate,
        channels=channels,
        how=Decoding(
            int(max_image_gib * 2**30),
            preprocessing.bit_depth,
            preprocessing.value_range,
            preprocessing.dtype,
        ),
        size=(height, width),
        smaller_side=smaller_side,
        rounding=preprocessing.rounding,
        resize=resizer(preprocessing),
    )


def _evaluate(
    image: bytes | np.ndarray,
    *,
    channels: int,
    how: Decoding,
    size: tuple[int, int],
    smaller_side: int | None,
    rounding: str,
    resize: Resizer,
) -> np.ndarray:
    picture = open_picture(image, channels, how)
    if smaller_side is None:
        return resize(picture, size)
    sides = size_of(picture)
    to_length, to_offset = _ROUNDINGS[rounding]
    scaled = tuple(to_length(side * smaller_side / min(sides)) for side in sides)
    array = resize(picture, *without_excess(sides, scaled, size, position=lambda: 0.5))
    top, left = (
        to_offset((whole - part) / 2) for whole, part in zip(array.shape, size, strict=False)
    )
    return array[top : top + size[0], left : left + size[1]]
