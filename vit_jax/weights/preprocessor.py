"""Hugging Face's `preprocessor_config.json`, in and out."""

from collections.abc import Mapping
from typing import Any

from vit_jax.model_file import AREA, HUGGINGFACE, Preprocessing
from vit_jax.models.base import ModelOptions, as_pair
from vit_jax.weights.metadata import per_channel

RESAMPLES = {  # Pillow's numbers -> its name for them, and what stands for it here
    0: ("nearest", "bilinear"),
    1: ("lanczos", "bicubic"),
    2: ("bilinear", "bilinear"),
    3: ("bicubic", "bicubic"),
    4: ("box", AREA),
    5: ("hamming", "bilinear"),
}
BILINEAR = 2  # the library's default
WRITTEN = {"bilinear": BILINEAR, "bicubic": 3, AREA: 4}  # ours -> the number that comes nearest


def read(config: Mapping[str, Any], image_size: tuple[int, int]) -> tuple[Preprocessing, list[str]]:
    """The preprocessing, and remarks on what is done in another way here.

    Args:
      config: the file's content; a value of the wrong kind raises whatever it leads to.
      image_size: of the model.
    """
    crop, resize, remarks = read_crop(config, image_size)
    theirs, ours = RESAMPLES[config.get("resample", BILINEAR)]
    if theirs != ours:
        remarks.append(f"preprocessor_config.json resizes by {theirs}, this package by {ours}")
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    if config.get("do_normalize", True):
        mean, std = (values(config.get(f"image_{key}", 0.5)) for key in ("mean", "std"))
    # The library's pixels are in [0, 255] times this factor, ours in [0, 1].
    factor = config.get("rescale_factor", 1 / 255) if config.get("do_rescale", True) else 1
    largest = round(255 * factor, 9)
    preprocessing = Preprocessing(
        mean=tuple(value / largest for value in mean),
        std=tuple(value / largest for value in std),
        crop=crop,
        resize=resize,
        interpolation=ours,
        rounding=HUGGINGFACE,
    )
    return preprocessing, remarks


def read_crop(config: Mapping[str, Any], image_size: tuple[int, int]) -> tuple[str, int, list[str]]:
    """`Preprocessing`'s `crop` and `resize`, and remarks."""
    size, remarks = config.get("size", image_size), []
    resized = sides(size)
    cropped = sides(config.get("crop_size", image_size))
    result = cropped if config.get("do_center_crop", False) else resized
    keeps_shape = isinstance(size, Mapping) and "shortest_edge" in size
    if result != image_size:
        remarks.append(
            f"preprocessor_config.json makes pictures of {result}; the model is for {image_size}"
        )
    if not keeps_shape and result == resized:
        return "resize", Preprocessing.resize, remarks
    if not keeps_shape:
        remarks.append(
            f"preprocessor_config.json resizes the whole picture to {resized} before its crop, "
            "this package only its smaller side"
        )
    return "center", min(resized), remarks


def sides(size: Any) -> tuple[int, int]:
    """(height, width) of a size in any of the library's forms; twice the same of a shortest edge."""
    if isinstance(size, Mapping):
        size = size.get("shortest_edge") or (size["height"], size["width"])
    return as_pair("size", size)


def values(value: Any) -> tuple[float, ...]:
    """One number or several, as several."""
    return tuple(value) if isinstance(value, list) else (value,)


def write(options: ModelOptions, preprocessing: Preprocessing) -> dict[str, Any]:
    """The inverse of `read`, for a model's complete options."""
    height, width = options.image_size
    size = {"height": height, "width": width}
    crops = preprocessing.crop == "center"  # ViTImageProcessor does not, in all versions.
    return {
        "image_processor_type": "BitImageProcessor" if crops else "ViTImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": preprocessing.resize} if crops else size,
        **({"do_center_crop": True, "crop_size": size} if crops else {}),
        "resample": WRITTEN[preprocessing.interpolation],
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": per_channel(preprocessing.mean, options.channels),
        "image_std": per_channel(preprocessing.std, options.channels),
    }
