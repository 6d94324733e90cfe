"""The gradient of an update: of shares of the batch, of micro-batches, summed over the devices.

    micro-batch's gradient -> summed over micro-batches -> uphill (SAM) -> summed over shares
                           -> summed over the devices, once

Each function here makes one gradient function of another. Losses carry their examples' weights in
the whole batch, so that sums over parts of it are its means.
"""

import functools
from collections.abc import Callable, Collection

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from ml_collections import ConfigDict

from vit_jax.checkpoint import TrainState
from vit_jax.data.dataset import Batch
from vit_jax.devices import sharding
from vit_jax.devices.row_keys import key_of_part
from vit_jax.objectives.base import Objective
from vit_jax.optimizer.schedules import Schedule
from vit_jax.optimizer.sharpness import Gradient, num_shares, sharpness_aware
from vit_jax.parameters import TrainablePart

DATA = "data"  # The mesh's axis over which parameters are copied,
FSDP = "fsdp"  # and that over which they are split.


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
    options, size = config.optimizer, mesh.shape[DATA]
    shares, axes = num_shares(options), reduced_once(options, mesh)
    specs = jax.tree.map(lambda sharding: within(sharding.spec, axes), shardings)
    gradient = micro_gradient(objective, trainable, shardings)
    gradient = summed(gradient, options.accumulation_steps, mesh, interleaved)

    def whole(gradient: Gradient, num_keys: int = 0) -> Gradient:
        return summed_over(gradient, mesh, axes, specs, trainable.prune(specs), num_keys=num_keys)

    def uphill(gradient: Gradient) -> Gradient:
        return sharpness_aware(gradient, config, schedule, trainable)

    if shares == 1:
        # Else the compiler's own sum is the same, and goes on while the backward pass does.
        differs = options.accumulation_steps > 1 or config.model.dtype == "bfloat16"
        apart = differs and (options.gradient_dtype == "float32" or options.reduce_once)
        return uphill(whole(gradient) if apart else gradient)
    if shares % size:  # Some devices work on one share together.
        return summed(uphill(gradient), shares, mesh, in_order)
    return whole(summed(uphill(gradient), shares // size, mesh, in_order), shares)


def check_batch(config: ConfigDict, mesh: Mesh) -> None:
    """Raises ConfigError unless devices, micro-batches and shares of the batch divide it."""
    options = config.optimizer
    shares = num_shares(options)
    sharding.check_batch(config.batch_size, options.accumulation_steps, mesh, shares)


def micro_gradient(objective: Objective, trainable: TrainablePart, shardings: dict) -> Gradient:
    """The gradient of a part of the batch that is computed at once."""
    kept = trainable.prune(shardings)

    def weighted_loss(
        part: dict, params: dict, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, dict]:
        params = trainable.insert(part, params)
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


def reduced_once(options: ConfigDict, mesh: Mesh) -> tuple[str, ...]:
    """The axes of the mesh along which each device adds up its own gradients to the end."""
    whole = options.reduce_once and num_shares(options) == 1
    return tuple(axis for axis in (DATA, *([FSDP] if whole else [])) if mesh.shape[axis] > 1)


def within(spec: PartitionSpec, axes: Collection[str]) -> PartitionSpec:
    """How an array is split over some of the mesh's axes, which rules name one by one."""
    return PartitionSpec(*(axis if axis in axes else None for axis in spec))


def split_dimension(spec: PartitionSpec) -> int | None:
    """The dimension that is split over the fsdp axis."""
    return tuple(spec).index(FSDP) if FSDP in spec else None


def gathered(x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """The whole array, of a device's part of it."""
    dimension = split_dimension(spec)
    return x if dimension is None else jax.lax.all_gather(x, FSDP, axis=dimension, tiled=True)


def reduced(axes: tuple[str, ...], x: jax.Array, spec: PartitionSpec) -> jax.Array:
    """The sum over the devices along `axes`, of which each keeps its part."""
    dimension = split_dimension(spec)
    if dimension is None:
        return jax.lax.psum(x, axes)
    x = jax.lax.psum_scatter(x, FSDP, scatter_dimension=dimension, tiled=True)
    return jax.lax.psum(x, tuple(axis for axis in axes if axis != FSDP))


def summed_over(
    gradient: Gradient,
    mesh: Mesh,
    axes: tuple[str, ...],
    specs: dict,
    kept: dict,
    *,
    num_keys: int = 0,
) -> Gradient:
    """The loss and gradients of the whole batch, those of devices summed up once, in float32.

    Left to the compiler, the sum would be made in the model's type and after each micro-batch. The
    axes that are not among `axes` are left to it.

    Args:
      gradient: of one part of the batch, of as many as there are devices along `axes`.
      mesh: of devices.
      axes: to sum over; with the fsdp axis, parameters are gathered first, for the whole update.
      specs: how parameters are split over `axes`.
      kept: the same of the gradients.
      num_keys: split the random key into so many, and give each part of the batch its share of
        them; 0: all draw as the whole batch would.
    """
    if not axes:
        return gradient
    # With nothing left to the compiler, a program may have kernels that it cannot split.
    whole_axes = [axis for axis, size in mesh.shape.items() if size == 1]

    def local(state: TrainState, frozen: dict, batch: Batch, data: jax.Array) -> tuple:
        key = jax.random.wrap_key_data(data)
        key = key if num_keys else key_of_part(key, jax.lax.axis_index(axes))
        state = state._replace(params=jax.tree.map(gathered, state.params, specs))
        values, gradients = gradient(state, frozen, batch, key)
        add = functools.partial(reduced, axes)  # In the parameters' type: float32.
        return jax.lax.psum(values, axes), jax.tree.map(add, gradients, kept)

    def whole(state: TrainState, frozen: dict, batch: Batch, key: jax.Array) -> tuple:
        key = jax.random.split(key, num_keys) if num_keys else key
        state = state._replace(opt_state=(), ema=None, objective={})  # Nothing else is needed.
        everywhere, rows = PartitionSpec(), PartitionSpec(axes)
        states = TrainState(everywhere, specs, (), None, {})
        mapped = jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(states, everywhere, rows, rows if num_keys else everywhere),
            out_specs=(everywhere, kept),
            axis_names={*axes, *whole_axes},
            check_vma=False,
        )
        return mapped(state, frozen, batch, jax.random.key_data(key))

    return whole
