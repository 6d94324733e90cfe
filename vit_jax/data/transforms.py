"""What happens to each image on the host: decode, crop, resize, flip.

Everything is a function of the image and, in training, of a NumPy Generator. Images stay uint8:
the device normalises them.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable

import ml_collections
import numpy as np
from PIL import Image

from vit_jax.errors import ConfigError, DataError

# A photograph of 100 megapixels is data, not an attack; past twice this, 1 gigapixel, it is refused.
Image.MAX_IMAGE_PIXELS = 1 << 29

Picture = np.ndarray | Image.Image  # uint8 [H, W, C], or a Pillow image of mode "L" or "RGB".
Box = tuple[int, int, int, int]  # (top, left, height, width), in pixels.
Resizer = Callable[..., np.ndarray]  # (Picture, size, box=None) -> uint8 [*size, C].

_ORIENTATION_TAG = 0x0112
_ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_PILLOW_FILTERS = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_MODES = {1: "L", 3: "RGB"}


# ---------------------------------------------------------------------------- decoding


def decode(image: bytes | np.ndarray, channels: int) -> np.ndarray:
    """Decodes an image file, whatever its format and its name.

    EXIF orientation is applied, transparency laid over white, 16 bits scaled to 8, the first frame
    of an animation taken; colour becomes grey by ITU-R 601 luminance.

    Args:
        image: the file's bytes, or an array uint8 [H, W, C].
        channels: 1 or 3.

    Returns:
        uint8 [H, W, channels].

    Raises:
        DataError: the bytes are no image, truncated or corrupt; the message says which.
    """
    return _as_array(_load(image, channels))


def _load(image: bytes | np.ndarray, channels: int) -> Picture:
    if isinstance(image, np.ndarray):
        if image.ndim == 3 and image.shape[2] == channels and image.dtype == np.uint8:
            return image
        if image.ndim != 3 or image.shape[2] not in _MODES or image.dtype != np.uint8:
            raise DataError(
                f"an image array is {image.dtype} {list(image.shape)}; expected uint8 "
                f"[height, width, channels] with {channels} channels"
            )
        image = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        return image.convert(_mode(channels))
    try:
        with Image.open(io.BytesIO(image)) as file:
            file.load()
            orientation = _orientation(file)
            picture = _to_mode(file, _mode(channels))
    # Pillow's readers meet corrupt bytes with almost any exception, not only OSError.
    except Exception as error:
        raise DataError(f"cannot decode the image ({error})") from error
    return picture.transpose(_ORIENTATIONS[orientation]) if orientation != 1 else picture


def _mode(channels: int) -> str:
    """Pillow's mode for a number of channels."""
    if channels not in _MODES:
        raise ConfigError(f"Images have 1 or 3 channels, not {channels} (config.model.channels).")
    return _MODES[channels]


