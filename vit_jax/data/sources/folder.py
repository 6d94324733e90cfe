"""The source `folder:DIR`: one folder of image files per class."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Sequence

import ml_collections
import numpy as np

from vit_jax import storage
from vit_jax.data.sources.contents import IMAGE_EXTENSIONS, Walk, holds_run
from vit_jax.data.sources.holding_out import Pool, hold_out
from vit_jax.data.sources.listing import Listing, folders_in, list_classes
from vit_jax.data.sources.names import ImageFiles
from vit_jax.data.sources.split_names import (
    EVALUATION_SPLITS,
    find_by_purpose,
    find_split,
    purpose_of,
)
from vit_jax.data.sources.splits import (
    Shape,
    Splits,
    check_known_classes,
    with_synonyms,
)
from vit_jax.data.sources.views import Subset
from vit_jax.errors import DataError

logger = logging.getLogger(__name__)

_LAYOUT = (
    "expected DIR/train/CLASS/*.jpg with DIR/val/CLASS/*.jpg (or validation, or test), or only "
    "DIR/CLASS/*.jpg, of which config.data.held_out_fraction is held out for evaluation"
)


def folder(location: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """Lists the splits below the folder `location`; the training split's classes serve them all.

    Splits go by the names in `split_names`, which stand for one another where the exact one is
    absent. Without one for evaluation, some of the training images are held out: `holding_out`.

    Args:
        location: a path, or a URL that fsspec knows.
        data: `config.data`; `index_dir` is where lists of files are kept.
        shape: not needed.

    Raises:
        DataError: no such folder, or not one of the two layouts; the message describes them.
    """
    del shape
    root = os.path.expanduser(location)
    there = location and storage.probe(root, f"config.data.source=folder:{location}")
    if not there or not storage.is_folder(root):
        raise DataError(f"config.data.source=folder:{location}: no such folder; {_LAYOUT}.")
    names = folders_in(root)
    train = find_by_purpose(names, "train")
    evaluation = find_split(names, EVALUATION_SPLITS)
    if not evaluation:
        prefix = f"{train}/" if train else ""
        listing = functools.cache(lambda: _list(root, prefix, data.index_dir))
        splits = hold_out(
            lambda: Pool(listing().hashes, listing().labels, listing().class_names),
            lambda indices: Subset(_files(root, listing()), indices),
            data,
            storage.join(root, prefix),
        )
        return with_synonyms(splits)
    names = _split_folders(root, names)
    # A trained model may be evaluated without its training images: then the split's own classes.
    reference = train or evaluation

    def open_split(name: str) -> ImageFiles:
        if name == reference:
            return _files(root, _list(root, f"{name}/", data.index_dir))
        classes = _find_classes(root, f"{reference}/")
        listing = _list(root, f"{name}/", data.index_dir, least=1)
        check_known_classes(
            listing.class_names,
            classes,
            storage.join(root, name),
            storage.join(root, reference),
        )
        return _files(root, listing, classes)

    return with_synonyms({name: functools.partial(open_split, name) for name in names})


def _split_folders(root: str, names: list[str]) -> list[str]:
    """Those of the folders in `root` that do not hold a run or an export."""
    runs = [name for name in names if not purpose_of(name) and _holds_run(root, name)]
    if runs:
        logger.warning(
            "%s: folders that hold runs or exports, which are no data: %s", root, ", ".join(runs)
        )
    return [name for name in names if name not in runs]


def _holds_run(root: str, name: str) -> bool:
    return holds_run({entry.name for entry in storage.list_folder(storage.join(root, name))})


def _files(root: str, listing: Listing, classes: Sequence[str] | None = None) -> ImageFiles:
    """The source of the files listed, labelled by `classes`, or else by the listing's own."""
    if classes is None:
        return ImageFiles(root, listing.files, listing.labels, tuple(listing.class_names))
    numbers = {label: number for number, label in enumerate(classes)}
    relabelled = np.array([numbers[label] for label in listing.class_names], np.int32)
    return ImageFiles(root, listing.files, relabelled[listing.labels], tuple(classes))


def _list(root: str, prefix: str, index_dir: str, least: int = 2) -> Listing:
    """The images in the class folders in `root`/`prefix`; DataError if fewer than `least` have any."""
    listing = list_classes(root, prefix, index_dir)
    _check_classes(storage.join(root, prefix), listing.class_names, least)
    return listing


def _find_classes(root: str, prefix: str) -> list[str]:
    """The class folders in `root`/`prefix` that hold images, without listing all of these."""
    where = storage.join(root, prefix)
    folders = folders_in(where)
    classes = [name for name in folders if any(Walk(root).images_below(f"{prefix}{name}"))]
    _check_classes(where, classes, least=2)
    return classes


def _check_classes(where: str, classes: Sequence[str], least: int) -> None:
    if len(classes) < least:
        name = os.path.basename(where.rstrip("/"))
        taken = (
            f" {name}/ is taken for a split, by its name: if it is a class, put all class folders "
            "into one called train."
        )
        raise DataError(
            f"{where}: need at least {least} class folders with images, found "
            f"{', '.join(classes) or 'none'}; {_LAYOUT}.{taken if purpose_of(name) else ''} "
            f"Image files end in {', '.join(IMAGE_EXTENSIONS)}."
        )
