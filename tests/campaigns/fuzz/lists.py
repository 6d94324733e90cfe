"""What lists examples: manifests, tar files, TFRecord and ArrayRecord files, IDX files."""

import gzip
import io
import json
import pathlib
import random
import shutil
import struct
import tarfile
from collections.abc import Callable

import numpy as np

from tests.campaigns.fuzz.mutations import VALUES, mutate_file, mutate_json
from tests.data.pictures import encode, photograph
from tests.data.sources.test_tfds import write_dataset
from vit_jax import config
from vit_jax.data.images.picture import decode
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import DataError

CHANNELS = 3
NUM_EXAMPLES = 6


def _pictures() -> list[bytes]:
    return [encode(photograph(8 + number, 9)) for number in range(NUM_EXAMPLES)]


def _write_csv(folder: pathlib.Path) -> str:
    rows = ["path,label,split"]
    for number, picture in enumerate(_pictures()):
        (folder / f"{number}.png").write_bytes(picture)
        rows.append(
            f'"{number}.png",{"dog" if number % 2 else "cat"},{"val" if number > 4 else "train"}'
        )
    (folder / "list.csv").write_text("\n".join(rows) + "\n")
    return f"manifest:{folder}/list.csv"


def _write_jsonl(folder: pathlib.Path) -> str:
    rows = []
    for number, picture in enumerate(_pictures()):
        (folder / f"{number}.png").write_bytes(picture)
        row = {
            "path": f"{number}.png",
            "label": number % 2,
            "split": "val" if number > 4 else "train",
        }
        rows.append(json.dumps(row))
    (folder / "list.jsonl").write_text("\n".join(rows) + "\n")
    return f"manifest:{folder}/list.jsonl"


def _write_tar(folder: pathlib.Path) -> str:
    for split in ("train", "val"):
        with tarfile.open(folder / f"{split}-0.tar", "w") as archive:
            for number, picture in enumerate(_pictures()):
                for suffix, content in (("png", picture), ("cls", str(number % 2).encode())):
                    member = tarfile.TarInfo(f"{number}.{suffix}")
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
    return f"tar:{folder}"


def _write_idx(folder: pathlib.Path) -> str:
    for prefix in ("train", "t10k"):
        images = struct.pack(">HBB3I", 0, 8, 3, NUM_EXAMPLES, 8, 8) + bytes(NUM_EXAMPLES * 64)
        labels = struct.pack(">HBBI", 0, 8, 1, NUM_EXAMPLES) + bytes(range(NUM_EXAMPLES))
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(images))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(labels)
    return f"idx:{folder}"


def _write_tfrecord(folder: pathlib.Path) -> str:
    write_dataset(folder, "tfrecord")
    return "tfds:tiny"


def _write_array_record(folder: pathlib.Path) -> str:
    write_dataset(folder, "array_record")
    return "tfds:tiny"


WRITERS: dict[str, Callable[[pathlib.Path], str]] = {
    "csv": _write_csv,
    "jsonl": _write_jsonl,
    "tar": _write_tar,
    "idx": _write_idx,
    "tfrecord": _write_tfrecord,
    "array_record": _write_array_record,
}


def mutate_row(path: pathlib.Path, rng: random.Random) -> None:
    """Changes a cell of a manifest to an odd value, a header's too."""
    lines = path.read_text().splitlines()
    number = rng.randrange(len(lines))
    if path.suffix == ".jsonl":
        lines[number] = json.dumps(mutate_json(json.loads(lines[number]), rng))
    else:
        cells = lines[number].split(",")
        cells[rng.randrange(len(cells))] = str(rng.choice(VALUES))
        lines[number] = ",".join(cells)
    path.write_bytes("\n".join(lines).encode(errors="surrogatepass"))


class Lists:
    """Opening both splits and reading all examples: pictures with labels, or errors that name them."""

    max_growth_mib = 512

    def __init__(self, folder: pathlib.Path):
        """Writes one data set of every kind to `folder`."""
        self.folder = folder
        for name, write in WRITERS.items():
            (folder / name).mkdir()
            write(folder / name)

    def trial(self, rng: random.Random, folder: pathlib.Path) -> str:
        name = rng.choice(list(WRITERS))
        shutil.copytree(self.folder / name, folder / "data")
        located = {"csv": "manifest:{}/list.csv", "jsonl": "manifest:{}/list.jsonl"}
        located |= {"tar": "tar:{}", "idx": "idx:{}"}
        data = config.default_config().data
        data.source = located.get(name, "tfds:tiny").format(folder / "data")
        data.data_dir, data.index_dir = str(folder / "data"), str(folder / "index")
        files = [path for path in sorted((folder / "data").rglob("*")) if path.is_file()]
        lists = [path for path in files if path.suffix in (".csv", ".jsonl")]
        if lists and rng.random() < 0.6:
            mutate_row(lists[0], rng)
        else:
            mutate_file(rng.choice(lists or files), rng)
        broken = sum(self._read(data, split) for split in ("train", ""))
        return "refused" if broken else "other"

    def _read(self, data, split: str) -> int:
        """Reads a split; the number of its examples that are refused one by one."""
        source = open_source(data, split, image_size=(8, 8), channels=CHANNELS, num_classes=0)
        broken = 0
        for example in source.fetch(range(len(source))):
            if isinstance(example, DataError | OSError):
                broken += 1
                continue
            try:
                image = decode(example.image, CHANNELS)
            except DataError:
                broken += 1
                continue
            if image.dtype != np.uint8 or not 0 <= example.label < len(source.class_names):
                raise AssertionError(f"{example.name}: {image.dtype}, label {example.label}")
        return broken
