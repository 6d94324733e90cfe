"""The source `folder:DIR`: one folder of image files per class."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import pathlib
import re
from collections.abc import Iterator

import ml_collections
import numpy as np

from vit_jax.data.splits import EVALUATION_SPLITS, Example, Shape, Splits, uniform_hash
from vit_jax.errors import DataError

logger = logging.getLogger(__name__)

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

    def open_split(name: str) -> Folder:
        classes = find_classes(root, f"{reference}/")
        found = find_classes(root, f"{name}/", least=1)
        unknown = [label for label in found if label not in classes]
        if unknown:
            raise DataError(
                f"{root / name} has classes that {root / reference} lacks: {', '.join(unknown)}; "
                f"the training split has {', '.join(classes)}."
            )
        files = {label: sorted(_images(root, f"{name}/{label}")) for label in found}
        return _select(root, {label: files.get(label, []) for label in classes})

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

    def open_split(held_out: bool) -> Folder:
        classes = {
            label: sorted(_images(root, f"{prefix}{label}")) for label in find_classes(root, prefix)
        }
        hashes = {
            file: uniform_hash(file.removeprefix(prefix))
            for files in classes.values()
            for file in files
        }
        threshold = max(fraction, min(hashes.values())) if fraction else -1.0
        if held_out:
            logger.info(
                "%s has no split for evaluation: %d of its %d images are held out for it.",
                root / prefix,
                sum(value <= threshold for value in hashes.values()),
                len(hashes),
            )
        return _select(
            root,
            {
                label: [file for file in files if (hashes[file] <= threshold) == held_out]
                for label, files in classes.items()
            },
        )

    train = {"train": functools.partial(open_split, False)}
    evaluation = functools.partial(open_split, True)
    return train | dict.fromkeys(EVALUATION_SPLITS, evaluation) if fraction else train


def _select(root: pathlib.Path, classes: dict[str, list[str]]) -> Folder:
    """The files in the order of their names' hashes, so that any slice is a fair sample."""
    labelled = {file: label for label, files in enumerate(classes.values()) for file in files}
    files = sorted(labelled, key=lambda file: (uniform_hash(file), file))
    labels = np.array([labelled[file] for file in files], np.int32)
    return Folder(str(root), tuple(files), labels, tuple(classes))


def find_classes(root: pathlib.Path, prefix: str = "", least: int = 2) -> list[str]:
    """The class folders in `root`/`prefix` that hold images, in natural order: "9" before "10".

    Hidden folders are ignored; those without images are too, with a warning.

    Raises:
        DataError: fewer than `least` class folders hold images.
    """
    directory = root / prefix
    folders = sorted(
        (entry.name for entry in os.scandir(directory) if entry.is_dir() and entry.name[0] != "."),
        key=natural_order,
    )
    classes = [name for name in folders if any(_images(root, f"{prefix}{name}"))]
    empty = [name for name in folders if name not in classes]
    if empty:
        logger.warning("%s: folders without images, ignored: %s", directory, ", ".join(empty))
    if len(classes) < least:
        raise DataError(
            f"{directory}: need at least {least} class folders with images, found "
            f"{', '.join(classes) or 'none'}; {_LAYOUT}. "
            f"Image files end in {', '.join(IMAGE_EXTENSIONS)}."
        )
    return classes


def _images(root: pathlib.Path, folder: str) -> Iterator[str]:
    """The image files anywhere below `root`/`folder`, relative to `root`; hidden ones are not."""
    for entry in os.scandir(root / folder):
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _images(root, f"{folder}/{entry.name}")
        elif entry.name.lower().endswith(IMAGE_EXTENSIONS):
            yield f"{folder}/{entry.name}"


def natural_order(name: str) -> tuple[list[str | int], str]:
    """A sort key: numbers by value and letters without case; ties by the exact name."""
    parts: list[str | int] = list(re.split(r"(\d+)", name.casefold()))
    parts[1::2] = map(int, parts[1::2])
    return parts, name
