"""The training images' way from the files to the devices; no model is made."""

import contextlib
import dataclasses
import functools
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.benchmark.speed import Timing
from vit_jax.data.dataset import Batch, Dataset, open_dataset, train_batches, train_loading
from vit_jax.data.loading import pipeline
from vit_jax.data.loading.order import RowGenerator
from vit_jax.devices import sharding
from vit_jax.devices.hardware import peak_host_memory_bytes
from vit_jax.errors import DataError
from vit_jax.training.architecture import with_architecture

STAGES = ("read", "decode and crop", "augment", "assemble", "transfer")


@dataclasses.dataclass(frozen=True)
class InputSpeed:
    """The measured speeds; a JSON object with `--json`."""

    images_per_second: float  # the median of the repeats
    images_per_second_repeats: tuple[float, ...]
    images_per_second_per_core: float
    cores: int
    workers: int  # processes besides this one; 0: threads of this one
    first_batch_seconds: float
    stage_milliseconds: dict[str, float]  # of one image on one thread, by `STAGES`
    peak_memory_bytes: int  # of this process, and of the largest worker

    def describe(self) -> str:
        """A few lines of text."""
        total = sum(self.stage_milliseconds.values())
        lowest, highest = (pick(self.images_per_second_repeats) for pick in (min, max))
        stages = [
            f"  {name:16} {cost:7.3f} ms  {cost / total:4.0%}"
            for name, cost in self.stage_milliseconds.items()
        ]
        return "\n".join(
            [
                f"images/s    {self.images_per_second:,.0f} ({lowest:,.0f} to {highest:,.0f}): "
                f"{self.images_per_second_per_core:,.0f} on each of {self.cores} cores, with "
                f"{self.workers or 'no'} worker processes",
                f"first batch {self.first_batch_seconds:.2f} s after the start",
                f"peak memory {self.peak_memory_bytes / 2**30:.2f} GiB",
                f"one image   {total:.3f} ms on one thread:",
                *stages,
            ]
        )


def measure_input(config: ConfigDict, timing: Timing) -> InputSpeed:
    """Loads training batches for the given time, then single images for a quarter of that.

    Raises:
      UserError: the config or its data cannot be used.
    """
    config_lib.validate(config)
    config = with_architecture(config, cached_only=True)
    mesh = sharding.build_mesh(config.mesh)
    sharding.check_batch(config.batch_size, 1, mesh)
    rows, dataset = sharding.batch_sharding(mesh), open_dataset(config)
    start = time.perf_counter()
    endless = train_batches(config, dataset, rows, start=0, stop=None)
    with contextlib.closing(endless) as batches:
        jax.block_until_ready(next(batches))
        first_batch_seconds = time.perf_counter() - start
        for _ in range(pipeline.PREFETCHED_BATCHES):  # Those that lie ready tell nothing.
            jax.block_until_ready(next(batches))
        each = timing.seconds / timing.repeats
        rates = [count_batches(batches, each) * config.batch_size for _ in range(timing.repeats)]
    workers, rate = config.data.num_workers, statistics.median(rates)
    return InputSpeed(
        rate,
        tuple(rates),
        rate / pipeline.num_cores(),
        pipeline.num_cores(),
        pipeline.default_workers() if workers < 0 else workers,
        first_batch_seconds,
        measure_stages(config, dataset, rows, timing.seconds / 4),
        peak_host_memory_bytes() + peak_host_memory_bytes(resource.RUSAGE_CHILDREN),
    )


def count_batches(batches: Iterator[Batch], seconds: float) -> float:
    """Batches a second, each of which has arrived."""
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not count:
        jax.block_until_ready(next(batches))
        count += 1
    return count / elapsed


def measure_stages(
    config: ConfigDict, dataset: Dataset, rows: jax.sharding.Sharding, seconds: float
) -> dict[str, float]:
    """Milliseconds of each of `STAGES` for one image, all on this thread."""
    source, transform = dataset.source, dataset.transform
    augmentations = transform.keywords["augmentations"]
    crop = functools.partial(transform, augmentations=())
    order, generator = train_loading(config, dataset).order, RowGenerator(config.seed)
    spent = dict.fromkeys(STAGES, 0.0)

    def timed(stage: str, function: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = function(*arguments)
        spent[stage] += time.perf_counter() - start
        return result

    images, count, position, start = None, 0, 0, time.perf_counter()
    while time.perf_counter() - start < seconds or not count:
        (index,) = order.indices(np.array([position])).tolist()
        rng = generator.at(position)
        position += 1
        try:
            example = timed("read", source.__getitem__, index)
            array = timed("decode and crop", crop, example.image, rng)
        except DataError as error:
            if dataset.skipping and (count or position < len(source)):
                continue
            raise DataError(f"{source.name_of(index)}: {error}") from error
        for augment in augmentations:
            array = timed("augment", augment, array, rng)
        if images is None:
            images = np.empty((config.batch_size, *array.shape), array.dtype)
        timed("assemble", images.__setitem__, count % len(images), array)
        count += 1

    def transfer() -> None:
        local = pipeline.local_rows(rows, config.batch_size)
        batch = {"image": images[: len(local)]}
        jax.block_until_ready(pipeline.to_global(batch, local, rows, config.batch_size))

    transfer()
    timed("transfer", transfer)
    spent["transfer"] *= count / config.batch_size
    return {stage: 1e3 * seconds / count for stage, seconds in spent.items()}
