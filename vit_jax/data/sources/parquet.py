"""The source `parquet:PATTERN`: images and labels in columns of Parquet files, as on the Hub.

Splits go by the files' names (`train-00000-of-00002.parquet`), classes by what Hugging Face's
`datasets` wrote into the schema, else by the labels. Rows come in the order of the files.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence

import ml_collections
import numpy as np

from vit_jax.data.sources.examples import Example, LabelSets, Source, as_label
from vit_jax.data.sources.holding_out import Pool, hold_out
from vit_jax.data.sources.listing import natural_order
from vit_jax.data.sources.names import ImageFiles, Names
from vit_jax.data.sources.parquet_columns import Labels, Layout, layout_of, read_labels, read_paths
from vit_jax.data.sources.parquet_values import Column, open_column
from vit_jax.data.sources.records import attempt
from vit_jax.data.sources.shards import find_shards, split_in
from vit_jax.data.sources.split_names import EVALUATION_SPLITS, find_by_purpose
from vit_jax.data.sources.splits import (
    Shape,
    Splits,
    abbreviate,
    check_known_classes,
    uniform_hash,
    with_synonyms,
)
from vit_jax.data.sources.views import Subset
from vit_jax.errors import DataError

SUFFIX = ".parquet"
_NUMBERED = re.compile(r"(\w+)-(\d+)-of-(\d+)(?:-[0-9a-f]+)?\.parquet")
_CONVERTED = re.compile(r"(?:.*/)?(?:partial-)?(\w+)/\d+\.parquet")

Files = Callable[[], Sequence[str]]  # Gives the paths of a split's files, fetched if they must be.


class Parquet(Source):
    """The images in a column of some files, still encoded.

    Args:
        column: their values.
        root: the folder that the files lie in; names of examples are relative to it.
        labels: int32 [N], or sets.
        class_names: by label.
    """

    def __init__(
        self,
        column: Column,
        root: str,
        labels: np.ndarray | LabelSets,
        class_names: tuple[str, ...],
    ):
        self.labels, self.class_names = labels, class_names
        self._column, self._root, self._labels = column, root, labels

    @property
    def remote(self) -> bool:
        """Whether the files are a store's."""
        return self._column.remote

    def __len__(self) -> int:
        return len(self._labels)

    def fetch(self, indices: Sequence[int]) -> list[Example | DataError]:
        """Several examples, with neighbours in one request; what fails stands for itself."""
        images = self._column.fetch(indices)
        return [
            attempt(self._example, image, index)
            for index, image in zip(indices, images, strict=True)
        ]

    def name_of(self, index: int) -> str:
        """The example's name: its file and its row there."""
        path, row = self._column.locate(index)
        return f"{relative(path, self._root)}/{row}"

    def _example(self, image: bytes, index: int) -> Example:
        return Example(image, as_label(self._labels[index]), self.name_of(index))

    def __reduce__(self) -> tuple:
        return Parquet, (self._column, self._root, self._labels, self.class_names)


def relative(path: str, root: str) -> str:
    """A path below `root`."""
    return path.removeprefix(root).lstrip("/")


def parquet(location: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """The splits of the Parquet files that `location` stands for, as `find_shards` finds them.

    Raises:
        DataError: there are none, or they hold no images with labels.
    """
    root, files = find_shards(location, SUFFIX, split_of)
    return open_splits(
        root, {name: _constant(paths) for name, paths in files.items()}, data, shape, location
    )


def _constant(paths: Sequence[str]) -> Files:
    return lambda: paths


def split_of(path: str) -> str:
    """The split that a file's name or folder says, as the Hub has them; "": none.

    `test` of `data/test-00000-of-00002.parquet` and of its conversion `default/test/0000.parquet`;
    of other names a word of `split_names`.
    """
    name = path.rpartition("/")[2]
    found = _NUMBERED.fullmatch(name) or _CONVERTED.fullmatch(path)
    return found[1] if found else split_in(path)


def open_splits(
    root: str,
    files: Mapping[str, Files],
    data: ml_collections.ConfigDict,
    shape: Shape,
    where: str,
) -> Splits:
    """The splits whose files `files` gives; the training split's classes serve them all.

    Without a split for evaluation, some of the training images are held out: see `holding_out`.

    Args:
        root: the folder that the files lie in.
        files: by split; asked when the split is opened.
        data: `config.data`.
        shape: says how many classes numbers without names have.
        where: the data's name, for messages.
    """
    train = find_by_purpose(tuple(files), "train")
    reference = train or next(iter(files))

    @functools.cache
    def read(split: str) -> tuple[Layout, Labels]:
        layout = layout_of(files[split](), data.columns)
        return layout, read_labels(files[split](), layout)

    @functools.cache
    def class_names(split: str) -> tuple[str, ...]:
        layout = read(split)[0]
        if layout.class_names:  # In each file: the training split need not be fetched.
            return layout.class_names
        labels = read(reference)[1]
        if labels.words:
            return tuple(sorted(labels.words, key=natural_order))
        return tuple(map(str, range(max(labels.highest + 1, shape.num_classes))))

    def open_split(split: str) -> Source:
        layout, labels = read(split)
        names, paths = class_names(split), files[split]()
        numbers = _numbered(labels, names, f"{where}, {split}")
        if layout.holds_paths:
            return ImageFiles(root, Names.of(read_paths(paths, layout, data)), numbers, names)
        return Parquet(open_column(paths, layout.image, data.index_dir), root, numbers, names)

    training = functools.cache(lambda: open_split(train))
    splits: Splits = {split: functools.partial(open_split, split) for split in files}
    if not splits.keys() & set(EVALUATION_SPLITS) and train:
        splits |= hold_out(
            lambda: _pool(training()), lambda rows: Subset(training(), rows), data, where
        )
    return with_synonyms(splits)


def _pool(source: Source) -> Pool:
    hashes = [uniform_hash(source.name_of(index)) for index in range(len(source))]
    if source.labels is None:
        raise DataError("the labels are not at hand")
    return Pool(np.array(hashes), source.labels, source.class_names)


def _numbered(labels: Labels, class_names: tuple[str, ...], where: str) -> np.ndarray | LabelSets:
    """The labels by the order of `class_names`: int32 [N], or sets; raises DataError for others."""
    values = labels.values
    if labels.words:
        if not set(class_names) >= set(labels.words):
            check_known_classes(labels.words, class_names, where, "the training split")
        number = {name: number for number, name in enumerate(class_names)}
        values = np.array([number[word] for word in labels.words], np.int64)[values]
    wrong = np.flatnonzero((values < 0) | (values >= len(class_names)))
    if len(wrong):
        rows = (
            np.arange(len(values))
            if labels.counts is None
            else np.repeat(np.arange(len(labels.counts)), labels.counts)
        )
        raise DataError(
            f"{where}: row {rows[wrong[0]]:,} has the label {values[wrong[0]]:,}, none of the "
            f"{len(class_names):,} classes, {abbreviate(class_names)}; a split without labels has -1."
        )
    if labels.counts is None:
        return values.astype(np.int32)
    return LabelSets(values.astype(np.int32), np.cumsum(labels.counts), len(class_names))
