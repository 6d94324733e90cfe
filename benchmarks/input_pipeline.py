"""How many training crops a core makes from JPEGs a second: a table for docs/performance.md.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/input_pipeline.py [--photos=DIR] [--seconds=5]

Each row is a way from a file's bytes to an inception crop of 224×224 pixels, mirrored every other
time: vit_jax's, what one would write with Pillow, OpenCV or simplejpeg, and the reference's tf.data
pipeline where TensorFlow can be imported. They draw boxes of one distribution, and take turns of a
few crops, so that a busy machine hits all alike; time is the process's on the CPU.
"""

import argparse
import importlib.util
import io
import os
import pathlib
import time
from collections.abc import Callable, Iterator

import cv2
import numpy as np
import simplejpeg
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image

from vit_jax import config
from vit_jax.data.images.crops import inception_box
from vit_jax.data.images.transforms import train_transform

SIZE = (224, 224)
TURN = 8  # Crops.
OWN = "**vit_jax**"

Crop = Callable[[bytes, np.random.Generator], np.ndarray]

# ---------------------------------------------------------------------------- photographs


def encode(image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90, subsampling="4:2:0")
    return file.getvalue()


def photographs() -> list[Image.Image]:
    """scikit-learn's two, and scikit-image's where it is installed."""
    images = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    try:
        from skimage import data

        images += [data.astronaut(), data.cat(), data.coffee(), data.rocket()]
    except ImportError:
        print("scikit-image is not installed: its photographs are left out.")
    return [Image.fromarray(image) for image in images]


def tiled(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """The photograph and its mirror images side by side, so that detail and noise are its own."""
    rows = np.concatenate([np.asarray(image), np.asarray(ImageOps.flip(image))])
    pair = np.concatenate([rows, rows[:, ::-1]], axis=1)
    times = (-(-size[1] // pair.shape[0]), -(-size[0] // pair.shape[1]), 1)
    return Image.fromarray(np.tile(pair, times)[: size[1], : size[0]])


def photograph_sets(folder: str) -> dict[str, list[bytes]]:
    """Encoded files by the name of their size."""
    if folder:
        paths = sorted(pathlib.Path(folder).glob("**/*.jp*g"))
        return {folder: [path.read_bytes() for path in paths]}
    images = photographs()
    sets = {
        f"{width}×{height}": [encode(ImageOps.fit(image, (width, height))) for image in images]
        for width, height in ((500, 375), (1024, 768))
    }
    return sets | {"4000×3000": [encode(tiled(image, (4000, 3000))) for image in images[:3]]}


# ---------------------------------------------------------------------------- ways


def flipped(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return image[:, ::-1] if rng.random() < 0.5 else image


def pillow(content: bytes, rng: np.random.Generator) -> np.ndarray:
    image = Image.open(io.BytesIO(content)).convert("RGB")
    top, left, height, width = inception_box(rng, image.height, image.width, 0.05, 1)
    box = (left, top, left + width, top + height)
    return flipped(np.asarray(image.resize(SIZE, Image.Resampling.BILINEAR, box)), rng)


def pillow_draft(content: bytes, rng: np.random.Generator) -> np.ndarray:
    """Decoded to a fraction of its size, where the box is at least twice the crop."""
    image = Image.open(io.BytesIO(content))
    top, left, height, width = inception_box(rng, image.height, image.width, 0.05, 1)
    whole_width, reduction = image.width, min(height / SIZE[0], width / SIZE[1])
    image.draft("RGB", tuple(int(side / reduction) for side in image.size))
    scale = min(1, image.width / whole_width)
    box = tuple(side * scale for side in (left, top, left + width, top + height))
    return flipped(np.asarray(image.resize(SIZE, Image.Resampling.BILINEAR, box)), rng)


def opencv(content: bytes, rng: np.random.Generator) -> np.ndarray:
    return sampled(cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR_RGB), rng)


def simple(content: bytes, rng: np.random.Generator) -> np.ndarray:
    return sampled(simplejpeg.decode_jpeg(content), rng)


def sampled(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    top, left, height, width = inception_box(rng, *image.shape[:2], 0.05, 1)
    return flipped(cv2.resize(image[top : top + height, left : left + width], SIZE), rng)


def crops_of(way: Crop, files: list[bytes]) -> Iterator[np.ndarray]:
    """Endless crops, of all files in turn."""
    rng, number = np.random.default_rng(0), 0
    while True:
        yield way(files[number % len(files)], rng)
        number += 1


def tensorflow_crops(files: list[bytes], antialias: bool) -> Iterator[np.ndarray]:
    """The reference's: decode_and_crop_jpeg, bilinear, flip, to [-1, 1]; nothing is made ahead."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)

    def crop(content):
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            tf.io.extract_jpeg_shape(content),
            tf.zeros([0, 0, 4], tf.float32),
            area_range=(0.05, 1.0),
            min_object_covered=0,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([begin[:2], size[:2]], axis=0)
        image = tf.io.decode_and_crop_jpeg(content, window, channels=3)
        image = tf.image.resize(image, SIZE, antialias=antialias)
        return (tf.image.random_flip_left_right(image) - 127.5) / 127.5

    options = tf.data.Options()
    options.threading.private_threadpool_size = 1
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    dataset = tf.data.Dataset.from_tensor_slices(files).repeat().map(crop).batch(TURN)
    for batch in dataset.with_options(options).as_numpy_iterator():
        yield from batch


def ways(files: list[bytes]) -> dict[str, Iterator[np.ndarray]]:
    """Endless crops of the files, by the name of the way they are made."""
    data = config.default_config().data
    own = {
        OWN: train_transform(data, SIZE, 3),
        "Pillow": pillow,
        "Pillow, `draft`": pillow_draft,
        "simplejpeg, OpenCV; not antialiased": simple,
        "OpenCV; not antialiased": opencv,
    }
    found = {name: crops_of(way, files) for name, way in own.items()}
    if importlib.util.find_spec("tensorflow") is None:
        print("TensorFlow is not installed: its rows are left out.")
        return found
    return found | {
        "tf.data; not antialiased": tensorflow_crops(files, antialias=False),
        "tf.data": tensorflow_crops(files, antialias=True),
    }


# ---------------------------------------------------------------------------- measurement


def crops_per_second(crops: dict[str, Iterator[np.ndarray]], seconds: float) -> dict[str, float]:
    """Of each way; all make the same number, and none takes less than `seconds`."""
    for iterator in crops.values():
        next(iterator)
    spent, count = dict.fromkeys(crops, 0.0), 0
    while min(spent.values()) < seconds:
        for name, iterator in crops.items():
            start = time.process_time()
            for _ in range(TURN):
                next(iterator)
            spent[name] += time.process_time() - start
        count += TURN
    return {name: count / time_spent for name, time_spent in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--photos", default="", help="a folder of JPEG files; default: samples")
    parser.add_argument("--seconds", type=float, default=5, help="for each number of the table")
    arguments = parser.parse_args()
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    cv2.setNumThreads(0)
    sets = photograph_sets(arguments.photos)
    results = {}
    for name, files in sets.items():
        print(
            f"{name}: {len(files)} files, {np.mean([len(file) for file in files]):,.0f} bytes each"
        )
        results[name] = crops_per_second(ways(files), arguments.seconds)
        print(results[name], flush=True)
    print("\n| crops a second, one core | " + " | ".join(sets) + " |")
    print("|---" * (len(sets) + 1) + "|")
    for way in next(iter(results.values())):
        cells = (f"{row[way]:,.0f} ({row[OWN] / row[way]:.1f}×)" for row in results.values())
        print(f"| {way} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
