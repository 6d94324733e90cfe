"""The command that writes embeddings of picture files.

    python -m vit_jax.embed MODEL INPUT... --output=FILE.npy|FILE.parquet [--features=mean] [--layer=N]

MODEL and INPUT are as for `vit_jax.predict`. FILE.npy has a row for each picture, and FILE.csv beside
it their paths; FILE.parquet has both. A picture that cannot be read has a row without numbers (NaN,
null) and the reason. Interrupted, the same command goes on: what is done lies in FILE.parts until
all is. Exit codes: 0 done; 1 done, but some files could not be read; 2 none could, or a mistake in
what was asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import functools
import hashlib
import itertools
import json
import logging
import os
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx
from flax.traverse_util import flatten_dict

from vit_jax import storage
from vit_jax.command_line import (
    DONE,
    SOME_UNREADABLE,
    USER_ERROR,
    Parser,
    add_image_limit,
    add_model_flags,
    at_least_one,
    load_by_flags,
    run_command,
)
from vit_jax.data.images.limits import MAX_IMAGE_GIB, Budget
from vit_jax.data.picture_files import find_files, read_ahead
from vit_jax.devices import sharding
from vit_jax.errors import ConfigError
from vit_jax.escaping import csv_row
from vit_jax.inference import make_classifier, make_transform
from vit_jax.models.base import EMBEDDINGS, PRE_LOGITS, ImageClassifier
from vit_jax.predict import BATCH_SIZE, batch_of, load
from vit_jax.weights.native import digest_of

PART_BYTES, PART_ROWS = 2**28, 4096  # Of the embeddings that are in memory at once, at most.
PART = ".npz"
IDENTITY = "identity.json"  # Of the embeddings that parts are of.
NOT_FINITE = "the model's output for it is not finite"
DTYPES = ("float32", "float16")

logger = logging.getLogger("vit_jax")


class Part(NamedTuple):
    """Embeddings of successive pictures."""

    embeddings: np.ndarray  # [n, ...]; NaN for what could not be read
    errors: np.ndarray  # [n], text; "" for what could


class Embedder:
    """A model as a function from picture files to embeddings, on all devices.

    Args:
      model: from `load_model` or `create_model`.
      features, layer: as for `ImageClassifier.embed`.
      dtype: of the embeddings, "float32" or "float16".
      batch_size: over all devices; None: 32 on each.
      max_image_gib: of memory for one decoded picture.
    """

    def __init__(
        self,
        model: ImageClassifier,
        features: str = PRE_LOGITS,
        layer: int | None = None,
        *,
        dtype: str = "float32",
        batch_size: int | None = None,
        max_image_gib: float = MAX_IMAGE_GIB,
    ):
        self.classifier = make_classifier(model)
        network, mesh = self.classifier.network, self.classifier.network.mesh
        self.batch_size = self.classifier.round_up(batch_size or BATCH_SIZE * mesh.size)
        self.rows = sharding.batch_sharding(mesh)
        self.dtype = np.dtype(dtype)
        self.batch_of = functools.partial(batch_of, size=self.batch_size, model=model)
        self.load = functools.partial(
            load,
            transform=make_transform(model, max_image_gib),
            budget=Budget(int(max_image_gib * 2**30)),
        )

        def embed(params: dict, images: jax.Array) -> jax.Array:
            return network.bind(params).embed(network.normalize(images), features, layer)

        self.function = jax.jit(embed)
        images = self.batch_of(())
        self.shape = jax.eval_shape(embed, self.classifier.params, images).shape[1:]

    def parts(self, paths: Sequence[str], part_rows: int) -> Iterator[Part]:
        """The embeddings of the pictures at `paths`, so many at a time."""
        loaded = read_ahead(self.load, enumerate(paths), self.batch_size)
        with contextlib.closing(loaded):
            for start in range(0, len(paths), part_rows):
                count = min(part_rows, len(paths) - start)
                embeddings = np.full((count, *self.shape), np.nan, self.dtype)
                errors: list[str] = []
                while group := list(
                    itertools.islice(loaded, min(self.batch_size, count - len(errors)))
                ):
                    images = jax.device_put(self.batch_of(group), self.rows)
                    outputs = self.function(self.classifier.params, images)
                    for picture, output in zip(group, np.asarray(outputs), strict=False):
                        error = picture.error or ("" if np.isfinite(output).all() else NOT_FINITE)
                        if not error:
                            embeddings[len(errors)] = output
                        errors.append(error)
                yield Part(embeddings, np.array(errors, np.str_))


# -------------------------------------------------------------------------------------- parts


def open_parts(folder: str, identity: dict) -> int:
    """Makes the folder of parts, or finds it; returns how many it has.

    Raises ConfigError if they are of other embeddings.
    """
    file = os.path.join(folder, IDENTITY)
    if not os.path.exists(file):
        storage.write_json(file, identity)
    before = json.loads(storage.read(file))
    for key, value in identity.items():
        if before.get(key) != value:
            raise ConfigError(
                f"{folder} holds unfinished embeddings of another {key}: finish them with the "
                "command that began them, or name another --output."
            )
    return sum(name.endswith(PART) for name in os.listdir(folder))


def part_file(folder: str, number: int) -> str:
    """The file of a part."""
    return os.path.join(folder, f"{number:06}{PART}")


def write_part(folder: str, number: int, part: Part) -> None:
    """Writes a part, whole or not at all."""
    with (
        storage.replacing(part_file(folder, number)) as temporary,
        open(temporary, "wb") as file,
    ):
        np.savez(file, **part._asdict())


def read_parts(folder: str, count: int) -> Iterator[Part]:
    """The parts in order."""
    for number in range(count):
        with np.load(part_file(folder, number)) as arrays:
            yield Part(arrays["embeddings"], arrays["errors"])


def rows_of(folder: str, count: int) -> int:
    """The rows in the parts, which another version may have made of another length.

    Raises ConfigError for a part that is damaged.
    """
    rows = 0
    for number in range(count):
        file = part_file(folder, number)
        try:
            with np.load(file) as arrays:
                rows += len(arrays["errors"])
        except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            raise ConfigError(
                f"{file} is damaged ({error}): remove it and the parts after it, and start the "
                "same command again."
            ) from error
    return rows


# ------------------------------------------------------------------------------------- output


def write_npy(
    output: str, parts: Iterator[Part], paths: Sequence[str], shape: tuple, dtype: str
) -> None:
    """Writes the embeddings [N, ...] and, beside them, a table of the paths and errors."""
    table = f"{os.path.splitext(output)[0]}.csv"
    with (
        storage.replacing(output) as temporary,
        storage.replacing(table) as names,
        open(names, "w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        writer, start = csv.writer(file, lineterminator="\n"), 0
        writer.writerow(["path", "error"])
        array = np.lib.format.open_memmap(temporary, "w+", np.dtype(dtype), (len(paths), *shape))
        for embeddings, errors in parts:
            stop = start + len(errors)
            array[start:stop] = embeddings
            writer.writerows(map(csv_row, zip(paths[start:stop], errors, strict=True)))
            start = stop


def write_parquet(
    output: str, parts: Iterator[Part], paths: Sequence[str], shape: tuple, dtype: str
) -> None:
    """Writes columns path, error and embedding; the last as a list, its shape in the metadata."""
    import pyarrow
    from pyarrow import parquet

    size, start = int(np.prod(shape)), 0
    numbers = pyarrow.list_(pyarrow.from_numpy_dtype(np.dtype(dtype)), size)
    schema = pyarrow.schema(
        [
            pyarrow.field("path", pyarrow.string()),
            pyarrow.field("error", pyarrow.string()),
            pyarrow.field("embedding", numbers, metadata={"shape": ",".join(map(str, shape))}),
        ]
    )
    with (
        storage.replacing(output) as temporary,
        parquet.ParquetWriter(temporary, schema) as writer,
    ):
        for embeddings, errors in parts:
            stop = start + len(errors)
            names = [path.encode("utf-8", "replace").decode() for path in paths[start:stop]]
            reasons = [error or None for error in errors.tolist()]
            lists = pyarrow.FixedSizeListArray.from_arrays(
                pyarrow.array(embeddings.reshape(-1)), size, mask=pyarrow.array(errors != "")
            )
            writer.write_table(pyarrow.table([names, reasons, lists], schema=schema))
            start = stop


WRITERS = {".npy": write_npy, ".parquet": write_parquet}


# ------------------------------------------------------------------------------------ command


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; raises ConfigError if it is not understood."""
    parser = Parser("vit_jax.embed", "Writes embeddings of pictures.")
    parser.add_argument(
        "model",
        type=storage.expand,
        metavar="MODEL",
        help="a workdir, an export, .npz, hf:..., ...",
    )
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="a file, a folder, a glob, or -")
    parser.add_argument(
        "--output",
        type=storage.expand,
        required=True,
        metavar="FILE",
        help="ends in .npy or .parquet",
    )
    add_model_flags(parser)
    parser.add_argument("--features", choices=EMBEDDINGS, default=PRE_LOGITS)
    parser.add_argument(
        "--layer", type=int, metavar="N", help="of a block, from 0; default: the last, normalised"
    )
    parser.add_argument("--dtype", choices=DTYPES, default=DTYPES[0])
    add_image_limit(parser)
    parser.add_argument(
        "--batch_size", type=at_least_one, help=f"over all devices; default: {BATCH_SIZE} on each"
    )
    flags = parser.parse_args(arguments)
    if os.path.splitext(flags.output)[1].lower() not in WRITERS:
        raise ConfigError(
            f"--output={flags.output}: name a file that ends in {' or '.join(WRITERS)}."
        )
    return flags


