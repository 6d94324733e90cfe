"""The command that finds training examples which are in a test set, too.

    python -m vit_jax.deduplicate --source=folder:DIR --against=tfds:cifar10@test --output=exclude.txt

writes a list for --config.data.exclude, as the paper's pre-training sets were de-duplicated against
the test sets of the downstream tasks (section 4.1, after BiT, arXiv 1912.11370). Each line has the
name of a training example and, after a tab, what it equals: another image with the same pixels, or
one that looks the same, in another format, size or a slight crop (see `data/fingerprints.py`).

Memory: 32 bytes an image. Exit codes: 0 done; 1 done, but some images could not be read; 2 a mistake
in what was asked for.
"""

from __future__ import annotations

import argparse
import functools
import logging
import os
import shlex
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from vit_jax import storage
from vit_jax.command_line import DONE, SOME_UNREADABLE, Parser, add_image_limit, run_command
from vit_jax.config import default_config
from vit_jax.data.images.limits import MAX_IMAGE_GIB
from vit_jax.data.images.picture import STANDARD, Decoding, decode
from vit_jax.data.picture_files import read_ahead
from vit_jax.data.sources.examples import Source
from vit_jax.data.sources.exclusions import as_line, quoted
from vit_jax.data.sources.registry import open_source
from vit_jax.deduplicate.fingerprints import SIZE, fingerprint, nearest, same
from vit_jax.errors import ConfigError, DataError
from vit_jax.escaping import printable

DISTANCE = 6  # Of 64 bits; docs/data.md has what it was measured by.
FARTHEST = 12  # Beyond it, unlike pictures are taken for the same, and the search takes long.
AHEAD = 64  # Images in work.
LOG_SECONDS = 10.0

logger = logging.getLogger("vit_jax")


class Images(NamedTuple):
    """The images of one source that can be read."""

    origin: str  # SOURCE or SOURCE@SPLIT
    source: Source
    indices: np.ndarray  # int64 [N], in the source
    fingerprints: np.ndarray  # uint64 [N, SIZE]

    def name_of(self, index: int) -> str:
        """The name of one of them."""
        return self.source.name_of(int(self.indices[index]))


