"""How many images a second this host can load: the cost of an image's stages, and what would help."""

from __future__ import annotations

import dataclasses
import functools
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from vit_jax.data.dataset import Dataset, train_loading
from vit_jax.data.images.picture import size_in_memory
from vit_jax.data.loading import pipeline
from vit_jax.data.loading.order import RowGenerator
from vit_jax.errors import DataError

READ, DECODE, AUGMENT, ASSEMBLE = STAGES = ("read", "decode and crop", "augment", "assemble")

GLANCE_SECONDS = 1.0  # That a look at the data may take, with what it opens about two seconds.
GLANCE_IMAGES = 64
_LARGE = 2.0  # Times the pixels of the model's input, from which on `prepare` is worth it.
_MUCH = 0.5  # Of an image's time: a stage that takes so much is worth a remedy.
_SPARE = 0.5  # Of the host's memory, for a cache.


@dataclasses.dataclass(frozen=True)
class Costs:
    """What one image costs on one thread.

    Attributes:
      seconds: by stage, waiting included.
      busy_seconds: of a core, in all.
      num_images: that were measured.
      decoded_bytes: of an image decoded whole, on average.
    """

    seconds: dict[str, float]
    busy_seconds: float
    num_images: int
    decoded_bytes: float

    @property
    def total(self) -> float:
        """Seconds of one thread."""
        return sum(self.seconds.values())

    @property
    def bottleneck(self) -> str:
        """The stage that takes most of the time."""
        return max(self.seconds, key=self.seconds.__getitem__)

    def images_per_second(self, num_cores: int, num_threads: int) -> float:
        """With so many cores and threads: work shares the cores, and waiting the threads."""
        return min(num_cores / self.busy_seconds, num_threads / self.total)


@dataclasses.dataclass(frozen=True)
class Supply:
    """What this host gives.

    Attributes:
      images_per_second: that all its threads can load.
      costs: of an image.
      num_cores: that share the work.
      remedies: what would make it more, each a clause with the key or command.
    """

    images_per_second: float
    costs: Costs
    num_cores: int
    remedies: tuple[str, ...]

    def describe(self) -> str:
        """The rate and where it comes from, in a sentence."""
        share = self.costs.seconds[self.costs.bottleneck] / self.costs.total
        return (
            f"this host's {self.num_cores} cores load about {self.images_per_second:,.0f} images/s "
            f"({self.costs.num_images} measured: {1e3 * self.costs.total:.3g} ms each, {share:.0%} to "
            f"{self.costs.bottleneck})"
        )

    def compare(self, needed: float) -> str:
        """Which waits, by how much, and what helps; `needed` images/s are those that devices take."""
        if self.images_per_second >= needed:
            return f"{self.describe()}, {self.images_per_second / needed:.1f} times as many: it is enough"
        waiting = 1 - self.images_per_second / needed
        helps = "; ".join(self.remedies) or "more cores"
        return f"{self.describe()}: the devices would wait {waiting:.0%} of the time. It helps: {helps}"


def measure_costs(
    config: ConfigDict,
    dataset: Dataset,
    seconds: float = GLANCE_SECONDS,
    most: float = GLANCE_IMAGES,
) -> Costs:
    """Loads the first images of a run on this thread, for so long, `most` at most; one at least.

    Raises DataError for an image that cannot be read, unless such are skipped and others can.
    """
    source, transform = dataset.examples, dataset.transform
    augmentations = transform.keywords["augmentations"]
    crop = functools.partial(transform, augmentations=())
    order, generator = train_loading(config, dataset).order, RowGenerator(config.seed)
    spent = dict.fromkeys(STAGES, 0.0)

    def timed(stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments)
        spent[stage] += time.perf_counter() - start
        return result

    images, count, position, decoded = None, 0, 0, 0
    start, busy = time.perf_counter(), time.thread_time()
    while not count or (time.perf_counter() - start < seconds and count < most):
        (index,) = order.indices(np.array([position])).tolist()
        rng = generator.at(position)
        position += 1
        try:
            example = timed(READ, source.__getitem__, index)
            array = timed(DECODE, crop, example.image, rng)
        except DataError as error:
            if dataset.skipping and (count or position < len(source)):
                continue
            raise DataError(f"{source.name_of(index)}: {error}") from error
        for augment in augmentations:
            array = timed(AUGMENT, augment, array, rng)
        if images is None:
            images = np.empty((min(config.batch_size, 32), *array.shape), array.dtype)
        timed(ASSEMBLE, images.__setitem__, count % len(images), array)
        decoded += size_in_memory(example.image) or np.asarray(example.image).nbytes
        count += 1
    busy = time.thread_time() - busy
    each = {stage: cost / count for stage, cost in spent.items()}
    return Costs(each, busy / count, count, decoded / count)


def look_at(config: ConfigDict, dataset: Dataset) -> Supply:
    """What this host gives, by a short look at a run's own images; errors as of `measure_costs`."""
    costs = measure_costs(config, dataset)
    cores, workers = pipeline.num_cores(), config.data.num_workers
    processes = max(1, pipeline.default_workers() if workers < 0 else workers)
    threads = processes * pipeline.num_threads_of(train_loading(config, dataset), processes)
    rate = costs.images_per_second(cores, threads)
    return Supply(rate, costs, cores, tuple(remedies(config, dataset, costs, cores)))


def remedies(config: ConfigDict, dataset: Dataset, costs: Costs, num_cores: int) -> list[str]:
    """What would make loading faster, the most helpful first."""
    shares = {stage: cost / costs.total for stage, cost in costs.seconds.items()}
    found, data = [], config.data
    model_bytes = np.prod(np.broadcast_to(config.model.image_size, 2)) * 4
    whole_gib = costs.decoded_bytes * dataset.num_examples / 2**30
    if shares[READ] > _MUCH and dataset.examples.remote:
        if data.shuffle != "blocks":
            found.append("data.shuffle=blocks, which reads 32 neighbours in one request")
        found.append("a copy on a local disk")
    if shares[DECODE] > _MUCH and costs.decoded_bytes > _LARGE * model_bytes:
        side = round(max(np.broadcast_to(config.model.image_size, 2)) * 8 / 7)
        found.append(
            f"python -m vit_jax.prepare --source={data.source} --output=DIR --shorter_side={side}, "
            "smaller files once and for all"
        )
    fits = whole_gib < _SPARE * host_memory_gib()
    if fits and not data.cache_gib and shares[READ] + shares[DECODE] > _MUCH:
        gib = max(1, round(1.1 * whole_gib))
        found.append(f"data.cache_gib={gib}, all images decoded in memory")
    if 0 < data.num_threads < num_cores and data.num_workers <= 0:
        found.append(f"data.num_threads=0, as many as the {num_cores} cores")
    if data.num_workers == 0 and pipeline.default_workers():
        found.append(f"data.num_workers={pipeline.default_workers()}")
    if shares[AUGMENT] > _MUCH:
        found.append("a cheaper data.augmentation")
    return found


def host_memory_gib() -> float:
    """The memory of this machine; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    except (AttributeError, ValueError, OSError):
        return 0.0
