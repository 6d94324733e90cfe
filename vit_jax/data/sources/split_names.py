"""The names that splits go by, and classes whose names look like splits."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence

from vit_jax.errors import DataError

logger = logging.getLogger(__name__)

# What a split is for -> what it is called, without case; the preferred names come first.
SYNONYMS = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid", "eval"),
    "test": ("test", "testing"),
}
TRAINING_SPLITS = SYNONYMS["train"]
EVALUATION_SPLITS = (*SYNONYMS["validation"], *SYNONYMS["test"])  # The preferred ones come first.
SPLITS = (*TRAINING_SPLITS, *EVALUATION_SPLITS)

_LIKE_A_SPLIT = re.compile(
    rf"(?<![^\W\d_])({'|'.join(SPLITS)})(sets?|data|images?|imgs?)?(?![^\W\d_])", re.IGNORECASE
)


def purpose_of(name: str) -> str:
    """What a split of this name is for: train, validation or test; empty: its name does not say."""
    return next((role for role, names in SYNONYMS.items() if name.casefold() in names), "")


def find_split(names: Iterable[str], wanted: Sequence[str]) -> str:
    """The first of `wanted` that is among `names`, without case, as it is written there; or ""."""
    written: dict[str, str] = {}
    for name in names:
        written.setdefault(name.casefold(), name)
    return next((written[name] for name in wanted if name in written), "")


def find_by_purpose(names: Sequence[str], name: str) -> str:
    """What `name` means where there are splits called `names`; empty: nothing.

    That one itself; else one with the same purpose; else, for evaluation, one with the other.
    """
    if name in names:
        return name
    purpose = purpose_of(name)
    found = find_split(names, SYNONYMS.get(purpose, ()))
    return found or (find_split(names, EVALUATION_SPLITS) if name in EVALUATION_SPLITS else "")


def check_class_names(names: Sequence[str], where: str) -> None:
    """Raises DataError if all classes look like splits, and warns if some do that differ in purpose.

    One alone may well be a class: a train is a vehicle.
    """
    found = {name: match[1] for name in names if (match := _LIKE_A_SPLIT.search(name))}
    if len({purpose_of(word) for word in found.values()}) < 2:
        return
    listed = ", ".join(found)
    if len(found) == len(names):
        raise DataError(
            f"{where}: the classes are {listed}, which look like splits. Splits are called "
            f"{', '.join(SPLITS)}, in any case, and classes lie below: rename them."
        )
    logger.warning(
        "%s: the classes %s look like splits; they are taken for classes.", where, listed
    )
