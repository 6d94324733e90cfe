"""Data as a trained model sees it: labelled by the model's classes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from vit_jax.data.sources.examples import Example, Source, fetch, has_label_sets
from vit_jax.data.sources.splits import abbreviate
from vit_jax.errors import DataError


class ClassesDifferError(DataError):
    """The data has classes that the model does not have, or cannot be told to have."""


def match_classes(
    model_names: Sequence[str], num_classes: int, data_names: Sequence[str]
) -> tuple[np.ndarray, str]:
    """The model's class for each class of the data.

    Classes are matched by name: their order may differ, and the data may lack some. Where the model
    has no names, by number: then there must be as many on both sides.

    Args:
      model_names: of the model's classes; empty if unknown.
      num_classes: how many it has.
      data_names: of the data's classes.

    Returns:
      The model's label [K] int32 for each of the data's K labels, and a remark to print, empty if
      both sides have the same list.

    Raises:
      ClassesDifferError: a class of the data is not among the model's; the message names the first.
    """
    numbers = np.arange(len(data_names), dtype=np.int32)
    if not model_names:
        if len(data_names) != num_classes:
            raise ClassesDifferError(
                f"the model has {num_classes:,} classes, the data {len(data_names):,}: "
                f"{abbreviate(data_names)}."
            )
        return numbers, f"classes are matched by number, and the data calls 0 {data_names[0]!r}"
    if tuple(model_names) == tuple(data_names):
        return numbers, ""
    places = {name: place for place, name in enumerate(model_names)}
    for number, name in enumerate(data_names):
        if name not in places:
            known = number < len(model_names)
            there = f"{model_names[number]!r} there" if known else "absent there"
            raise ClassesDifferError(
                f"class {number} of the data, {name!r}, is not among the model's {num_classes:,} "
                f"classes ({number} is {there}): {abbreviate(model_names)}."
            )
    if len(places) < len(model_names) or len(set(data_names)) < len(data_names):
        raise ClassesDifferError(
            "a class name occurs twice, so classes in another order cannot be matched."
        )
    labels = np.array([places[name] for name in data_names], np.int32)
    remarks = []
    if len(labels) < num_classes:
        remarks.append(f"the data has {len(labels)} of the model's {num_classes:,} classes")
    if moved := np.flatnonzero(labels != numbers).tolist():
        name, there = data_names[moved[0]], labels[moved[0]]
        remarks.append(f"classes are matched by name: {name!r} is {moved[0]} here, {there} there")
    return labels, "; ".join(remarks)


@dataclasses.dataclass(frozen=True)
class LabelledForModel:
    """A source with the labels of a model's classes.

    `labels` is what `match_classes` returns; `class_names` stay the source's own.
    """

    source: Source
    labels: np.ndarray
    num_classes: int

    @property
    def class_names(self) -> tuple[str, ...]:
        """The source's own."""
        return self.source.class_names

    @property
    def multi_label(self) -> bool:
        """As the source says."""
        return has_label_sets(self.source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: int) -> Example:
        return self._relabelled(self.source[index])

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | Exception]:
        """Several examples; see `examples.fetch`."""
        for example in fetch(self.source, indices):
            yield self._relabelled(example) if isinstance(example, Example) else example

    def name_of(self, index: int) -> str:
        """The example's name."""
        return self.source.name_of(index)

    def _relabelled(self, example: Example) -> Example:
        if np.ndim(example.label) == 0:
            return example._replace(label=int(self.labels[example.label]))
        targets = np.zeros(self.num_classes, np.float32)
        targets[self.labels] = example.label
        return example._replace(label=targets)


def difference(before: Sequence[str], now: Sequence[str]) -> str:
    """In what two lists of classes differ, in words."""
    gone = [name for name in before if name not in set(now)]
    added = [name for name in now if name not in set(before)]
    if gone or added:
        parts = [("missing", gone), ("new", added)]
        return "; ".join(f"{word}: {abbreviate(names)}" for word, names in parts if names)
    pairs = enumerate(itertools.zip_longest(before, now))
    return next(
        (f"class {place} was {old!r} and is {new!r}" for place, (old, new) in pairs if old != new),
        "not at all",
    )
