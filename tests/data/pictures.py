"""Images that tests of the data read."""

import io
import struct
import zlib

import numpy as np
from PIL import Image
from sklearn.datasets import load_sample_image


def photograph(height: int = 96, width: int = 128) -> np.ndarray:
    """A part of scikit-learn's photograph of a temple: roof, sky and trees."""
    return np.ascontiguousarray(
        load_sample_image("china.jpg")[150 : 150 + height, 250 : 250 + width]
    )


def encode(image, file_format="PNG", **options) -> bytes:
    """An image, or uint8 [H, W] or [H, W, 3], as a file."""
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(
        file, file_format, **options
    )
    return file.getvalue()


def random_image(height=30, width=40, channels=3, seed=0) -> np.ndarray:
    """Noise, uint8 [H, W, 3], or [H, W] for one channel."""
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def smooth_image(height, width) -> np.ndarray:
    """Slopes, uint8 [H, W, 3]."""
    rows, columns = np.mgrid[:height, :width]
    planes = [rows * 255 // height, columns * 255 // width, (rows + columns) % 256]
    return np.stack(planes, -1).astype(np.uint8)


def encode_tiff(array: np.ndarray, compression: int = 1, planar: int = 1) -> bytes:
    """An array [H, W, C] of any type as a TIFF file by the specification, in strips of three rows.

    Compression 1 is none, 8 deflate; planar 2 stores the channels one after the other.
    """
    height, width, channels = array.shape
    planes = [array] if planar == 1 else [array[..., [channel]] for channel in range(channels)]
    strips = [plane[row : row + 3].tobytes() for plane in planes for row in range(0, height, 3)]
    if compression == 8:
        strips = [zlib.compress(strip) for strip in strips]
    lengths = [len(strip) for strip in strips]
    starts = [8 + sum(lengths[:number]) for number in range(len(strips))]
    kind = {"u": 1, "i": 2, "f": 3}[array.dtype.kind]
    entries = {256: [width], 257: [height], 258: [8 * array.dtype.itemsize] * channels}
    entries |= {259: [compression], 262: [1], 273: starts, 277: [channels], 278: [3], 279: lengths}
    entries |= {284: [planar], 338: [0] * (channels - 1), 339: [kind] * channels}
    entries = {tag: values for tag, values in entries.items() if values}
    start = 8 + sum(lengths)
    after = start + 2 + 12 * len(entries) + 4
    directory, outside = struct.pack("<H", len(entries)), b""
    for tag, values in entries.items():
        directory += struct.pack("<HHI", tag, 4, len(values))
        if len(values) == 1:
            directory += struct.pack("<I", values[0])
        else:
            directory += struct.pack("<I", after + len(outside))
            outside += struct.pack(f"<{len(values)}I", *values)
    end = directory + struct.pack("<I", 0) + outside
    return b"II*\0" + struct.pack("<I", start) + b"".join(strips) + end


def encode_npy(array: np.ndarray) -> bytes:
    """An array as a `.npy` file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()
