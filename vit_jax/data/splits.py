"""Examples, the sources that hold them, and parts of a source's splits by TFDS's grammar."""

from __future__ import annotations

import bisect
import dataclasses
import difflib
import functools
import hashlib
import itertools
import os
import re
from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from vit_jax.errors import ConfigError, DataError

EVALUATION_SPLITS = ("validation", "val", "test")  # In the order in which they are preferred.


class Example(NamedTuple):
    """One labelled image.

    `image` is an encoded file's bytes or uint8 [H, W, C]; `label` lies in [0, classes); `name` is
    unique within the source, such as "train/cat/1.jpg" or "train/123".
    """

    image: bytes | np.ndarray
    label: int
    name: str


class Source(Protocol):
    """Random access to the examples of one split; picklable, for worker processes."""

    class_names: tuple[str, ...]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...


Splits = dict[str, Callable[[], Source]]  # Split name -> opens it.


class Shape(NamedTuple):
    """What `fake` has to look like."""

    image_size: tuple[int, int]
    channels: int
    num_classes: int


def uniform_hash(name: str) -> float:
    """A number in [0, 1) that only depends on `name`: what is below a share of examples is held out."""
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


_BOUND = r"-?\d[\d_]*(?:\.\d+)?%?"
_PART = re.compile(rf"(?P<name>[\w-]+)(?:\[(?P<start>{_BOUND})?:(?P<stop>{_BOUND})?\])?")


def open_split(splits: Splits, split: str, where: str) -> Source:
    """Opens `split` of the source called `where`, or the parts of splits that it is the sum of.

    Args:
        splits: those that the source has.
        split: as in `open_source`; empty: the evaluation split.
        where: the source's name, for messages.

    Raises:
        ConfigError: `split` cannot be read.
        DataError: there is no such split or part, or it is empty.
    """
    if not split:
        split = next((name for name in EVALUATION_SPLITS if name in splits), "")
        if not split:
            raise DataError(
                f"{where} has no evaluation split among {', '.join(EVALUATION_SPLITS)}: name one "
                f"with --config.data.eval_split; there are {', '.join(splits)}."
            )
    source = splits[split]() if split in splits else _open_sum(splits, split, where)
    if not len(source):
        raise DataError(f"Split {split!r} of {where} holds no examples.")
    return source


def _open_sum(splits: Splits, split: str, where: str) -> Slices:
    opened: dict[str, Source] = {}
    parts = []
    for text in split.split("+"):
        part = _PART.fullmatch(text.strip())
        if part is None:
            raise ConfigError(
                f"Split {split!r}: cannot read {text.strip()!r}; expected a name with an optional "
                "slice, such as train, train[:98%], train[-10%:] or train[100:200]."
            )
        name = part["name"]
        if name not in splits:
            raise DataError(
                f"{where} has no split {name!r} (asked for as {split!r}); "
                f"there are {', '.join(splits)}."
            )
        if name not in opened:
            opened[name] = splits[name]()
        length = len(opened[name])
        start = _boundary(part["start"], 0, length, split)
        stop = _boundary(part["stop"], length, length, split)
        parts.append((opened[name], range(start, max(start, stop))))
    return Slices(tuple(parts))


def _boundary(text: str | None, default: int, length: int, split: str) -> int:
    """The index that a slice boundary such as "10%", "-5" or "800" means in `length` examples."""
    if text is None:
        return default
    try:
        # Python's rounding, half to even, is TFDS's ("closest").
        index = round(float(text[:-1]) * length / 100) if text.endswith("%") else int(text)
    except ValueError:
        raise ConfigError(f"Split {split!r}: {text!r} is neither a whole number nor a %.") from None
    if abs(index) > length:
        raise DataError(f"Split {split!r}: {text} lies outside its {length} examples.")
    return index + length if index < 0 else index


def select_classes(source: Source, names: tuple[str, ...], where: str) -> Selection:
    """The examples of `source` with these classes, which are labelled by their place in `names`.

    Raises DataError if a class is unknown or named twice.
    """
    for name in names:
        if name not in source.class_names:
            near = difflib.get_close_matches(name, source.class_names, n=3, cutoff=0)
            raise DataError(
                f"config.data.classes: {name!r} is none of the {len(source.class_names):,} classes "
                f"of {where}; the nearest: {', '.join(near)}."
            )
        if names.count(name) > 1:
            raise DataError(f"config.data.classes: {name!r} is named twice.")
    chosen = np.array([source.class_names.index(name) for name in names])
    labels = getattr(source, "labels", None)
    if labels is None:
        labels = np.array([source[index].label for index in range(len(source))])
    indices = np.flatnonzero(np.isin(labels, chosen))
    places = np.argsort(chosen)
    relabelled = places[np.searchsorted(chosen[places], labels[indices])]
    return Selection(source, indices, relabelled, names)


@dataclasses.dataclass(frozen=True)
class Selection:
    """Some examples of another source, with labels of their own."""

    source: Source
    indices: np.ndarray
    labels: np.ndarray
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Example:
        example = self.source[int(self.indices[index])]
        return example._replace(label=int(self.labels[index]))


@dataclasses.dataclass(frozen=True)
class Slices:
    """The examples at some ranges of other sources, one range after another."""

    parts: tuple[tuple[Source, range], ...]

    @functools.cached_property
    def _ends(self) -> list[int]:
        return list(itertools.accumulate(len(positions) for _, positions in self.parts))

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of the first part; a source's splits share them."""
        return self.parts[0][0].class_names

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Example:
        part = bisect.bisect_right(self._ends, index)
        source, positions = self.parts[part]
        return source[positions[index - self._ends[part] + len(positions)]]
