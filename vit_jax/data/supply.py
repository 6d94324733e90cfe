"""How many images a second this host can load: the cost of an image's stages, and what would help."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax.data.dataset import BLOCK, Dataset, image_size_of, train_loading
from vit_jax.data.images.limits import decoded_bytes
from vit_jax.data.images.picture import decoded_size
from vit_jax.data.loading import pipeline
from vit_jax.data.loading.order import Order, RowGenerator
from vit_jax.data.loading.read_ahead import chunks_ahead
from vit_jax.data.sources.examples import Example, Source
from vit_jax.errors import DataError
from vit_jax.grammar import Operation
from vit_jax.host_memory import host_memory_bytes

READ, DECODE, AUGMENT, ASSEMBLE = STAGES = ("read", "decode and crop", "augment", "assemble")

GLANCE_SECONDS = 1.0  # That a look at the data may take, with what it opens about two seconds.
GLANCE_IMAGES = 64
_LARGE = 2.0  # Times the pixels of the model's input, from which on `prepare` is worth it.
_MUCH = 0.5  # Of an image's time: a stage that takes so much is worth a remedy.
_WHAT_IS_READ = ("data_dir", "label", "columns")  # Of a source, beside its name.
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
        milliseconds = 1e3 * self.costs.total
        digits = ".3g" if milliseconds < 100 else ",.0f"
        return (
            f"this host's {self.num_cores} cores load about {self.images_per_second:,.0f} images/s "
            f"({self.costs.num_images} measured: {milliseconds:{digits}} ms each, {share:.0%} to "
            f"{self.costs.bottleneck})"
        )

    def compare(self, needed: float) -> str:
        """Which waits, by how much, and what helps; `needed` images/s are those that devices take."""
        if self.images_per_second >= needed:
            return f"{self.describe()}, {self.images_per_second / needed:.1f} times as many: it is enough"
        waiting = 1 - self.images_per_second / needed
        helps = "; ".join(self.remedies) or "more cores"
        return f"{self.describe()}: the devices would wait {waiting:.0%} of the time. It helps: {helps}"


class _Clock:
    """What stages take: seconds by the wall, and of a core, on this thread."""

    def __init__(self) -> None:
        self.seconds, self.busy = dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 0.0)
        self.counts = dict.fromkeys(STAGES, 0)  # Of images that went through.

    def time(
        self, stage: str, function: Callable[..., Any], *arguments: Any, images: int = 1
    ) -> Any:
        """`function(*arguments)`, which is the stage of so many images."""
        start, busy = time.perf_counter(), time.thread_time()
        result = function(*arguments)
        self.seconds[stage] += time.perf_counter() - start
        self.busy[stage] += time.thread_time() - busy
        self.counts[stage] += images
        return result

    def each(self, spent: dict[str, float]) -> dict[str, float]:
        """The same of one image."""
        return {stage: spent[stage] / self.counts[stage] for stage in STAGES}


def measure_costs(
    config: ConfigDict,
    dataset: Dataset,
    seconds: float = GLANCE_SECONDS,
    most: float = GLANCE_IMAGES,
) -> Costs:
    """Loads the first images of a run on this thread, for so long, `most` at most; one at least.

    They are read as the pipeline reads them, a chunk at a time, and not from a cache. Raises DataError
    for an image that cannot be read, unless such are skipped and another was loaded in this time.
    """
    source, transform, generator = dataset.uncached, dataset.transform, RowGenerator(config.seed)
    crop = functools.partial(transform, augmentations=())
    augment = functools.partial(_augmented, transform.keywords["augmentations"])
    num_rows = _chunk_rows(config, dataset)
    clock, images, count, decoded, failure = _Clock(), None, 0, 0, None
    end = time.perf_counter() + seconds
    order = train_loading(config, dataset).order
    for position, index, example in _examples(source, order, num_rows, clock):
        try:
            if isinstance(example, Exception):
                raise example
            rng = generator.at(position)
            array = clock.time(DECODE, crop, example.image, rng)
        except (DataError, OSError) as error:
            name = source.name_of(index)
            failure = DataError(str(error) if name in str(error) else f"{name}: {error}")
            if not dataset.skipping:
                raise failure from error
        else:
            array = clock.time(AUGMENT, augment, array, rng)
            if images is None:
                images = np.empty((num_rows, *array.shape), array.dtype)
            clock.time(ASSEMBLE, images.__setitem__, count % num_rows, array)
            decoded += decoded_size(example.image)
            count += 1
        if count >= most or time.perf_counter() > end:
            break
    if failure and not count:
        raise failure
    busy = sum(clock.each(clock.busy).values())
    return Costs(clock.each(clock.seconds), busy, count, decoded / count)


def _examples(
    source: Source, order: Order, num_rows: int, clock: _Clock
) -> Iterator[tuple[int, int, Example | Exception]]:
    """Without end the position, index and example of each row, read in chunks of so many."""
    for start in itertools.count(0, num_rows):
        indices = order.indices(np.arange(start, start + num_rows)).tolist()
        examples = clock.time(READ, _fetch_all, source, indices, images=num_rows)
        yield from zip(itertools.count(start), indices, examples, strict=False)


def _fetch_all(source: Source, indices: Sequence[int]) -> list[Example | Exception]:
    return list(source.fetch(indices))  # What it gives may be read only now.


def _augmented(
    augmentations: Sequence[Operation], array: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    for augment in augmentations:
        array = augment(array, rng)
    return array


def _num_processes(config: ConfigDict) -> int:
    """The processes that load for this one; itself, if there are no others."""
    workers = config.data.num_workers
    return max(1, pipeline.default_workers() if workers < 0 else workers)


def _num_threads(config: ConfigDict, dataset: Dataset) -> int:
    """The threads of all processes that decode for this one."""
    processes = _num_processes(config)
    return processes * pipeline.num_threads_of(train_loading(config, dataset), processes)


def _num_waiting(config: ConfigDict, dataset: Dataset) -> int:
    """The threads of all processes among which the waiting is shared."""
    processes = _num_processes(config)
    readers = chunks_ahead(pipeline.num_cores() // processes) if dataset.examples.remote else 0
    return max(_num_threads(config, dataset), processes * readers)


def _chunk_rows(config: ConfigDict, dataset: Dataset) -> int:
    """The rows of a chunk of this process's part of a batch."""
    rows = max(1, config.batch_size // jax.process_count())
    return -(-rows // pipeline.num_chunks(rows, _num_threads(config, dataset)))


def look_at(config: ConfigDict, dataset: Dataset) -> Supply:
    """What this host gives, by a short look at a run's own images; errors as of `measure_costs`."""
    cores = pipeline.num_cores()  # All hosts meet in it: before what may fail on one of them.
    costs = measure_costs(config, dataset)
    rate = costs.images_per_second(cores, _num_waiting(config, dataset))
    return Supply(rate, costs, cores, tuple(remedies(config, dataset, costs, cores)))


def remedies(config: ConfigDict, dataset: Dataset, costs: Costs, num_cores: int) -> list[str]:
    """What would make loading faster, the most helpful first."""
    shares = {stage: cost / costs.total for stage, cost in costs.seconds.items()}
    found, data, size = [], config.data, image_size_of(config)
    model_bytes = decoded_bytes(*size)
    whole_gib = costs.decoded_bytes * dataset.num_examples / 2**30
    if shares[READ] > _MUCH and dataset.examples.remote:
        if data.shuffle != "blocks":
            found.append(f"data.shuffle=blocks, which reads {BLOCK} neighbours in one request")
        found.append("a copy on a local disk")
    if shares[DECODE] > _MUCH and costs.decoded_bytes > _LARGE * model_bytes:
        side = round(max(size) * 8 / 7)
        flags = [f"--source={data.source}", "--output=DIR", f"--shorter_side={side}"]
        # Without these the command would not find the data, or its images and labels.
        flags += [f"--config.data.{key}={data[key]}" for key in _WHAT_IS_READ if data[key]]
        command = shlex.join(["python", "-m", "vit_jax.prepare", *flags])
        found.append(f"{command}, smaller files once and for all")
    fits = whole_gib < _SPARE * host_memory_bytes() / 2**30
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
