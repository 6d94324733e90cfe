"""The augmentations that `config.data.augmentation` may name.

A new one is a function (image uint8 [H, W, C], rng, /, its own arguments) -> uint8 [H, W, C], for 1
and 3 channels, and one line in `AUGMENTATIONS`; one for any channels and for float32 in 0 … 255 too
is named in `ANY_PIXELS`. The first line of its docstring says in a run's
overview what it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

import numpy as np
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from vit_jax.data.images.picture import as_array, as_pillow
from vit_jax.data.images.pillow_policies import autoaugment, randaug_timm, trivial_augment
from vit_jax.data.images.randaugment_tf import randaug_tf
from vit_jax.kinds import Amount, Kind, Share

# ImageNet's mean and deviation of each channel, and those of its luminance, for any other channels.
MEAN = {3: (123.675, 116.28, 103.53), 1: (117.0,)}
STD = {3: (58.395, 57.12, 57.375), 1: (57.4,)}

ERASED = ("pixel", "const")
ErasingMode = Annotated[str, Kind(f"one of {', '.join(ERASED)}", lambda mode: mode in ERASED)]
Hue = Annotated[
    float, Kind("a number from 0 to 0.5", lambda x: isinstance(x, int | float) and 0 <= x <= 0.5)
]


# ---------------------------------------------------------------------------- colours


def color_jitter(
    image: np.ndarray,
    rng: np.random.Generator,
    /,
    brightness: Amount = 0.4,
    contrast: Amount = 0.4,
    saturation: Amount = 0.4,
    hue: Hue = 0.0,
) -> np.ndarray:
    """Brightness, contrast, saturation and hue changed at random, in random order.

    As torchvision's `ColorJitter` does: factors are uniform in 1 ± the argument, at least 0; the
    hue turns by up to ± `hue` of the whole circle.
    """
    return as_array(_jittered(as_pillow(image), rng, (brightness, contrast, saturation), hue))


def _jittered(
    picture: Image.Image, rng: np.random.Generator, strengths: tuple[float, ...], hue: float
) -> Image.Image:
    enhancers = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    for kind in rng.permutation(4):
        if kind == 3:
            picture = _turn_hue(picture, rng.uniform(-hue, hue))
        elif strengths[kind]:
            factor = rng.uniform(max(0, 1 - strengths[kind]), 1 + strengths[kind])
            picture = enhancers[kind](picture).enhance(factor)
    return picture


def _turn_hue(picture: Image.Image, turn: float) -> Image.Image:
    """Turns the hue by `turn` of the circle, in steps of 1/255."""
    if not turn or picture.mode == "L":
        return picture
    hue, saturation, value = picture.convert("HSV").split()
    turned = hue.point([(level + int(turn * 255)) % 256 for level in range(256)])
    return Image.merge("HSV", (turned, saturation, value)).convert("RGB")


def _greyed(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    return picture.convert("L").convert(picture.mode)


def _solarized(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    return ImageOps.solarize(picture)


def _blurred(picture: Image.Image, rng: np.random.Generator) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(rng.uniform(0.1, 2.0)))


def three_augment(
    image: np.ndarray, rng: np.random.Generator, /, jitter: Amount = 0.3
) -> np.ndarray:
    """3-Augment (DeiT-III, 2204.07118): greyed, solarised or blurred; then colours jittered.

    One of the three always happens; then brightness, contrast and saturation as `color_jitter`.
    """
    chosen = (_greyed, _solarized, _blurred)[rng.integers(3)]
    return as_array(_jittered(chosen(as_pillow(image), rng), rng, (jitter,) * 3, 0))


# ---------------------------------------------------------------------------- erasing


def random_erasing(
    image: np.ndarray,
    rng: np.random.Generator,
    /,
    probability: Share = 0.25,
    mode: ErasingMode = "pixel",
) -> np.ndarray:
    """A rectangle replaced by noise ("pixel") or by ImageNet's mean colour ("const").

    As timm's `RandomErasing` (1708.04896), which normalises first and erases then: its noise of
    mean 0 and deviation 1 is here noise of ImageNet's mean and deviation, cut to 0 … 255. From 2 %
    to a third of the area, height / width log-uniform in 0.3 … 1 / 0.3, ten tries to fit.
    """
    if rng.random() >= probability:
        return image
    height, width, channels = image.shape
    for _ in range(10):
        area = rng.uniform(0.02, 1 / 3) * height * width
        ratio = math.exp(rng.uniform(math.log(0.3), -math.log(0.3)))
        rows, columns = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if rows < height and columns < width:
            top, left = rng.integers(height - rows + 1), rng.integers(width - columns + 1)
            deviation = rng.standard_normal((rows, columns, channels)) if mode == "pixel" else 0
            mean, std = MEAN.get(channels, MEAN[1]), STD.get(channels, STD[1])
            noise = np.rint(mean + np.multiply(std, deviation))
            image = image.copy()
            image[top : top + rows, left : left + columns] = np.clip(noise, 0, 255)
            break
    return image


AUGMENTATIONS: dict[str, Callable[..., np.ndarray]] = {
    "randaug_tf": randaug_tf,
    "randaug_timm": randaug_timm,
    "three_augment": three_augment,
    "autoaugment": autoaugment,
    "trivial_augment": trivial_augment,
    "color_jitter": color_jitter,
    "random_erasing": random_erasing,
}

ANY_PIXELS = ("random_erasing",)  # Those for any number of channels, and for floats.
