"""A description of a run, in words, before it starts."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax.allocator import kept_bytes
from vit_jax.choices import Choices, chosen_options
from vit_jax.console import format_count
from vit_jax.data import supply
from vit_jax.data.images.transforms import describe_training
from vit_jax.devices import hardware, sharding
from vit_jax.durations import Durations
from vit_jax.errors import DataError
from vit_jax.model_file import Preprocessing
from vit_jax.objectives.base import Objective
from vit_jax.optimizer import OPTIMIZERS
from vit_jax.optimizer.schedules import SCHEDULES, Schedule
from vit_jax.training import execution
from vit_jax.training.experiment import Experiment
from vit_jax.training.gradients import axes_apart

USUAL_MFU = 0.4  # ViT-B/16 in bfloat16 on an H100 where nothing waits, by the estimate of docs/performance.md.
NEXT_COLUMN = "\n" + " " * 10  # Goes on in the next line.


def describe_run(experiment: Experiment) -> str:
    """The model, data, batch, durations and learning rate of a run, and tables of parameters."""
    config, options, state = experiment.config, experiment.options, experiment.state
    durations, mesh = experiment.durations, experiment.mesh
    num_examples, balance = experiment.dataset.num_examples, experiment.dataset.balance
    num_params = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    images = [*describe_training(config.data), *experiment.objective.describe_images()]
    images.append(describe_normalization(experiment.preprocessing))
    rows = {
        "model": f"{config.model.name} {describe_head(options.num_classes)} at "
        f"{options.image_size[0]}x{options.image_size[1]} px: {format_count(num_params)} "
        f"parameters, {options.macs() / 1e9:.3g} GMACs per image, computing in {options.dtype}",
        "data": f"{config.data.source or '(not named yet)'}, {num_examples:,} examples an epoch",
        "classes": NEXT_COLUMN.join(balance.describe() if balance else ()),
        "images": NEXT_COLUMN.join(images),
        "batch": describe_batch(config, mesh),
        "length": describe_durations(config, durations, num_examples),
        "objective": describe_objective(config, experiment.objective, mesh),
        "optimizer": describe_choice(config.optimizer, OPTIMIZERS),
        "schedule": f"{describe_choice(config.schedule, SCHEDULES)}: "
        f"{describe_schedule(experiment.schedule, durations)}",
        "sharpness": describe_sharpness(config.optimizer.sharpness),
        "input": describe_input(experiment),
        "execution": execution.describe(experiment.execution),
        "memory": describe_memory(kept_bytes()),
        "note": config.note,
    }
    lines = [f"{name:9} {text}" for name, text in rows.items() if text]
    lines.append(experiment.groups.describe(config.optimizer.weight_decay))
    lines.append(parameter_overview(state.params))
    if mesh.size > 1:
        lines.append(sharding.describe(state.params, sharding.shardings_of(state.params)))
    return "\n".join(["this run:", *lines])


def describe_head(num_classes: int) -> str:
    """The classes of a model, in words."""
    return f"for {num_classes} classes" if num_classes else "without a head"


def describe_normalization(preprocessing: Preprocessing) -> str:
    """How pixels become the model's input, on the devices."""
    mean, std = (
        ", ".join(f"{value:.4g}" for value in values)
        for values in (preprocessing.mean, preprocessing.std)
    )
    return f"normalised: (pixel / 255 - mean) / deviation, mean {mean}, deviation {std}"


def describe_batch(config: ConfigDict, mesh: Mesh) -> str:
    """How the global batch is split."""
    axes = " x ".join(f"{axis}={size}" for axis, size in mesh.shape.items())
    micro = config.optimizer.accumulation_steps
    rows = math.prod(mesh.shape[axis] for axis in sharding.BATCH_AXES)
    parts = f" in {micro} micro-batches" if micro > 1 else ""
    return (
        f"{config.batch_size} per update{parts}, {config.batch_size // rows} on each of {mesh.size} "
        f"{mesh.devices.flat[0].device_kind} devices ({axes})"
    )


def describe_durations(config: ConfigDict, durations: Durations, num_examples: int) -> str:
    """How long the run is and how often it looks up."""
    epochs = durations.total * config.batch_size / num_examples
    parts = [f"{durations.total:,} updates ({epochs:.4g} epochs)", f"warm-up {durations.warmup:,}"]
    if durations.cooldown:
        parts.append(f"cooldown {durations.cooldown:,}")
    for what, every in (
        ("evaluation", durations.eval_every),
        ("checkpoint", durations.checkpoint_every),
    ):
        parts.append(f"{what} every {every:,} and at the end" if every else f"{what} at the end")
    return ", ".join(parts)


