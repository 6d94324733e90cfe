"""Image files to pixels: any format, any mode, as a Pillow image or a uint8 array."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import logging
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from vit_jax.data.images import png, tiff, values
from vit_jax.data.images.jpeg import Jpeg, open_jpeg, read_orientation, upright
from vit_jax.data.images.limits import MAX_IMAGE_GIB, check_size, decoded_bytes
from vit_jax.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

Image.MAX_IMAGE_PIXELS = None  # `check_size` is asked instead.

# Of Pillow's formats those that hold pixels, and nothing that it hands on to other programs.
_PIXEL_FORMATS = (
    *("AVIF", "BMP", "DDS", "DIB", "GIF", "JPEG", "JPEG2000", "PCX", "PNG", "PPM", "PSD", "QOI"),
    *("SGI", "SUN", "TGA", "TIFF", "WEBP"),
)
# First bytes, and after how many of them: of formats that are known, whether or not they can be read.
_SIGNATURES = {
    (0, b"\xff\xd8\xff"): "JPEG",
    (0, b"\x89PNG"): "PNG",
    (0, b"GIF8"): "GIF",
    (8, b"WEBP"): "WebP",
    (0, b"II*\0"): "TIFF",
    (0, b"MM\0*"): "TIFF",
    (4, b"ftypavi"): "AVIF",
    (4, b"ftyphe"): "HEIC",
    (4, b"ftypmif1"): "HEIC",
    (0, b"\xff\x0a"): "JPEG XL",
    (0, b"\0\0\0\x0cJXL "): "JPEG XL",
    (0, b"%!PS"): "PostScript",
    (0, b"%PDF"): "PDF",
    (0, b"\0\0\1\0"): "ICO",
}
_UNREAD = ("HEIC", "JPEG XL", "PostScript", "PDF", "ICO")


@functools.cache
def _formats() -> tuple[str, ...]:
    """Those of `_PIXEL_FORMATS` that this build of Pillow has; its plug-ins take long to import."""
    Image.init()
    return tuple(name for name in _PIXEL_FORMATS if name in Image.OPEN)


@dataclasses.dataclass(frozen=True)
class Decoding:
    """How image files are decoded.

    Attributes:
        max_bytes: that a decoded image may take; see `limits.check_size`.
        bit_depth: of the values in files with 16 bits of grey: 2**bit_depth - 1 becomes white.
        value_range: of the values in files, what becomes 0 and 255; empty: as their type says.
        dtype: of pixels: "uint8" or "float32".
        fast: whether shortcuts may be taken with JPEGs; see `Jpeg`.
    """

    max_bytes: int = int(MAX_IMAGE_GIB * 2**30)
    bit_depth: int = 16
    value_range: tuple[float, ...] = ()
    dtype: str = "uint8"
    fast: bool = False

    def by_value(self, channels: int) -> bool:
        """Whether files are read value by value, not as Pillow's pictures of 8 bits."""
        return channels not in _MODES or bool(self.value_range) or self.dtype != "uint8"


STANDARD = Decoding()


@dataclasses.dataclass(frozen=True)
class Raw:
    """Pixels that a file holds as they are: they are resized as those of a JPEG.

    Other arrays are resized as files of other formats are, by Pillow.
    """

    pixels: np.ndarray  # uint8 [H, W, 1 or 3]

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.pixels.nbytes


# uint8 or float32 [H, W, C], a Pillow image of mode "L" or "RGB", or what a file holds.
Picture = np.ndarray | Image.Image | Jpeg | Raw

_MODES = {1: "L", 3: "RGB"}
_FEW_BITS = 14  # Cameras and scanners give 10, 12 or 14 bits in 16.


