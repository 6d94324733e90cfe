"""Files written together, each whole or not at all."""

import contextlib
import json
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from vit_jax import storage
from vit_jax.errors import WeightsError

Writer = Callable[[pathlib.Path], object]  # writes a file of the given name
Files = Mapping[pathlib.Path, Writer]


def text(content: str) -> Writer:
    """The writer of a text."""
    return lambda path: path.write_text(content, encoding="utf-8")


def json_text(content: Mapping[str, Any]) -> Writer:
    """The writer of a JSON object."""
    return text(json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n")


def write_files(files: Files) -> None:
    """Writes all files, and the folders that they lie in.

    None gets its name before all are complete: whatever fails, no half file is left and former
    files stay whole. Raises WeightsError if one cannot be written.
    """
    with contextlib.ExitStack() as complete:
        for path, write in files.items():
            complete.enter_context(_named_errors(path))
            if path.exists() and not path.is_file():
                kind = "a folder" if path.is_dir() else "no regular file"
                raise WeightsError(f"{path} is {kind}: name a file.")
            write(pathlib.Path(complete.enter_context(storage.replacing(path))))


@contextlib.contextmanager
def _named_errors(path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise WeightsError(f"{path} cannot be written: {error.strerror or error}.") from error
