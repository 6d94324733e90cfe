"""The training images' way from the files to the devices; no model is made."""

import contextlib
import dataclasses
import math
import resource
import statistics
import time
from collections.abc import Iterator

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.benchmark.speed import Timing
from vit_jax.data import supply
from vit_jax.data.dataset import Batch, image_size_of, open_dataset, train_batches
from vit_jax.data.loading import pipeline
from vit_jax.devices import sharding
from vit_jax.devices.hardware import peak_host_memory_bytes
from vit_jax.training.architecture import with_architecture

TRANSFER = "transfer"
STAGES = (*supply.STAGES, TRANSFER)


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
    bottleneck: str  # the stage that takes most
    remedies: tuple[str, ...]  # what would help

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
                f"bottleneck  {self.bottleneck}",
                *(f"  it helps: {remedy}" for remedy in self.remedies),
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
    costs = supply.measure_costs(config, dataset, timing.seconds / 4, math.inf)
    stages = measure_stages(config, costs, rows)
    workers, rate = config.data.num_workers, statistics.median(rates)
    return InputSpeed(
        rate,
        tuple(rates),
        rate / pipeline.num_cores(),
        pipeline.num_cores(),
        pipeline.default_workers() if workers < 0 else workers,
        first_batch_seconds,
        stages,
        peak_host_memory_bytes() + peak_host_memory_bytes(resource.RUSAGE_CHILDREN),
        max(stages, key=stages.__getitem__),
        tuple(supply.remedies(config, dataset, costs, pipeline.num_cores())),
    )


def count_batches(batches: Iterator[Batch], seconds: float) -> float:
    """Batches a second, each of which has arrived."""
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds or not count:
        jax.block_until_ready(next(batches))
        count += 1
    return count / elapsed


def measure_stages(
    config: ConfigDict, costs: supply.Costs, rows: jax.sharding.Sharding
) -> dict[str, float]:
    """Milliseconds of each of `STAGES` for one image."""
    local = pipeline.local_rows(rows, config.batch_size)
    images = np.zeros(
        (len(local), *image_size_of(config), config.model.channels or 3), config.data.dtype
    )

    def transfer() -> float:
        start = time.perf_counter()
        batch = {"image": images}
        jax.block_until_ready(pipeline.to_global(batch, local, rows, config.batch_size))
        return time.perf_counter() - start

    transfer()
    seconds = {**costs.seconds, TRANSFER: transfer() / config.batch_size}
    return {stage: 1e3 * cost for stage, cost in seconds.items()}