def decode(image: bytes | np.ndarray, channels: int, how: Decoding = STANDARD) -> np.ndarray:
    """Decodes an image file, whatever its format and its name.

    EXIF orientation is applied, transparency laid over white, 16 bits scaled to 8, the first frame
    of an animation taken; colour becomes grey by ITU-R 601 luminance. Where `how.by_value`, and of
    `.npy` files and of TIFF files that are more than a picture, the values count: see `values`.

    Args:
        image: the file's bytes, or an array [H, W, C] of what a file holds, uint8 unless `by_value`.
        channels: of the result.
        how: limits, and what the file does not say.

    Returns:
        [H, W, channels] in 0 … 255, of the type `how.dtype`.

    Raises:
        DataError: the bytes are no image, truncated, corrupt or too large; the message says which.
    """
    return as_array(open_picture(image, channels, how))


def decode_for_later(
    image: bytes, channels: int, how: Decoding = STANDARD
) -> np.ndarray | Jpeg | Raw:
    """What a file holds, for `open_picture` as the file is: an array, but a JPEG or raw pixels stay
    such, so that they are resized just as they would be from their file."""
    if _is_by_value(image, channels, how) and not _is_raw(image, channels, how):
        return _read_values(image, channels, how)
    picture = open_picture(image, channels, how)
    if isinstance(picture, Raw):
        return picture
    if isinstance(picture, Jpeg):
        try:
            return picture.decoded()
        except ValueError:
            picture = as_pillow(picture)
    return as_array(picture)


def size_in_memory(image: bytes | np.ndarray | Image.Image) -> int:
    """The bytes that decoding takes, by the header; 0 where there is nothing to decode."""
    if not isinstance(image, bytes):
        return 0
    if jpeg := open_jpeg(image, 3):
        return decoded_bytes(*jpeg.stored_size)
    if image.startswith(values.NPY):
        return len(image)
    if layout := tiff.read_layout(image):
        return layout.num_bytes
    try:
        with _naming_damage(), _identify(image) as file:
            return decoded_bytes(*file.size)
    except DataError:  # Decoding will say it.
        return 0


def decoded_size(image: bytes | np.ndarray) -> int:
    """The bytes of an image decoded whole: a file's as of `size_in_memory`, an array's its own."""
    return size_in_memory(image) if isinstance(image, bytes) else image.nbytes


def open_picture(image: bytes | Picture, channels: int, how: Decoding = STANDARD) -> Picture:
    """As `decode`, but leaves a JPEG undecoded, and another file a Pillow image, without a copy.

    What is wrong with a JPEG shows only when it is decoded, by a function of this module.
    """
    if isinstance(image, Jpeg | Raw):
        return image
    if isinstance(image, np.ndarray):
        return _from_array(image, channels, how)
    if isinstance(image, Image.Image):
        with _naming_damage():
            if how.by_value(channels):
                return _from_array(_values_of(image, channels, how), channels, how)
            return _upright_in_mode(image, channels, how.bit_depth)
    if _is_by_value(image, channels, how):
        pixels = _from_array(_read_values(image, channels, how), channels, how)
        return Raw(pixels) if _is_raw(image, channels, how) else pixels
    if jpeg := open_jpeg(image, channels, fast=how.fast):
        check_size("JPEG", *jpeg.stored_size, len(image), how.max_bytes)
        return jpeg
    return _open_with_pillow(image, channels, how)


def _from_array(image: np.ndarray, channels: int, how: Decoding) -> np.ndarray:
    """What a file holds, [H, W, C], as a picture."""
    plain = image.ndim == 3 and image.dtype == np.uint8
    if plain and image.shape[2] != channels and {image.shape[2], channels} <= set(_MODES):
        image = np.atleast_3d(np.asarray(as_pillow(image).convert(mode_of(channels))))
    if plain and image.shape[2] == channels and not (how.value_range or how.dtype != "uint8"):
        return image
    numbers = image.ndim == 3 and image.dtype.kind in "uif"
    if not numbers or (image.dtype.kind == "f" and not how.value_range):
        raise DataError(
            f"an image array is {image.dtype} {list(image.shape)}; expected uint8 "
            f"[height, width, channels] with {channels} channels, or floats and what is black and "
            "white of them, as in --config.data.value_range='(0.0, 1.0)'"
        )
    if how.bit_depth == 16 and not how.value_range and image.dtype == np.uint16:
        _check_bits(image)
    return values.as_pixels(
        values.with_channels(image, channels), how.dtype, how.value_range, how.bit_depth
    )


