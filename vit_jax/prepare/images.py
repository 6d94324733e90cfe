"""Images as prepared shards hold them: as they were, or smaller and encoded anew."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import simplejpeg
from PIL import Image

from vit_jax.data.images.picture import Decoding, as_array, open_picture, size_of
from vit_jax.data.images.resizing import resizer
from vit_jax.data.images.values import NPY, NPY_EXTENSION
from vit_jax.data.sources.contents import read_header

KEPT, JPEG, WEBP, PNG, RAW = "", "jpeg", "webp", "png", "raw"
QUALITY = 90


class File(NamedTuple):
    """An image in a shard."""

    content: bytes
    extension: str  # with its dot


@dataclasses.dataclass(frozen=True)
class Rewriting:
    """What becomes of each image.

    Attributes:
      shorter_side: of the result in pixels; smaller images keep their size; 0: all do.
      format: KEPT: files stay as they are, but JPEG where they are resized, and PNG for an array;
        else what all are encoded as. RAW is uint8 [H, W, C] as a `.npy` file.
      quality: of JPEG and WebP.
      decoding: limits.
    """

    shorter_side: int = 0
    format: str = KEPT
    quality: int = QUALITY
    decoding: Decoding = dataclasses.field(default_factory=Decoding)

    # Of a resized image; antialiased, sharper than bilinear.
    interpolation = "bicubic"
    antialias = True

    def __call__(self, image: bytes | np.ndarray) -> File:
        """The file for an image; raises DataError or OSError if it cannot be decoded, all of it."""
        if self.format in (KEPT, RAW) and not self.shorter_side and _is_npy(image):
            return File(_as_npy(image), NPY_EXTENSION)
        header = read_header(image) if isinstance(image, bytes) else None
        grey = image.shape[2] == 1 if isinstance(image, np.ndarray) else header and header.is_grey
        picture = open_picture(image, 1 if grey else 3, self.decoding)
        height, width = size_of(picture)
        smaller = 0 < self.shorter_side < min(height, width)
        wanted = _EXTENSIONS.get(self.format)
        if (
            header
            and isinstance(image, bytes)
            and not smaller
            and wanted in (None, header.extension)
        ):
            as_array(picture)  # What cannot be decoded is met now.
            return File(image, header.extension)
        if smaller:
            scale = self.shorter_side / min(height, width)
            size = (round(height * scale), round(width * scale))
            pixels = resizer(self)(picture, size)
        else:
            pixels = as_array(picture)
        name = self.format or (JPEG if smaller else PNG)
        return File(_ENCODERS[name](np.ascontiguousarray(pixels), self.quality), _EXTENSIONS[name])


def _is_npy(image: bytes | np.ndarray) -> bool:
    """Whether an image is a `.npy` file, or an array that no other file holds."""
    if isinstance(image, bytes):
        return image.startswith(NPY)
    return not (image.dtype == np.uint8 and image.ndim == 3 and image.shape[2] in (1, 3))


def _as_npy(image: bytes | np.ndarray, quality: int = 0) -> bytes:
    del quality
    if isinstance(image, bytes):
        return image
    file = io.BytesIO()
    np.save(file, image, allow_pickle=False)
    return file.getvalue()


def _as_jpeg(pixels: np.ndarray, quality: int) -> bytes:
    grey = pixels.shape[2] == 1
    space, sampling = ("GRAY", "Gray") if grey else ("RGB", "420")
    return simplejpeg.encode_jpeg(pixels, quality, space, sampling)


def _by_pillow(name: str, **options: int) -> Callable[[np.ndarray, int], bytes]:
    def encode(pixels: np.ndarray, quality: int) -> bytes:
        file = io.BytesIO()
        Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(
            file, name, quality=quality, **options
        )
        return file.getvalue()

    return encode


_ENCODERS: dict[str, Callable[[np.ndarray, int], bytes]] = {
    JPEG: _as_jpeg,
    WEBP: _by_pillow("WEBP"),
    PNG: _by_pillow("PNG"),
    RAW: _as_npy,
}
_EXTENSIONS = {JPEG: ".jpg", WEBP: ".webp", PNG: ".png", RAW: NPY_EXTENSION}
FORMATS = tuple(_ENCODERS)
