"""Picture files by name: from what a user names to paths, and from paths to contents, in order."""

from __future__ import annotations

import itertools
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from vit_jax import storage
from vit_jax.data.sources.contents import IMAGE_EXTENSIONS, is_array, is_image, is_system
from vit_jax.data.sources.listing import natural_order
from vit_jax.errors import DataError

STANDARD_INPUT = "-"

Item = TypeVar("Item")
Value = TypeVar("Value")


def find_files(inputs: Sequence[str], listing: Iterable[bytes]) -> Iterator[str]:
    """The paths that `inputs` stand for, in natural order within each.

    Args:
        inputs: files; folders, searched to the bottom for image files; globs, where "**" spans
            folders; "-" for the listing.
        listing: lines with a path each, as on standard input; read as they are needed.

    Raises:
        DataError: at once: an input stands for nothing.
    """
    return itertools.chain.from_iterable(
        [_not_empty(name, _find(name, listing)) for name in inputs]
    )


def _not_empty(name: str, paths: Iterator[str]) -> Iterator[str]:
    """The same paths; raises DataError if there is none."""
    for first in paths:
        return itertools.chain([first], paths)
    if name == STANDARD_INPUT:
        raise DataError("Standard input names no files.")
    if os.path.isdir(_path_of(name)):
        extensions = ", ".join(IMAGE_EXTENSIONS)
        raise DataError(f"{name}: this folder holds no image files ({extensions}).")
    raise DataError(f"{name!r}: there is no such file or folder, and as a glob it matches none.")


def _path_of(name: str) -> str:
    """A name that is there as it is written, else with `~` and environment variables replaced."""
    return name if os.path.lexists(name) else storage.expand(name)


def _find(name: str, listing: Iterable[bytes]) -> Iterator[str]:
    if name == STANDARD_INPUT:
        lines = (os.fsdecode(line.rstrip(b"\r\n")) for line in listing)
        return (line for line in lines if line)
    path = _path_of(name)
    if os.path.isdir(path):
        return walk(path)
    # A file whose name looks like a glob is that file.
    return iter([path]) if os.path.lexists(path) else _match(path)


def _match(pattern: str) -> Iterator[str]:
    """The files that a glob matches; what is in folders that it matches too, unless by "**"."""
    for path in sorted(storage.glob(pattern), key=natural_order):
        if not os.path.isdir(path):
            yield path
        elif "**" not in pattern:
            yield from walk(path)


def walk(folder: str, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[str]:
    """The image files anywhere below a folder, in natural order; hidden ones are left out.

    A folder that cannot be listed stands for itself: reading it says why. Links to folders are
    followed, but not back to one that they lie in. Only the names in one folder, and in those above
    it, are held.
    """
    try:
        status = os.stat(folder)
        is_folder = dict(storage.list_folder(folder))
    except (OSError, DataError):
        yield folder
        return
    identity = (status.st_dev, status.st_ino)
    if identity in above:
        return
    arrays = not any(is_image(name) for name in is_folder if not is_folder[name])
    for name in sorted(is_folder, key=natural_order):
        path = os.path.join(folder, name)
        if is_folder[name] and not is_system(name):
            yield from walk(path, above | {identity})
        elif not is_folder[name] and (is_image(name) or (arrays and is_array(name))):
            yield path


def read_ahead(
    function: Callable[[Item], Value], items: Iterable[Item], count: int
) -> Generator[Value]:
    """`function` of each item, in order, computed in threads for `count` items in advance."""
    pending: deque = deque()
    with ThreadPoolExecutor() as threads:
        try:
            for item in items:
                pending.append(threads.submit(function, item))
                if len(pending) > count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
