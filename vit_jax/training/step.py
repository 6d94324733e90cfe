"""One update: loss, gradients, optimiser, averaged parameters."""

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax.checkpoint import TrainState
from vit_jax.data.dataset import Batch
from vit_jax.devices import sharding
from vit_jax.errors import ConfigError
from vit_jax.objectives.base import Objective
from vit_jax.optimizer.schedules import Schedule
from vit_jax.parameters import TrainablePart
from vit_jax.training.gradients import make_gradient

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

    gradient = make_gradient(config, objective, trainable, schedule, shardings.params, mesh)

    def step(state: TrainState, frozen: dict, batch: Batch) -> tuple[TrainState, Metrics]:
        key = step_key(config.seed, state.step)
        batch = objective.prepare(with_weights(batch), config.seed, state.step)
        batch = jax.lax.with_sharding_constraint(batch, sharding.batch_sharding(mesh))
        known = {**frozen, **state.objective}
        (value, means), gradients = gradient(state, known, batch, key)
        part = trainable.select(state.params)
        updates, opt_state = optimizer.update(gradients, state.opt_state, part)
        params = trainable.insert(optax.apply_updates(part, updates), state.params)
        params = objective.follow(params, means)
        keep = ema_keep(state.step, config.ema_decay, warmup=config.ema_warmup)
        ema = state.ema and update_ema(state.ema, params, keep)
        own = objective.update(state.objective, params, means) if state.objective else {}
        metrics = {
            "loss": value,
            "grad_norm": optax.tree.norm(gradients),
            "learning_rate": schedule(state.step),
            "skipped": jnp.sum(~batch["mask"]),
        }
        if taken := sorted(metrics.keys() & means.keys()):
            raise ConfigError(f"The objective's values {taken} are the trainer's own: rename them.")
        metrics |= {name: mean for name, mean in means.items() if not mean.ndim}
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


def ema_keep(step: jax.Array, decay: float, *, warmup: bool) -> jax.Array:
    """The share of the average that stays in the update after `step` others.

    The warm-up, min(decay, (1 + step) / (10 + step)), makes a short run's average usable. Without
    it, the average is the plain one, from the weights that the run starts from: after n updates
    these have a share of decay^n in it.
    """
    return jnp.minimum(decay, (1 + step) / (10 + step)) if warmup else jnp.float32(decay)


def update_ema(ema: dict, params: dict, keep: jax.Array) -> dict:
    """Moves the average towards `params`, by 1 - `keep` of the way."""
    # In this form, a parameter that never changes is its own average to the bit.
    return jax.tree.map(lambda average, new: average + (1 - keep) * (new - average), ema, params)
