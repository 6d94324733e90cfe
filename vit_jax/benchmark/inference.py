"""Inference: images a second, and the largest batch that fits, by model and image size.

These are the two plots of the paper's Figure 12.
"""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing

import jax
from ml_collections import ConfigDict

from vit_jax import storage
from vit_jax.benchmark.speed import REAL, Program, Speed, Timing, compile_program, gib, repeat
from vit_jax.benchmark.step import open_experiment, speed_of, synthetic_batch
from vit_jax.devices import sharding
from vit_jax.errors import ConfigError
from vit_jax.figures import Axes, Picture, add_legend, paint_curve, plot
from vit_jax.training import clock
from vit_jax.training.experiment import Experiment

SHARED = ("num_classes", "channels", "dtype", "matmul_precision")  # Options of every model.
OUT_OF_MEMORY = "RESOURCE_EXHAUSTED"  # In the errors of compilers and allocators.
LARGEST_BATCH = 2**16  # Of one device, beyond which nothing is tried.

Compile = Callable[[int], tuple[jax.stages.Compiled, Program]]


def config_for(config: ConfigDict, model: str, size: int) -> ConfigDict:
    """The config with another model, of whose options only those of all models stay, and image size.

    An empty name, and a size of 0, leave the config's.
    """
    config = config.copy_and_resolve_references()
    if model:
        config.model.update({key: None for key in config.model if key not in SHARED})
        config.model.name = model
    if size:
        config.model.image_size = size
    return config


def measure_inference(
    config: ConfigDict, data: str, timing: Timing, capacity: int | None = None
) -> Speed:
    """Classifies images, in the config's batch or in the largest that fits.

    Args:
      config: whose `batch_size` is over all devices.
      data: of `speed.DATA`; real images are those of the evaluation split, again and again.
      timing: how long.
      capacity: bytes of one device; None: no largest batch is looked for.

    Raises:
      UserError: the config or its data cannot be used, or not even one image on each device fits.
    """
    began = clock.free_since()
    experiment = open_experiment(config, data)
    compile_for = compiler(experiment)
    batch_size, largest = config.batch_size, None
    if capacity is not None:
        needed = bytes_of(compile_for)
        largest = largest_batch(needed, experiment.mesh.size, capacity)
        if not largest:
            raise does_not_fit(needed(experiment.mesh.size), capacity)
        batch_size = min(batch_size, largest)
    if batch_size != config.batch_size:
        config = config.copy_and_resolve_references()
        config.batch_size = batch_size
        experiment = open_experiment(config, data)
    predict, program = compile_for(batch_size)
    params = initial_parameters(experiment)
    with closing(pixels(experiment, data)) as batches:
        jax.block_until_ready(predict(params, next(batches)))
        first = time.monotonic() - began

        def run(count: int) -> None:
            for batch in itertools.islice(batches, count):
                logits = predict(params, batch)
            jax.block_until_ready(logits)

        speeds = repeat(run, batch_size, timing)
    return speed_of(
        experiment,
        what="eval",
        data=data,
        repeats=speeds,
        first_step_seconds=first,
        program=program,
        flops_per_image=2 * experiment.options.macs(),
        largest_batch=largest,
    )


def compiler(experiment: Experiment) -> Compile:
    """Compiles the forward pass for a batch of a size, once."""
    image, params = experiment.batch["image"], experiment.state.params
    forward = jax.jit(lambda params, images: experiment.network(params, images))

    def compile_for(batch_size: int) -> tuple[jax.stages.Compiled, Program]:
        shape = (batch_size, *image.shape[1:])
        images = jax.ShapeDtypeStruct(shape, image.dtype, sharding=image.sharding)
        return compile_program(forward, params, images)

    return functools.cache(compile_for)


def bytes_of(compile_for: Compile) -> Callable[[int], int | None]:
    """What one device holds for a batch of a size; None if the compiler refuses, or does not say."""

    def needed(batch_size: int) -> int | None:
        try:
            return compile_for(batch_size)[1].bytes
        except jax.errors.JaxRuntimeError as error:
            if OUT_OF_MEMORY not in str(error):
                raise
            return None

    return needed


def largest_batch(needed: Callable[[int], int | None], devices: int, capacity: int) -> int:
    """The largest batch over all devices, a power of two on each, that fits; 0: not even one image."""
    largest = 0
    for size in itertools.takewhile(LARGEST_BATCH.__ge__, (2**n for n in itertools.count())):
        held = needed(size * devices)
        if held is None or held > capacity:
            break
        largest = size * devices
    return largest


def does_not_fit(needed: int | None, capacity: int) -> ConfigError:
    """The error where not even one image fits; `needed`: bytes of a device, None if it is not known."""
    return ConfigError(
        f"One image on each device needs {gib(needed)} of memory, and it has {gib(capacity)}: take a "
        "smaller model or image size, --config.model.dtype=bfloat16, or say with --memory_gib that "
        "it has more."
    )


def initial_parameters(experiment: Experiment) -> dict:
    """Fresh ones, on the devices."""
    where = sharding.shardings_of(experiment.state.params)
    key = jax.random.key(experiment.config.seed)
    return jax.jit(experiment.initialize.params, out_shardings=where)(key)


def pixels(experiment: Experiment, data: str) -> Generator[jax.Array]:
    """Batches of images without an end."""
    if data != REAL:
        images = synthetic_batch(experiment)["image"]
        while True:
            yield images
    split = experiment.setting(experiment.config.data).data.open()
    while True:
        with closing(split.batches()) as batches:
            for batch in batches:
                yield batch["image"]


# ----------------------------------------------------------------------------------------- plots


def write_plots(speeds: Sequence[Speed], directory: str) -> list[str]:
    """Writes the two plots as PNG and SVG; returns the files."""
    pictures = {"inference_speed": plot(functools.partial(paint_speed, speeds=speeds))}
    if any(speed.largest_batch for speed in speeds):
        pictures["largest_batch"] = plot(functools.partial(paint_largest, speeds=speeds))
    return [
        path
        for name, picture in pictures.items()
        for path in write_picture(picture, directory, name)
    ]


def write_picture(picture: Picture, directory: str, name: str) -> Iterator[str]:
    """Writes a picture in each format."""
    for ending, content in picture._asdict().items():
        storage.write(path := os.path.join(directory, f"{name}.{ending}"), content)
        yield path


def paint_speed(axes: Axes, speeds: Sequence[Speed]) -> None:
    """Images/s of one device over the image size."""
    values = {speed: speed.images_per_second / speed.devices for speed in speeds}
    paint_by_size(axes, values, f"images/s on {speeds[0].device}")


def paint_largest(axes: Axes, speeds: Sequence[Speed]) -> None:
    """The largest batch of one device over the image size."""
    values = {speed: speed.largest_batch / speed.devices for speed in speeds if speed.largest_batch}
    paint_by_size(axes, values, f"largest batch on {speeds[0].device}")


def paint_by_size(axes: Axes, values: dict[Speed, float], label: str) -> None:
    """A curve for each model over the image size, on a logarithmic axis."""
    curves: dict[str, dict[int, float]] = {}
    for speed, value in values.items():
        curves.setdefault(speed.model, {})[speed.image_size[0]] = value
    for model, points in curves.items():
        paint_curve(axes, sorted(points), [points[size] for size in sorted(points)], model)
    axes.set(xlabel="image size (pixels)", ylabel=label, yscale="log")
    add_legend(axes.figure)
