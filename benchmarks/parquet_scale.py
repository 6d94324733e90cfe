"""Parquet of CIFAR's and of ImageNet's shape beside folders of the same files: CPU time and memory.

    python benchmarks/parquet_scale.py [ROUNDS]

60,000 PNGs of 32×32 in one file; 100,000 JPEGs of some 100 kB in 20 files, which are links to one of 5,000
rows, as the folder's are to 50 photographs. 64 random images are read and cropped in each form in turn.
"""

import io
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy as np
import prepared_data
import pyarrow as pa
import pyarrow.parquet as pq
from ml_collections import ConfigDict
from PIL import Image

from vit_jax.config import default_config
from vit_jax.data.images.transforms import train_transform
from vit_jax.data.sources.examples import Source
from vit_jax.data.sources.registry import open_source

BATCH, ROUNDS = 64, 30
CIFAR, IMAGENET, ROWS, PHOTOS = 60_000, 100_000, 5_000, 50


def table(images: list[bytes]) -> pa.Table:
    """A column of images as `datasets` writes it, and labels."""
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": each, "path": None} for each in images]
    return pa.table({"image": pa.array(rows, image), "label": [i % 10 for i in range(len(images))]})


def write_cifar(root: pathlib.Path) -> None:
    """Noise of low resolution, in both forms."""
    rng, images = np.random.default_rng(0), []
    for number in range(CIFAR):
        file = io.BytesIO()
        pixels = np.kron(rng.integers(0, 256, (8, 8, 3), np.uint8), np.ones((4, 4, 1), np.uint8))
        Image.fromarray(pixels + rng.integers(0, 16, (32, 32, 3), np.uint8)).save(
            file, "PNG", compress_level=1
        )
        images.append(file.getvalue())
        path = root / "cifar_folder" / "train" / str(number % 10) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(file.getvalue())
    (root / "cifar_parquet").mkdir()
    pq.write_table(table(images), root / "cifar_parquet" / "train-00000-of-00001.parquet")


def write_imagenet(root: pathlib.Path) -> None:
    """Links to a few photographs, in both forms."""
    prepared_data.QUALITY = 97  # Some 100 kB.
    photos = prepared_data.make_photos()[:PHOTOS]
    print(f"{np.mean(list(map(len, photos))) / 1e3:.0f} kB a photograph")
    (root / "imagenet_parquet").mkdir()
    whole = root / "rows.parquet"
    pq.write_table(
        table([photos[row % PHOTOS] for row in range(ROWS)]),
        whole,
        row_group_size=100,
        compression="none",
        use_dictionary=False,
    )
    count = IMAGENET // ROWS
    for number in range(count):
        name = f"train-{number:05}-of-{count:05}.parquet"
        os.link(whole, root / "imagenet_parquet" / name)
    for number, photo in enumerate(photos):
        (root / f"{number}.jpg").write_bytes(photo)
    for number in range(IMAGENET):
        path = root / "imagenet_folder" / "train" / str(number % 10) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        os.symlink(root / f"{number % PHOTOS}.jpg", path)


def main(rounds: int) -> None:
    """Prints a line for each form."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write_cifar(root)
        write_imagenet(root)
        for shape, side in (("cifar", 32), ("imagenet", 224)):
            sources, data = {}, default_config().data
            data.index_dir, data.held_out_fraction = f"{root}/index", 0.0
            for form in ("folder", "parquet"):
                data.source = f"{form}:{root}/{shape}_{form}"
                sources[form] = open_split(data, side)
                command = [sys.executable, __file__, data.source, data.index_dir, str(side)]
                subprocess.run(command, check=True)
            transform = train_transform(data, (side, side), 3)
            times = {form: [] for form in sources}
            for number in range(rounds):
                count = len(sources["folder"])
                order = np.random.default_rng(number).integers(count, size=BATCH).tolist()
                for form, source in sources.items():
                    times[form].append(prepared_data.seconds_of(source, transform, order, number))
            for form, values in times.items():
                print(f"{shape} {form}: {1 / statistics.median(values):,.0f} images/s a core")


def open_split(data: ConfigDict, side: int) -> Source:
    """The training images."""
    return open_source(data, "train", image_size=(side, side), channels=3, num_classes=0)


def memory_mib() -> float:
    """In use now; the system's peak counts what the process was forked from."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def tell_memory(source: str, index_dir: str, side: int) -> None:
    """Opens a source in this process, reads some images, and prints what it took."""
    data = default_config().data
    before = memory_mib()
    data.source, data.index_dir, data.held_out_fraction = source, index_dir, 0.0
    found = open_split(data, side)
    opened = memory_mib()
    order = np.random.default_rng(0).integers(len(found), size=20 * BATCH)
    for batch in order.reshape(20, BATCH).tolist():
        for _ in found.fetch(batch):
            pass
    after = memory_mib()
    print(
        f"{source.partition(':')[0]}: {len(found):,} images opened with {opened - before:.0f} MiB, "
        f"{BATCH} at a time read with {after - opened:.0f} MiB more",
        flush=True,
    )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        tell_memory(sys.argv[1], sys.argv[2], int(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
