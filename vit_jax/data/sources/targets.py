"""Numbers to predict, as manifests write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vit_jax.errors import DataError
from vit_jax.kinds import is_number, shown


def read_target(cell: Any, where: str) -> float:
    """A finite number, or text that is one; raises DataError for anything else."""
    try:
        value = float(cell.replace("_", "x")) if isinstance(cell, str) else cell
    except ValueError:
        value = math.nan
    if not is_number(value):
        raise DataError(f"{where}: target is {shown(cell)}, expected a finite number.")
    return float(value)


def read_targets(cells: Any, where: str) -> tuple[float, ...]:
    """The numbers in a list; raises DataError if there is none, or one is none."""
    if not isinstance(cells, list) or not cells:
        raise DataError(f"{where}: targets is {shown(cells)}, expected a list of numbers.")
    return tuple(read_target(cell, where) for cell in cells)


def target_names(column: str, count: int) -> tuple[str, ...]:
    """What the numbers in a column are called: as the column, with their number if it has several."""
    return (column,) if count == 1 else tuple(f"{column}_{number}" for number in range(count))


def same_length(values: Sequence[float], before: int, where: str) -> int:
    """The number of values; raises DataError if it is not as `before`, unless that is 0."""
    if before not in (0, len(values)):
        raise DataError(f"{where}: {len(values)} targets, but {before} in the lines before.")
    return len(values)
