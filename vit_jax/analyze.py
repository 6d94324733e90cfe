"""The command that looks inside a model: the paper's figures, and others, from pictures of yours.

    python -m vit_jax.analyze MODEL --images=GLOB --output=DIR [--figures=rollout,distance,...]

MODEL is anything that `vit_jax.load_model` reads. DIR gets, for each figure, NAME.npz with the
numbers, NAME.png, of a plot NAME.svg, of what is a table NAME.csv; and report.html with all of them.
A figure that is not defined for the model is left out with a line that says why; asked for by name,
it is a mistake. Exit codes: 0 done; 1 done, but some pictures could not be read; 2 a mistake.
"""

import argparse
import contextlib
import csv
import io
import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from vit_jax import storage
from vit_jax.analysis.gallery import FIGURES, Finding
from vit_jax.analysis.subject import Subject
from vit_jax.command_line import (
    DONE,
    SOME_UNREADABLE,
    Parser,
    add_image_limit,
    add_model_flags,
    at_least_one,
    load_by_flags,
    run_command,
)
from vit_jax.data.images.limits import MAX_IMAGE_GIB, Budget
from vit_jax.data.picture_files import find_files, read_ahead
from vit_jax.errors import ConfigError, DataError
from vit_jax.escaping import csv_row
from vit_jax.inference import make_transform, preprocessing_of
from vit_jax.models.base import ImageClassifier
from vit_jax.pages import Section, render
from vit_jax.predict import load

COUNT = 128  # As in the paper's Figures 7 and 14.
AHEAD = 16  # Pictures that are read before they are asked for.
REPORT = "report.html"

logger = logging.getLogger("vit_jax")


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; raises ConfigError if it is not understood."""
    parser = Parser("vit_jax.analyze", "Looks inside a model.")
    parser.add_argument(
        "model", type=storage.expand, metavar="MODEL", help="a workdir, an export, .npz, ..."
    )
    parser.add_argument(
        "--images",
        action="append",
        default=[],
        metavar="GLOB",
        help="a file, a folder, a glob, or -",
    )
    parser.add_argument("--output", type=storage.expand, required=True, metavar="DIR")
    parser.add_argument(
        "--figures",
        default="",
        metavar="NAME,...",
        help=f"of {', '.join(FIGURES)}; default: all that are defined for the model",
    )
    parser.add_argument(
        "--count",
        type=at_least_one,
        default=COUNT,
        help=f"of pictures, spread evenly over all that are named: {COUNT}",
    )
    add_model_flags(parser)
    add_image_limit(parser)
    flags = parser.parse_args(arguments)
    flags.figures = [name for name in flags.figures.split(",") if name]
    for name in flags.figures:
        if name not in FIGURES:
            raise ConfigError(f"--figures: {name!r} is none of {', '.join(FIGURES)}.")
    return flags


def read_pictures(
    model: ImageClassifier, inputs: Sequence[str], count: int, max_image_gib: float
) -> tuple[Subject, int]:
    """A model with so many of the pictures that inputs name, and how many could not be read.

    Raises DataError if none could.
    """
    shape = (0, *model.options.image_size, model.options.channels)
    if not inputs:
        return Subject(model, np.zeros(shape, np.uint8)), 0
    paths = [*find_files(inputs, sys.stdin.buffer)]
    chosen = np.unique(np.linspace(0, len(paths) - 1, min(count, len(paths))).round().astype(int))
    transform, budget = make_transform(model, max_image_gib), Budget(int(max_image_gib * 2**30))
    named = enumerate(paths[number] for number in chosen)
    pictures = np.zeros((len(chosen), *shape[1:]), preprocessing_of(model).dtype)
    names: list[str] = []
    with contextlib.closing(
        read_ahead(lambda item: load(item, transform, budget), named, AHEAD)
    ) as loaded:
        for each in loaded:
            if each.error:
                logger.warning("%s: %s.", each.path, each.error.rstrip("."))
            else:
                pictures[len(names)] = each.image
                names.append(each.path)
    if not names:
        raise DataError(f"none of the {len(chosen):,} pictures can be read.")
    folders = tuple(os.path.basename(os.path.dirname(name)) for name in names)
    return Subject(model, pictures[: len(names)], tuple(names), folders), len(chosen) - len(names)


def findings(
    subject: Subject, asked: Sequence[str], undefined: Callable[[str, str], None]
) -> Iterator[tuple[str, Finding]]:
    """Each figure by its name: those asked for, else all that are defined; others are told."""
    for name in asked or FIGURES:
        try:
            yield name, FIGURES[name](subject)
        except ConfigError as error:
            if asked:
                raise ConfigError(f"--figures={name}: {error}") from error
            undefined(name, str(error))


def write(directory: str, name: str, finding: Finding) -> None:
    """Writes a figure's files; raises OSError if it cannot."""
    numbers, text = io.BytesIO(), io.StringIO()
    arrays: dict[str, Any] = finding.arrays
    np.savez_compressed(numbers, **arrays)
    csv.writer(text, lineterminator="\n").writerows(map(csv_row, finding.table))
    contents = {
        "npz": numbers.getvalue(),
        "png": finding.picture.png,
        "svg": finding.picture.svg,
        "csv": text.getvalue().encode("utf-8", "surrogateescape"),
    }
    for ending, content in contents.items():
        if content:
            storage.write(storage.join(directory, f"{name}.{ending}"), content)


def run(arguments: Sequence[str]) -> int:
    """Writes the figures one after another, then the report."""
    flags = parse_flags(arguments)
    model = load_by_flags(flags.model, flags)
    limit = flags.max_image_gib or MAX_IMAGE_GIB
    subject, unreadable = read_pictures(model, flags.images, flags.count, limit)
    sections, left_out = [], []

    def undefined(name: str, reason: str) -> None:
        logger.info("Left out: %s: %s", name, reason)
        left_out.append((name, reason))

    for name, finding in findings(subject, flags.figures, undefined):
        write(flags.output, name, finding)
        logger.info("%s: %s", name, finding.title)
        sections.append(Section(finding.title, finding.caption, (finding.picture,)))
    if left_out:
        why = "What is not defined for this model, or these pictures, and why."
        sections.append(Section("Left out", why, table=[("figure", "reason"), *left_out]))
    path, count = storage.join(flags.output, REPORT), len(subject.pictures)
    size = "×".join(map(str, model.options.image_size))
    summary = f"{model.name} at {size} pixels; {count} picture{'s' * (count != 1)} of {', '.join(flags.images) or '–'}."
    storage.write(path, render(f"Inside {flags.model}", summary, sections))
    logger.info("%s has all of them.", path)
    return SOME_UNREADABLE if unreadable else DONE


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
