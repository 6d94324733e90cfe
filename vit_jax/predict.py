"""The command that classifies picture files.

    python -m vit_jax.predict MODEL INPUT... [--top_k=5] [--format=text|csv|jsonl] [--output=FILE]

MODEL is anything that `vit_jax.load_model` reads; nothing else is needed. INPUT is a file, a folder
(searched to the bottom), a quoted glob ("**" spans folders), or - for paths on standard input, one
a line. A file that cannot be read has the reason in the output. Exit codes: 0 done; 1 done, but some
files could not be read; 2 none could, or a mistake in what was asked for.
"""

import argparse
import collections
import contextlib
import csv
import dataclasses
import functools
import itertools
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple, TextIO

import jax
import numpy as np
from flax import nnx

from vit_jax.command_line import (
    DONE,
    SOME_UNREADABLE,
    USER_ERROR,
    Parser,
    add_model_flags,
    at_least_one,
    load_classifier,
    run_command,
)
from vit_jax.data.picture_files import find_files, read_ahead
from vit_jax.data.sources.contents import IMAGE_EXTENSIONS
from vit_jax.devices import sharding
from vit_jax.errors import ConfigError, DataError
from vit_jax.inference import (
    Transform,
    class_names_of,
    make_classifier,
    make_transform,
    preprocessing_of,
)
from vit_jax.network import normalize

BATCH_SIZE = 32  # On each device.
TOP_K = 5

Path = str | os.PathLike[str]

logger = logging.getLogger("vit_jax")


class RankedClass(NamedTuple):
    """One of a picture's most probable classes."""

    index: int
    name: str  # the index, where the model names no classes
    probability: float


@dataclasses.dataclass(frozen=True)
class Prediction:
    """A picture's classes, the most probable first; none, but an error, if it cannot be read."""

    path: str
    classes: tuple[RankedClass, ...]
    error: str = ""


class Loaded(NamedTuple):
    """A picture ready for the device, uint8 [H, W, C], or why it is not."""

    path: str
    image: np.ndarray | None
    error: str = ""


# ------------------------------------------------------------------------------------ in Python


def load_images(model: nnx.Module, paths: Iterable[Path]) -> jax.Array:
    """Picture files of any size and format as `model` expects them.

    Args:
      model: from `load_model` or `create_model`.
      paths: of the files.

    Returns:
      [B, H, W, C] float32, resized and normalised as `model.preprocessing` says.

    Raises:
      DataError: a file cannot be read; the message names it.
    """
    transform = make_transform(model)
    pictures = [load(path, transform) for path in paths]
    for picture in pictures:
        if picture.error:
            raise DataError(f"{picture.path}: {picture.error}.")
    return normalize(np.stack([picture.image for picture in pictures]), preprocessing_of(model))


