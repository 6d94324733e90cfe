"""Images a second from an object store, by kind of source, order and latency, beside the local disk.

    taskset -c 0 python benchmarks/object_storage.py --latency=0.2 --server_cores=1 [--shorter_side=256]

needs moto[s3,server] and s3fs, which vit_jax does not. JPEGs of 500×375 lie in a folder, tar shards (by
`prepare`), Parquet and TFRecord files, locally and on the stand-in of tests/object_store.py, a process of
its own, which waits before each reading. Batches are loaded as in training. So called, loader and client
share one core, on which local files are loaded too, and the stand-in has another: stores are elsewhere.
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from prepared_data import make_photos

from tests.data.sources import test_tfds
from tests.object_store import BUCKET
from vit_jax import stores
from vit_jax.config import default_config
from vit_jax.data.dataset import open_dataset, train_loading
from vit_jax.data.loading.pipeline import host_batches
from vit_jax.data.sources import parquet_values
from vit_jax.data.sources.examples import Example
from vit_jax.prepare.__main__ import run as prepare

BATCH, CROP = 128, 224
KINDS = ("folder", "tar", "parquet", "tfrecord")


def write_forms(root: pathlib.Path, count: int, shorter_side: int) -> None:
    """Writes the same images in every form."""
    photos = make_photos()[:256]
    for number in range(count):
        path = root / "folder" / "train" / str(number % 2) / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photos[number % len(photos)])
    flags = [f"--shorter_side={shorter_side}", "--shard_mib=16", "--num_workers=1"]
    whole = "--config.data.held_out_fraction=0"
    prepare([f"--source=folder:{root}/folder", f"--output={root}/tar", *flags, whole])
    data = default_config().data
    data.source, data.held_out_fraction = f"tar:{root}/tar", 0.0
    config = default_config()
    config.data = data
    examples = list(open_dataset(config).examples.fetch(range(count)))
    for number, example in enumerate(examples):  # The same images in the folder.
        path = root / "folder" / "train" / str(number % 2) / f"{number}.jpg"
        path.write_bytes(example.image)
    table = pa.table(
        {
            "image": [{"bytes": example.image, "path": None} for example in examples],
            "label": [int(example.label) for example in examples],
        }
    )
    write_tfrecord(root / "tfrecord", examples)
    (root / "parquet").mkdir()
    file = root / "parquet" / "train-00000-of-00001.parquet"
    pq.write_table(table, file, row_group_size=256, compression="none", use_dictionary=False)


def write_tfrecord(root: pathlib.Path, examples: list[Example]) -> None:
    """Writes a TFDS dataset, as the tests do."""

    def serialized(split: str, label_key: str) -> Iterator[bytes]:
        for example in examples if split == "train" else examples[:1]:
            values = {"image": example.image, label_key: int(example.label), "file_name": b"x"}
            extra = {"label_x_position": 0, "number": 0, "objects/pixel_coords": [0.0, 0.0, 0.0]}
            yield test_tfds.serialized_example(**values, **extra)

    test_tfds.SIZES, test_tfds.examples = {"train": len(examples), "test": 1}, serialized
    test_tfds.write_dataset(root, "tfrecord")


def rate(kind: str, where: str, index: str, shuffle: str, seconds: float) -> float:
    """Images a second, without the first batches."""
    config = default_config()
    config.batch_size, config.model.image_size = BATCH, CROP
    source = "tfds:tiny" if kind == "tfrecord" else f"{kind}:{where}/{kind}"
    config.data.update({"source": source, "held_out_fraction": 0.0, "shuffle": shuffle})
    config.data.data_dir = f"{where}/tfrecord" if kind == "tfrecord" else ""
    config.data.index_dir, config.data.num_workers = index, 0
    batches = host_batches(train_loading(config, open_dataset(config)), np.arange(BATCH))
    for _ in range(6):  # Those that were asked for together, at the start.
        next(batches)
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        next(batches)
        count += BATCH
    batches.close()
    return count / elapsed


def main() -> None:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--latency", default="0,0.02,0.2", help="seconds, several by commas")
    parser.add_argument("--images", type=int, default=2048)
    parser.add_argument("--shorter_side", type=int, default=375, help="pixels of the JPEGs")
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--server_cores", help="processor cores of the stand-in alone (taskset)")
    flags = parser.parse_args()
    parquet_values.IN_MEMORY = -1  # As if the files were large.
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        write_forms(root, flags.images, flags.shorter_side)
        index = f"{root}/index"
        print("| source | order | local |", *(f"{wait} s |" for wait in flags.latency.split(",")))
        rows = {(kind, order): [] for kind in KINDS for order in ("global", "blocks")}
        for kind, order in rows:
            rows[kind, order].append(rate(kind, str(root), index, order, flags.seconds))
        for wait in flags.latency.split(","):
            command = ["taskset", "-c", flags.server_cores] if flags.server_cores else []
            command += [sys.executable, "-m", "tests.object_store", "s3", f"--latency={wait}"]
            command.append(f"--folder={root}")
            pipe = subprocess.PIPE
            with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
                endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
                options = {"endpoint_url": endpoint, "key": "key", "secret": "secret"}
                fsspec.config.conf["s3"] = options
                stores._shared_filesystem.cache_clear()
                fsspec.get_filesystem_class("s3").clear_instance_cache()
                files = fsspec.filesystem("s3")
                files.mkdir(BUCKET)
                for kind in KINDS:
                    files.put(str(root / kind), f"{BUCKET}/{kind}", recursive=True)
                for kind, order in rows:
                    found = rate(kind, f"s3://{BUCKET}", index, order, flags.seconds)
                    rows[kind, order].append(found)
                    print(wait, kind, order, round(found), flush=True)
                server.stdin.close()
        for (kind, order), (local, *others) in rows.items():
            cells = " | ".join(f"{found:,.0f} ({found / local:.0%})" for found in others)
            print(f"| {kind} | {order} | {local:,.0f} | {cells} |")


if __name__ == "__main__":
    main()
