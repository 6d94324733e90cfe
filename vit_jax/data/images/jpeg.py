"""JPEG files whose pixels are decoded when they are needed, and only as far as they are needed."""

from __future__ import annotations

import dataclasses
import io
import struct

import numpy as np
import simplejpeg
from PIL import Image

_ORIENTATION_TAG = 0x0112
# EXIF orientation: the stored image is first transposed, then its rows, then its columns reversed.
_UPRIGHT = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}

_START, _END = b"\xff\xd8", b"\xff\xd9"
_EXIF_OR_XMP = 0xFFE1
_FRAMES = {0xFFC0: True, 0xFFC1: True, 0xFFC2: False}  # Huffman-coded: sequential or progressive.
_TALLEST_BLOCK = 32  # Rows of the blocks that are coded together, at most; 16 for most files.

FACTORS = (8, 4, 2, 1)  # By which the sides can be divided in decoding.


@dataclasses.dataclass(frozen=True)
class Jpeg:
    """A JPEG file, not decoded yet.

    Attributes:
        content: the file.
        channels: 1 or 3, of the decoded image.
        stored_size: (height, width) as stored.
        orientation: EXIF's, 1 to 8.
        height_offset: where in `content` the height stands, if decoding can stop after some rows;
            else 0.
        pixels: as stored, if the file is decoded already; `content` is empty then.
        fast: whether colours of lower resolution are repeated, not interpolated, and the sides divided
            where a smaller reduction is left for the filter.
    """

    content: bytes
    channels: int
    stored_size: tuple[int, int]
    orientation: int
    height_offset: int
    pixels: np.ndarray | None = dataclasses.field(default=None, compare=False)
    fast: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """(height, width), upright."""
        return self.stored_size[::-1] if _UPRIGHT[self.orientation][0] else self.stored_size

    @property
    def nbytes(self) -> int:
        """Bytes in memory, of the file or of its pixels."""
        return len(self.content) if self.pixels is None else self.pixels.nbytes

    @property
    def factors(self) -> tuple[int, ...]:
        """By which `decode` can divide the sides, the greatest first."""
        return FACTORS if self.pixels is None else (1,)

    def decoded(self) -> Jpeg:
        """The same with its pixels at hand; raises ValueError as `decode` does."""
        return dataclasses.replace(self, content=b"", pixels=self.decode())

    def stored_box(self, box: tuple[int, int, int, int]) -> tuple[int, int, int, int]:
        """The box, in the stored image, of a box (top, left, height, width) of the upright one."""
        transposed, rows_reversed, columns_reversed = _UPRIGHT[self.orientation]
        (top, left, height, width), (whole_height, whole_width) = box, self.size
        if rows_reversed:
            top = whole_height - top - height
        if columns_reversed:
            left = whole_width - left - width
        return (left, top, width, height) if transposed else (top, left, height, width)

    def decode(self, factor: int = 1, last_row: int | None = None) -> np.ndarray:
        """Decodes the image as stored.

        Args:
            factor: one of `factors`: each block of 8×8 pixels is decoded to (8 / factor)², so that
                pixel i of a row covers the pixels factor · i to factor · (i + 1).
            last_row: of the stored image, that is needed; later ones may be missing.

        Returns:
            uint8 [ceil(H / factor), ceil(W / factor), C].

        Raises:
            ValueError: the file is damaged, or of a kind that only Pillow reads.
        """
        if self.pixels is not None:
            return self.pixels
        (height, width), content, stops = self.stored_size, self.content, False
        if self.height_offset and last_row is not None:
            # Chroma of the last rows is interpolated with that of the next blocks.
            needed = (last_row // _TALLEST_BLOCK + 2) * _TALLEST_BLOCK
            if stops := needed < height:
                height, at = needed, self.height_offset
                content = content[:at] + struct.pack(">H", height) + content[at + 2 :]
        return simplejpeg.decode_jpeg(
            content,
            colorspace="GRAY" if self.channels == 1 else "RGB",
            min_height=-(-height // factor),
            min_width=-(-width // factor),
            fastupsample=self.fast,
            strict=not stops,  # The rows left over would count as damage.
        )


def open_jpeg(content: bytes, channels: int, *, fast: bool = False) -> Jpeg | None:
    """Reads the header of a JPEG file; None if it is none, or of a kind that is left to Pillow.

    Left to Pillow are CMYK, arithmetic and lossless coding, 12 bits, colour wanted as grey, and
    headers that are damaged.
    """
    if not content.startswith(_START):
        return None
    position, orientation = len(_START), None
    try:
        while True:
            marker, length = struct.unpack_from(">HH", content, position)
            if marker in _FRAMES:
                break
            if marker == _EXIF_OR_XMP and orientation is None:
                orientation = read_orientation(content)
            if marker < 0xFFC0 or 0xFFC4 != marker <= 0xFFDA or length < 2:
                return None  # Other frames, or no header at all.
            position += 2 + length
        precision, height, width, components = struct.unpack_from(">BHHB", content, position + 4)
    except struct.error:
        return None
    if precision != 8 or components not in (1, channels) or components not in (1, 3):
        return None
    if not height * width:
        return None
    # A file without its end may be truncated: that shows only if all of it is decoded.
    stops = _FRAMES[marker] and content.endswith(_END)
    offset = position + 5 if stops else 0
    return Jpeg(content, channels, (height, width), orientation or 1, offset, fast=fast)


def read_orientation(file: bytes | Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1, upright, where it is absent or malformed."""
    try:
        image = Image.open(io.BytesIO(file)) if isinstance(file, bytes) else file
        orientation = image.getexif().get(_ORIENTATION_TAG, 1)
    except Exception:  # Cameras write all sorts of EXIF; the pixels are fine.
        return 1
    return orientation if orientation in _UPRIGHT else 1


def upright(stored: np.ndarray, orientation: int) -> np.ndarray:
    """A view of an array [H, W, C], turned as its EXIF orientation says."""
    transposed, rows_reversed, columns_reversed = _UPRIGHT[orientation]
    array = stored.swapaxes(0, 1) if transposed else stored
    return array[:: -1 if rows_reversed else 1, :: -1 if columns_reversed else 1]
