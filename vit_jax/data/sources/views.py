"""Parts of sources, as sources."""

from __future__ import annotations

import bisect
import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vit_jax.data.sources.examples import Example, Labels, LabelSets, Source, Targets, as_label


@dataclasses.dataclass(frozen=True)
class View(Source):
    """The examples of another source, each as `seen` shows it."""

    source: Source

    @functools.cached_property  # A field in a kind of view comes before it.
    def class_names(self) -> tuple[str, ...]:
        """The source's own."""
        return self.source.class_names

    @property
    def multi_label(self) -> bool:
        """As the source says."""
        return self.source.multi_label

    @property
    def numeric(self) -> bool:
        """As the source says."""
        return self.source.numeric

    @property
    def remote(self) -> bool:
        """As the source says."""
        return self.source.remote

    @property
    def one_file_each(self) -> bool:
        """As the source says."""
        return self.source.one_file_each

    def __len__(self) -> int:
        return len(self.source)

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | Exception]:
        """Several examples; see `Source`."""
        for index, example in zip(indices, self.source.fetch(indices), strict=True):
            yield self.seen(index, example) if isinstance(example, Example) else example

    def seen(self, index: int, example: Example) -> Example:
        """The source's example at `index`, as it is."""
        del index
        return example

    def name_of(self, index: int) -> str:
        """The example's name."""
        return self.source.name_of(index)


@dataclasses.dataclass(frozen=True)
class Labelled(View):
    """The examples of another source, with labels of their own."""

    labels: Labels = dataclasses.field()
    class_names: tuple[str, ...] = dataclasses.field()

    def seen(self, index: int, example: Example) -> Example:
        """The example with its label here."""
        return example._replace(label=as_label(self.labels[index]))


@dataclasses.dataclass(frozen=True)
class Subset(View):
    """The examples of another source at `indices`."""

    indices: np.ndarray

    @property
    def labels(self) -> Labels | None:
        """Of these examples; None if the source does not have them at hand."""
        labels = self.source.labels
        return None if labels is None else labels.take(self.indices)

    def __len__(self) -> int:
        return len(self.indices)

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | Exception]:
        """Several examples; see `Source`."""
        yield from self.source.fetch([int(self.indices[index]) for index in indices])

    def name_of(self, index: int) -> str:
        """The example's name."""
        return self.source.name_of(int(self.indices[index]))


@dataclasses.dataclass(frozen=True)
class Slices(Source):
    """The examples at some ranges of other sources, one range after another.

    The classes are those of the first part; a source's splits share them.
    """

    parts: tuple[tuple[Source, range], ...]

    @functools.cached_property
    def _ends(self) -> list[int]:
        return list(itertools.accumulate(len(positions) for _, positions in self.parts))

    @property
    def class_names(self) -> tuple[str, ...]:
        """Of the first part."""
        return self.parts[0][0].class_names

    @property
    def multi_label(self) -> bool:
        """As the first part says."""
        return self.parts[0][0].multi_label

    @property
    def numeric(self) -> bool:
        """As the first part says."""
        return self.parts[0][0].numeric

    @property
    def remote(self) -> bool:
        """As the first part says."""
        return self.parts[0][0].remote

    @property
    def one_file_each(self) -> bool:
        """As the first part says."""
        return self.parts[0][0].one_file_each

    @property
    def labels(self) -> np.ndarray | Targets | None:
        """Of these examples; None if a part does not have them at hand, or examples have several."""
        chosen: list[Any] = []
        for source, positions in self.parts:
            labels = source.labels
            if labels is None or isinstance(labels, LabelSets):
                return None
            chosen.append(labels.take(np.array(positions, np.int64)))
        if isinstance(chosen[0], Targets):
            return Targets(np.concatenate([part.values for part in chosen]))
        return np.concatenate(chosen)

    def __len__(self) -> int:
        return self._ends[-1]

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | Exception]:
        """Several examples; see `Source`."""
        located = map(self._locate, indices)
        for part, group in itertools.groupby(located, key=lambda pair: pair[0]):
            yield from self.parts[part][0].fetch([position for _, position in group])

    def name_of(self, index: int) -> str:
        """The example's name."""
        part, position = self._locate(index)
        return self.parts[part][0].name_of(position)

    def _locate(self, index: int) -> tuple[int, int]:
        """The part that an example is of, and its index in that part's source."""
        part = bisect.bisect_right(self._ends, index)
        positions = self.parts[part][1]
        return part, positions[index - self._ends[part] + len(positions)]
