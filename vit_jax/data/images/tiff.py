"""TIFF files of any number of channels and any type of values, which Pillow's images cannot hold.

Their strips and tiles are handed to Pillow under another header, as grey bytes: so all of its
decompressors do for them, and what the bytes mean is said here.
"""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, TiffImagePlugin

from vit_jax.data.images.jpeg import upright
from vit_jax.data.images.limits import check_size

SIGNATURES = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")

# Tags of TIFF 6.0, page 117 on, and of its supplement for predictors.
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC = 256, 257, 258, 259, 262
_STRIP_OFFSETS, _ORIENTATION, _SAMPLES, _ROWS_PER_STRIP, _STRIP_BYTES = 273, 274, 277, 278, 279
_PLANAR, _PREDICTOR, _SAMPLE_FORMAT = 284, 317, 339
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_BYTES = 322, 323, 324, 325

_KINDS = {1: "u", 2: "i", 3: "f"}  # SampleFormat -> NumPy's letter.
_PLAIN = (1, 2)  # Photometric interpretations whose values are what they say: grey and RGB.
_UNCOMPRESSED, _JPEG = 1, (6, 7)  # Compressions that know what pixels are.
_HORIZONTAL, _FLOATING = 2, 3  # Predictors.


@dataclasses.dataclass(frozen=True)
class Layout:
    """The first picture of a TIFF file, by its header.

    Attributes:
        tags: by number.
        height, width: in pixels.
        channels: values of a pixel.
        dtype: of a value, in the file's byte order.
    """

    tags: Mapping[int, Any]
    height: int
    width: int
    channels: int
    dtype: np.dtype

    @property
    def num_bytes(self) -> int:
        """The bytes of all values."""
        return self.height * self.width * self.channels * self.dtype.itemsize

    @property
    def orientation(self) -> int:
        """As of EXIF, 1 to 8; 1, upright, where it is absent or malformed."""
        told = self.tags.get(_ORIENTATION, 1)
        return told if told in range(1, 9) else 1

    @property
    def fits_pillow(self) -> bool:
        """Whether Pillow's images hold all of it: 8 bits of grey or colours, or 16 of grey."""
        kinds = {1: ("u1", "u2"), 3: ("u1", "u2"), 4: ("u1", "u2")}
        return self.dtype.str[1:] in kinds.get(self.channels, ())


def read_layout(content: bytes) -> Layout | None:
    """The layout of a TIFF file whose values can be read as they are; None for any other file."""
    if not content.startswith(SIGNATURES):
        return None
    file = io.BytesIO(content)
    try:
        header = file.read(8)
        header += file.read(8) if header[2:4] in (b"+\0", b"\0+") else b""
        tags = TiffImagePlugin.ImageFileDirectory_v2(header)
        file.seek(tags.next)
        tags.load(file)
        samples = tags.get(_SAMPLES, 1)
        bits = set(tags.get(_BITS, (1,))[:samples])
        kinds = set(_as_tuple(tags.get(_SAMPLE_FORMAT, 1))[:samples])
        if (
            tags.get(_PHOTOMETRIC) not in _PLAIN
            or tags.get(_COMPRESSION, 1) in _JPEG
            or len(bits) != 1
            or len(kinds) != 1
            or min(bits) % 8
        ):
            return None
        order = "<" if header.startswith(b"II") else ">"
        dtype = np.dtype(f"{order}{_KINDS[kinds.pop()]}{bits.pop() // 8}")
        return Layout(tags, int(tags[_HEIGHT]), int(tags[_WIDTH]), int(samples), dtype)
    except Exception:  # Whatever Pillow meets in damaged tags: the file is not read here.
        return None


