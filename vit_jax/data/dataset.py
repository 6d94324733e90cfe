"""A run's training data: its examples, what it says of the model, and its batches."""

import dataclasses
import functools
import logging
import os
from collections.abc import Generator

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax.data.balance import Balance, read_balance
from vit_jax.data.images.picture import decoded_size
from vit_jax.data.images.transforms import decoding_of, train_transform
from vit_jax.data.loading import pipeline
from vit_jax.data.loading.cache import Cached
from vit_jax.data.loading.chunks import Loading, Skipping
from vit_jax.data.loading.order import Order
from vit_jax.data.sources.examples import Example, Source, Targets
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import ConfigError, DataError
from vit_jax.models.base import ModelOptions, as_pair

BLOCK = 32  # Neighbours that `data.shuffle=blocks` keeps together: some megabytes of photographs.

_SAMPLED = 8  # Images whose sizes say whether a cache holds them all.

MOST_EXAMPLES = 2**31 - 1

# image uint8 or float32 [B, H, W, C] in 0 … 255, label, index int32 [B], mask bool [B]
Batch = dict[str, jax.Array]

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The training examples and their transform.

    Attributes:
      source: the examples; None in a plan that is made without them.
      transform: (encoded file or array [H, W, C], Generator) -> `data.dtype` [height, width, channels].
      num_examples: that make an epoch.
      num_classes: of the model.
      class_names: of the classes; empty where there is no source.
      skipping: what stands for an example that cannot be read; None: it is an error.
      balance: how much each class counts; None: as the data has it.
    """

    source: Source | None
    transform: functools.partial[np.ndarray]
    num_examples: int
    num_classes: int
    class_names: tuple[str, ...]
    skipping: Skipping | None = None
    balance: Balance | None = None

    @property
    def examples(self) -> Source:
        """The source of a dataset that was opened."""
        if self.source is None:
            raise DataError("config.data.source: the training examples were not opened.")
        return self.source

    @property
    def uncached(self) -> Source:
        """The same, read and decoded each time."""
        return self.examples.source if isinstance(self.examples, Cached) else self.examples

    @property
    def several_labels(self) -> bool:
        """Whether an image has any number of classes."""
        return self.source is not None and self.source.multi_label

    @property
    def numeric(self) -> bool:
        """Whether an image has numbers to predict instead of a class."""
        return self.source is not None and self.source.numeric

    @property
    def means(self) -> tuple[float, ...]:
        """The means of the numbers to predict; empty where there are none."""
        labels = self.source.labels if self.source is not None else None
        return (
            tuple(labels.values.mean(0, np.float64).tolist()) if isinstance(labels, Targets) else ()
        )


def with_index(data: ConfigDict, index_dir: str) -> ConfigDict:
    """A copy of `config.data` whose `index_dir` is a folder: its own, else the one given."""
    data = data.copy_and_resolve_references()
    data.index_dir = os.path.expanduser(data.index_dir or index_dir)
    return data


def image_size_of(config: ConfigDict) -> tuple[int, int]:
    """The height and width of what the model sees: the model's default, where none is set."""
    return as_pair("image_size", config.model.image_size or ModelOptions.image_size)


def open_dataset(config: ConfigDict, *, required: bool = True, index_dir: str = "") -> Dataset:
    """Opens the training split; unless `required`, data that is not here may be planned with.

    A plan has the sizes of the config, `data.num_train_examples` and `data.num_classes`, and no
    source. `index_dir` is the default of `data.index_dir`; where both are empty, indices are made in
    memory.

    Raises DataError if the data is missing or does not fit the model, ConfigError if a transform
    is impossible.
    """
    size = image_size_of(config)
    channels = config.model.channels or 3
    shape = (*size, channels)
    transform = train_transform(config.data, size, channels)
    plan = None if required else planned(config, transform)
    if plan and not config.data.source:
        return plan
    try:
        source = open_source(
            with_index(config.data, index_dir),
            config.data.train_split,
            image_size=size,
            channels=channels,
            num_classes=config.model.num_classes,
            training=True,
        )
    except DataError as error:
        if not plan:
            raise
        logger.warning(
            "Planned with the config's %s examples and %s classes, for the data cannot be read here: %s",
            *(f"{plan.num_examples:,}", f"{plan.num_classes:,}", error),
        )
        return plan
    return of_source(config, source, transform, shape)


def planned(config: ConfigDict, transform: functools.partial[np.ndarray]) -> Dataset | None:
    """The dataset without its source; None where the config leaves its sizes to the data."""
    data, num_classes = config.data, config.model.num_classes or config.data.num_classes
    if not (data.num_train_examples and num_classes):
        return None
    count = min(data.num_train_examples, data.max_train_examples or data.num_train_examples)
    return Dataset(None, transform, count, num_classes, ())


