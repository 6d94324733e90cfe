"""One update: loss, gradients over micro-batches, optimiser, averaged parameters."""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from ml_collections import ConfigDict

from vit_jax.checkpoint import TrainState
from vit_jax.data.dataset import Batch
from vit_jax.devices import sharding
from vit_jax.objectives.base import Objective
from vit_jax.optimizer.schedules import Schedule
from vit_jax.optimizer.sharpness import Gradient, sharpness_aware
from vit_jax.parameters import TrainablePart

STEP_STREAM = 0x57E9  # Keeps the steps' random keys apart from those of the initial parameters.

Metrics = dict[str, jax.Array]

# Jitted (TrainState, frozen, Batch) -> (TrainState, Metrics); donates the state, `frozen` never.
TrainStep = jax.stages.Wrapped


def make_train_step(
    config: ConfigDict,
    objective: Objective,
    optimizer: optax.GradientTransformation,
    trainable: TrainablePart,
    schedule: Schedule,
    abstract: TrainState,
    mesh: Mesh,
) -> TrainStep:
    """One update: (state, frozen, batch) -> (state, metrics); the old state is donated.

    Gradients and updates are of the trainable part only. The new state lies where `abstract` says,
    and so do the gradients. Metrics are `loss`, `grad_norm`, `learning_rate`, `skipped`, and the
    means of the objective's values.
    """
    shardings = sharding.shardings_of(abstract)

    def weighted_loss(
        part: dict, params: dict, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, dict]:
        params = trainable.insert(part, params)
        losses, auxiliary = objective.loss(params, frozen, batch, key)
        means = {n: jnp.tensordot(batch["weight"], v, axes=1) for n, v in auxiliary.items()}
        return jnp.sum(losses * batch["weight"]), means

    def micro_gradient(
        state: TrainState, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[tuple[jax.Array, dict], dict]:
        part = trainable.select(state.params)
        differentiate = jax.value_and_grad(weighted_loss, has_aux=True)
        values, gradients = differentiate(part, state.params, frozen, batch, key)
        kept = trainable.prune(shardings.params)
        return values, jax.lax.with_sharding_constraint(gradients, kept)

    gradient = accumulated(micro_gradient, config.optimizer.accumulation_steps, mesh)
    gradient = sharpness_aware(gradient, config, schedule, trainable)

    def step(state: TrainState, frozen: dict, batch: Batch) -> tuple[TrainState, Metrics]:
        key = step_key(config.seed, state.step)
        batch = objective.prepare(with_weights(batch), config.seed, state.step)
        batch = jax.lax.with_sharding_constraint(batch, sharding.batch_sharding(mesh))
        known = {**frozen, **state.objective}
        (value, means), gradients = gradient(state, known, batch, key)
        part = trainable.select(state.params)
        updates, opt_state = optimizer.update(gradients, state.opt_state, part)
        params = trainable.insert(optax.apply_updates(part, updates), state.params)
        ema = state.ema and update_ema(state.ema, params, config.ema_decay, state.step)
        own = objective.update(state.objective, params, means) if state.objective else {}
        metrics = {
            "loss": value,
            "grad_norm": optax.tree.norm(gradients),
            "learning_rate": schedule(state.step),
            "skipped": jnp.sum(~batch["mask"]),
            **{name: mean for name, mean in means.items() if not mean.ndim},
        }
        return TrainState(state.step + 1, params, opt_state, ema, own), metrics

    return jax.jit(step, donate_argnums=0, out_shardings=(shardings, sharding.replicated(mesh)))


def with_weights(batch: Batch) -> Batch:
    """The batch with each example's weight in its mean, [B] float32; 0 for one that is masked."""
    weight = batch["mask"].astype(jnp.float32)
    return {**batch, "weight": weight / jnp.maximum(weight.sum(), 1)}


def step_key(seed: int, step: jax.Array) -> jax.Array:
    """The random key of an update."""
    stream = jax.random.fold_in(jax.random.key(seed), STEP_STREAM)
    return jax.random.fold_in(stream, step)


def accumulated(gradient: Gradient, num_micro: int, mesh: Mesh) -> Gradient:
    """The batch's loss and gradients, summed over `num_micro` micro-batches one after another.

    Losses carry their examples' weights in the whole batch, so that sums are its means. Every
    micro-batch takes its rows from all over the batch, so that each device works on its own.
    """
    if num_micro == 1:
        return gradient
    rows = NamedSharding(mesh, PartitionSpec(None, sharding.BATCH_AXES))

    def split(x: jax.Array) -> jax.Array:
        micro = x.reshape(-1, num_micro, *x.shape[1:]).swapaxes(0, 1)
        return jax.lax.with_sharding_constraint(micro, rows)

    def sum_gradients(
        state: TrainState, frozen: dict, batch: Batch, key: jax.Array
    ) -> tuple[tuple[jax.Array, dict], dict]:
        def add(total: tuple, micro: tuple) -> tuple[tuple, None]:
            return jax.tree.map(jnp.add, total, gradient(state, frozen, *micro)), None

        micro_batches = jax.tree.map(split, batch), jax.random.split(key, num_micro)
        first = jax.tree.map(lambda x: x[0], micro_batches)
        shapes = jax.eval_shape(gradient, state, frozen, *first)
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        total, _ = jax.lax.scan(add, zeros, micro_batches)
        return total

    return sum_gradients


def update_ema(ema: dict, params: dict, decay: float, step: jax.Array) -> dict:
    """Moves the average towards `params`; slower as steps pass, down to `1 - decay`.

    The warm-up, min(decay, (1 + step) / (10 + step)), makes a short run's average usable.
    """
    keep = jnp.minimum(decay, (1 + step) / (10 + step))
    # In this form, a parameter that never changes is its own average to the bit.
    return jax.tree.map(lambda average, new: average + (1 - keep) * (new - average), ema, params)
