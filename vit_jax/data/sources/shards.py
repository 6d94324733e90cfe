"""The shards that a pattern stands for, by split."""

from __future__ import annotations

import itertools
import logging
import os
import re
from collections.abc import Callable, Iterable

from vit_jax import storage
from vit_jax.data.sources.contents import is_system
from vit_jax.data.sources.listing import natural_order
from vit_jax.data.sources.split_names import SPLITS
from vit_jax.errors import DataError

logger = logging.getLogger(__name__)

_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)")
_SPLIT = re.compile(rf"(?<![a-z])({'|'.join(SPLITS)})(?![a-z])", re.IGNORECASE)
_NUMBERED = re.compile(r"(.+)-(\d+)-of-(\d+)(?:-[0-9a-f]+)?\.\w+")
_GLOB = re.compile(r"[*?\[]")
_MAX_PATHS = 1_000_000
# To say what is wrong with a folder that has no others.
_COMPRESSED = {".tar": (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")}
_KEY = "config.data.source"


def split_in(path: str) -> str:
    """The word of `split_names` in a path, such as `train` of `imagenet-train-000.tar`; "": none."""
    words = _SPLIT.findall(path)
    return words[0].lower() if words else ""


def find_shards(
    pattern: str, suffix: str = ".tar", split_of: Callable[[str], str] = split_in
) -> tuple[str, dict[str, list[str]]]:
    """The shards that a pattern stands for, by split and in natural order.

    Args:
        pattern: local or a URL: a folder, in which and in whose folders files with the suffix are
            searched; a path; a glob; or several, as "{000..146}" and "{a,b}" in it say.
        suffix: that shards in a folder end in.
        split_of: the split that a path says, below the folder that all have in common; "": none.
            Where no path says one, all shards are `train`.

    Returns:
        The folder that all lie in, at some depth, and the paths of each split.

    Raises:
        DataError: nothing is there.
    """
    pattern = pattern if storage.is_remote(pattern) else os.path.expanduser(pattern)
    if pattern and storage.probe(pattern, _KEY):
        is_folder = storage.is_folder(pattern)
        root = pattern.rstrip("/") if is_folder else pattern.rpartition("/")[0]
        paths = [pattern]
        if is_folder:
            paths = _search(root, (suffix,)) or _search(root, _COMPRESSED.get(suffix, ()))
    else:
        expanded = [_match(path) for path in expand_braces(pattern)]
        paths = list(itertools.chain.from_iterable(expanded))
        root = _common_folder(paths)
    if not any(paths):
        raise DataError(
            f"{_KEY}: {pattern!r} stands for no file; expected a folder with *{suffix} files, a "
            f"glob, or numbers such as imagenet-train-{{000000..000146}}{suffix}."
        )
    ordered = sorted(set(paths), key=natural_order)
    _warn_of_missing(ordered)
    return root, by_split(ordered, root, split_of)


def _search(folder: str, suffixes: tuple[str, ...], depth: int = 1) -> list[str]:
    """The files in a folder, and in the folders in it, whose names end so."""
    if not suffixes:
        return []
    found = []
    for name, is_folder in storage.list_folder(folder):
        path = storage.join(folder, name)
        if is_system(name):
            continue
        if is_folder and depth:
            found += _search(path, suffixes, depth - 1)
        elif name.lower().endswith(suffixes):
            found.append(path)
    return found


def _match(pattern: str) -> list[str]:
    is_glob = _GLOB.search(pattern) and not storage.exists(pattern)
    return storage.glob(pattern) if is_glob else [pattern]


def _common_folder(paths: list[str]) -> str:
    """The deepest folder that all paths lie in."""
    folders = [path.split("/")[:-1] for path in paths]
    same = itertools.takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    return "/".join(level[0] for level in same)


def by_split(
    paths: Iterable[str], root: str, split_of: Callable[[str], str] = split_in
) -> dict[str, list[str]]:
    """Paths by the split that `split_of` finds in them below `root`; all "train" if in none."""
    splits: dict[str, list[str]] = {}
    for path in paths:
        splits.setdefault(split_of(path.removeprefix(root)), []).append(path)
    unnamed = splits.pop("", [])
    if not splits:
        return {"train": unnamed}
    if unnamed:
        logger.warning(
            "%d shards are left out: no split is in their names, as in those of others; the first "
            "is %s.",
            len(unnamed),
            unnamed[0],
        )
    return splits


def _warn_of_missing(paths: Iterable[str]) -> None:
    """Warns where the names of files say that there are more of them."""
    found: dict[tuple[str, str], set[int]] = {}
    for path in paths:
        if match := _NUMBERED.fullmatch(path):
            found.setdefault((match[1], match[3]), set()).add(int(match[2]))
    for (stem, count), numbers in found.items():
        if missing := sorted(set(range(int(count))) - numbers):
            logger.warning(
                "%s: of its %d files %d are missing, the first is %0*d.",
                *(stem, int(count), len(missing), len(count), missing[0]),
            )


def expand_braces(pattern: str) -> list[str]:
    """The texts that "{000..146}", with leading zeros, and "{a,b}" stand for, as in a shell.

    Raises DataError if a range is none, or too long.
    """
    braces = _BRACES.search(pattern)
    if not braces:
        return [pattern]
    numbers = _RANGE.fullmatch(braces[1])
    values = _range(numbers[1], numbers[2], pattern) if numbers else braces[1].split(",")
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [text for value in values for text in expand_braces(f"{before}{value}{after}")]


def _range(first: str, last: str, pattern: str) -> list[str]:
    """The numbers from `first` to `last`, as wide as `first` if that begins with a zero."""
    if not 0 <= int(last) - int(first) < _MAX_PATHS:
        raise DataError(f"{_KEY}: {pattern!r}: {first}..{last} is no range from low to high.")
    width = len(first) if first.startswith("0") else 0
    return [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
