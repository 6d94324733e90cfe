"""Training crops a second and core from prepared shards, beside tf.data from the originals.

    OMP_NUM_THREADS=1 taskset -c 1 python benchmarks/prepared_crops.py [--seconds=3]

Photographs are those of benchmarks/input_pipeline.py, at 500×375 and 4000×3000. `prepare` brings their
shorter sides to 256 and 384, as JPEG and as raw pixels. All ways take turns of a few crops to 224×224;
time is the process's on the CPU. vit_jax reads its shards from the disk's cache and writes the crop
into a batch; tf.data, where TensorFlow can be imported, has its files in memory.
"""

import argparse
import importlib.util
import os
import pathlib
import tarfile
import tempfile
import time
from collections.abc import Iterator

import cv2
import numpy as np
from input_pipeline import SIZE, TURN, photograph_sets, tensorflow_crops

from vit_jax.config import default_config
from vit_jax.data.images.transforms import train_transform
from vit_jax.data.sources.registry import open_source
from vit_jax.prepare.__main__ import run as prepare

TURN_SECONDS = 0.05
COPIES = 64  # Of the photographs, so that shards are read here and there.
SIDES = {"500×375": 256, "4000×3000": 384}


def write_originals(folder: pathlib.Path, files: list[bytes]) -> None:
    """Writes the files, some times over, into two class folders."""
    for number in range(COPIES):
        path = folder / "train" / str(number % 2) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[number % len(files)])


def crops_of_source(name: str, index: str, *, antialias: bool) -> Iterator[np.ndarray]:
    """Endless rows of batches, of a source in random order."""
    data = default_config().data
    data.source, data.held_out_fraction, data.index_dir = name, 0.0, index
    data.antialias = antialias
    source = open_source(data, "train", image_size=SIZE, channels=3, num_classes=0)
    transform = train_transform(data, SIZE, 3)
    rng, batch = np.random.default_rng(0), np.empty((TURN, *SIZE, 3), np.uint8)
    while True:
        for row, example in enumerate(source.fetch(rng.integers(len(source), size=TURN).tolist())):
            batch[row] = transform(example.image, rng)
            yield batch[row]


def shard_files(folder: str) -> list[bytes]:
    """The images in shards."""
    found = []
    for path in sorted(pathlib.Path(folder).glob("*.tar")):
        with tarfile.open(path) as archive:
            members = [each for each in archive if each.name.endswith(".jpg")]
            found += [archive.extractfile(each).read() for each in members]
    return found


def ways(root: pathlib.Path, files: list[bytes], side: int) -> dict[str, Iterator[np.ndarray]]:
    """Endless crops by the name of the way they are made; writes what they need."""
    write_originals(root / "originals", files)
    source, whole = f"--source=folder:{root}/originals", "--config.data.held_out_fraction=0"
    for name in ("jpeg", "raw"):
        flags = [f"--shorter_side={side}", f"--format={name}", "--num_workers=1", whole]
        prepare([source, f"--output={root}/{name}", *flags])
    index, found = f"{root}/index", {}
    for label, antialias in (("", True), ("; not antialiased", False)):
        for name in ("jpeg", "raw"):
            made = crops_of_source(f"tar:{root}/{name}", index, antialias=antialias)
            found[f"vit_jax, {name} at {side}{label}"] = made
        original = crops_of_source(f"folder:{root}/originals", index, antialias=antialias)
        found[f"vit_jax, originals{label}"] = original
        if importlib.util.find_spec("tensorflow") is None:
            print("TensorFlow is not installed: its rows are left out.")
            continue
        prepared = shard_files(f"{root}/jpeg")
        found[f"tf.data, originals{label}"] = tensorflow_crops(files, antialias)
        found[f"tf.data, jpeg at {side}{label}"] = tensorflow_crops(prepared, antialias)
    return found


def crops_per_second(crops: dict[str, Iterator[np.ndarray]], seconds: float) -> dict[str, float]:
    """Of each way; they take turns of some hundredths of a second."""
    for iterator in crops.values():
        next(iterator)
    spent, count = dict.fromkeys(crops, 0.0), dict.fromkeys(crops, 0)
    while min(spent.values()) < seconds:
        for name, iterator in crops.items():
            start = now = time.process_time()
            while now < start + TURN_SECONDS:
                for _ in range(TURN):
                    next(iterator)
                count[name] += TURN
                now = time.process_time()
            spent[name] += now - start
    return {name: count[name] / spent[name] for name in crops}


def main() -> None:
    """Prints a table for each size."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=3, help="for each number")
    arguments = parser.parse_args()
    os.environ |= {"CUDA_VISIBLE_DEVICES": "-1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    cv2.setNumThreads(0)
    for size, side in SIDES.items():
        with tempfile.TemporaryDirectory() as folder:
            found = ways(pathlib.Path(folder), photograph_sets("")[size], side)
            rates = crops_per_second(found, arguments.seconds)
        base = rates.get("tf.data, originals; not antialiased", float("nan"))
        print(
            f"\n| {size} | crops a second, one core | to tf.data's crop decoding of them |\n|---|---|---|"
        )
        for name, rate in rates.items():
            print(f"| {name} | {rate:,.0f} | {rate / base:.2f}× |")


if __name__ == "__main__":
    main()