def predict(
    model: nnx.Module, paths: Iterable[Path], *, top_k: int = TOP_K, batch_size: int | None = None
) -> Iterator[Prediction]:
    """Classifies picture files on all devices, in order, reading ahead in threads.

    Args:
      model: from `load_model` or `create_model`; it must have a head.
      paths: any number, taken as they are needed: only a few batches are held.
      top_k: how many classes to tell; all of them if the model has fewer.
      batch_size: over all devices; by default 32 on each.

    Yields:
      A `Prediction` for each path. Probabilities are the softmax of the logits; of a model trained
      with the sigmoid loss, only their order means something.
    """
    classifier, transform, names = (
        make_classifier(model),
        make_transform(model),
        class_names_of(model),
    )
    batch_size = batch_size or BATCH_SIZE * classifier.network.mesh.size
    rows = sharding.batch_sharding(classifier.network.mesh)

    @jax.jit
    def rank(params: dict, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        probabilities = jax.nn.softmax(classifier.network(params, images))
        return jax.lax.top_k(probabilities, min(top_k, len(names)))

    loaded = read_ahead(functools.partial(load, transform=transform), paths, batch_size)
    with contextlib.closing(loaded):
        size, previous = 0, None
        while group := list(itertools.islice(loaded, batch_size)):
            size = size or classifier.round_up(len(group))  # Every batch has the first one's.
            images = np.zeros((size, *model.options.image_size, model.options.channels), np.uint8)
            for place, picture in zip(images, group, strict=False):
                place[...] = 0 if picture.error else picture.image
            latest = group, rank(classifier.params, jax.device_put(images, rows))
            # Read one batch late, so that the device never waits for the host.
            yield from name_classes(previous, names)
            previous = latest
        yield from name_classes(previous, names)


def name_classes(
    batch: tuple[list[Loaded], tuple[jax.Array, jax.Array]] | None, names: Sequence[str]
) -> Iterator[Prediction]:
    """The predictions of a batch, if there is one: its pictures, and their ranked classes."""
    if batch is None:
        return
    pictures, ranked = batch
    for picture, *row in zip(
        pictures, *map(np.ndarray.tolist, jax.device_get(ranked)), strict=False
    ):
        classes = (RankedClass(k, names[k], p) for p, k in zip(*row, strict=True))
        yield Prediction(picture.path, () if picture.error else tuple(classes), picture.error)


def load(path: Path, transform: Transform) -> Loaded:
    """Reads and transforms one file."""
    try:
        with open(path, "rb") as file:
            return Loaded(os.fspath(path), transform(file.read()))
    except OSError as error:
        return Loaded(os.fspath(path), None, error.strerror or str(error))
    except (DataError, ValueError) as error:  # ValueError: a path with a null character.
        return Loaded(os.fspath(path), None, str(error))


# -------------------------------------------------------------------------------------- output


def write_text(file: TextIO, predictions: Iterable[Prediction], top_k: int) -> None:
    """Writes `PATH: CLASS (98.76%), ...` a line."""
    del top_k
    for prediction in predictions:
        classes = (f"{name} ({probability:.2%})" for _, name, probability in prediction.classes)
        answer = f"error: {prediction.error}" if prediction.error else ", ".join(classes)
        print(f"{prediction.path}: {answer}", file=file, flush=True)


def write_csv(file: TextIO, predictions: Iterable[Prediction], top_k: int) -> None:
    """Writes a header, then a row for each file."""
    writer = csv.writer(file, lineterminator="\n")
    places = range(1, top_k + 1)
    ranks = ((f"class_{place}", f"index_{place}", f"probability_{place}") for place in places)
    writer.writerow(["path", "error", *itertools.chain.from_iterable(ranks)])
    for prediction in predictions:
        ranked = ((name, index, f"{p:.6g}") for index, name, p in prediction.classes)
        cells = [prediction.path, prediction.error, *itertools.chain.from_iterable(ranked)]
        writer.writerow(cells + [""] * (2 + 3 * top_k - len(cells)))
        file.flush()


def write_jsonl(file: TextIO, predictions: Iterable[Prediction], top_k: int) -> None:
    """Writes an object a line: path, error (null if there is none), classes."""
    del top_k
    for prediction in predictions:
        classes = [
            {"class": name, "index": index, "probability": float(f"{p:.6g}")}
            for index, name, p in prediction.classes
        ]
        row = {"path": prediction.path, "error": prediction.error or None, "classes": classes}
        print(json.dumps(row, ensure_ascii=False), file=file, flush=True)


FORMATS: dict[str, Callable[[TextIO, Iterable[Prediction], int], None]] = {
    "text": write_text,
    "csv": write_csv,
    "jsonl": write_jsonl,
}


def open_output(path: str | None) -> contextlib.AbstractContextManager[TextIO]:
    """The file to write, or standard output: as UTF-8, whatever bytes are in file names."""
    if path is None:
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
        return contextlib.nullcontext(sys.stdout)
    if path.lower().endswith(IMAGE_EXTENSIONS):
        raise ConfigError(f"--output={path} would be taken for a picture: name it otherwise.")
    try:
        return open(path, "w", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"--output={path} cannot be written: {error.strerror}.") from error


# ------------------------------------------------------------------------------------- command


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; raises ConfigError if it is not understood."""
    parser = Parser("vit_jax.predict", "Tells the classes of pictures.")
    parser.add_argument("model", metavar="MODEL", help="a workdir, an export, .npz, ...")
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="a file, a folder, a glob, or -")
    add_model_flags(parser)
    parser.add_argument("--top_k", type=at_least_one, default=TOP_K, help="classes to tell: 5")
    parser.add_argument("--format", choices=tuple(FORMATS), help="default: as --output ends")
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    parser.add_argument(
        "--batch_size", type=at_least_one, help=f"over all devices; default: {BATCH_SIZE} on each"
    )
    flags = parser.parse_args(arguments)
    ending = os.path.splitext(flags.output or "")[1].removeprefix(".")
    flags.format = flags.format or (ending if ending in FORMATS else "text")
    return flags


def run(arguments: Sequence[str]) -> int:
    """Writes the predictions for all inputs as they come."""
    flags = parse_flags(arguments)
    paths = find_files(flags.inputs, sys.stdin.buffer)
    model = load_classifier(flags.model, flags)
    top_k = min(flags.top_k, model.options.num_classes)
    count = collections.Counter()

    def counted(predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        for prediction in predictions:
            count["unreadable" if prediction.error else "read"] += 1
            yield prediction

    with open_output(flags.output) as file:
        predictions = predict(model, paths, top_k=top_k, batch_size=flags.batch_size)
        with contextlib.closing(predictions):
            FORMATS[flags.format](file, counted(predictions), top_k)
    if not count["unreadable"]:
        return DONE
    logger.warning("%d of %d files could not be read.", count["unreadable"], count.total())
    return SOME_UNREADABLE if count["read"] else USER_ERROR


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
