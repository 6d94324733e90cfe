"""Images that tests of the data read."""

import io

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
