"""A list of examples to leave out of training: `config.data.exclude`, a text file.

Each line is the name of an example, as in messages: `train/cat/1.jpg` in a folder or a manifest,
`train/123` in TFDS, `train-0.tar/1.jpg` in tar shards. A tab ends it; what follows says why. Empty
lines and those that begin with "#" say nothing. A name that cannot stand so is in double quotes, as
a JSON string.
"""

from __future__ import annotations

import json
import logging
import re

import numpy as np

from vit_jax import storage
from vit_jax.data.sources.examples import LabelSets, Source, Targets
from vit_jax.data.sources.splits import abbreviate
from vit_jax.data.sources.views import Subset
from vit_jax.errors import DataError

logger = logging.getLogger(__name__)


def leave_out(source: Source, path: str) -> Source:
    """The examples of `source` whose names are not in the list at `path`, in their order.

    Says how many they are, which names of the list are no example's, and which classes lost all
    their examples.

    Raises:
        DataError: the list cannot be read, or leaves nothing.
    """
    names = read_list(path)
    found = set()
    kept = []
    for index in range(len(source)):
        name = source.name_of(index)
        if name in names:
            found.add(name)
        else:
            kept.append(index)
    logger.info(
        "config.data.exclude=%s: %s of %s training examples are left out.",
        path,
        f"{len(source) - len(kept):,}",
        f"{len(source):,}",
    )
    if unmatched := sorted(names - found):
        logger.warning(
            "config.data.exclude=%s: %s of its %s names are no training example's: %s. The first "
            "training example is called %s.",
            path,
            f"{len(unmatched):,}",
            f"{len(names):,}",
            abbreviate(unmatched, 3),
            source.name_of(0),
        )
    if not kept:
        raise DataError(f"config.data.exclude={path} leaves no training examples.")
    left = Subset(source, np.array(kept))
    if lost := sorted(_classes_of(source) - _classes_of(left)):
        logger.warning(
            "config.data.exclude=%s leaves no training example of %d classes: %s.",
            path,
            len(lost),
            abbreviate([source.class_names[label] for label in lost]),
        )
    return left


def _classes_of(source: Source) -> set[int]:
    """The classes that have an example; none where the labels are not at hand."""
    values = source.labels.classes if isinstance(source.labels, LabelSets) else source.labels
    if values is None or isinstance(values, Targets):
        return set()
    return set(np.unique(values).tolist())


def read_list(path: str) -> set[str]:
    """The names in a list of exclusions; raises DataError if it cannot be read."""
    key = f"config.data.exclude={path}"
    lines = storage.read_lines(path, key, "the name of an example in each line", DataError)
    names = set()
    for number, line in enumerate(lines, start=1):
        name = line.partition("\t")[0]
        if name.startswith('"'):
            name = _unquoted(name, f"{key}:{number}")
        elif name.startswith("#"):
            continue
        names.add(name)
    return names - {""}


def as_line(name: str, reason: str) -> str:
    """A line of a list, with its end; a reason has no line break."""
    return f"{quoted(name)}\t{reason}\n"


def quoted(name: str) -> str:
    """A name as it stands in a list."""
    plain = name == name.strip() and not re.search(r'^[#"]|[\x00-\x1f]', name)
    return name if plain else json.dumps(name)


def _unquoted(name: str, where: str) -> str:
    try:
        decoded = json.loads(name)
    except ValueError as error:
        raise DataError(f"{where}: {name} is no JSON string ({error}).") from error
    return decoded
