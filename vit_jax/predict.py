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
import functools
import itertools
import logging
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import numpy as np
from PIL import Image

from vit_jax import storage
from vit_jax.command_line import (
    DONE,
    SOME_UNREADABLE,
    USER_ERROR,
    Parser,
    add_image_limit,
    add_model_flags,
    at_least_one,
    load_classifier,
    run_command,
    share,
)
from vit_jax.data.images.limits import MAX_IMAGE_GIB, Budget
from vit_jax.data.images.picture import size_in_memory
from vit_jax.data.picture_files import find_files, read_ahead
from vit_jax.devices import sharding
from vit_jax.errors import ConfigError, DataError
from vit_jax.inference import (
    Transform,
    class_names_of,
    make_classifier,
    make_transform,
    preprocessing_of,
)
from vit_jax.model_file import DEFAULT_LOSS
from vit_jax.models.base import ImageClassifier
from vit_jax.network import normalize
from vit_jax.objectives.regression import REGRESSION_LOSSES
from vit_jax.prediction_files import ENDINGS, FORMATS, Columns, Prediction, RankedClass, open_output

BATCH_SIZE = 32  # On each device.
TOP_K = 5
ONE_PICTURE = (str, os.PathLike, bytes, Image.Image)
# A loss -> what makes its logits probabilities: of one class among all, or of each by itself.
PROBABILITIES: dict[str, Callable[[jax.Array], jax.Array]] = {
    "softmax": jax.nn.softmax,
    "sigmoid": jax.nn.sigmoid,
    "binary": jax.nn.sigmoid,
}

Path = str | os.PathLike[str]
# A file, its content, or uint8 [H, W, C], [H, W].
Picture = Path | bytes | Image.Image | np.ndarray

logger = logging.getLogger("vit_jax")


class Loaded(NamedTuple):
    """A picture ready for the device, uint8 [H, W, C], or why it is not."""

    path: str
    image: np.ndarray | None
    error: str = ""


# ------------------------------------------------------------------------------------ in Python


def load_images(model: ImageClassifier, pictures: Picture | Iterable[Picture]) -> jax.Array:
    """Pictures of any size and format as `model` expects them.

    Args:
      model: from `load_model` or `create_model`.
      pictures: one or several: paths, contents of files, Pillow images, arrays uint8 [H, W, C].

    Returns:
      [B, H, W, C] float32, resized and normalised as `model.preprocessing` says.

    Raises:
      DataError: one cannot be read; the message names it.
      TypeError: one is none of these.
    """
    transform = make_transform(model)
    loaded = [load(numbered, transform) for numbered in enumerate(each(pictures))]
    for picture in loaded:
        if picture.error:
            raise DataError(f"{picture.path}: {picture.error}.")
    return normalize(np.stack([picture.image for picture in loaded]), preprocessing_of(model))


def predict(
    model: ImageClassifier,
    pictures: Picture | Iterable[Picture],
    *,
    top_k: int = TOP_K,
    threshold: float = 0.0,
    loss: str | None = None,
    max_image_gib: float = MAX_IMAGE_GIB,
    batch_size: int | None = None,
) -> Generator[Prediction]:
    """Classifies pictures on all devices, in order, reading ahead in threads.

    Args:
      model: from `load_model` or `create_model`; it must have a head.
      pictures: one or several: paths, contents of files, Pillow images, arrays uint8 [H, W, C];
        taken as they are needed: only a few batches are held.
      top_k: how many classes to tell; all of them if the model has fewer.
      threshold: of these, only classes of at least this probability are told.
      loss: that the model was trained with; by default what its file says.
      max_image_gib: of memory for one decoded picture; what is larger is an error. Threads share
        it: they do not decode more at the same time.
      batch_size: over all devices; by default 32 on each.

    Yields:
      A `Prediction` for each picture. Probabilities are the softmax of the logits; of a model trained
      with a sigmoid loss ("sigmoid", "binary"), each class's own, whatever the others'. Of one that
      predicts numbers ("l2", "huber"), `values`, all of them.

    Raises:
      ConfigError: at the first `next`: `loss` has no probabilities.
      TypeError: at `next`: something is no picture.
    """
    classifier, transform, names = (
        make_classifier(model),
        make_transform(model, max_image_gib),
        class_names_of(model),
    )
    ranked = find_ranking(loss or getattr(model, "loss", DEFAULT_LOSS))
    batch_size = batch_size or BATCH_SIZE * classifier.network.mesh.size
    rows = sharding.batch_sharding(classifier.network.mesh)

    @jax.jit
    def rank(params: dict, images: jax.Array) -> tuple[jax.Array, ...]:
        return ranked(classifier.network(params, images), min(top_k, len(names)))

    numbered = enumerate(each(pictures))
    one = functools.partial(load, transform=transform, budget=Budget(int(max_image_gib * 2**30)))
    loaded = read_ahead(one, numbered, batch_size)
    with contextlib.closing(loaded):
        size, previous = 0, None
        while group := list(itertools.islice(loaded, batch_size)):
            size = size or classifier.round_up(len(group))  # Every batch has the first one's.
            images = batch_of(group, size, model)
            latest = group, rank(classifier.params, jax.device_put(images, rows))
            # Read one batch late, so that the device never waits for the host.
            yield from named(previous, names, threshold)
            previous = latest
        yield from named(previous, names, threshold)