def _is_by_value(content: Any, channels: int, how: Decoding) -> bool:
    """Whether a file is read by `_read_values`."""
    if not isinstance(content, bytes):
        return False
    if how.by_value(channels) or content.startswith(values.NPY):
        return True
    layout = tiff.read_layout(content)
    return layout is not None and not layout.fits_pillow


def _is_raw(content: bytes, channels: int, how: Decoding) -> bool:
    """Whether a file of values holds plain pixels of 8 bits, or what becomes such."""
    return content.startswith(values.NPY) and not how.by_value(channels)


def _read_values(content: bytes, channels: int, how: Decoding) -> np.ndarray:
    """What a file holds, [H, W, C] of the type that it is stored in."""
    with _naming_damage():
        if content.startswith(values.NPY):
            return values.read_npy(content, how.max_bytes)
        layout = tiff.read_layout(content)
        exact = how.by_value(channels) and layout is not None and layout.dtype != np.uint8
        if layout is not None and (exact or not layout.fits_pillow or channels not in _MODES):
            return tiff.read_values(content, layout, how.max_bytes)
        with _identify(content) as file:
            deep = values.is_deep_colour(file)
            _load(file, content, how.max_bytes)
            if deep:
                return upright(values.read_deep_colour(content), read_orientation(file))
            return _values_of(file, channels, how)


def _values_of(image: Image.Image, channels: int, how: Decoding) -> np.ndarray:
    """What a Pillow image holds; 8 bits are converted to 1 or 3 channels where these are wanted."""
    if image.mode[0] in "IF" or channels not in _MODES:
        return upright(values.of_pillow(image), read_orientation(image))
    return as_array(_upright_in_mode(image, channels, how.bit_depth))


def mode_of(channels: int) -> str:
    """Pillow's mode for a number of channels."""
    if channels not in _MODES:
        raise ConfigError(f"Images have 1 or 3 channels, not {channels} (config.model.channels).")
    return _MODES[channels]


def is_pictured(pixels: np.ndarray) -> bool:
    """Whether Pillow's images of 8 bits hold an array [H, W, C]."""
    return pixels.dtype == np.uint8 and pixels.shape[2] in _MODES


def size_of(image: Picture) -> tuple[int, int]:
    """(height, width)."""
    if isinstance(image, Jpeg):
        return image.size
    if isinstance(image, Raw):
        return image.pixels.shape[:2]
    return image.shape[:2] if isinstance(image, np.ndarray) else image.size[::-1]


def as_array(image: Picture) -> np.ndarray:
    """The pixels, uint8 [H, W, C]."""
    if isinstance(image, Jpeg):
        try:
            return np.ascontiguousarray(upright(image.decode(), image.orientation))
        except ValueError:
            image = as_pillow(image)
    array = np.asarray(image.pixels if isinstance(image, Raw) else image)
    return array[..., np.newaxis] if array.ndim == 2 else array


def as_pillow(image: Picture) -> Image.Image:
    """The image as a Pillow image of mode "L" or "RGB"."""
    if isinstance(image, Jpeg) and image.pixels is None:
        # Its size is checked already.
        return _open_with_pillow(image.content, image.channels, Decoding(sys.maxsize))
    if isinstance(image, Jpeg | Raw):
        image = as_array(image)
    if isinstance(image, Image.Image):
        return image
    return Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)


def _open_with_pillow(content: bytes, channels: int, how: Decoding) -> Image.Image:
    """Decodes a file of any format, upright; of a PNG that fails, what is left without metadata."""
    try:
        return _decode_with_pillow(content, channels, how)
    except DataError:
        if (pixels := png.without_metadata(content)) == content:
            raise
    return _decode_with_pillow(pixels, channels, how)