class Match(NamedTuple):
    """The test image that a training example equals."""

    name: str
    bits: int  # in which the perceptual hashes differ; -1: the pixels are the same


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; raises ConfigError if it is not understood."""
    parser = Parser("vit_jax.deduplicate", "Finds training examples that are in a test set, too.")
    parser.add_argument(
        "--source",
        type=storage.expand_source,
        required=True,
        help="of the training examples, as --config.data.source",
    )
    parser.add_argument("--split", default="train", help="of it, such as train[:10%%]")
    parser.add_argument(
        "--against",
        type=storage.expand_source,
        action="append",
        required=True,
        metavar="SOURCE[@SPLIT]",
        help="a test set; by default the source's evaluation split. May be given several times",
    )
    parser.add_argument(
        "--output",
        type=storage.expand,
        required=True,
        metavar="FILE",
        help="for --config.data.exclude",
    )
    parser.add_argument(
        "--perceptual_distance",
        type=int,
        default=DISTANCE,
        metavar="BITS",
        help=f"of 64, that may differ in images that look the same, 0 to {FARTHEST} (%(default)s)",
    )
    add_image_limit(parser)
    parser.add_argument(
        "--data_dir", type=storage.expand, default="", help="where prepared TFDS data lies"
    )
    flags = parser.parse_args(arguments)
    if not 0 <= flags.perceptual_distance <= FARTHEST:
        raise ConfigError(
            f"--perceptual_distance={flags.perceptual_distance}: must be from 0 to {FARTHEST}."
        )
    if not storage.is_remote(flags.output):
        flags.output = os.path.abspath(flags.output)
        folder = os.path.dirname(flags.output)
        if os.path.isdir(flags.output):
            raise ConfigError(f"--output={flags.output} is a folder: name a file in it.")
        if not os.access(folder, os.W_OK):
            lacking = "is not writable" if os.path.isdir(folder) else "is no folder"
            raise ConfigError(f"--output={flags.output} cannot be written: {folder} {lacking}.")
    return flags


def run(arguments: Sequence[str]) -> int:
    """Writes the list; returns the exit code."""
    flags = parse_flags(arguments)
    opened = [open_origin(flags.source, flags.split, flags.data_dir)]
    opened += [open_origin(*split_origin(origin), flags.data_dir) for origin in flags.against]
    how = Decoding(int((flags.max_image_gib or MAX_IMAGE_GIB) * 2**30))
    examples, *tests = [read_fingerprints(*origin, how) for origin in opened]
    matches = find_matches(examples, tests, flags.perceptual_distance)
    command = shlex.join(["python", "-m", "vit_jax.deduplicate", *arguments])
    write_list(flags.output, command, examples, matches)
    equal = sum(match.bits < 0 for match in matches.values())
    print(
        f"{len(matches):,} of {len(examples.indices):,} training images are in {flags.output}: "
        f"{equal:,} with the same pixels as a test image, {len(matches) - equal:,} that look like one."
    )
    complete = all(len(each.indices) == len(each.source) for each in (examples, *tests))
    return DONE if complete else SOME_UNREADABLE


def split_origin(text: str) -> tuple[str, str]:
    """SOURCE[@SPLIT] as source and split; an "@" in a path or URL is part of it."""
    source, _, split = text.rpartition("@")
    return (source, split) if source and "/" not in split else (text, "")


def open_origin(source: str, split: str, data_dir: str) -> tuple[str, Source]:
    """A split, and what to call it."""
    data = default_config().data
    data.update(source=source, data_dir=data_dir)
    opened = open_source(data, split, image_size=(1, 1), channels=3, num_classes=0)
    return f"{source}@{split}" if split else source, opened


def read_fingerprints(origin: str, source: Source, how: Decoding = STANDARD) -> Images:
    """The fingerprints of all images; those that cannot be read are named in the log."""
    fingerprints = np.zeros((len(source), SIZE), np.uint64)
    readable = np.ones(len(source), bool)
    logged = time.monotonic()
    rows = read_ahead(functools.partial(_fingerprint, source, how), range(len(source)), AHEAD)
    for index, row in enumerate(rows):
        if isinstance(row, Exception):
            readable[index] = False
            logger.warning("Left aside: %s of %s: %s", source.name_of(index), origin, row)
        else:
            fingerprints[index] = row
        if time.monotonic() > logged + LOG_SECONDS:
            logged = time.monotonic()
            logger.info("%s: %s of %s images.", origin, f"{index + 1:,}", f"{len(source):,}")
    if not readable.any():
        raise DataError(f"{origin}: none of its {len(source):,} images can be read.")
    return Images(origin, source, np.flatnonzero(readable), fingerprints[readable])


def _fingerprint(source: Source, how: Decoding, index: int) -> np.ndarray | Exception:
    try:
        return fingerprint(decode(source[index].image, 3, how))
    except (DataError, OSError) as error:
        return error


def find_matches(examples: Images, tests: Sequence[Images], limit: int) -> dict[int, Match]:
    """The match of each training image that has one, by its index; of several the same pixels, then the nearest."""
    matches: dict[int, Match] = {}
    for test in tests:
        equal = same(examples.fingerprints, test.fingerprints)
        similar, bits = nearest(examples.fingerprints, test.fingerprints, limit)
        bits = np.where(equal >= 0, -1, bits.astype(np.int64))
        others = np.where(equal >= 0, equal, similar)
        for index in np.flatnonzero(others >= 0).tolist():
            if index not in matches or bits[index] < matches[index].bits:
                name = f"{quoted(test.name_of(others[index]))} of {test.origin}"
                matches[index] = Match(name, int(bits[index]))
    return matches


def write_list(path: str, command: str, examples: Images, matches: dict[int, Match]) -> None:
    """Writes the list, whole or not at all; raises ConfigError if it cannot."""
    lines = ["# " + printable(command) + "\n"]
    for index, match in sorted(matches.items()):
        how = "same pixels as" if match.bits < 0 else f"{match.bits} of 64 bits from"
        lines.append(as_line(examples.name_of(index), f"{how} {match.name}"))
    content = "".join(lines).encode("utf-8", "surrogateescape")
    try:
        storage.write(path, content)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"--output={path} cannot be written: {reason}.") from error


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
