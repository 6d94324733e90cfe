"""Images a second and core, by CPU time: one folder of JPEGs, as Parquet, and as prepared shards.

    python benchmarks/prepared_data.py [ROUNDS]

1,200 JPEGs of 500×375 are made of scikit-learn's two photographs, then a training crop to 224 is timed
in one process, all forms in turn. See docs/data.md.
"""

import io
import pathlib
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from sklearn.datasets import load_sample_image

from vit_jax.config import default_config
from vit_jax.data.images.transforms import train_transform
from vit_jax.data.sources import parquet_values
from vit_jax.data.sources.registry import open_source
from vit_jax.prepare.__main__ import run as prepare

COUNT, BATCH, ROUNDS = 1200, 32, 12
HEIGHT, WIDTH, QUALITY, CROP = 375, 500, 92, 224
FORMS = {  # Name -> kind of source.
    "folder": "folder",
    "parquet": "parquet",
    "parquet_snappy": "parquet",
    "tar": "tar",
    "tar_jpeg_256": "tar",
    "tar_raw_256": "tar",
}


def make_photos() -> list[bytes]:
    """JPEGs that all differ."""
    photos = [load_sample_image(f"{name}.jpg") for name in ("china", "flower")]
    encoded = []
    for number in range(COUNT):
        file = io.BytesIO()
        pixels = np.roll(photos[number % 2], 7 * number, axis=1)[:HEIGHT, :WIDTH]
        Image.fromarray(pixels).save(file, "JPEG", quality=QUALITY)
        encoded.append(file.getvalue())
    return encoded


def write_forms(root: pathlib.Path) -> None:
    """Writes the photographs in every form."""
    photos = make_photos()
    for number, photo in enumerate(photos):
        folder = root / "folder" / "train" / str(number % 2)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(photo)
    image = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": photo, "path": f"{number}.jpg"} for number, photo in enumerate(photos)]
    labels = [number % 2 for number in range(COUNT)]
    table = pa.table({"image": pa.array(rows, image), "label": labels})
    for name, compression in (("parquet", "none"), ("parquet_snappy", "snappy")):
        (root / name).mkdir()
        file = root / name / "train-00000-of-00001.parquet"
        pq.write_table(
            table, file, row_group_size=100, compression=compression, use_dictionary=False
        )
    source = f"--source=folder:{root}/folder"
    for name, flags in {
        "tar": [],
        "tar_jpeg_256": ["--shorter_side=256"],
        "tar_raw_256": ["--shorter_side=256", "--format=raw"],
    }.items():
        whole = "--config.data.held_out_fraction=0"
        prepare([source, f"--output={root}/{name}", "--num_workers=1", whole, *flags])


def seconds_of(source, transform, indices: Sequence[int], seed: int) -> float:
    """CPU time to read and crop an image."""
    rng, start = np.random.default_rng(seed), time.process_time()
    for example in source.fetch(indices):
        transform(example.image, rng)
    return (time.process_time() - start) / len(indices)


def main(rounds: int) -> None:
    """Prints a line for each form."""
    parquet_values.IN_MEMORY = -1  # As if the files were large.
    data = default_config().data
    data.held_out_fraction = 0.0
    transform = train_transform(data, (CROP, CROP), 3)
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write_forms(root)
        data.index_dir = f"{root}/index"
        sources = {}
        for name, kind in FORMS.items():
            data.source = f"{kind}:{root}/{name}"
            sources[name] = open_source(
                data, "train", image_size=(CROP, CROP), channels=3, num_classes=0
            )
        times: dict[str, list[float]] = {name: [] for name in [*sources, "snappy, blocks"]}
        for number in range(rounds):
            order = np.random.default_rng(number).permutation(COUNT)[:BATCH].tolist()
            for name, source in sources.items():
                times[name].append(seconds_of(source, transform, order, number))
            neighbours = range(order[0] % (COUNT - BATCH), order[0] % (COUNT - BATCH) + BATCH)
            snappy = sources["parquet_snappy"]
            times["snappy, blocks"].append(seconds_of(snappy, transform, neighbours, number))
    first = statistics.median(times["folder"])
    for name, values in times.items():
        median = statistics.median(values)
        print(f"{name:15} {1 / median:6.0f} images/s a core, {first / median:.2f} × folder")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS)
