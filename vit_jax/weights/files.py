"""Files written together, each whole or not at all."""

import contextlib
import json
import os
import pathlib
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.errors import WeightsError

Writer = Callable[[pathlib.Path], None]  # writes a file of the given name
Files = Mapping[pathlib.Path, Writer]


def text(content: str) -> Writer:
    """The writer of a text."""
    return lambda path: path.write_text(content, encoding="utf-8")


def json_text(content: Mapping[str, Any]) -> Writer:
    """The writer of a JSON object."""
    return text(json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")


def write_files(files: Files) -> None:
    """Writes all files, and the folders that they lie in.

    Each gets another name beside its own until all are complete: whatever fails, no half file is
    left and former files stay whole. Raises WeightsError if a place cannot be written.
    """
    mark = f".{uuid.uuid4().hex}.tmp"
    files = {pathlib.Path(os.path.realpath(place)): write for place, write in files.items()}
    temporary = {place: place.with_name(place.name + mark) for place in files}
    try:
        for place, write in files.items():
            if place.exists() and not place.is_file():
                kind = "a folder" if place.is_dir() else "no regular file"
                raise WeightsError(f"{place} is {kind}: name a file.")
            place.parent.mkdir(parents=True, exist_ok=True)
            write(temporary[place])
        for place in files:
            os.replace(temporary[place], place)
    except OSError as error:
        raise WeightsError(f"{place} cannot be written: {error.strerror or error}.") from error
    finally:
        for path in temporary.values():
            with contextlib.suppress(OSError):
                path.unlink()