def batch_of(pictures: Sequence[Loaded], size: int, model: ImageClassifier) -> np.ndarray:
    """The pixels of `size` rows, [size, H, W, C]; black where there is no picture."""
    shape = (size, *model.options.image_size, model.options.channels)
    images = np.zeros(shape, preprocessing_of(model).dtype)
    for row, picture in zip(images, pictures, strict=False):
        row[...] = 0 if picture.error else picture.image
    return images


def find_ranking(loss: str) -> Callable[[jax.Array, int], tuple[jax.Array, ...]]:
    """The function (logits, k) -> probabilities [B, k], classes [B, k] for a model of this `loss`.

    Of one that predicts numbers, -> (numbers [B, D],).
    """
    if loss in REGRESSION_LOSSES:
        return lambda outputs, top_k: (outputs,)
    if loss not in PROBABILITIES:
        raise ConfigError(
            f"The model was trained with the loss {loss!r}; probabilities are known of "
            f"{', '.join(PROBABILITIES)}: say which with --loss."
        )
    return lambda logits, top_k: jax.lax.top_k(PROBABILITIES[loss](logits), top_k)


def named(
    batch: tuple[list[Loaded], tuple[jax.Array, ...]] | None,
    names: Sequence[str],
    threshold: float,
) -> Iterator[Prediction]:
    """The predictions of a batch, if there is one: its pictures, and what `find_ranking` gave."""
    if batch is None:
        return
    pictures, ranked = batch
    for picture, *row in zip(
        pictures, *map(np.ndarray.tolist, jax.device_get(ranked)), strict=False
    ):
        if not picture.error and not np.isfinite(row[0]).all():
            picture = picture._replace(error="the model's output for it is not finite")
        if picture.error:
            yield Prediction(picture.path, (), picture.error)
        elif len(row) == 1:
            yield Prediction(picture.path, (), values=tuple(zip(names, *row, strict=True)))
        else:
            ranks = zip(*row, strict=True)
            classes = (RankedClass(k, names[k], p) for p, k in ranks if p >= threshold)
            yield Prediction(picture.path, tuple(classes))


def each(pictures: Picture | Iterable[Picture]) -> Iterable[Picture]:
    """Several pictures, where one may be given."""
    is_image = isinstance(pictures, np.ndarray | jax.Array) and pictures.ndim < 4
    one = is_image or isinstance(pictures, ONE_PICTURE)
    return [pictures] if one else pictures  # type: ignore[list-item, return-value]


def load(
    numbered: tuple[int, Picture], transform: Transform, budget: Budget | None = None
) -> Loaded:
    """Reads and transforms one picture, given with its number; TypeError if it is none."""
    number, picture = numbered
    name = os.fspath(picture) if isinstance(picture, str | os.PathLike) else f"[{number}]"
    try:
        content = content_of(picture)
        room = budget.reserve(size_in_memory(content)) if budget else contextlib.nullcontext()
        with room:
            return Loaded(name, transform(content))
    except OSError as error:
        return Loaded(name, None, error.strerror or str(error))
    except (DataError, ValueError) as error:  # ValueError: a path with a null character.
        return Loaded(name, None, str(error))