def _decode_with_pillow(content: bytes, channels: int, how: Decoding) -> Image.Image:
    with _naming_damage(), _identify(content) as file:
        if how.bit_depth < 16 and values.is_deep_colour(file):
            raise ValueError(
                f"of colours of 16 bits only 8 are read, which are not the {how.bit_depth} of "
                "bit_depth: convert it to 8 bits, or set --config.data.dtype=float32"
            )
        _load(file, content, how.max_bytes)
        return _upright_in_mode(file, channels, how.bit_depth)


def _load(file: Image.Image, content: bytes, max_bytes: int) -> None:
    """Decodes the pixels, all of them, of a file that is not too large."""
    width, height = file.size
    check_size(file.format, height, width, len(content), max_bytes)
    file.load()
    # Rows that are not there are black; where the last ones are, they are counted.
    last = file.crop((0, height - 1, width, height))
    suspect = file.info.get("interlace") or last.getbbox(alpha_only=False) is None
    if file.format == "PNG" and suspect and (missing := png.missing_bytes(content)):
        raise OSError(f"image file is truncated: {missing:,} bytes of its rows are missing")


def _identify(content: bytes) -> Image.Image:
    """The file as Pillow opens it; nothing is decoded yet."""
    try:
        return Image.open(io.BytesIO(content), formats=_formats())
    except UnidentifiedImageError:  # Its message has an address in memory, but no reason.
        raise DataError(f"cannot decode the image ({_reason(content)})") from None


def _reason(content: bytes) -> str:
    """Why Pillow knows nothing of a file."""
    if not content:
        return "it is empty"
    for (offset, signature), kind in _SIGNATURES.items():
        if content.startswith(signature, offset):
            unread = f"it is a {kind} file: convert it to JPEG or PNG"
            return unread if kind in _UNREAD else f"it is a damaged {kind} file"
    return "its content is of no known format"


@contextlib.contextmanager
def _naming_damage() -> Iterator[None]:
    """Pillow's readers meet corrupt bytes with almost any exception: makes each a DataError."""
    try:
        yield
    except (DataError, ConfigError):
        raise
    except Exception as error:
        raise DataError(f"cannot decode the image ({error})") from error


def _upright_in_mode(image: Image.Image, channels: int, bit_depth: int) -> Image.Image:
    """Decodes an image of any mode, turns it as its EXIF says, and converts it."""
    image.load()
    orientation = read_orientation(image)
    picture = _to_mode(image, mode_of(channels), bit_depth)
    return picture if orientation == 1 else as_pillow(upright(as_array(picture), orientation))


def _check_bits(pixels: np.ndarray) -> None:
    """Warns where no value of 16 bits exceeds what fewer hold."""
    if 0 < (used := int(pixels.max()).bit_length()) <= _FEW_BITS:
        _warn_of_few_bits(used)


@functools.cache  # Once.
def _warn_of_few_bits(used: int) -> None:
    logger.warning(
        "A picture of 16 bits has no value above %s, so it is almost black. If all are so, their "
        "values have fewer bits: set --config.data.bit_depth, perhaps to %d.",
        f"{2**used - 1:,}",
        next(bits for bits in (10, 12, 14) if used <= bits),
    )


def _to_mode(image: Image.Image, mode: str, bit_depth: int) -> Image.Image:
    """Converts any Pillow image to "L" or "RGB"."""
    if image.mode.startswith("I"):  # 16-bit grey. Pillow's own conversion clips at 255.
        white = 2**bit_depth - 1
        grey = np.clip(np.asarray(image).astype(np.int64), 0, 65535)
        if bit_depth == 16:
            _check_bits(grey)
        grey = (np.minimum(grey, white) * 255 + white // 2) // white
        image = Image.fromarray(grey.astype(np.uint8))
    elif image.mode == "F":
        raise ValueError(
            "floating-point pixels have no agreed range: say which value is black and which is white, "
            "as in --config.data.value_range='(0.0, 1.0)'"
        )
    elif image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image if image.mode == mode else image.convert(mode)
