"""A run's data: both splits, what they say of the model, and their batches."""

import dataclasses
import os
from collections.abc import Callable, Iterator

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax.data.images import transforms
from vit_jax.data.loading import pipeline
from vit_jax.data.loading.cache import Cached
from vit_jax.data.loading.chunks import Skipping
from vit_jax.data.loading.order import Order
from vit_jax.data.sources.examples import Source, has_label_sets
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import ConfigError, DataError
from vit_jax.models.base import as_pair

BLOCK = 32  # Neighbours that `data.shuffle=blocks` keeps together: some megabytes of photographs.

Batch = dict[str, jax.Array]  # image uint8 [B, H, W, C], label, index int32 [B], mask bool [B]


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The examples of both splits, None for a plan that is made without them, and their transforms."""

    train: Source | None
    eval: Source | None
    train_transform: Callable[..., np.ndarray]
    eval_transform: Callable[..., np.ndarray]
    num_train_examples: int
    num_classes: int
    class_names: tuple[str, ...]
    # What stands for an example that cannot be read; None: it is an error.
    train_skipping: Skipping | None = None
    eval_skipping: Skipping | None = None


def open_dataset(config: ConfigDict, *, required: bool = True, index_dir: str = "") -> Dataset:
    """Opens both splits; unless `required`, only if the config leaves sizes to the data.

    `data.num_classes` is a plan's, where no source is named yet: a source has its own. `index_dir`
    is the default of `data.index_dir`; where both are empty, indices are made in memory.

    Raises DataError if the data is missing or does not fit the model, ConfigError if a transform
    is impossible.
    """
    data, num_classes = config.data.copy_and_resolve_references(), config.model.num_classes
    data.index_dir = os.path.expanduser(data.index_dir or index_dir)
    size, channels = as_pair("image_size", config.model.image_size), config.model.channels or 3
    transforms_of = (
        transforms.train_transform(data, size, channels),
        transforms.eval_transform(data, size, channels),
    )
    planned_classes = num_classes or (0 if data.source else data.num_classes)
    if not required and data.num_train_examples and planned_classes:
        count = min(data.num_train_examples, data.max_train_examples or data.num_train_examples)
        return Dataset(None, None, *transforms_of, count, planned_classes, ())

    def open_split(split: str, training: bool) -> Source:
        source = open_source(
            data,
            split,
            image_size=size,
            channels=channels,
            num_classes=num_classes,
            training=training,
        )
        if num_classes and len(source.class_names) > num_classes:
            raise DataError(
                f"config.data.source={data.source!r} has {len(source.class_names)} classes, but "
                f"config.model.num_classes={num_classes}: set it to 0 to take them from the data."
            )
        return source

    train, evaluation = open_split(data.train_split, True), open_split(data.eval_split, False)
    names = train.class_names
    num_classes = num_classes or len(names)
    if has_label_sets(train):
        check_several_labels(config, len(names))
    if data.cache_gib:
        train = Cached(train, channels, data.cache_gib, data.max_image_gib)
    skipping = [
        Skipping.of(source, (*size, channels), len(names)) if data.on_error == "skip" else None
        for source in (train, evaluation)
    ]
    return Dataset(train, evaluation, *transforms_of, len(train), num_classes, names, *skipping)


def check_several_labels(config: ConfigDict, num_classes: int) -> None:
    """Raises ConfigError if the model or its loss cannot learn any number of classes an image."""
    if config.objective.loss == "softmax":
        raise ConfigError(
            f"config.data.source={config.data.source!r} has images with several classes, and "
            "config.objective.loss=softmax expects one: set --config.objective.loss=sigmoid."
        )
    if config.model.num_classes not in (0, num_classes):
        raise ConfigError(
            f"config.model.num_classes={config.model.num_classes}: images with several classes have "
            f"targets for the {num_classes} of {config.data.source!r}; set it to 0."
        )


def block_of(data: ConfigDict) -> int:
    """How many neighbours in the source stay together in the order of examples."""
    return BLOCK if data.shuffle == "blocks" else 1


def train_order(config: ConfigDict, dataset: Dataset) -> Order:
    """The order of the training examples, without repeated augmentation."""
    return Order(len(dataset.train), config.seed, block_of(config.data))


def train_batches(
    config: ConfigDict,
    dataset: Dataset,
    sharding: jax.sharding.Sharding,
    *,
    start: int,
    stop: int | None,
) -> Iterator[Batch]:
    """The batches of updates `start` + 1 to `stop`, if any, on the devices; close it when done."""
    return pipeline.batches(
        dataset.train,
        dataset.train_transform,
        batch_size=config.batch_size,
        sharding=sharding,
        seed=config.seed,
        block=block_of(config.data),
        copies=config.data.repeated_augmentation,
        start=start,
        stop=stop,
        skipping=dataset.train_skipping,
        num_threads=config.data.num_threads,
        num_workers=config.data.num_workers,
    )


def eval_batches(
    config: ConfigDict, dataset: Dataset, sharding: jax.sharding.Sharding
) -> Iterator[Batch]:
    """Every evaluation example once, in order; the last batch is padded and masked."""
    return pipeline.batches(
        dataset.eval,
        dataset.eval_transform,
        batch_size=config.batch_size,
        sharding=sharding,
        seed=None,
        skipping=dataset.eval_skipping,
        num_threads=config.data.num_threads,
        num_workers=max(config.data.num_workers, 0),  # By default none: starting them takes long.
    )


def count_skipped(config: ConfigDict, dataset: Dataset, count: int) -> dict[str, int]:
    """`skipped`: the evaluation examples that could not be read, where `count` could; or nothing.

    Raises DataError if they are too many.
    """
    if not dataset.eval_skipping:
        return {}
    skipped, total = len(dataset.eval) - count, len(dataset.eval)
    if skipped > config.data.max_skipped * total:
        raise DataError(
            f"{skipped:,} of {total:,} evaluation examples cannot be read, more than "
            f"config.data.max_skipped={config.data.max_skipped}: the log names each."
        )
    return {"skipped": skipped}
