"""Image files to pixels: any format, any mode, as a Pillow image or a uint8 array."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator

import numpy as np
from PIL import Image, UnidentifiedImageError

from vit_jax.data.images.jpeg import Jpeg, open_jpeg, read_orientation, upright
from vit_jax.errors import ConfigError, DataError

# A photograph of 100 megapixels is data, not an attack; past twice this, 1 gigapixel, it is refused.
Image.MAX_IMAGE_PIXELS = 1 << 29

# uint8 [H, W, C], a Pillow image of mode "L" or "RGB", or a file that is decoded when needed.
Picture = np.ndarray | Image.Image | Jpeg

_MODES = {1: "L", 3: "RGB"}


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
    return as_array(open_picture(image, channels))


def decode_for_later(image: bytes, channels: int) -> np.ndarray | Jpeg:
    """As `decode`, but a JPEG stays one, so that it is resized just as it would be from its file."""
    picture = open_picture(image, channels)
    if isinstance(picture, Jpeg):
        try:
            return picture.decoded()
        except ValueError:
            picture = as_pillow(picture)
    return as_array(picture)


def open_picture(image: bytes | np.ndarray | Image.Image | Jpeg, channels: int) -> Picture:
    """As `decode`, but leaves a JPEG undecoded, and another file a Pillow image, without a copy.

    What is wrong with a JPEG shows only when it is decoded, by a function of this module.
    """
    if isinstance(image, Jpeg):
        return image
    if isinstance(image, np.ndarray):
        if image.ndim == 3 and image.shape[2] == channels and image.dtype == np.uint8:
            return image
        if image.ndim != 3 or image.shape[2] not in _MODES or image.dtype != np.uint8:
            raise DataError(
                f"an image array is {image.dtype} {list(image.shape)}; expected uint8 "
                f"[height, width, channels] with {channels} channels"
            )
        return as_pillow(image).convert(mode_of(channels))
    if isinstance(image, Image.Image):
        with _naming_damage():
            return _upright_in_mode(image, channels)
    return open_jpeg(image, channels) or _open_with_pillow(image, channels)


def mode_of(channels: int) -> str:
    """Pillow's mode for a number of channels."""
    if channels not in _MODES:
        raise ConfigError(f"Images have 1 or 3 channels, not {channels} (config.model.channels).")
    return _MODES[channels]


def size_of(image: Picture) -> tuple[int, int]:
    """(height, width)."""
    if isinstance(image, Jpeg):
        return image.size
    return image.shape[:2] if isinstance(image, np.ndarray) else image.size[::-1]


def as_array(image: Picture) -> np.ndarray:
    """The pixels, uint8 [H, W, C]."""
    if isinstance(image, Jpeg):
        try:
            return np.ascontiguousarray(upright(image.decode(), image.orientation))
        except ValueError:
            image = as_pillow(image)
    array = np.asarray(image)
    return array[..., np.newaxis] if array.ndim == 2 else array


def as_pillow(image: Picture) -> Image.Image:
    """The image as a Pillow image of mode "L" or "RGB"."""
    if isinstance(image, Jpeg) and image.pixels is None:
        return _open_with_pillow(image.content, image.channels)
    if isinstance(image, Jpeg):
        image = as_array(image)
    if isinstance(image, Image.Image):
        return image
    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)


def _open_with_pillow(content: bytes, channels: int) -> Image.Image:
    """Decodes a file of any format, upright."""
    with _naming_damage(), _identify(content) as file:
        return _upright_in_mode(file, channels)


def _identify(content: bytes) -> Image.Image:
    """The file as Pillow opens it; nothing is decoded yet."""
    try:
        return Image.open(io.BytesIO(content))
    except UnidentifiedImageError:  # Its message has an address in memory, but no reason.
        reason = "its content is of no known format" if content else "it is empty"
        raise DataError(f"cannot decode the image ({reason})") from None


@contextlib.contextmanager
def _naming_damage() -> Iterator[None]:
    """Pillow's readers meet corrupt bytes with almost any exception: makes each a DataError."""
    try:
        yield
    except (DataError, ConfigError):
        raise
    except Exception as error:
        raise DataError(f"cannot decode the image ({error})") from error


def _upright_in_mode(image: Image.Image, channels: int) -> Image.Image:
    """Decodes an image of any mode, turns it as its EXIF says, and converts it."""
    image.load()
    orientation = read_orientation(image)
    picture = _to_mode(image, mode_of(channels))
    return picture if orientation == 1 else as_pillow(upright(as_array(picture), orientation))


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