def of_source(
    config: ConfigDict,
    source: Source,
    transform: functools.partial[np.ndarray],
    shape: tuple[int, int, int],
) -> Dataset:
    """The dataset of an open source, of images [H, W, C] of this shape for the model.

    Raises DataError or ConfigError if it does not fit the model.
    """
    data = config.data
    check_size(data.source, len(source))
    advise_on_requests(data, source)
    names = source.class_names
    check_classes(config, len(names), source.multi_label or source.numeric)
    balance = read_balance(data, source)
    if data.cache_gib:
        source = Cached(source, shape[2], data.cache_gib, decoding_of(data))
    skips = data.on_error == "skip"
    skipping = Skipping.of(source, shape, len(names), data.dtype) if skips else None
    num_classes = config.model.num_classes or len(names)
    return Dataset(source, transform, len(source), num_classes, names, skipping, balance)


def advise_on_requests(data: ConfigDict, source: Source) -> None:
    """Says what to do where each image would be a request to a store."""
    if not source.remote or cache_holds(data, source):
        return
    if source.one_file_each:
        logger.warning(
            "%s: each image is a request to the store of its own. Pack them into shards once, with "
            "python -m vit_jax.prepare, and train on these with --config.data.shuffle=blocks.",
            data.source,
        )
    elif data.shuffle != "blocks":
        logger.warning(
            "%s: with data.shuffle=%s each image is a request to the store of its own; with "
            "--config.data.shuffle=blocks %d neighbours are one, which is much faster. Use it where "
            "neighbours are a fair sample, as in shuffled shards.",
            *(data.source, data.shuffle, BLOCK),
        )


def cache_holds(data: ConfigDict, source: Source) -> bool:
    """Whether all decoded images fit into `data.cache_gib`, by the sizes of some, spread evenly."""
    if not data.cache_gib or not len(source):
        return False
    spread = range(0, len(source), -(-len(source) // _SAMPLED))
    found = (example for example in source.fetch(spread) if isinstance(example, Example))
    sizes = [decoded_size(example.image) for example in found]
    return bool(sizes) and np.mean(sizes) * len(source) <= data.cache_gib * 2**30


def check_size(source: str, count: int) -> None:
    """Raises DataError for more examples than an index on the devices, int32, can count."""
    if count > MOST_EXAMPLES:
        raise DataError(
            f"config.data.source={source} has {count:,} examples, and indices are of 32 bits: set "
            f"config.data.max_train_examples to at most {MOST_EXAMPLES:,}."
        )


def check_classes(config: ConfigDict, found: int, several: bool) -> None:
    """Raises DataError or ConfigError if `config.model.num_classes` cannot hold the data's classes.

    Args:
      config: of the run.
      found: classes in the data.
      several: whether a label is an array with a number for each: then it must be the same number.
    """
    wanted, source = config.model.num_classes, config.data.source
    if wanted and found > wanted:
        raise DataError(
            f"config.data.source={source!r} has {found} classes, but "
            f"config.model.num_classes={wanted}: set it to 0 to take them from the data."
        )
    if 0 < found < wanted:
        logger.warning(
            "config.model.num_classes=%d, and %s has %d classes: the others are never seen. Set it to 0 "
            "to take them from the data.",
            *(wanted, source, found),
        )
    if several and wanted not in (0, found):
        raise ConfigError(
            f"config.model.num_classes={wanted}: its images have targets for the {found} of "
            f"{source!r}; set it to 0."
        )


def train_loading(config: ConfigDict, dataset: Dataset) -> Loading:
    """The loading of training batches."""
    return Loading(
        dataset.examples,
        dataset.transform,
        train_order(config, dataset),
        config.batch_size,
        copies=config.data.repeated_augmentation,
        skipping=dataset.skipping,
        num_threads=config.data.num_threads,
        num_workers=config.data.num_workers,
    )


def train_order(config: ConfigDict, dataset: Dataset) -> Order:
    """The order of training examples."""
    balance = dataset.balance
    if balance is not None and balance.draws is not None:
        return balance.order(config.seed)
    block = BLOCK if config.data.shuffle == "blocks" else 1
    return Order(len(dataset.examples), config.seed, block)


def train_batches(
    config: ConfigDict,
    dataset: Dataset,
    sharding: jax.sharding.Sharding,
    *,
    start: int,
    stop: int | None,
) -> Generator[Batch]:
    """The batches of updates `start` + 1 to `stop`, if any, on the devices; close it when done."""
    return pipeline.batches(train_loading(config, dataset), sharding, start, stop)
