"""The kinds of sources, by name.

`config.data.source` names a kind and, after a colon, where the data lies:

    digits                    scikit-learn's 8×8 digits, inside its package: nothing to download
    idx:DIR                   MNIST and Fashion-MNIST in their original files
    folder:DIR                one folder per class, optionally under DIR/train and DIR/val
    manifest:FILE             a table of image files and labels, .csv or .jsonl
    tfds:NAME[:CONFIG]        a TensorFlow Datasets dataset, in ArrayRecord or TFRecord files
    tar:PATTERN               images in tar files, labelled as in WebDataset or by their folders
    parquet:PATTERN           images and labels in columns of Parquet files
    hf:OWNER/NAME[:CONFIG]    such a data set on the Hugging Face Hub, also ...@REVISION
    python:MODULE:ATTRIBUTE   an object of your own with a length and items
    fake                      deterministic patterns, to test and to measure

A new kind is one function `(location, data, shape) -> Splits` and one line in `_KINDS`.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable

import ml_collections

from vit_jax.data.sources import (
    arrays,
    folder,
    hugging_face,
    manifest,
    parquet,
    python,
    tar,
    tfds,
)
from vit_jax.data.sources.examples import Source
from vit_jax.data.sources.exclusions import leave_out
from vit_jax.data.sources.split_expressions import open_split
from vit_jax.data.sources.split_names import check_class_names
from vit_jax.data.sources.splits import (
    Shape,
    Splits,
    cap,
    describe_split,
    select_classes,
)
from vit_jax.errors import ConfigError

logger = logging.getLogger(__name__)

_KINDS = {
    "digits": arrays.digits,
    "idx": arrays.idx,
    "folder": folder.folder,
    "manifest": manifest.manifest,
    "tfds": tfds.tfds,
    "tar": tar.tar,
    "parquet": parquet.parquet,
    "hf": hugging_face.hugging_face,
    "python": python.python,
    "fake": arrays.fake,
}


def find_splits(
    data: ml_collections.ConfigDict, image_size: tuple[int, int], channels: int, num_classes: int
) -> Splits:
    """The splits of `data.source`, none of them opened; arguments and errors as of `open_source`."""
    kind, _, location = data.source.partition(":")
    if not data.source:
        raise ConfigError(
            "config.data.source is empty: this preset's dataset has no public copy; name yours "
            "with --config.data.source=folder:DIR (or tfds:NAME, tar:PATTERN)."
        )
    if kind not in _KINDS:
        other = "folder" if location else f"folder:{kind}"  # A path alone is a folder's.
        nearest = difflib.get_close_matches(kind, _KINDS, n=1) or [other]
        raise ConfigError(
            f"config.data.source={data.source!r}: unknown kind {kind!r}; did you mean "
            f"{nearest[0]!r}? The kinds are digits, idx:DIR, folder:DIR, manifest:FILE, "
            "tfds:NAME[:CONFIG], tar:PATTERN, parquet:PATTERN, hf:OWNER/NAME, "
            "python:MODULE:ATTRIBUTE, fake."
        )
    splits = _KINDS[kind](location, data, Shape(tuple(image_size), channels, num_classes))
    return _selecting(splits, data) if data.classes else splits


def open_source(
    data: ml_collections.ConfigDict,
    split: str,
    *,
    image_size: tuple[int, int],
    channels: int,
    num_classes: int,
    training: bool = False,
) -> Source:
    """Opens one split of `data.source`, without the examples that the config leaves out.

    Args:
        data: `config.data`.
        split: a split or part of it in TFDS's grammar: "train", "train[:98%]", "train[-10%:]",
            "train[:800]+test[100:200]". Empty, unless for training: the source's own evaluation
            split.
        image_size: (height, width) of `fake` images; other sources ignore it.
        channels: of `fake` images; other sources ignore it.
        num_classes: of `fake` images, and of data that does not say how many it has; 0: unknown.
        training: whether it is for training, which `data.exclude` and `data.max_train_examples` are
            for; else `data.max_eval_examples` counts.

    Raises:
        ConfigError: `data.source` or `split` is malformed.
        DataError: the data is missing or malformed.
    """
    if training and not split:
        raise ConfigError("config.data.train_split is empty: name a split, such as train.")
    splits = find_splits(data, image_size, channels, num_classes)
    source = open_split(splits, split, data.source)
    check_class_names(source.class_names, data.source)
    if training and data.exclude:
        source = leave_out(source, data.exclude)
    source = cap(source, data.max_train_examples if training else data.max_eval_examples)
    logger.info("%s: %s", data.source, describe_split(splits, split, source))
    return source


def _selecting(splits: Splits, data: ml_collections.ConfigDict) -> Splits:
    """The splits with the classes that `data.classes` names; synonyms stay synonyms."""

    def selecting(open_: Callable[[], Source]) -> Callable[[], Source]:
        return lambda: select_classes(open_(), tuple(data.classes), data.source)

    selected = {open_: selecting(open_) for open_ in dict.fromkeys(splits.values())}
    return {name: selected[open_] for name, open_ in splits.items()}
