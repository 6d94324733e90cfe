"""What a run is going to do, in words, before it does it."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax.checkpoint import TrainState
from vit_jax.choices import Choices, chosen_options
from vit_jax.config import Durations
from vit_jax.console import format_count
from vit_jax.data.images.transforms import describe_training
from vit_jax.devices import sharding
from vit_jax.objectives import mixing
from vit_jax.optimizer import OPTIMIZERS
from vit_jax.optimizer.groups import ParameterGroups
from vit_jax.optimizer.schedules import SCHEDULES, Schedule

NEXT_COLUMN = "\n" + " " * 10  # Goes on in the next line.


def describe_run(
    config: ConfigDict,
    options: Any,
    num_train_examples: int,
    durations: Durations,
    schedule: Schedule,
    groups: ParameterGroups,
    state: TrainState,
    mesh: Mesh,
) -> str:
    """The model, data, batch, durations and learning rate of a run, and tables of parameters.

    Args:
      config: of the run.
      options: of the model, complete.
      num_train_examples: that make an epoch.
      durations: in updates.
      schedule: the learning rate by the number of completed updates.
      groups: how each parameter is trained.
      state: shapes and shardings.
      mesh: of devices.
    """
    num_params = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(state.params))
    images = describe_training(config.data) + mixing.describe(config.objective.mixing)
    lines = [
        f"model     {config.model.name} for {options.num_classes} classes at "
        f"{options.image_size[0]}x{options.image_size[1]} px: {format_count(num_params)} "
        f"parameters, {options.macs() / 1e9:.3g} GMACs per image, computing in {options.dtype}",
        f"data      {config.data.source or '(not named yet)'}, {num_train_examples:,} examples an epoch",
        f"images    {NEXT_COLUMN.join(images)}",
        f"batch     {describe_batch(config, mesh)}",
        f"length    {describe_durations(config, durations, num_train_examples)}",
        f"loss      {describe_loss(config)}",
        f"optimizer {describe_choice(config.optimizer, OPTIMIZERS)}",
        f"schedule  {describe_choice(config.schedule, SCHEDULES)}: "
        f"{describe_schedule(schedule, durations)}",
    ]
    if (sharpness := config.optimizer.sharpness).rho:
        lowest = sharpness.rho if sharpness.rho_min is None else sharpness.rho_min
        lines.append(
            f"sharpness rho {sharpness.rho} at the peak rate, {lowest} at the lowest, "
            f"alpha {sharpness.alpha}: two gradients an update"
        )
    if config.note:
        lines.append(f"note      {config.note}")
    lines.append(groups.describe(config.optimizer.weight_decay))
    lines.append(parameter_overview(state.params))
    if mesh.size > 1:
        places = jax.tree.map(lambda leaf: leaf.sharding, state.params)
        lines.append(sharding.describe(state.params, places))
    return "\n".join(["this run:", *lines])


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


def describe_durations(config: ConfigDict, durations: Durations, num_train_examples: int) -> str:
    """How long the run is and how often it looks up."""
    epochs = durations.total * config.batch_size / num_train_examples
    parts = [f"{durations.total:,} updates ({epochs:.4g} epochs)", f"warm-up {durations.warmup:,}"]
    if durations.cooldown:
        parts.append(f"cooldown {durations.cooldown:,}")
    for what, every in (
        ("evaluation", durations.eval_every),
        ("checkpoint", durations.checkpoint_every),
    ):
        parts.append(f"{what} every {every:,} and at the end" if every else f"{what} at the end")
    return ", ".join(parts)


def describe_loss(config: ConfigDict) -> str:
    """What is minimised, and what is done to its gradients and to the result."""
    parts = [config.objective.loss]
    if config.objective.label_smoothing:
        parts.append(f"label smoothing {config.objective.label_smoothing}")
    if config.optimizer.grad_clip_norm:
        parts.append(f"gradients clipped at norm {config.optimizer.grad_clip_norm}")
    if config.ema_decay:
        parts.append(f"parameters averaged by {config.ema_decay}")
    return ", ".join(parts)


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
