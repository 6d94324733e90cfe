"""Policies made of Pillow's operations: timm's RandAugment, AutoAugment, TrivialAugment.

They share the operations, and differ in which they choose, how often, and how far each goes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from vit_jax.data.images.picture import as_array, as_pillow
from vit_jax.kinds import Amount, Few, Share


class Geometry(NamedTuple):
    """How moved pixels are read, and what stands outside the image, by Pillow's mode."""

    resample: Image.Resampling
    fill: Mapping[str, Any]


MEAN_FILL = {"RGB": (124, 116, 104), "L": 117}  # ImageNet's mean colour, and its luminance.
BICUBIC = Geometry(Image.Resampling.BICUBIC, MEAN_FILL)
NEAREST = Geometry(Image.Resampling.NEAREST, {"RGB": (0, 0, 0), "L": 0})


# ---------------------------------------------------------------------------- operations


def _affine(image: Image.Image, matrix: tuple[float, ...], how: Geometry) -> Image.Image:
    """Takes pixel (x, y) from (a·x + b·y + c, d·x + e·y + f)."""
    return image.transform(
        image.size,
        Image.Transform.AFFINE,
        matrix,
        resample=how.resample,
        fillcolor=how.fill[image.mode],
    )


def _posterize(image: Image.Image, bits: int) -> Image.Image:
    """Keeps the highest bits. None is black: newer Pillows refuse 0 bits, older ones did this."""
    levels = [level >> (8 - bits) << (8 - bits) for level in range(256)]
    return image.point(levels * len(image.getbands()))


def _solarize_add(image: Image.Image, addition: int) -> Image.Image:
    levels = [min(255, level + addition) if level < 128 else level for level in range(256)]
    return image.point(levels * len(image.getbands()))


# Name -> function of (image, value, geometry); what the value is, its parameter's name says.
OPERATIONS: dict[str, Callable[[Image.Image, Any, Geometry], Image.Image]] = {
    "Identity": lambda image, nothing, how: image,
    "AutoContrast": lambda image, nothing, how: ImageOps.autocontrast(image),
    "Equalize": lambda image, nothing, how: ImageOps.equalize(image),
    "Invert": lambda image, nothing, how: ImageOps.invert(image),
    "Posterize": lambda image, bits, how: _posterize(image, bits),
    "Solarize": lambda image, threshold, how: ImageOps.solarize(image, threshold),
    "SolarizeAdd": lambda image, addition, how: _solarize_add(image, addition),
    "Color": lambda image, factor, how: ImageEnhance.Color(image).enhance(factor),
    "Contrast": lambda image, factor, how: ImageEnhance.Contrast(image).enhance(factor),
    "Brightness": lambda image, factor, how: ImageEnhance.Brightness(image).enhance(factor),
    "Sharpness": lambda image, factor, how: ImageEnhance.Sharpness(image).enhance(factor),
    "Rotate": lambda image, degrees, how: image.rotate(
        degrees, resample=how.resample, fillcolor=how.fill[image.mode]
    ),
    "ShearX": lambda image, level, how: _affine(image, (1, level, 0, 0, 1, 0), how),
    "ShearY": lambda image, level, how: _affine(image, (1, 0, 0, level, 1, 0), how),
    "TranslateX": lambda image, pixels, how: _affine(image, (1, 0, pixels, 0, 1, 0), how),
    "TranslateY": lambda image, pixels, how: _affine(image, (1, 0, 0, 0, 1, pixels), how),
    "TranslateXRel": lambda image, share, how: _affine(
        image, (1, 0, share * image.width, 0, 1, 0), how
    ),
    "TranslateYRel": lambda image, share, how: _affine(
        image, (1, 0, 0, 0, 1, share * image.height), how
    ),
}

# Name of an operation -> its value, of a magnitude from 0 to 1 and a sign of -1 or 1.
Values = dict[str, Callable[[float, int], Any]]