def describe_objective(config: ConfigDict, objective: Objective, mesh: Mesh) -> str:
    """The objective, and how gradients and updates are treated."""
    parts = [config.objective.name, *objective.describe()]
    if config.optimizer.grad_clip_norm:
        parts.append(f"gradients clipped at norm {config.optimizer.grad_clip_norm}")
    left = [axis for axis in sharding.BATCH_AXES if mesh.shape[axis] > 1]
    left = [axis for axis in left if axis not in axes_apart(config, mesh)]
    if left and config.model.dtype == "bfloat16":
        parts.append(f"gradients reduced in bfloat16 along {' and '.join(left)}")
    if config.ema_decay:
        warmup = "" if config.ema_warmup else " from the start"
        parts.append(f"parameters averaged by {config.ema_decay}{warmup}")
    return ", ".join(parts)


def describe_input(experiment: Experiment) -> str:
    """Whether this host loads as many images as the devices take, by a look at some of them.

    Empty for devices whose peak is not known, such as CPUs, and where no data was opened.
    """
    config, mesh, dataset = experiment.config, experiment.mesh, experiment.dataset
    peak = hardware.peak_flops(mesh.devices.flat[0])
    if peak is None or dataset.source is None:
        return ""
    try:
        found = supply.look_at(config, dataset)
    except DataError as error:
        return f"not measured: {error}"
    bound = mesh.size * peak / experiment.flops_per_image
    hosts = jax.process_count()
    each = f", {bound * USUAL_MFU / hosts:,.0f} of each of {hosts} processes" if hosts > 1 else ""
    return (
        f"the devices take at most {bound:,.0f} images/s, about {bound * USUAL_MFU:,.0f} at "
        f"{USUAL_MFU:.0%} of their peak{each}; {found.compare(bound * USUAL_MFU / hosts)}"
    )


def describe_memory(kept: int) -> str:
    """What becomes of freed memory on a CPU; empty where that is left to the system, with `kept` 0."""
    if not kept:
        return ""
    return (
        f"pieces of up to {kept / hardware.GIB:.3g} GiB are kept for the next step when they are freed "
        "(docs/troubleshooting.md)"
    )


def describe_sharpness(sharpness: ConfigDict) -> str:
    """Sharpness-aware minimisation; empty where it is off."""
    if not sharpness.rho:
        return ""
    lowest = sharpness.rho if sharpness.rho_min is None else sharpness.rho_min
    return (
        f"rho {sharpness.rho} at the peak rate, {lowest} at the lowest, alpha {sharpness.alpha}, "
        f"{sharpness.shares} share{'s' * (sharpness.shares > 1)} of the batch: "
        "two gradients an update"
    )


def describe_choice(section: ConfigDict, choices: Choices) -> str:
    """A config section's choice and all its options: "adamw (b1=0.9, b2=0.999, ...)"."""
    options = chosen_options(section, choices).items()
    listed = ", ".join(f"{key}={value}" for key, value in options)
    return f"{section.name} ({listed})" if listed else section.name


def describe_schedule(schedule: Schedule, durations: Durations) -> str:
    """The rate of the first update, at the warm-up's end, half way, at the cooldown, at the end."""
    last = durations.total - 1
    cooldown = max(durations.total - durations.cooldown, 0)
    points = sorted({0, min(durations.warmup, last), last // 2, min(cooldown, last), last})
    return ", ".join(f"{float(schedule(point)):.3g} (update {point + 1:,})" for point in points)


def parameter_overview(params: Mapping[str, Any]) -> str:
    """A table of parameters: name, shape, dtype, size, and the total.

    Args:
        params: nested dict of arrays or `jax.ShapeDtypeStruct`s. If all are float32 arrays that
            this process holds whole, the table has their mean and standard deviation too.
    """
    from clu import parameter_overview  # Slow to import.

    def has_stats(leaf: Any) -> bool:
        whole = isinstance(leaf, np.ndarray) or getattr(leaf, "is_fully_addressable", False)
        return whole and leaf.dtype == np.float32  # clu sums in the array's own precision.

    include_stats = all(map(has_stats, jax.tree.leaves(params)))
    return parameter_overview.get_parameter_overview(params, include_stats=include_stats)
