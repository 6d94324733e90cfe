"""What a cell of a study does: it trains a model; or that, and measures its inference."""

from __future__ import annotations

import threading
from collections.abc import Callable

import jax
from ml_collections import ConfigDict

from vit_jax import train
from vit_jax.benchmark.inference import measure_inference
from vit_jax.benchmark.speed import SYNTHETIC, Timing

Numbers = dict[str, float]
Run = Callable[[ConfigDict, str, threading.Event | None], Numbers]

IMAGES_PER_SECOND = "inference/images_per_second"
BATCH_SIZE = 64  # Of one device.
TIMING = Timing(seconds=10, repeats=3)


def trained(config: ConfigDict, directory: str, stop: threading.Event | None) -> Numbers:
    """Trains in a workdir; the last record."""
    return train.run(config, directory, stop=stop)


def trained_and_measured(
    config: ConfigDict, directory: str, stop: threading.Event | None
) -> Numbers:
    """Trains, and measures how many images a second one device classifies (Figure 13, right)."""
    numbers = trained(config, directory, stop)
    config = config.copy_and_resolve_references()
    config.batch_size = BATCH_SIZE * jax.device_count()
    speed = measure_inference(config, SYNTHETIC, TIMING)
    return {**numbers, IMAGES_PER_SECOND: speed.images_per_second / speed.devices}
