"""Which examples are held out for evaluation, where the data has no split for it.

    config.data.held_out_fraction=0.1     a tenth
    config.data.fold=2/5                  the second of five parts, for cross-validation

`data.holding_out` says whether of each class alike (`stratified`), or of all by their hash alone
(`hash`), which earlier versions did. Both go by the hashes of the examples' names, so neither the
order nor the whereabouts of the data matter.
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import ml_collections
import numpy as np

from vit_jax.data.sources.examples import Labels, Source
from vit_jax.data.sources.splits import Splits, uniform_hash
from vit_jax.kinds import Kind

logger = logging.getLogger(__name__)

_FOLD = re.compile(r"([1-9]\d{0,3})/([1-9]\d{0,3})")


class Pool(NamedTuple):
    """What is known of the examples that some are held out of."""

    hashes: np.ndarray  # float64 [N], `uniform_hash` of their names
    labels: Labels
    class_names: Sequence[str]  # by label


def is_fold(value: Any) -> bool:
    """Whether `value` is k/K with k from 1 to K, and at least two parts; or ""."""
    if value == "":
        return True
    found = _FOLD.fullmatch(value) if isinstance(value, str) else None
    return found is not None and int(found[1]) <= int(found[2]) > 1


Fold = Annotated[str, Kind("k/K, the k-th of K parts, such as 2/5, or '' for none", is_fold)]


def hold_out(
    pool: Callable[[], Pool],
    open_part: Callable[[np.ndarray], Source],
    data: ml_collections.ConfigDict,
    where: str,
) -> Splits:
    """The splits of data that has but one: "train" and, unless nothing is held out, "validation".

    Args:
        pool: gives what is known of the examples.
        open_part: opens the examples at some indices, in order.
        data: `config.data`.
        where: the data's name, for the log.
    """

    def open_split(evaluation: bool) -> Source:
        chosen = held_out(pool(), data)
        if evaluation:
            part = f"fold {data.fold}" if data.fold else f"a fraction of {data.held_out_fraction:g}"
            logger.info(
                "%s has no split for evaluation: %d of its %d images are held out for it, %s (%s).",
                *(where, chosen.sum(), len(chosen), part, data.holding_out),
            )
        return open_part(np.flatnonzero(chosen == evaluation))

    splits: Splits = {"train": functools.partial(open_split, False)}
    if data.fold or data.held_out_fraction:
        splits["validation"] = functools.partial(open_split, True)
    return splits


def held_out(pool: Pool, data: ml_collections.ConfigDict) -> np.ndarray:
    """Which examples of `pool` are held out: bool [N]. Those without one class each are by hash."""
    if not (data.fold or data.held_out_fraction):
        return np.zeros(len(pool.hashes), bool)
    number, count = map(int, data.fold.split("/")) if data.fold else (1, 0)
    if data.holding_out == "hash" or not isinstance(pool.labels, np.ndarray):
        if data.fold:
            return (pool.hashes >= (number - 1) / count) & (pool.hashes < number / count)
        return lowest_hashes(pool.hashes, data.held_out_fraction)
    sizes = np.bincount(pool.labels, minlength=len(pool.class_names))
    if data.fold:
        start, stop = _fold(sizes, pool.class_names, number, count)
    else:  # One at least, and one at least for training.
        start = np.zeros(len(sizes))
        stop = np.rint(data.held_out_fraction * sizes).clip(1, np.maximum(sizes - 1, 1))
    stop = np.where(sizes > 1, stop, start)  # The only image of a class is trained on.
    rank = _rank_in_class(pool, sizes)
    return (start[pool.labels] <= rank) & (rank < stop[pool.labels])


def lowest_hashes(hashes: np.ndarray, fraction: float) -> np.ndarray:
    """Those of the `hashes` [N] that lie below `fraction`, or else the lowest: bool [N].

    Adding examples never moves another, unless there are so few that only the lowest is chosen.
    """
    return hashes <= max(fraction, hashes.min(initial=1.0))


def _fold(
    sizes: np.ndarray, class_names: Sequence[str], number: int, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The ranks [C] in each class at which one of `count` folds begins and ends.

    Where a class begins differs by its name, so that small ones do not all fall into the same folds.
    An added example moves at most one other across each of both bounds.
    """
    offsets = np.array([uniform_hash(name) for name in class_names]) * count
    start, stop = (np.floor((part * sizes + offsets) / count) for part in (number - 1, number))
    return start, stop


def _rank_in_class(pool: Pool, sizes: np.ndarray) -> np.ndarray:
    """How many examples of the same class have a lower hash: int [N]."""
    order = np.lexsort((pool.hashes, pool.labels))
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return rank
