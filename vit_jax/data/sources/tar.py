"""The source `tar:PATTERN`: images in tar files, as WebDataset lays them out, or in class folders.

Nothing is unpacked: an index says where each image lies, and it is read from its header on, which
has the name.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence

import ml_collections
import numpy as np

from vit_jax import storage
from vit_jax.data.sources.examples import Example, LabelSets, Source, as_label
from vit_jax.data.sources.holding_out import Pool, hold_out
from vit_jax.data.sources.listing import natural_order
from vit_jax.data.sources.names import Names
from vit_jax.data.sources.record_index import Index, open_index
from vit_jax.data.sources.records import CHANGED, Records, attempt
from vit_jax.data.sources.shards import find_shards
from vit_jax.data.sources.split_names import EVALUATION_SPLITS, find_by_purpose
from vit_jax.data.sources.splits import (
    Shape,
    Splits,
    check_known_classes,
    with_synonyms,
)
from vit_jax.data.sources.tar_members import read_member
from vit_jax.data.sources.tar_samples import classes_of, names_of, scan
from vit_jax.data.sources.views import Subset
from vit_jax.errors import DataError


class Tar(Source):
    """The images in tar shards, still encoded.

    Args:
        index: of the shards.
        root: the folder that they lie in; names of examples are relative to it.
        class_names: by number, or those of the folders that are classes.

    Raises:
        DataError: a shard has a class that is not among them.
    """

    def __init__(self, index: Index, root: str, class_names: tuple[str, ...]):
        self.class_names = class_names
        self.labels = _labels(index, class_names)
        self._index, self._root = index.reduced("start", "length"), root
        self._records = Records(index.paths, self._index.shards, _parse)
        self._names = (-1, Names.of([]))  # Of the shard that was last asked for.

    @property
    def remote(self) -> bool:
        """Whether the files are a store's."""
        return self._records.remote

    def __len__(self) -> int:
        return len(self.labels)

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | DataError]:
        """Several examples, with neighbours in one request; what fails stands for itself."""
        for index, record in zip(indices, self._records.fetch(indices), strict=True):
            yield attempt(self._example, record, index)

    def name_of(self, index: int) -> str:
        """The example's name, without reading it."""
        shard, row = self._records.locate(index)
        last, names = self._names
        if shard != last:
            names = names_of(self._index.all_of(shard))
            self._names = (shard, names)
        return self._full_name(shard, names[row])

    def _example(self, member: tuple[str, bytes], index: int) -> Example:
        name, image = member
        shard, _ = self._records.locate(index)
        return Example(image, as_label(self.labels[index]), self._full_name(shard, name))

    def _full_name(self, shard: int, member: str) -> str:
        return f"{_relative(self._index.paths[shard], self._root)}/{member}"

    def __reduce__(self) -> tuple:
        return Tar, (self._index, self._root, self.class_names)  # A worker reads the index itself.


def tar(location: str, data: ml_collections.ConfigDict, shape: Shape) -> Splits:
    """The splits of the tar shards that `location` stands for; `find_shards` says which they are.

    The training split's classes serve them all. Where labels are numbers, their names are the lines
    of `classes.txt`, or the list in `classes.json`, beside the shards. Without a split for
    evaluation, some of the training images are held out: see `holding_out`.

    Raises:
        DataError: there are no shards.
    """
    root, shards = find_shards(location)
    train = find_by_purpose(tuple(shards), "train")
    reference = train or next(iter(shards))

    @functools.cache
    def index_of(split: str) -> Index:
        return open_index(shards[split], scan, data.index_dir)

    def open_split(split: str) -> Tar:
        return Tar(index_of(split), root, _class_names(index_of(reference), root, shape))

    @functools.cache
    def training() -> Tar:
        return open_split(train)

    def pool() -> Pool:
        hashes = np.concatenate([shard["hash"] for shard in index_of(train).shards])
        return Pool(hashes, training().labels, training().class_names)

    splits: Splits = {split: functools.partial(open_split, split) for split in shards}
    if not splits.keys() & set(EVALUATION_SPLITS):
        splits |= hold_out(
            pool,
            lambda indices: Subset(training(), indices),
            data,
            location,
        )
    return with_synonyms(splits)


def _class_names(index: Index, root: str, shape: Shape) -> tuple[str, ...]:
    """The classes that the shards of an index have, or as many as their numbers say."""
    folders = {name for shard in index.shards for name in classes_of(shard)}
    if folders:
        for path, shard in zip(index.paths, index.shards, strict=True):
            if len(shard["label"]) > len(shard["classes"]) == 0:
                raise DataError(
                    f"{path} has labels that are numbers, but other shards folders for classes."
                )
        if len(folders) < 2:
            raise DataError(
                f"{root}: all images of {len(index.paths):,} shards lie in folders called "
                f"{folders.pop()}; expected a folder for each class, or labels in KEY.cls or "
                "KEY.json."
            )
        return tuple(sorted(folders, key=natural_order))
    count = max((int(shard["label"].max(initial=-1)) + 1 for shard in index.shards), default=0)
    names = _names_beside(root) or tuple(map(str, range(max(count, shape.num_classes))))
    if len(names) < count:
        raise DataError(
            f"{root}: the list of classes there has {len(names):,} names, but a label is "
            f"{count - 1:,}; a line for each class, from 0 on, is expected."
        )
    return names


def _names_beside(root: str) -> tuple[str, ...]:
    """The names in the list of classes beside the shards; empty if there is none."""
    for name, parse in (("classes.txt", str.splitlines), ("classes.json", json.loads)):
        file = storage.join(root, name)
        if storage.exists(file):
            try:
                names = parse(storage.read(file).decode("utf-8-sig").rstrip())
            except (OSError, ValueError, RecursionError) as error:
                raise DataError(f"{file} cannot be read ({error}).") from error
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise DataError(f"{file}: expected a list with the name of each class, from 0 on.")
            return tuple(name.strip() for name in names)
    return ()


def _labels(index: Index, class_names: tuple[str, ...]) -> np.ndarray | LabelSets:
    """The labels of all images, by the order of `class_names`: int32 [N], or sets."""
    labels, counts, has_sets = [], [], False
    numbers = {name: number for number, name in enumerate(class_names)}
    for path, shard in zip(index.paths, index.shards, strict=True):
        label, count, classes = shard["label"], shard["count"], classes_of(shard)
        if not numbers.keys() >= set(classes):
            check_known_classes(classes, class_names, path, "the training split")
        if classes:
            label = np.array([numbers[name] for name in classes], np.int32)[label]
        if label.max(initial=-1) >= len(class_names):
            raise DataError(
                f"{path} has the label {label.max():,}, but the training split has only "
                f"{len(class_names):,} classes, from 0 on."
            )
        labels.append(label)
        has_sets |= len(count) > 0
        counts.append(count if len(count) else np.ones(len(label), np.int32))
    if has_sets:
        ends = np.cumsum(np.concatenate(counts))
        return LabelSets(np.concatenate(labels), ends, len(class_names))
    return np.concatenate(labels)


def _parse(record: bytes) -> tuple[str, bytes]:
    """The name and the content of the member that a record begins with."""
    try:
        member = read_member(lambda start, stop: record[start:stop], 0)
    except ValueError as error:
        raise DataError(f"there is no such member ({error}): {CHANGED}") from error
    if member.stop != len(record):
        raise DataError(f"there is another member: {CHANGED}")
    return member.name, record[member.content :]


def _relative(path: str, root: str) -> str:
    return path.removeprefix(root).lstrip("/")