def read_values(content: bytes, layout: Layout, max_bytes: int) -> np.ndarray:
    """The values [H, W, C] of the first picture, upright, in the type that they are stored in.

    Raises DataError where it is too large; whatever Pillow meets where it is damaged.
    """
    pixel_bytes = layout.channels * layout.dtype.itemsize
    check_size("TIFF", layout.height, layout.width, len(content), max_bytes, pixel_bytes)
    planes = layout.channels if layout.tags.get(_PLANAR, 1) == 2 else 1
    per_plane = dataclasses.replace(layout, channels=layout.channels // planes)
    values = np.concatenate(
        [_plane(content, per_plane, number, planes) for number in range(planes)], axis=-1
    )
    native = values.astype(values.dtype.newbyteorder("="), copy=False)
    return np.ascontiguousarray(upright(native, layout.orientation))


def _plane(content: bytes, layout: Layout, number: int, planes: int) -> np.ndarray:
    """The values of one of the planes [H, W, C of the plane]."""
    tags, pixel_bytes = layout.tags, layout.channels * layout.dtype.itemsize
    tiled = _TILE_WIDTH in tags
    offsets, counts = (_TILE_OFFSETS, _TILE_BYTES) if tiled else (_STRIP_OFFSETS, _STRIP_BYTES)
    own = {}
    for tag in (offsets, counts):
        values = _as_tuple(tags[tag])
        size = len(values) // planes
        own[tag] = values[number * size : (number + 1) * size]
    sizes = {_ROWS_PER_STRIP: min(tags.get(_ROWS_PER_STRIP, layout.height), layout.height)}
    if tiled:
        sizes = {_TILE_WIDTH: tags[_TILE_WIDTH] * pixel_bytes, _TILE_HEIGHT: tags[_TILE_HEIGHT]}
    described = {
        _WIDTH: layout.width * pixel_bytes,
        _HEIGHT: layout.height,
        _BITS: 8,
        _COMPRESSION: tags.get(_COMPRESSION, 1),
        _PHOTOMETRIC: 1,
        _SAMPLES: 1,
        **sizes,
    }
    _check_whole(content, described, own[offsets], own[counts])
    with Image.open(io.BytesIO(_with_header(content, described, own)), formats=("TIFF",)) as file:
        stored = np.asarray(file).reshape(layout.height, -1)
    columns = tags[_TILE_WIDTH] if tiled else layout.width
    parts = [
        _undo_predictor(stored[:, start : start + columns * pixel_bytes], layout)
        for start in range(0, layout.width * pixel_bytes, columns * pixel_bytes)
    ]
    return np.concatenate(parts, axis=1)


def _check_whole(
    content: bytes, tags: Mapping[int, int], offsets: Sequence[int], counts: Sequence[int]
) -> None:
    """Raises ValueError where strips or tiles end beyond the file: there the new header would be read.

    Args:
        content: of the file.
        tags: of grey bytes, one a pixel.
        offsets, counts: the first byte of each strip or tile, and its bytes.
    """
    if tags[_COMPRESSION] == _UNCOMPRESSED:  # Then readers ask nobody how many bytes there are.
        if _TILE_WIDTH in tags:
            counts = [tags[_TILE_HEIGHT] * tags[_TILE_WIDTH]] * len(offsets)
        else:
            starts = range(0, tags[_HEIGHT], tags[_ROWS_PER_STRIP])
            rows = [min(tags[_ROWS_PER_STRIP], tags[_HEIGHT] - start) for start in starts]
            counts = [number * tags[_WIDTH] for number in rows]
    end = max(map(sum, zip(offsets, counts, strict=True)))
    if end > len(content):
        raise ValueError(f"it ends {end - len(content):,} bytes too early")


def _undo_predictor(stored: np.ndarray, layout: Layout) -> np.ndarray:
    """The values of bytes uint8 [H, columns of a strip or tile]: [H, columns, C]."""
    predictor = layout.tags.get(_PREDICTOR, 1)
    shape = (len(stored), -1, layout.channels)
    if predictor == _FLOATING:  # Differences of bytes; the first bytes of all values come first.
        steps = stored.reshape(len(stored), -1, layout.channels)
        planes = np.cumsum(steps, axis=1, dtype=np.uint8).reshape(
            len(stored), layout.dtype.itemsize, -1
        )
        ordered = np.ascontiguousarray(planes.swapaxes(1, 2))
        return ordered.view(layout.dtype.newbyteorder(">")).reshape(shape)
    values = np.ascontiguousarray(stored).view(layout.dtype).reshape(shape)
    if predictor == _HORIZONTAL:
        whole = values.astype(layout.dtype.newbyteorder("="))
        return np.cumsum(whole, axis=1, dtype=whole.dtype)
    return values


def _with_header(
    content: bytes, tags: Mapping[int, int], lists: Mapping[int, Sequence[int]]
) -> bytes:
    """The file with another header at its end, which the one at its beginning points to.

    Args:
        content: of the file.
        tags: with one value each.
        lists: of offsets and sizes in the file, which stay where they are.
    """
    entries = {**{tag: (value,) for tag, value in tags.items()}, **lists}
    start = len(content) + len(content) % 2
    after = start + 2 + 12 * len(entries) + 4
    directory, outside = struct.pack("<H", len(entries)), b""
    for tag, values in sorted(entries.items()):
        packed = struct.pack(f"<{len(values)}I", *values)
        if len(values) == 1:
            inside = packed
        else:
            inside = struct.pack("<I", after + len(outside))
            outside += packed
        directory += struct.pack("<HHI", tag, 4, len(values)) + inside
    head = b"II*\0" + struct.pack("<I", start)
    body = content[8:] + bytes(len(content) % 2)
    return head + body + directory + struct.pack("<I", 0) + outside


def _as_tuple(value: Any) -> tuple:
    return value if isinstance(value, tuple) else (value,)
