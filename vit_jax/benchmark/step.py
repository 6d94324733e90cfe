"""The bare train step: the same batch again and again, with nothing around it."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.benchmark.speed import (
    REAL,
    SYNTHETIC,
    Program,
    Speed,
    Timing,
    compile_program,
    peak_of_all,
    repeat,
)
from vit_jax.data.dataset import Batch, open_dataset
from vit_jax.devices import hardware, sharding
from vit_jax.training import clock, execution
from vit_jax.training.architecture import with_architecture
from vit_jax.training.experiment import Experiment, make_experiment
from vit_jax.training.gradients import check_batch
from vit_jax.training.state import initial_state, load_frozen


def open_experiment(config: ConfigDict, data: str) -> Experiment:
    """The run of a config, fresh; with synthetic data the config's need not be there.

    Raises:
      UserError: the config or its data cannot be used.
    """
    config_lib.validate(config)
    config = with_architecture(config, cached_only=True)
    mesh = sharding.build_mesh(config.mesh)
    check_batch(config, mesh)
    return make_experiment(config, mesh, open_dataset(config, required=data == REAL))


def synthetic_batch(experiment: Experiment) -> Batch:
    """One batch of random pixels and labels, on the devices."""
    rng, classes = np.random.default_rng(experiment.config.seed), experiment.dataset.num_classes

    def draw(name: str, shape: jax.ShapeDtypeStruct) -> jax.Array:
        if name == "image":
            values = rng.integers(0, 256, shape.shape)
        elif name == "label":
            values = rng.integers(0, 2 if len(shape.shape) > 1 else classes, shape.shape)
        elif name == "mask":
            values = np.ones(shape.shape)
        else:
            values = np.arange(shape.shape[0])
        return jax.device_put(values.astype(shape.dtype), shape.sharding)

    return {name: draw(name, shape) for name, shape in experiment.batch.items()}


def first_batch(experiment: Experiment, data: str) -> Batch:
    """The run's first batch, or a synthetic one."""
    if data == SYNTHETIC:
        return synthetic_batch(experiment)
    with closing(experiment.batches(0)) as batches:
        return next(batches)


def measure_step(config: ConfigDict, data: str, timing: Timing) -> Speed:
    """Trains on one batch that lies on the devices.

    Raises:
      UserError: the config or its data cannot be used.
    """
    began = clock.free_since()
    experiment = open_experiment(config, data)
    batch = first_batch(experiment, data)
    state = initial_state(experiment.initialize, config.seed, experiment.state)
    frozen = load_frozen(experiment.objective, experiment.frozen)
    train_step, program = compile_program(experiment.step, state, frozen, batch)
    state, metrics = train_step(state, frozen, batch)
    jax.block_until_ready(metrics)
    first = time.monotonic() - began

    def run(count: int) -> None:
        nonlocal state, metrics
        for _ in range(count):
            state, metrics = train_step(state, frozen, batch)
        jax.block_until_ready(metrics)

    speeds = repeat(run, config.batch_size, timing)
    return speed_of(
        experiment,
        what="step",
        data=data,
        repeats=speeds,
        first_step_seconds=first,
        program=program,
        flops_per_image=experiment.flops_per_image,
    )


def speed_of(experiment: Experiment, *, program: Program, **measured: Any) -> Speed:
    """What was measured, with what describes the run."""
    devices = list(experiment.mesh.devices.flat)
    return Speed(
        model=experiment.config.model.name,
        image_size=experiment.options.image_size,
        batch_size=experiment.config.batch_size,
        dtype=experiment.options.dtype,
        device=devices[0].device_kind,
        devices=len(devices),
        execution=execution.as_json(experiment.execution),
        peak_flops=peak_of_all(devices),
        peak_memory_bytes=hardware.device_memory_bytes(devices[0]),
        program=program,
        **measured,
    )
