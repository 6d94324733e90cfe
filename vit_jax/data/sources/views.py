"""Parts of sources, as sources."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from vit_jax.data.sources.examples import (
    Example,
    LabelSets,
    Source,
    as_label,
    fetch,
    has_label_sets,
)


@dataclasses.dataclass(frozen=True)
class Subset:
    """The examples of another source at `indices`."""

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

    @property
    def multi_label(self) -> bool:
        """As the source says."""
        return has_label_sets(self.source)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Example:
        return self.source[int(self.indices[index])]

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | Exception]:
        """Several examples; see `examples.fetch`."""
        return fetch(self.source, [int(self.indices[index]) for index in indices])

    def name_of(self, index: int) -> str:
        """The example's name."""
        return self.source.name_of(int(self.indices[index]))


@dataclasses.dataclass(frozen=True)
class Labelled:
    """The examples of another source, with labels of their own."""

    source: Source
    labels: np.ndarray | LabelSets
    class_names: tuple[str, ...]

    @property
    def multi_label(self) -> bool:
        """Whether a label is an array."""
        return isinstance(self.labels, LabelSets)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Example:
        return self.source[index]._replace(label=as_label(self.labels[index]))

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | Exception]:
        """Several examples; see `examples.fetch`."""
        for index, example in zip(indices, fetch(self.source, indices), strict=True):
            if isinstance(example, Example):
                example = example._replace(label=as_label(self.labels[index]))
            yield example

    def name_of(self, index: int) -> str:
        """The example's name."""
        return self.source.name_of(index)


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

    @property
    def multi_label(self) -> bool:
        """As the first part says."""
        return has_label_sets(self.parts[0][0])

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Example:
        part, position = self._place(index)
        return self.parts[part][0][position]

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | Exception]:
        """Several examples; see `examples.fetch`."""
        places = map(self._place, indices)
        for part, group in itertools.groupby(places, key=lambda place: place[0]):
            yield from fetch(self.parts[part][0], [position for _, position in group])

    def name_of(self, index: int) -> str:
        """The example's name."""
        part, position = self._place(index)
        return self.parts[part][0].name_of(position)

    def _place(self, index: int) -> tuple[int, int]:
        """The part of an example, and its place in that part's source."""
        part = bisect.bisect_right(self._ends, index)
        positions = self.parts[part][1]
        return part, positions[index - self._ends[part] + len(positions)]
