"""Splits and parts of splits by TFDS's grammar: train, train[:98%], train[:800]+test[100:200]."""

from __future__ import annotations

import re
from typing import NamedTuple

from vit_jax.data.sources.examples import Source
from vit_jax.data.sources.split_names import EVALUATION_SPLITS
from vit_jax.data.sources.splits import Splits, written_names
from vit_jax.data.sources.views import Slices
from vit_jax.errors import ConfigError, DataError

_BOUND = r"-?\d[\d_]*(?:\.\d+)?%?"
_PART = re.compile(rf"(?P<name>[\w-]+)(?:\[(?P<start>{_BOUND})?:(?P<stop>{_BOUND})?\])?")


class Part(NamedTuple):
    """A split, or a slice of it whose bounds are numbers or percentages as they are written."""

    name: str
    start: str | None
    stop: str | None

    def range_in(self, length: int, split: str) -> range:
        """The indices that it stands for in `length` examples; `split` is for messages."""
        start = _boundary(self.start, 0, length, split)
        return range(start, max(start, _boundary(self.stop, length, length, split)))


def read_parts(splits: Splits, split: str, where: str) -> list[Part]:
    """The parts that `split` is the sum of.

    Args:
        splits: those that the source has.
        split: as in `open_source`; empty: the evaluation split.
        where: the source's name, for messages.

    Raises:
        ConfigError: `split` cannot be read.
        DataError: there is no such split.
    """
    if not split:
        split = next((name for name in EVALUATION_SPLITS if name in splits), "")
        if not split:
            raise DataError(
                f"{where} has no evaluation split among {', '.join(EVALUATION_SPLITS)}: name one with "
                f"--config.data.eval_split; there are {', '.join(written_names(splits))}."
            )
    if split in splits:  # `fake` has some with names that look like slices.
        return [Part(split, None, None)]
    return [_read_part(text.strip(), splits, split, where) for text in split.split("+")]


def _read_part(text: str, splits: Splits, split: str, where: str) -> Part:
    found = _PART.fullmatch(text)
    if found is None:
        raise ConfigError(
            f"Split {split!r}: cannot read {text!r}; expected a name with an optional slice, such as "
            "train, train[:98%], train[-10%:] or train[100:200]."
        )
    if found["name"] not in splits:
        raise DataError(
            f"{where} has no split {found['name']!r} (asked for as {split!r}); "
            f"there are {', '.join(written_names(splits))}."
        )
    return Part(found["name"], found["start"], found["stop"])


def open_split(splits: Splits, split: str, where: str) -> Source:
    """Opens `split` of the source called `where`, or the parts of splits that it is the sum of.

    Raises what `read_parts` does, and DataError if it is empty or ends beyond its split.
    """
    parts = read_parts(splits, split, where)
    opened = {part.name: splits[part.name]() for part in parts}
    source = opened[parts[0].name]
    if split and split not in splits:
        source = Slices(
            tuple(
                (opened[part.name], part.range_in(len(opened[part.name]), split)) for part in parts
            )
        )
    if not len(source):
        raise DataError(f"Split {split!r} of {where} holds no examples.")
    return source


def count_shared(splits: Splits, first: str, second: str, where: str) -> int:
    """How many examples are in both of two splits; a source's own splits share none."""
    lengths: dict[int, int] = {}
    shared = 0
    for part in read_parts(splits, first, where):
        for other in read_parts(splits, second, where):
            if (open_ := splits[part.name]) is splits[other.name]:
                if id(open_) not in lengths:
                    lengths[id(open_)] = len(open_())
                length = lengths[id(open_)]
                ours, theirs = part.range_in(length, first), other.range_in(length, second)
                shared += len(range(max(ours.start, theirs.start), min(ours.stop, theirs.stop)))
    return shared


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