def content_of(picture: Picture) -> bytes | np.ndarray | Image.Image:
    """The picture as a transform takes it."""
    if isinstance(picture, str | os.PathLike):
        with open(picture, "rb", opener=storage.open_file) as file:
            return file.read()
    if isinstance(picture, np.ndarray | jax.Array):
        array = np.asarray(picture)
        return array[..., np.newaxis] if array.ndim == 2 else array
    if isinstance(picture, ONE_PICTURE):
        return picture
    raise TypeError(
        f"a picture is a path, the bytes of a file, a Pillow image or an array; this is a "
        f"{type(picture).__name__}"
    )


# ------------------------------------------------------------------------------------- command


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; raises ConfigError if it is not understood."""
    parser = Parser("vit_jax.predict", "Tells the classes of pictures.")
    parser.add_argument(
        "model",
        type=storage.expand,
        metavar="MODEL",
        help="a workdir, an export, .npz, hf:..., ...",
    )
    parser.add_argument("inputs", nargs="+", metavar="INPUT", help="a file, a folder, a glob, or -")
    add_model_flags(parser)
    parser.add_argument("--top_k", type=at_least_one, default=TOP_K, help="classes to tell: 5")
    parser.add_argument(
        "--threshold",
        type=share,
        default=0.0,
        metavar="P",
        help="of these, only classes at least so probable, such as 0.5",
    )
    parser.add_argument(
        "--loss",
        choices=(*PROBABILITIES, *REGRESSION_LOSSES),
        help="it was trained with; default: as MODEL says",
    )
    parser.add_argument(
        "--format", choices=tuple(FORMATS), help="default: as --output ends, else text"
    )
    add_image_limit(parser)
    parser.add_argument(
        "--output", type=storage.expand, metavar="FILE", help="default: standard output"
    )
    parser.add_argument(
        "--batch_size", type=at_least_one, help=f"over all devices; default: {BATCH_SIZE} on each"
    )
    flags = parser.parse_args(arguments)
    flags.format = format_of(flags.output or "", flags.format)
    return flags


def format_of(path: str, given: str | None) -> str:
    """The format of the output: the given one, else the one that its name ends in, else text.

    Raises ConfigError where name and format disagree, or the name says nothing known.
    """
    ending = os.path.splitext(path)[1].lower()
    implied = ENDINGS.get(ending) if ending else given or "text"
    if implied is None and given is None:
        raise ConfigError(
            f"--output={path}: the format follows from {', '.join(ENDINGS)}; for another name say "
            f"which, with --format={'|'.join(FORMATS)}."
        )
    if given and implied and given != implied:
        raise ConfigError(f"--output={path} is a name for --format={implied}, not for {given}.")
    return given or implied


def run(arguments: Sequence[str]) -> int:
    """Writes the predictions for all inputs as they come."""
    flags = parse_flags(arguments)
    paths = find_files(flags.inputs, sys.stdin.buffer)
    model = load_classifier(flags.model, flags)
    top_k = min(flags.top_k, model.options.num_classes)
    numbers = (flags.loss or model.loss) in REGRESSION_LOSSES
    columns = Columns(top_k, class_names_of(model) if numbers else ())
    count: collections.Counter[str] = collections.Counter()

    def counted(predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        for prediction in predictions:
            count["unreadable" if prediction.error else "read"] += 1
            yield prediction

    with open_output(flags.output) as file:
        predictions = predict(
            model,
            paths,
            top_k=top_k,
            threshold=flags.threshold,
            loss=flags.loss,
            max_image_gib=flags.max_image_gib or MAX_IMAGE_GIB,
            batch_size=flags.batch_size,
        )
        with contextlib.closing(predictions):
            FORMATS[flags.format](file, counted(predictions), columns)
    if not count["unreadable"]:
        return DONE
    logger.warning("%d of %d files could not be read.", count["unreadable"], count.total())
    return SOME_UNREADABLE if count["read"] else USER_ERROR


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
