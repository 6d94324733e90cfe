"""The source `folder:DIR`: one folder of image files per class."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import logging
import os
import pathlib
import re

import ml_collections
import numpy as np

from vit_jax.data.splits import EVALUATION_SPLITS, Example, Shape, Splits
from vit_jax.errors import DataError

IMAGE_EXTENSIONS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_LAYOUT = (
    "expected DIR/train/CLASS/*.jpg with DIR/val/CLASS/*.jpg (or validation, or test), or only "
    "DIR/CLASS/*.jpg, of which config.data.held_out_fraction is held out for evaluation"
)


@dataclasses.dataclass(frozen=True)
class Folder:
    """Encoded image files below `root`, read when asked for."""

    root: str
    files: tuple[str, ...]  # Relative to `root`, with "/".
    labels: np.ndarray
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Example:
        name = self.files[index]
        with open(os.path.join(self.root, name), "rb") as file:
            return Example(file.read(), int(self.labels[index]), name)


def folder(place: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """Lists the splits below the folder `place`; the training split's classes serve them all.

    "validation", "val" and "test" stand for one another where the exact one is absent. Without any
    of them, `held_out_fraction` of the training images is held out.

    Raises:
        DataError: no such folder, or not one of the two layouts; the message describes them.
    """
    del shape
    root = pathlib.Path(place).expanduser()
    if not place or not root.is_dir():
        raise DataError(f"config.data.source=folder:{place}: no such folder; {_LAYOUT}.")
    names = [entry.name for entry in os.scandir(root) if entry.is_dir() and entry.name[0] != "."]
    evaluation = [name for name in EVALUATION_SPLITS if name in names]
    if not evaluation:
        return _held_out(root, "train/" if "train" in names else "", data.held_out_fraction)
    # A trained model may be evaluated without its training images: then the split's own classes.
    reference = "train" if "train" in names else evaluation[0]
    classes = functools.cache(lambda: find_classes(root, f"{reference}/"))

    def open_split(name: str) -> Folder:
        known = classes()
        found = known if name == reference else find_classes(root, f"{name}/", least=1)
        unknown = [label for label in found if label not in known]
        if unknown:
            raise DataError(
                f"{root / name} has classes that {root / reference} lacks: {', '.join(unknown)}; "
                f"the training split has {', '.join(known)}."
            )
        return _select(root, {label: found.get(label, []) for label in known})

    synonyms = dict.fromkeys(EVALUATION_SPLITS, evaluation[0])
    return {
        split: functools.partial(open_split, name)
        for split, name in (synonyms | {name: name for name in names}).items()
    }


def _held_out(root: pathlib.Path, prefix: str, fraction: float) -> Splits:
    """Splits the images below `root`/`prefix` by a hash of their names.

    Adding files never moves one from split to split. Only if the hash selects none of a few
    images is the one with the lowest hash held out, so that there is something to evaluate.
    """
    classes = functools.cache(lambda: find_classes(root, prefix))

    def open_split(held_out: bool) -> Folder:
        hashes = {
            file: _uniform_hash(file.removeprefix(prefix))
            for files in classes().values()
            for file in files
        }
        threshold = max(fraction, min(hashes.values())) if fraction else -1.0
        return _select(
            root,
            {
                label: [file for file in files if (hashes[file] <= threshold) == held_out]
                for label, files in classes().items()
            },
        )

    train = {"train": functools.partial(open_split, False)}
    evaluation = functools.partial(open_split, True)
    return train | dict.fromkeys(EVALUATION_SPLITS, evaluation) if fraction else train


def _uniform_hash(name: str) -> float:
    """A number in [0, 1) that only depends on `name`."""
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def _select(root: pathlib.Path, classes: dict[str, list[str]]) -> Folder:
    return Folder(
        root=str(root),
        files=tuple(file for files in classes.values() for file in files),
        labels=np.repeat(np.arange(len(classes)), [len(files) for files in classes.values()]),
        class_names=tuple(classes),
    )


def find_classes(root: pathlib.Path, prefix: str = "", least: int = 2) -> dict[str, list[str]]:
    """Finds the image files of each class folder in `root`/`prefix`, at any depth.

    Hidden files and folders and other file types are ignored; class folders without images are
    too, with a warning.

    Returns:
        Class name -> sorted file names relative to `root`, such as "train/cat/1.jpg"; classes in
        natural, case-folded order, so "9" before "10".

    Raises:
        DataError: fewer than `least` class folders hold images.
    """
    directory = root / prefix
    labels = sorted(
        (entry.name for entry in os.scandir(directory) if entry.is_dir() and entry.name[0] != "."),
        key=natural_order,
    )
    classes = {label: _find_images(root, f"{prefix}{label}") for label in labels}
    empty = [label for label, files in classes.items() if not files]
    if empty:
        logging.warning(
            "%s: class folders without images, ignored: %s", directory, ", ".join(empty)
        )
    classes = {label: files for label, files in classes.items() if files}
    if len(classes) < least:
        found = f"1 ({next(iter(classes))!r})" if classes else "none"
        raise DataError(
            f"{directory}: need at least {least} class folders with images, found {found}; {_LAYOUT}. "
            f"Image files end in {', '.join(IMAGE_EXTENSIONS)}."
        )
    return classes


def _find_images(root: pathlib.Path, folder: str) -> list[str]:
    """The image files anywhere below `root`/`folder`, sorted, relative to `root`."""
    found = []
    for directory, subfolders, files in os.walk(root / folder, followlinks=True):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        relative = pathlib.PurePath(directory).relative_to(root).as_posix()
        found += [
            f"{relative}/{file}"
            for file in files
            if file.lower().endswith(IMAGE_EXTENSIONS) and not file.startswith(".")
        ]
    return sorted(found)


def natural_order(name: str) -> tuple[list[str | int], str]:
    """A sort key: numbers by value and letters without case; ties by the exact name."""
    parts: list[str | int] = list(re.split(r"(\d+)", name.casefold()))
    parts[1::2] = map(int, parts[1::2])
    return parts, name