def _apply(
    image: Image.Image,
    name: str,
    values: Values,
    magnitude: float,
    rng: np.random.Generator,
    how: Geometry,
) -> Image.Image:
    sign = 1 if rng.random() < 0.5 else -1
    return OPERATIONS[name](image, values[name](magnitude, sign), how)


def _no_value(magnitude: float, sign: int) -> None:
    """For operations that are all or nothing."""


def _rotation(magnitude: float, sign: int) -> float:
    return sign * 30 * magnitude


def _shear(magnitude: float, sign: int) -> float:
    return sign * 0.3 * magnitude


# ---------------------------------------------------------------------------- RandAugment


def _translation(magnitude: float, sign: int) -> float:
    return sign * 0.45 * magnitude


def _factor_away_from_one(magnitude: float, sign: int) -> float:
    return max(0.1, 1 + sign * 0.9 * magnitude)


RANDAUG_VALUES: Values = {
    "AutoContrast": _no_value,
    "Equalize": _no_value,
    "Invert": _no_value,
    "Rotate": _rotation,
    "Posterize": lambda magnitude, sign: 4 - int(4 * magnitude),
    "Solarize": lambda magnitude, sign: 256 - int(256 * magnitude),
    "SolarizeAdd": lambda magnitude, sign: int(110 * magnitude),
    "Color": _factor_away_from_one,
    "Contrast": _factor_away_from_one,
    "Brightness": _factor_away_from_one,
    "Sharpness": _factor_away_from_one,
    "ShearX": _shear,
    "ShearY": _shear,
    "TranslateXRel": _translation,
    "TranslateYRel": _translation,
}


def randaug_timm(
    image: np.ndarray,
    rng: np.random.Generator,
    /,
    layers: Few = 2,
    magnitude: Amount = 9.0,
    magnitude_std: Amount = 0.5,
    probability: Share = 0.5,
) -> np.ndarray:
    """RandAugment as in timm (rand-m9-mstd0.5-inc1): `layers` of 15 operations, each if a coin says so.

    Of DeiT, and of DeiT-III's fine-tuning: effects increase with the magnitude, up to 10, which is
    drawn anew for each operation; bicubic; outside the image stands ImageNet's mean colour.

    Args:
        image: uint8 [H, W, 1 or 3].
        rng: chooses the operations, whether each happens, magnitudes and signs.
        layers: how many operations are chosen, with repetition.
        magnitude: the magnitude's mean.
        magnitude_std: the magnitude's standard deviation.
        probability: of each chosen operation to happen.
    """
    picture, names = as_pillow(image), list(RANDAUG_VALUES)
    for _ in range(layers):
        name = names[rng.integers(len(names))]
        if rng.random() < probability:
            drawn = np.clip(rng.normal(magnitude, magnitude_std), 0, 10) / 10
            picture = _apply(picture, name, RANDAUG_VALUES, drawn, rng, BICUBIC)
    return as_array(picture)


# ---------------------------------------------------------------------------- AutoAugment


def _factor_from_grey(magnitude: float, sign: int) -> float:
    return 0.1 + 1.8 * magnitude


AUTOAUGMENT_VALUES: Values = {
    "AutoContrast": _no_value,
    "Equalize": _no_value,
    "Invert": _no_value,
    "Rotate": _rotation,
    "Posterize": lambda magnitude, sign: 4 + int(4 * magnitude),
    "Solarize": lambda magnitude, sign: int(256 * magnitude),
    "Color": _factor_from_grey,
    "Contrast": _factor_from_grey,
    "Sharpness": _factor_from_grey,
    "ShearX": _shear,
}

