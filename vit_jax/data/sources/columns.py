"""`config.data.columns`: which columns of a manifest, or keys of its JSON lines, are meant.

path=file_name, label=breed             other names than those in `NAMES`
path=train/{id}.jpg, label=breed        made of a column, with text around it
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from vit_jax.data.sources.splits import abbreviate
from vit_jax.errors import DataError
from vit_jax.kinds import Kind

ANSWERS = ("label", "labels", "target", "targets")  # Of an image: one of them.
NAMES = ("path", *ANSWERS, "split")

_PART = re.compile(rf"\s*({'|'.join(NAMES)})\s*=\s*([^,]*[^,\s])\s*")
_FIELD = re.compile(r"\{([^{}]+)\}")
_FILE_NAME = (
    "file_name"  # What `metadata.jsonl` and `metadata.csv` of Hugging Face have for a path.
)


def is_columns(value: Any) -> bool:
    """Whether `value` is NAME=COLUMN, ..., each name once; or ""."""
    if not isinstance(value, str):
        return False
    found = [_PART.fullmatch(part) for part in value.split(",")] if value else []
    return all(found) and len({part[1] for part in found if part}) == len(found)


Columns = Annotated[
    str, Kind(f"NAME=COLUMN,... where NAME is one of {', '.join(NAMES)}; or ''", is_columns)
]


def read_columns(text: str) -> dict[str, str]:
    """The column that each name stands for, where `is_columns`."""
    found = [_PART.fullmatch(part) for part in text.split(",")] if text else []
    return {part[1]: part[2] for part in found if part}


def renamed(cells: dict[str, Any], columns: dict[str, str], where: str) -> dict[str, Any]:
    """A row under the names that manifests know; raises DataError if it lacks a column."""
    left_out = set(ANSWERS) - columns.keys() if columns.keys() & set(ANSWERS) else set()
    result = {name: cell for name, cell in cells.items() if name not in left_out}
    if "path" not in cells and _FILE_NAME in cells:
        result["path"] = cells[_FILE_NAME]
    return result | {
        name: _value(cells, column, f"{where}: config.data.columns: {name}={column}")
        for name, column in columns.items()
    }


def _value(cells: dict[str, Any], column: str, where: str) -> Any:
    """The cell in a column, or the text that one with braces makes of cells."""

    def cell(name: str) -> Any:
        if name not in cells:
            there = abbreviate([str(name) for name in cells]) or "none"
            raise DataError(f"{where}: there is no column {name!r}; there are {there}.")
        return cells[name]

    if column in cells or not _FIELD.search(column):
        return cell(column)
    return _FIELD.sub(lambda field: str(cell(field[1])), column)
