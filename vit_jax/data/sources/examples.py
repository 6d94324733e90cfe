"""Examples, and the sources that hold them."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.errors import DataError

_MOST_NAMES = 1 << 21  # Of a digest: some seconds.


class Example(NamedTuple):
    """One labelled image.

    `image` is an encoded file's bytes or what one holds, [H, W, C]; `label` lies in [0, classes), or
    is float32 [classes] of 0 and 1 where an image has several, or float32 [targets]; `name` is
    unique within the source, such as "train/cat/1.jpg" or "train/123".
    """

    image: bytes | np.ndarray
    label: int | np.ndarray
    name: str


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
        """The examples with at least one class of `chosen`, and their labels by its order."""
        numbers = np.full(self.num_classes, -1, np.int32)
        numbers[chosen] = np.arange(len(chosen))
        classes = numbers[self.classes]
        ends = np.concatenate([[0], np.cumsum(classes >= 0)])[self.ends]
        restricted = LabelSets(classes[classes >= 0], ends, len(chosen))
        indices = np.flatnonzero(np.diff(ends, prepend=0))
        return indices, restricted.take(indices)


@dataclasses.dataclass(frozen=True)
class Targets(Sequence):
    """Numbers to predict instead of classes: those of example i are `values[i]`."""

    values: np.ndarray  # float32 [N, D]

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> np.ndarray:
        return self.values[index]

    def take(self, indices: np.ndarray) -> Targets:
        """Those of the examples at `indices`, in that order."""
        return Targets(self.values[indices])


Labels = np.ndarray | LabelSets | Targets  # int32 [N], or sets, or numbers


class Source:
    """Random access to the examples of one split; picklable, for worker processes.

    A kind of source has class names and a length, and reads examples one by one (`__getitem__`) or
    many at once (`fetch`): each of the two is made of the other.

    Attributes:
        class_names: by label; of numbers to predict, what they are called.
        labels: int32 [N], `LabelSets` or `Targets`; None where they are not at hand. In a dataclass
            `= dataclasses.field()` makes an argument of it.
    """

    class_names: tuple[str, ...]
    labels: Labels | None = None

    @property
    def multi_label(self) -> bool:
        """Whether an example has any number of classes, so that its label is an array."""
        return isinstance(self.labels, LabelSets)

    @property
    def numeric(self) -> bool:
        """Whether an example has numbers to predict instead of a class: its label is an array."""
        return isinstance(self.labels, Targets)

    @property
    def remote(self) -> bool:
        """Whether reading waits for a store."""
        return False

    @property
    def one_file_each(self) -> bool:
        """Whether each example is a file of its own, so that neighbours are no single request."""
        return False

    def __len__(self) -> int:
        raise NotImplementedError

    def __getitem__(self, index: int) -> Example:
        """Raises DataError or OSError if the example cannot be read."""
        (example,) = self.fetch([index])
        if isinstance(example, Exception):
            raise example
        return example

    def fetch(self, indices: Sequence[int]) -> Iterable[Example | Exception]:
        """The examples at `indices`, neighbours in one request where the source can.

        What cannot be read stands for itself: a DataError or OSError.
        """
        for index in indices:
            try:
                yield self[index]
            except (DataError, OSError) as error:
                yield error

    def name_of(self, index: int) -> str:
        """The example's name, without reading it where the source can."""
        return self[index].name


def digest_of(source: Source) -> str:
    """What a list of examples is, in 16 hexadecimal digits: its classes, labels and names, in order.

    Where labels are not at hand they do not count, and beyond 2**21 examples evenly spread names do
    for all.
    """
    labels = source.labels
    arrays = [labels.classes, labels.ends] if isinstance(labels, LabelSets) else [labels]
    if isinstance(labels, Targets):
        arrays = [labels.values.view(np.int32)]
    digest = hashlib.blake2b(f"{len(source)}".encode(), digest_size=8)
    for array in arrays:
        if array is not None:
            digest.update(np.asarray(array, np.int64).tobytes())
    stride = -(-len(source) // _MOST_NAMES) or 1
    names = (source.name_of(index) for index in range(0, len(source), stride))
    for name in itertools.chain(source.class_names, [""], names):
        digest.update(name.encode("utf-8", "surrogateescape") + b"\0")
    return digest.hexdigest()


def as_label(label: np.ndarray) -> int | np.ndarray:
    """An item of `labels` as an `Example` has it."""
    return label if np.ndim(label) else int(label)