# Table 9 of 1805.09501: (operation, probability, magnitude of 10), twice.
IMAGENET_POLICY = (
    (("Posterize", 0.4, 8), ("Rotate", 0.6, 9)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 5)),
    (("Equalize", 0.8, 8), ("Equalize", 0.6, 3)),
    (("Posterize", 0.6, 7), ("Posterize", 0.6, 6)),
    (("Equalize", 0.4, 7), ("Solarize", 0.2, 4)),
    (("Equalize", 0.4, 4), ("Rotate", 0.8, 8)),
    (("Solarize", 0.6, 3), ("Equalize", 0.6, 7)),
    (("Posterize", 0.8, 5), ("Equalize", 1.0, 2)),
    (("Rotate", 0.2, 3), ("Solarize", 0.6, 8)),
    (("Equalize", 0.6, 8), ("Posterize", 0.4, 6)),
    (("Rotate", 0.8, 8), ("Color", 0.4, 0)),
    (("Rotate", 0.4, 9), ("Equalize", 0.6, 2)),
    (("Equalize", 0.0, 7), ("Equalize", 0.8, 8)),
    (("Invert", 0.6, 4), ("Equalize", 1.0, 8)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Rotate", 0.8, 8), ("Color", 1.0, 2)),
    (("Color", 0.8, 8), ("Solarize", 0.8, 7)),
    (("Sharpness", 0.4, 7), ("Invert", 0.6, 8)),
    (("ShearX", 0.6, 5), ("Equalize", 1.0, 9)),
    (("Color", 0.4, 0), ("Equalize", 0.6, 3)),
    (("Equalize", 0.4, 7), ("Solarize", 0.2, 4)),
    (("Solarize", 0.6, 5), ("AutoContrast", 0.6, 5)),
    (("Invert", 0.6, 4), ("Equalize", 1.0, 8)),
    (("Color", 0.6, 4), ("Contrast", 1.0, 8)),
    (("Equalize", 0.8, 8), ("Equalize", 0.6, 3)),
)


def autoaugment(image: np.ndarray, rng: np.random.Generator, /) -> np.ndarray:
    """AutoAugment's ImageNet policy (1805.09501): one of 25 pairs of operations.

    As timm's "original": bicubic; outside the image stands ImageNet's mean colour.
    """
    picture = as_pillow(image)
    for name, probability, level in IMAGENET_POLICY[rng.integers(len(IMAGENET_POLICY))]:
        if rng.random() < probability:
            picture = _apply(picture, name, AUTOAUGMENT_VALUES, level / 10, rng, BICUBIC)
    return as_array(picture)


# ---------------------------------------------------------------------------- TrivialAugment


def _wide_shear(magnitude: float, sign: int) -> float:
    return sign * 0.99 * magnitude


def _pixels(magnitude: float, sign: int) -> int:
    return sign * int(32 * magnitude)


def _wide_factor(magnitude: float, sign: int) -> float:
    return 1 + sign * 0.99 * magnitude


TRIVIAL_VALUES: Values = {
    "Identity": _no_value,
    "ShearX": _wide_shear,
    "ShearY": _wide_shear,
    "TranslateX": _pixels,
    "TranslateY": _pixels,
    "Rotate": lambda magnitude, sign: sign * 135 * magnitude,
    "Brightness": _wide_factor,
    "Color": _wide_factor,
    "Contrast": _wide_factor,
    "Sharpness": _wide_factor,
    "Posterize": lambda magnitude, sign: 8 - round(6 * magnitude),
    "Solarize": lambda magnitude, sign: 255 * (1 - magnitude),
    "AutoContrast": _no_value,
    "Equalize": _no_value,
}


def trivial_augment(image: np.ndarray, rng: np.random.Generator, /) -> np.ndarray:
    """TrivialAugment, wide (2103.10158): one of 14 operations, at one of 31 magnitudes.

    As torchvision's `TrivialAugmentWide`: nearest pixels; outside the image it is black.
    """
    names = list(TRIVIAL_VALUES)
    name, magnitude = names[rng.integers(len(names))], rng.integers(31) / 30
    return as_array(_apply(as_pillow(image), name, TRIVIAL_VALUES, magnitude, rng, NEAREST))
