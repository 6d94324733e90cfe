"""What a cell of a study does: it trains a model, measures its inference, or both."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from vit_jax import train
from vit_jax.config import model_options, validate
from vit_jax.devices.hardware import memory_capacity_bytes
from vit_jax.errors import PreemptedError
from vit_jax.model_file import Preprocessing
from vit_jax.models import registry
from vit_jax.models.base import ImageClassifier, ModelOptions
from vit_jax.network import normalize
from vit_jax.training.architecture import with_architecture

Numbers = dict[str, float]
Run = Callable[[ConfigDict, str, threading.Event | None], Numbers]

IMAGES_PER_SECOND, LARGEST_BATCH = "inference/images_per_second", "inference/largest_batch"
IMAGE_SIZE = "inference/image_size"
CLASSES = 1000  # Of a model whose config leaves that to its data.
BATCH_SIZES = (8, 16)  # Whose programs' memory says what an image more takes.
SECONDS, REPEATS = 1.0, 3  # To measure a batch size for, and how often at least.
GAIN, PATIENCE = 1.02, 2  # So many batches, each twice as large, that are not faster are the last.

logger = logging.getLogger("vit_jax")


def trained(config: ConfigDict, directory: str, stop: threading.Event | None) -> Numbers:
    """Trains in a workdir; the last record."""
    return train.run(config, directory, stop=stop)


def measured(config: ConfigDict, directory: str, stop: threading.Event | None) -> Numbers:
    """Inference of the config's model on one device (Figure 12 of the paper); trains nothing.

    Returns:
      The peak of images a second over batch sizes, from pixels to logits, on images that are on the
      device; the largest batch whose program fits in the device's memory, as its compiler counts
      it; and the pixels of an image's side, the geometric mean of both.
    """
    del directory
    validate(config)
    config = with_architecture(config)
    options = model_options(config, config.model.num_classes or CLASSES)
    abstract = nnx.eval_shape(lambda: build(config.model.name, options))
    largest = largest_batch(abstract, options)
    structure, parameters = nnx.split(jax.jit(lambda: build(config.model.name, options))())
    speeds: list[float] = []
    for size in sizes_up_to(largest):
        if stop and stop.is_set():
            raise PreemptedError("Stopped between two batch sizes.")
        speeds.append(images_per_second(structure, parameters, options, size))
        logger.info("%s, batches of %d: %.4g images/s", config.model.name, size, speeds[-1])
        if is_over(speeds):
            break
    pixels = float(np.sqrt(np.prod(options.image_size)))
    return {IMAGES_PER_SECOND: max(speeds), LARGEST_BATCH: float(largest), IMAGE_SIZE: pixels}


def trained_and_measured(
    config: ConfigDict, directory: str, stop: threading.Event | None
) -> Numbers:
    """Both (Figure 13 of the paper)."""
    return {**trained(config, directory, stop), **measured(config, directory, stop)}


def build(name: str, options: ModelOptions) -> ImageClassifier:
    """A model with random parameters."""
    return registry.build_model(name, jax.random.key(0), options)


def sizes_up_to(largest: int) -> Iterator[int]:
    """1, 2, 4, ... up to the largest."""
    yield from itertools.takewhile(lambda n: n <= largest, (2**k for k in itertools.count()))


def is_over(speeds: list[float]) -> bool:
    """Whether larger batches have stopped to be faster."""
    before, last = speeds[:-PATIENCE], speeds[-PATIENCE:]
    return bool(before) and max(last) < GAIN * max(before)


def program(structure: Any, parameters: Any, options: ModelOptions, size: int) -> Any:
    """The compiled forward pass of so many images, uint8 [B, H, W, C] -> logits [B, K]."""

    def forward(parameters: Any, pixels: jax.Array) -> jax.Array:
        return nnx.merge(structure, parameters)(normalize(pixels, Preprocessing()))

    shape = (size, *options.image_size, options.channels)
    pixels = jax.ShapeDtypeStruct(shape, np.uint8)
    with options.in_precision():
        return jax.jit(forward).lower(parameters, pixels).compile()


def images_per_second(structure: Any, parameters: Any, options: ModelOptions, size: int) -> float:
    """Of batches of so many images: the fastest of some repeats."""
    compiled = program(structure, parameters, options, size)
    pixels = jax.device_put(np.zeros((size, *options.image_size, options.channels), np.uint8))
    jax.block_until_ready(compiled(parameters, pixels))
    fastest, start, repeats = float("inf"), time.perf_counter(), 0
    while repeats < REPEATS or time.perf_counter() - start < SECONDS:
        begin = time.perf_counter()
        jax.block_until_ready(compiled(parameters, pixels))
        fastest, repeats = min(fastest, time.perf_counter() - begin), repeats + 1
    return size / fastest


def largest_batch(abstract: ImageClassifier, options: ModelOptions) -> int:
    """The images that fit in a device's memory beside the parameters: bytes grow evenly with them."""
    structure, parameters = nnx.split(abstract)
    needed = [bytes_of(program(structure, parameters, options, size)) for size in BATCH_SIZES]
    each = (needed[1] - needed[0]) / (BATCH_SIZES[1] - BATCH_SIZES[0])
    return max(1, int(BATCH_SIZES[0] + (capacity_bytes() - needed[0]) // each))


def bytes_of(compiled: Any) -> int:
    """What a program needs of its device's memory at most, with its arguments."""
    memory = compiled.memory_analysis()
    return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


def capacity_bytes() -> int:
    """Memory of the first device: what its allocator may take; of a CPU the machine's."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return limit or memory_capacity_bytes(device) or 0
