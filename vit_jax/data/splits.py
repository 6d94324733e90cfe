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
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from vit_jax.data.records import attempt
from vit_jax.errors import ConfigError, DataError

EVALUATION_SPLITS = ("validation", "val", "test")  # In the order in which they are preferred.


class Example(NamedTuple):
    """One labelled image.

    `image` is an encoded file's bytes or uint8 [H, W, C]; `label` lies in [0, classes), or is
    float32 [classes] of 0 and 1 where an image has several; `name` is unique within the source, such
    as "train/cat/1.jpg" or "train/123".
    """

    image: bytes | np.ndarray
    label: int | np.ndarray
    name: str


class Source(Protocol):
    """Random access to the examples of one split; picklable, for worker processes.

    One that has its labels at hand gives them as `labels`: int32 [N], or `LabelSets`. One that reads
    several examples at less cost than one by one has a method `fetch`, as the function of this name.
    """

    class_names: tuple[str, ...]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Example: ...

    def name_of(self, index: int) -> str:
        """The example's name, without reading it."""
        ...


Splits = dict[str, Callable[[], Source]]  # Split name -> opens it.


class Shape(NamedTuple):
    """What `fake` has to look like."""

    image_size: tuple[int, int]
    channels: int
    num_classes: int


def fetch(source: Source, indices: Sequence[int]) -> list[Example | DataError]:
    """Reads several examples; what cannot be read stands for itself."""
    if hasattr(source, "fetch"):
        return source.fetch(indices)
    return [attempt(source.__getitem__, index) for index in indices]


def uniform_hash(name: str) -> float:
    """A number in [0, 1) that only depends on `name`."""
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def held_out(hashes: np.ndarray, fraction: float) -> np.ndarray:
    """Which examples are held out for evaluation, by the `uniform_hash` [N] of their names.

    Adding examples never moves one from split to split. Only if the hash selects none of a few is
    the one with the lowest hash held out, so that there is something to evaluate.

    Returns:
        bool [N]; all False if `fraction` is 0.
    """
    threshold = max(fraction, hashes.min(initial=1.0)) if fraction else -1.0
    return hashes <= threshold


def with_synonyms(splits: Splits) -> Splits:
    """`splits`, and the absent ones among validation, val and test as the first that is there."""
    found = next((name for name in EVALUATION_SPLITS if name in splits), None)
    absent = [name for name in EVALUATION_SPLITS if found and name not in splits]
    return splits | {name: splits[found] for name in absent}


def check_known_classes(
    found: Sequence[str], known: Sequence[str], where: str, reference: str
) -> None:
    """Raises DataError if classes `found` in one place are not among those `known` from another."""
    if unknown := sorted(set(found).difference(known)):
        raise DataError(
            f"{where} has classes that {reference} lacks: {abbreviate(unknown)}; "
            f"the training split has {abbreviate(known)}."
        )


def abbreviate(names: Sequence[str], limit: int = 10) -> str:
    """The first few names."""
    shown = ", ".join(names[:limit])
    return f"{shown}, …" if len(names) > limit else shown


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
    if isinstance(labels, LabelSets):
        return Selection(source, *labels.restricted(chosen), names)
    indices = np.flatnonzero(np.isin(labels, chosen))
    places = np.argsort(chosen)
    relabelled = places[np.searchsorted(chosen[places], labels[indices])]
    return Selection(source, indices, relabelled, names)


@dataclasses.dataclass(frozen=True)
class LabelSets(Sequence):
    """The classes of examples that have any number of them: those of example i are
    `classes[ends[i - 1] : ends[i]]`; as an item float32 [num_classes] of 0 and 1."""

    classes: np.ndarray  # int32 [labels]
    ends: np.ndarray  # int64 [N]
    num_classes: int

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(index)
        target = np.zeros(self.num_classes, np.float32)
        start = self.ends[index - 1] if index else 0
        target[self.classes[start : self.ends[index]]] = 1
        return target

    def take(self, indices: np.ndarray) -> LabelSets:
        """Those of the examples at `indices`, in that order."""
        counts = np.diff(self.ends, prepend=0)
        ends = np.cumsum(counts[indices])
        moved = (self.ends - counts)[indices] - (ends - counts[indices])
        sources = np.arange(ends[-1] if len(ends) else 0) + np.repeat(moved, counts[indices])
        return LabelSets(self.classes[sources], ends, self.num_classes)

    def restricted(self, chosen: np.ndarray) -> tuple[np.ndarray, LabelSets]:
        """The examples with at least one class of `chosen`, and their labels as places in it."""
        places = np.full(self.num_classes, -1, np.int32)
        places[chosen] = np.arange(len(chosen))
        classes = places[self.classes]
        ends = np.concatenate([[0], np.cumsum(classes >= 0)])[self.ends]
        restricted = LabelSets(classes[classes >= 0], ends, len(chosen))
        indices = np.flatnonzero(np.diff(ends, prepend=0))
        return indices, restricted.take(indices)


def as_label(label: np.ndarray) -> int | np.ndarray:
    """An item of `labels` as an `Example` has it."""
    return label if np.ndim(label) else int(label)


@dataclasses.dataclass(frozen=True)
class Subset:
    """Some examples of another source."""

    source: Source
    indices: np.ndarray

    @property
    def class_names(self) -> tuple[str, ...]:
        """The source's own."""
        return self.source.class_names

    @property
    def labels(self) -> np.ndarray | LabelSets | None:
        """Of these examples; None if the source does not have them at hand."""
        labels = getattr(self.source, "labels", None)
        return None if labels is None else labels.take(self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Example:
        return self.source[int(self.indices[index])]

    def fetch(self, indices: Sequence[int]) -> list[Example | DataError]:
        """Several examples."""
        return fetch(self.source, self.indices[indices].tolist())

    def name_of(self, index: int) -> str:
        """The example's name."""
        return self.source.name_of(int(self.indices[index]))


@dataclasses.dataclass(frozen=True)
class Selection:
    """Some examples of another source, with labels of their own."""

    source: Source
    indices: np.ndarray
    labels: np.ndarray | LabelSets
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Example:
        return self._relabelled(self.source[int(self.indices[index])], index)

    def fetch(self, indices: Sequence[int]) -> list[Example | DataError]:
        """Several examples."""
        examples = fetch(self.source, self.indices[indices].tolist())
        return [
            attempt(self._relabelled, example, index)
            for example, index in zip(examples, indices, strict=True)
        ]

    def _relabelled(self, example: Example, index: int) -> Example:
        return example._replace(label=as_label(self.labels[index]))

    def name_of(self, index: int) -> str:
        """The example's name."""
        return self.source.name_of(int(self.indices[index]))


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
        source, position = self._place(index)
        return source[position]

    def fetch(self, indices: Sequence[int]) -> list[Example | DataError]:
        """Several examples."""
        places = [self._place(index) for index in indices]
        found: dict[int, Example | DataError] = {}
        for wanted in {id(source): source for source, _ in places}.values():
            numbers = [number for number, (source, _) in enumerate(places) if source is wanted]
            examples = fetch(wanted, [places[number][1] for number in numbers])
            found |= zip(numbers, examples, strict=True)
        return [found[number] for number in range(len(places))]

    def name_of(self, index: int) -> str:
        """The example's name."""
        source, position = self._place(index)
        return source.name_of(position)

    def _place(self, index: int) -> tuple[Source, int]:
        part = bisect.bisect_right(self._ends, index)
        source, positions = self.parts[part]
        return source, positions[index - self._ends[part] + len(positions)]
