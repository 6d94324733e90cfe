"""Files whose values are more than 8 bits of grey or colours: any channels, whole numbers or floats.

`.npy` files, TIFF, and all others where the model has other channels than 1 or 3, or the config says
what is black and white (`data.value_range`), or keeps floats (`data.dtype`). Values become pixels on
the scale 0 … 255 that all images share, uint8 or float32.
"""

from __future__ import annotations

import functools
import io
import math

import cv2
import numpy as np
from PIL import Image

from vit_jax.data.images.limits import check_size
from vit_jax.errors import DataError

NPY = b"\x93NUMPY"
NPY_EXTENSION = ".npy"

Range = tuple[float, float]

_HEADERS = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}
_EXACT = (
    "L",
    "RGB",
    "RGBA",
    "F",
    "I",
    "I;16",
    "I;16B",
)  # Pillow's modes whose values are the file's.


def read_npy(content: bytes, max_bytes: int) -> np.ndarray:
    """The array [H, W] or [H, W, C] of a `.npy` file, as [H, W, C].

    Raises DataError where it is of another kind or too large; ValueError where it is damaged.
    """
    header = _header_of(content)
    shape, fortran, dtype = _read_header(header)
    if len(shape) not in (2, 3) or 0 in shape or dtype.kind not in "uif":
        raise DataError(
            f"a .npy file with {dtype} {list(shape)}; expected numbers [height, width] or [height, "
            "width, channels]"
        )
    height, width, channels = (*shape, 1)[:3]
    check_size("NPY", height, width, len(content), max_bytes, channels * dtype.itemsize)
    size, start = math.prod(shape), len(header)
    if (missing := start + size * dtype.itemsize - len(content)) > 0:
        raise ValueError(f"it ends {missing:,} bytes too early")
    # A view of the file: nothing is copied that no crop asks for.
    values = np.frombuffer(content, dtype, size, start)
    array = values.reshape(shape, order="F" if fortran else "C").reshape(height, width, channels)
    return array.astype(dtype.newbyteorder("="), copy=False)


def _header_of(content: bytes) -> bytes:
    """The bytes before the values; raises DataError for a version that is not known."""
    version = content[len(NPY)]
    if version not in _HEADERS:
        raise DataError(f"a .npy file of version {version}; expected 1 or 2")
    start = len(NPY) + 2
    stop = start + (2 if version == 1 else 4)
    return content[: stop + int.from_bytes(content[start:stop], "little")]


@functools.lru_cache(maxsize=64)  # Those of most files are alike, and NumPy parses them as Python.
def _read_header(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype]:
    """The shape, whether columns come first, and the type that a header says."""
    file = io.BytesIO(header)
    version = np.lib.format.read_magic(file)[0]
    return _HEADERS[version](file)


def is_deep_colour(file: Image.Image) -> bool:
    """Whether a file, not yet decoded, has 16 bits of colours, of which Pillow keeps 8."""
    return file.mode.startswith("RGB") and ";16" in str(getattr(file, "tile", ""))


def read_deep_colour(content: bytes) -> np.ndarray:
    """The colours uint16 [H, W, 3 or 4] of a file as they are stored, by OpenCV."""
    values = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_UNCHANGED)
    if values is None or values.ndim != 3:
        raise DataError("cannot decode the image (its colours of 16 bits cannot be read)")
    return values[..., [2, 1, 0, 3][: values.shape[2]]]


def of_pillow(image: Image.Image) -> np.ndarray:
    """The values [H, W, C] of a Pillow image; 4 channels where it is transparent."""
    mode = "RGBA" if image.has_transparency_data else "RGB"
    values = np.atleast_3d(np.asarray(image if image.mode in _EXACT else image.convert(mode)))
    if values.dtype == np.int32:  # Of 16 bits, as Pillow reads them from some formats.
        return values.clip(0, 65535).astype(np.uint16)
    return values


def with_channels(values: np.ndarray, channels: int) -> np.ndarray:
    """Values [H, W, C] with as many channels as the model expects; grey stands for three.

    Raises DataError where they are others.
    """
    found = values.shape[2]
    if found != channels and (found, channels) != (1, 3):
        raise DataError(
            f"it has {found} channels, and the model expects {channels} (config.model.channels)"
        )
    return np.broadcast_to(values, (*values.shape[:2], channels))


def as_pixels(
    values: np.ndarray, dtype: str, value_range: Range | tuple[()], bit_depth: int
) -> np.ndarray:
    """Values [H, W, C] as pixels: the range's lower end becomes 0, its upper end 255.

    Args:
        values: of any type.
        dtype: of the result: "uint8" cuts what lies outside, and rounds; "float32" keeps it.
        value_range: (lowest, highest); empty: the type's own.
        bit_depth: of values of 16 bits: their highest is 2**bit_depth - 1.

    Raises:
        DataError: the type has no range of its own, or values are not finite.
    """
    low, high = value_range or _own_range(values.dtype, bit_depth)
    if values.dtype.kind == "f" and (wrong := values.size - np.count_nonzero(np.isfinite(values))):
        raise DataError(f"{wrong:,} of its {values.size:,} values are not finite")
    if values.dtype == np.uint8 and (low, high, dtype) == (0, 255, "uint8"):
        return values
    scaled = (values.astype(np.float64) - low) * (255 / (high - low))
    return (np.rint(scaled.clip(0, 255)) if dtype == "uint8" else scaled).astype(dtype)


def _own_range(dtype: np.dtype, bit_depth: int) -> Range:
    if dtype == np.uint8:
        return 0, 255
    if dtype == np.uint16:
        return 0, 2**bit_depth - 1
    raise DataError(
        f"its values are {dtype.name}, which have no agreed range: say which value is black and which "
        "is white, as in --config.data.value_range='(0.0, 1.0)'"
    )
