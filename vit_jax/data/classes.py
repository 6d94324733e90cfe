"""Data as a trained model sees it: labelled by the model's classes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from vit_jax.data.sources.examples import Example
from vit_jax.data.sources.splits import abbreviate
from vit_jax.data.sources.views import View
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
    known = {name: number for number, name in enumerate(model_names)}
    for number, name in enumerate(data_names):
        if name not in known:
            there = (
                f"{model_names[number]!r} there" if number < len(model_names) else "absent there"
            )
            raise ClassesDifferError(
                f"class {number} of the data, {name!r}, is not among the model's {num_classes:,} "
                f"classes ({number} is {there}): {abbreviate(model_names)}."
            )
    if len(known) < len(model_names) or len(set(data_names)) < len(data_names):
        raise ClassesDifferError(
            "a class name occurs twice, so classes in another order cannot be matched."
        )
    labels = np.array([known[name] for name in data_names], np.int32)
    return labels, _remark(labels, num_classes, data_names)


def _remark(labels: np.ndarray, num_classes: int, data_names: Sequence[str]) -> str:
    """In what the model's labels [K] for the data's differ from 0, 1, ..., in words."""
    remarks = []
    if len(labels) < num_classes:
        remarks.append(f"the data has {len(labels):,} of the model's {num_classes:,} classes")
    if moved := np.flatnonzero(labels != np.arange(len(labels))).tolist():
        name, there = data_names[moved[0]], labels[moved[0]]
        remarks.append(f"classes are matched by name: {name!r} is {moved[0]} here, {there} there")
    return "; ".join(remarks)


@dataclasses.dataclass(frozen=True)
class LabelledForModel(View):
    """A source with the labels of a model's classes; `class_names` stay the source's own.

    `model_labels` is what `match_classes` returns.
    """

    model_labels: np.ndarray
    num_classes: int

    def seen(self, index: int, example: Example) -> Example:
        """The example with the model's label, or targets float32 [num_classes]."""
        del index
        if np.ndim(example.label) == 0:
            return example._replace(label=int(self.model_labels[example.label]))
        targets = np.zeros(self.num_classes, np.float32)
        targets[self.model_labels] = example.label
        return example._replace(label=targets)


def difference(before: Sequence[str], now: Sequence[str]) -> str:
    """In what two lists of classes differ, in words; they are not the same."""
    gone = [name for name in before if name not in set(now)]
    added = [name for name in now if name not in set(before)]
    if gone or added:
        parts = [("missing", gone), ("new", added)]
        return "; ".join(f"{word}: {abbreviate(names)}" for word, names in parts if names)
    for number, (old, new) in enumerate(zip(before, now, strict=False)):
        if old != new:
            return f"class {number} was {old!r} and is {new!r}"
    # A name occurs more often in one of them.
    return f"there were {len(before):,} classes and are {len(now):,}"
