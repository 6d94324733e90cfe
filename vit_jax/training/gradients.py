"""The gradient of an update: of shares of the batch, of micro-batches, summed over the devices.

    micro-batch's gradient -> summed over micro-batches -> uphill (SAM) -> summed over shares
                           -> summed over the devices, once

Each function here makes one gradient function of another. Losses carry their examples' weights in
the whole batch, so that sums over parts of it are its means.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax.checkpoint import TrainState
from vit_jax.data.dataset import Batch
from vit_jax.devices import sharding
from vit_jax.objectives.base import Objective
from vit_jax.optimizer.schedules import Schedule
from vit_jax.optimizer.sharpness import Gradient, num_shares, sharpness_aware
from vit_jax.parameters import TrainablePart
from vit_jax.training.exchange import DATA, FSDP, Exchange, specs_within


def make_gradient(
    config: ConfigDict,
    objective: Objective,
    trainable: TrainablePart,
    schedule: Schedule,
    shardings: dict,
    mesh: Mesh,
) -> Gradient:
    """The gradient function of a run.

    Args:
      config: of the run.
      objective: what is minimised.
      trainable: the part of the parameters that gradients are of.
      schedule: the learning rate.
      shardings: where the parameters lie, and so do their gradients.
      mesh: of devices.
    """
    shares, size = num_shares(config.optimizer), mesh.shape[DATA]
    axes = tuple(axis for axis in axes_apart(config, mesh) if mesh.shape[axis] > 1)
    once, specs = config.optimizer.reduce_once, specs_within(shardings, axes)
    exchange = Exchange(mesh, axes, once, specs, config.model.dtype)
    gradient = micro_gradient(objective, trainable, shardings, exchange.to_use)
    gradient = summed(gradient, config.optimizer.accumulation_steps, mesh, interleaved)

    def uphill(gradient: Gradient) -> Gradient:
        return sharpness_aware(gradient, config, schedule, trainable)

    if shares == 1:
        return uphill(exchange.summed(gradient, trainable))
    if shares % size:  # Some devices work on one share together.
        return summed(uphill(gradient), shares, mesh, in_order)
    of_share = summed(uphill(gradient), shares // size, mesh, in_order)
    return exchange.summed(of_share, trainable, shares)


def axes_apart(config: ConfigDict, mesh: Mesh) -> tuple[str, ...]:
    """The axes of the mesh along which each device computes gradients of its own.

    The sums along the others are the compiler's.
    """
    options, shares = config.optimizer, num_shares(config.optimizer)
    if shares > 1:  # A share's perturbation is of its whole gradient, so of all along fsdp.
        return () if shares % mesh.shape[DATA] else (DATA,)
    # Else the compiler's own sum is the same, and goes on while the backward pass does.
    differs = options.accumulation_steps > 1 or config.model.dtype == "bfloat16"
    wanted = options.gradient_dtype == "float32" or options.reduce_once
    return (DATA, FSDP) if differs and wanted else ()


def check_batch(config: ConfigDict, mesh: Mesh) -> None:
    """Raises ConfigError unless devices, micro-batches and shares of the batch divide it."""
    options = config.optimizer
    shares = num_shares(options)
    sharding.check_batch(config.batch_size, options.accumulation_steps, mesh, shares)


def micro_gradient(
    objective: Objective,
    trainable: TrainablePart,
    shardings: dict,
    to_use: Callable[[dict], dict],
) -> Gradient:
    """The gradient of a part of the batch that is computed at once.

    Args:
      objective: what is minimised.
      trainable: the part of the parameters that gradients are of.
      shardings: where the parameters lie, and so do their gradients.
      to_use: from the parameters that a device has to those that the objective takes.
    """
    kept = trainable.prune(shardings)

    def weighted_loss(
        part: dict, params: dict, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, dict]:
        params = to_use(trainable.insert(part, params))
        with objective.network.options.in_precision():
            losses, auxiliary = objective.loss(params, frozen, batch, key)
        weigh = functools.partial(jnp.tensordot, batch["weight"], axes=1, precision="highest")
        means = jax.tree.map(weigh, auxiliary)
        return jnp.sum(losses * batch["weight"]), means

    def gradient(
        state: TrainState, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[tuple[jax.Array, dict], dict]:
        part = trainable.select(state.params)
        differentiate = jax.value_and_grad(weighted_loss, has_aux=True)
        values, gradients = differentiate(part, state.params, frozen, batch, key)
        return values, jax.tree.map(sharding.constrain, gradients, kept)

    return gradient


def interleaved(x: jax.Array, count: int) -> jax.Array:
    """[B, ...] -> [count, B / count, ...], parts with rows from all over the batch.

    So each device has some of every part, and works on its own.
    """
    return x.reshape(-1, count, *x.shape[1:]).swapaxes(0, 1)


def in_order(x: jax.Array, count: int) -> jax.Array:
    """[B, ...] -> [count, B / count, ...], as workers would have them that each hold one part."""
    return x.reshape(count, -1, *x.shape[1:])


def summed(
    gradient: Gradient, count: int, mesh: Mesh, parts: Callable[[jax.Array, int], jax.Array]
) -> Gradient:
    """The loss and gradients summed over `count` parts of the batch, one after another.

    Each part has a random key of its own: one of those given, [count], or of a single one's.
    """
    rows = sharding.batch_sharding(mesh, leading=1)

    def sum_gradients(
        state: TrainState, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[tuple[jax.Array, dict], dict]:
        def add(total: tuple, part: tuple) -> tuple[tuple, None]:
            return jax.tree.map(jnp.add, total, gradient(state, frozen, *part)), None

        split = jax.tree.map(lambda x: sharding.constrain(parts(x, count), rows), batch)
        keys = key if key.ndim else jax.random.split(key, count)
        first = jax.tree.map(lambda x: x[0], (split, keys))
        shapes = jax.eval_shape(gradient, state, frozen, *first)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.scan(add, zeros, (split, keys))[0]

    return sum_gradients if count > 1 else first_key(gradient)


def first_key(gradient: Gradient) -> Gradient:
    """The gradient function that takes the only one of several keys, if it is given such."""

    def with_key(state: TrainState, frozen: dict, batch: Batch, key: jax.Array) -> tuple:
        return gradient(state, frozen, batch, key[0] if key.ndim else key)

    return with_key