def _orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1, upright, where it is absent or malformed."""
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # Cameras write all sorts of EXIF; the pixels are fine.
        return 1
    return orientation if orientation in _ORIENTATIONS else 1


def _to_mode(image: Image.Image, mode: str) -> Image.Image:
    """Converts any Pillow image to "L" or "RGB"."""
    if image.mode.startswith("I"):  # 16-bit grey. Pillow's own conversion clips at 255.
        values = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
        image = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    elif image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range")
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image if image.mode == mode else image.convert(mode)


# ---------------------------------------------------------------------------- crops and resizing


def inception_crop_box(
    rng: np.random.Generator,
    height: int,
    width: int,
    area_range: tuple[float, float],
    ratio_range: tuple[float, float] = (3 / 4, 4 / 3),
) -> tuple[int, int, int, int]:
    """Draws a crop as TensorFlow's `sample_distorted_bounding_box` does.

    The aspect ratio is uniform, then the height is uniform between the least and the greatest that
    the area range and the image admit: smaller crops than torchvision's RandomResizedCrop, whose
    area is uniform.

    Args:
        rng: the source of randomness.
        height: of the image.
        width: of the image.
        area_range: least and greatest share of the image's area.
        ratio_range: least and greatest width / height.

    Returns:
        (top, left, height, width) of a box inside the image; the whole image if 100 draws fail.
    """
    least, greatest = (share * height * width for share in area_range)
    for _ in range(100):
        ratio = rng.uniform(*ratio_range)
        lowest = round((least / ratio) ** 0.5)
        highest = round((greatest / ratio) ** 0.5)
        if round(highest * ratio) > width:
            highest = int((width + 0.5 - 1e-7) / ratio)
            highest -= round(highest * ratio) > width
        highest = min(highest, height)
        crop_height = rng.integers(lowest, highest + 1) if lowest < highest else highest
        # Rounding may have left the range by one row.
        area = crop_height * round(crop_height * ratio)
        crop_height += int(area < least) - int(area > greatest)
        crop_width = round(crop_height * ratio)
        if not least <= crop_height * crop_width <= greatest:
            continue
        if not (0 < crop_height <= height and 0 < crop_width <= width):
            continue
        # As in TensorFlow, the last offset is never drawn.
        top = int(rng.integers(height - crop_height)) if crop_height < height else 0
        left = int(rng.integers(width - crop_width)) if crop_width < width else 0
        return top, left, int(crop_height), int(crop_width)
    return 0, 0, height, width


def _size(image: Picture) -> tuple[int, int]:
    """(height, width)."""
    return image.shape[:2] if isinstance(image, np.ndarray) else image.size[::-1]


def _as_array(image: Picture) -> np.ndarray:
    array = np.asarray(image)
    return array[..., np.newaxis] if array.ndim == 2 else array


def _resize(
    image: Picture,
    size: tuple[int, int],
    box: Box | None = None,
    *,
    interpolation: str,
    antialias: bool,
) -> np.ndarray:
    """Resizes the region `box`, default all, of an image to `size`; uint8 in and out.

    With `antialias`, Pillow's filter, whose support grows with the reduction. Without it, the region
    is cropped and sampled at half-pixel centres, as TensorFlow and OpenCV do by default.
    """
    top, left, height, width = box or (0, 0, *_size(image))
    if antialias and (height, width) != size:
        if isinstance(image, np.ndarray):
            image = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
        region = (left, top, left + width, top + height)
        return _as_array(image.resize(size[::-1], _PILLOW_FILTERS[interpolation], box=region))
    array = _as_array(image)[top : top + height, left : left + width]
    if (height, width) == size:
        return array
    import cv2

    cv2.setNumThreads(0)  # The pipeline's threads are enough.
    flag = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}[interpolation]
    return cv2.resize(array, size[::-1], interpolation=flag).reshape(*size, -1)


def _resizer(data: ml_collections.ConfigDict) -> Resizer:
    return functools.partial(_resize, interpolation=data.interpolation, antialias=data.antialias)


# ---------------------------------------------------------------------------- training


def train_transform(
    data: ml_collections.ConfigDict, image_size: tuple[int, int], channels: int
) -> Callable[[bytes | np.ndarray, np.random.Generator], np.ndarray]:
    """Builds the training transform: `data.train_crop`, then a mirror image every other time.

    Returns:
        A picklable function of (encoded file or uint8 [H, W, C], Generator) to uint8
        [*image_size, channels].

    Raises:
        ConfigError: `channels` is not 1 or 3.
    """
    crops = {
        "inception": functools.partial(_inception_crop, area_range=tuple(data.train_crop_area)),
        "pad": functools.partial(_pad_crop, padding=data.train_crop_padding),
        "resize": _whole_image,
    }
    _mode(channels)
    crop = functools.partial(crops[data.train_crop], size=tuple(image_size), resize=_resizer(data))
    return functools.partial(_train, channels=channels, crop=crop, flip=data.flip)


def _train(
    image: bytes | np.ndarray,
    rng: np.random.Generator,
    *,
    channels: int,
    crop: Callable[[Picture, np.random.Generator], np.ndarray],
    flip: bool,
) -> np.ndarray:
    array = crop(_load(image, channels), rng)
    return array[:, ::-1] if flip and rng.random() < 0.5 else array


def _inception_crop(
    image: Picture,
    rng: np.random.Generator,
    *,
    size: tuple[int, int],
    resize: Resizer,
    area_range: tuple[float, float],
) -> np.ndarray:
    return resize(image, size, inception_crop_box(rng, *_size(image), area_range))


def _pad_crop(
    image: Picture,
    rng: np.random.Generator,
    *,
    size: tuple[int, int],
    resize: Resizer,
    padding: int,
) -> np.ndarray:
    """Resizes, adds `padding` black pixels on each side and cuts the size out at random."""
    array = resize(image, size)
    height, width, channels = array.shape
    padded = np.zeros((height + 2 * padding, width + 2 * padding, channels), np.uint8)
    padded[padding : padding + height, padding : padding + width] = array
    offsets = 2 * padding + 1
    top, left = divmod(int(rng.integers(offsets * offsets)), offsets)
    return padded[top : top + height, left : left + width]


def _whole_image(
    image: Picture, rng: np.random.Generator, *, size: tuple[int, int], resize: Resizer
) -> np.ndarray:
    del rng
    return resize(image, size)


# ---------------------------------------------------------------------------- evaluation


def eval_transform(
    data: ml_collections.ConfigDict, image_size: tuple[int, int], channels: int
) -> Callable[[bytes | np.ndarray], np.ndarray]:
    """Builds the evaluation transform.

    "resize" resizes the whole image; "center" brings the smaller side to `data.eval_resize`, then
    cuts `image_size` out of the middle.

    Returns:
        A picklable function of an encoded file or uint8 [H, W, C] to uint8 [*image_size, channels].

    Raises:
        ConfigError: `channels` is not 1 or 3, or `data.eval_resize` is smaller than the crop.
    """
    _mode(channels)
    height, width = image_size
    if data.eval_crop == "center" and data.eval_resize < max(height, width):
        raise ConfigError(
            f"config.data.eval_resize={data.eval_resize} is smaller than the {height}×{width} pixels "
            "that config.data.eval_crop=center cuts out: make it larger, or set "
            "--config.data.eval_crop=resize."
        )
    smaller_side = data.eval_resize if data.eval_crop == "center" else None
    return functools.partial(
        _evaluate,
        channels=channels,
        size=(height, width),
        smaller_side=smaller_side,
        resize=_resizer(data),
    )


def _evaluate(
    image: bytes | np.ndarray,
    *,
    channels: int,
    size: tuple[int, int],
    smaller_side: int | None,
    resize: Resizer,
) -> np.ndarray:
    picture = _load(image, channels)
    if smaller_side is None:
        return resize(picture, size)
    sides = _size(picture)
    array = resize(picture, tuple(round(side * smaller_side / min(sides)) for side in sides))
    top, left = ((whole - part) // 2 for whole, part in zip(array.shape, size, strict=False))
    return array[top : top + size[0], left : left + size[1]]
