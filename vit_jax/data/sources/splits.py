"""The splits of a source, and the examples of them that are chosen."""

from __future__ import annotations

import difflib
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from vit_jax.data.sources.examples import LabelSets, Source, Targets
from vit_jax.data.sources.split_names import EVALUATION_SPLITS, SPLITS, find_by_purpose
from vit_jax.data.sources.views import Labelled, Subset
from vit_jax.errors import DataError

logger = logging.getLogger(__name__)

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


def with_synonyms(splits: Splits) -> Splits:
    """`splits`, and those of the usual names that mean one of them, after them."""
    names = tuple(splits)
    meant = {name: find_by_purpose(names, name) for name in SPLITS}
    return splits | {name: splits[found] for name, found in meant.items() if found}


def written_names(splits: Splits) -> list[str]:
    """The names of splits without their synonyms: as the data has them."""
    names: dict[Callable[[], Source], str] = {}
    for name, open_ in splits.items():
        names.setdefault(open_, name)
    return list(names.values())


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


def describe_split(splits: Splits, split: str, source: Source) -> str:
    """What `split` was taken for, and how many images of which classes `source`, opened, has."""
    meant = {open_: name for name, open_ in reversed(splits.items())}
    asked = split or next(name for name in EVALUATION_SPLITS if name in splits)
    taken = (
        f" ({meant[splits[asked]]})" if asked in splits and meant[splits[asked]] != split else ""
    )
    title = f"split {split}" if split else "the evaluation split"
    return f"{title}{taken}: {len(source):,} images of {_describe_classes(source)}"


def _describe_classes(source: Source) -> str:
    names = source.class_names
    if isinstance(labels := source.labels, Targets):
        ends = zip(names, labels.values.min(0), labels.values.max(0), strict=True)
        return ", ".join(f"{name} from {low:.4g} to {high:.4g}" for name, low, high in ends)
    if isinstance(labels, LabelSets):
        labels = labels.classes
    counted = names
    if labels is not None:
        counts = np.bincount(labels, minlength=len(names))
        counted = [f"{name} {count:,}" for name, count in zip(names, counts, strict=False)]
    return f"{len(names):,} classes: {abbreviate(counted)}"


def select_classes(source: Source, names: tuple[str, ...], where: str) -> Labelled:
    """The examples of `source` with these classes, which are labelled by the order of `names`.

    Raises DataError if a class is unknown or named twice.
    """
    labels = source.labels
    if isinstance(labels, Targets):
        raise DataError(f"config.data.classes: {where} has numbers to predict, no classes.")
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
