"""The splits of a source, held-out fractions, and parts of splits by TFDS's grammar."""

from __future__ import annotations

import difflib
import functools
import hashlib
import logging
import os
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.data.sources.examples import LabelSets, Source
from vit_jax.data.sources.views import Labelled, Slices, Subset
from vit_jax.errors import ConfigError, DataError

logger = logging.getLogger(__name__)

EVALUATION_SPLITS = ("validation", "val", "test")  # In the order in which they are preferred.


Splits = dict[str, Callable[[], Source]]  # Split name -> opens it.


class Shape(NamedTuple):
    """The form of `fake` images, and how many classes they have."""

    image_size: tuple[int, int]
    channels: int
    num_classes: int


def uniform_hash(name: str) -> float:
    """A number in [0, 1) that only depends on `name`."""
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def held_out(hashes: np.ndarray, fraction: float) -> np.ndarray:
    """Chooses the examples that are held out for evaluation, by the `uniform_hash` [N] of their names.

    Adding examples never moves one from split to split. Only if the hash selects none of a few is
    the one with the lowest hash held out, so that there is something to evaluate.

    Returns:
        bool [N]; all False if `fraction` is 0.
    """
    threshold = max(fraction, hashes.min(initial=1.0)) if fraction else -1.0
    return hashes <= threshold


def hold_out(
    hashes: Callable[[], np.ndarray],
    open_part: Callable[[np.ndarray], Source],
    fraction: float,
    where: str,
) -> Splits:
    """The splits of data that has but one: "train" and, unless `fraction` is 0, "validation".

    Args:
        hashes: gives the `uniform_hash` [N] of the examples' names.
        open_part: opens the examples at some indices, in order.
        fraction: of the examples that are held out; see `held_out`.
        where: the data's name, for the log.
    """

    def open_split(evaluation: bool) -> Source:
        chosen = held_out(hashes(), fraction)
        if evaluation:
            logger.info(
                "%s has no split for evaluation: %d of its %d images are held out for it.",
                *(where, chosen.sum(), len(chosen)),
            )
        return open_part(np.flatnonzero(chosen == evaluation))

    splits = {"train": functools.partial(open_split, False)}
    return splits | ({"validation": functools.partial(open_split, True)} if fraction else {})


def with_synonyms(splits: Splits) -> Splits:
    """`splits`, and the absent ones among validation, val and test as the first that is there."""
    found = next((name for name in EVALUATION_SPLITS if name in splits), None)
    absent = [name for name in EVALUATION_SPLITS if found and name not in splits]
    return splits | {name: splits[found] for name in absent}


def check_known_classes(
    found: Sequence[str], known: Sequence[str], where: str, reference: str
) -> None:
    """Raises DataError unless the classes `found` in one split are among those `known` from another."""
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


def select_classes(source: Source, names: tuple[str, ...], where: str) -> Labelled:
    """The examples of `source` with these classes, which are labelled by the order of `names`.

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
    labels = source.labels
    if labels is None:
        logger.info("config.data.classes: every example of %s is read for its class.", where)
        labels = np.array([source[index].label for index in range(len(source))])
    if isinstance(labels, LabelSets):
        indices, sets = labels.restricted(chosen)
        return Labelled(Subset(source, indices), sets, names)
    indices = np.flatnonzero(np.isin(labels, chosen))
    by_number = np.argsort(chosen)
    relabelled = by_number[np.searchsorted(chosen[by_number], labels[indices])]
    return Labelled(Subset(source, indices), relabelled, names)


def cap(source: Source, limit: int) -> Source:
    """At most `limit` examples of `source`, in its order; 0: all.

    Those with the lowest `uniform_hash` of their names, so that they are a fair sample of any order,
    a higher limit adds to them, and few change when the data grows.
    """
    if not 0 < limit < len(source):
        return source
    hashes = [uniform_hash(source.name_of(index)) for index in range(len(source))]
    return Subset(source, np.sort(np.argsort(hashes, kind="stable")[:limit]))