def identity_of(model: ImageClassifier, paths: Sequence[str], flags: argparse.Namespace) -> dict:
    """All that makes embeddings what they are, but for the pictures' contents."""
    state = flatten_dict(nnx.to_pure_dict(nnx.split(model)[1]), sep="/")
    names = hashlib.blake2b("\0".join(paths).encode("utf-8", "surrogateescape"), digest_size=16)
    parameters = digest_of({name: np.asarray(array) for name, array in state.items()})
    description = f"{parameters} {model.options} {getattr(model, 'preprocessing', None)}"
    return {
        "model": hashlib.blake2b(description.encode(), digest_size=16).hexdigest(),
        "list of pictures": names.hexdigest(),
        "features": flags.features,
        "layer": flags.layer,
        "dtype": flags.dtype,
    }


def run(arguments: Sequence[str]) -> int:
    """Writes the embeddings of all inputs, a part at a time."""
    flags = parse_flags(arguments)
    paths = list(find_files(flags.inputs, sys.stdin.buffer))
    model = load_by_flags(flags.model, flags)
    embedder = Embedder(
        model,
        flags.features,
        flags.layer,
        dtype=flags.dtype,
        batch_size=flags.batch_size,
        max_image_gib=flags.max_image_gib or MAX_IMAGE_GIB,
    )
    row_bytes = embedder.dtype.itemsize * int(np.prod(embedder.shape))
    part_rows = max(1, min(PART_ROWS, PART_BYTES // row_bytes))
    folder = f"{flags.output}.parts"
    count = open_parts(folder, identity_of(model, paths, flags))
    done = rows_of(folder, count)
    if done:
        logger.info("%d of %d pictures are done.", done, len(paths))
    for part in embedder.parts(paths[done:], part_rows):
        write_part(folder, count, part)
        count += 1
    writer = WRITERS[os.path.splitext(flags.output)[1].lower()]
    writer(flags.output, read_parts(folder, count), paths, embedder.shape, flags.dtype)
    unreadable = sum(np.count_nonzero(part.errors != "") for part in read_parts(folder, count))
    shutil.rmtree(folder)
    logger.info("%d pictures are in %s.", len(paths) - unreadable, flags.output)
    if not unreadable:
        return DONE
    logger.warning(
        "%d of %d files could not be read: the column error beside the paths says why.",
        unreadable,
        len(paths),
    )
    return SOME_UNREADABLE if unreadable < len(paths) else USER_ERROR


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
