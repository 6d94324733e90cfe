"""How a run's state begins: fresh, from weights, or where its last checkpoint left off."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax.checkpoint import TrainState
from vit_jax.devices import sharding
from vit_jax.models import registry
from vit_jax.models.base import ModelOptions
from vit_jax.objectives.base import Objective
from vit_jax.parameters import OBJECTIVE, TrainablePart

logger = logging.getLogger(__name__)

OBJECTIVE_STREAM = 0x0B1E  # Keeps the random keys of its parameters apart from the model's.
HEADS = {"head", "distillation_head"}  # A model's logits are those of the one, or the mean of both.


class Initializer(NamedTuple):
    """How a state begins: parameters by a random key, then everything else by the parameters."""

    params: Callable[[jax.Array], dict]
    state: Callable[[dict], TrainState]


def initial_params(name: str, options: ModelOptions, objective: Objective, key: jax.Array) -> dict:
    """The parameters before training, a nested dict of arrays: the model's and the objective's."""
    params = nnx.to_pure_dict(nnx.split(registry.build_model(name, key, options))[1])
    if objective.head_bias:
        for head in HEADS & params.keys():
            params[head]["bias"] += jnp.asarray(objective.head_bias)
    own = objective.init(jax.random.fold_in(key, OBJECTIVE_STREAM))
    return {**params, OBJECTIVE: own} if own else params


def abstract_params(model: dict, objective: Objective) -> dict:
    """The shapes and types of `initial_params`, by those of the model's."""
    own = jax.eval_shape(objective.init, jax.random.key(0))
    return {**model, OBJECTIVE: own} if own else model


def make_initializer(
    config: ConfigDict,
    params: Callable[[jax.Array], dict],
    objective: Objective,
    optimizer: optax.GradientTransformation,
    trainable: TrainablePart,
) -> Initializer:
    """The pure functions that make the state before the first update."""

    def state(params: dict) -> TrainState:
        ema = jax.tree.map(jnp.copy, params) if config.ema_decay else None
        opt_state = optimizer.init(trainable.select(params))
        own = jax.tree.map(jnp.copy, objective.state(params))
        return TrainState(jnp.int32(0), params, opt_state, ema, own)

    return Initializer(params, state)


def abstract_state(initialize: Initializer, params: dict, mesh: Mesh) -> TrainState:
    """The state's shapes, types and shardings, of the parameters' shapes; nothing is allocated."""
    shapes = jax.eval_shape(initialize.state, params)
    of_params = sharding.param_shardings(shapes.params, mesh)
    shardings = sharding.like_params(shapes, shapes.params, of_params, mesh)
    return with_shardings(shapes, shardings)


def abstract_frozen(objective: Objective, mesh: Mesh) -> dict:
    """The shapes, types and shardings of the objective's frozen arrays, which lie as parameters do."""
    shapes = objective.abstract_frozen()
    return with_shardings(shapes, sharding.fitting_shardings(shapes, mesh)) if shapes else {}


def with_shardings(shapes: Any, shardings: Any) -> Any:
    """Shapes and types with shardings."""
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding),
        shapes,
        shardings,
    )


def initial_state(initialize: Initializer, seed: int, abstract: TrainState) -> TrainState:
    """A fresh state, made where it will lie, so that no device ever holds the whole of it."""
    shardings = sharding.shardings_of(abstract)
    draw = jax.jit(lambda: initialize.params(jax.random.key(seed)), out_shardings=shardings.params)
    # Apart, so that random numbers and the optimiser's zeros never need their space together.
    finish = jax.jit(initialize.state, donate_argnums=0, out_shardings=shardings)
    return finish(draw())


def load_frozen(objective: Objective, abstract: dict) -> dict:
    """The objective's frozen arrays on the devices."""
    if not abstract:
        return {}
    return jax.device_put(objective.frozen(), sharding.shardings_of(abstract))


def with_weights(state: TrainState, weights: dict, objective: Objective) -> TrainState:
    """The state with those of its parameters that `weights` has values for.

    Averages, and what the objective updates itself, start from them too.
    """

    def fill(fresh: jax.Array, given: Any) -> jax.Array:
        if isinstance(given, jax.ShapeDtypeStruct):
            return fresh
        if isinstance(given, np.ma.MaskedArray):  # Single layers start fresh.
            given = jnp.where(given.mask, fresh, given.data)
        return jax.device_put(given, fresh.sharding)

    params = jax.tree.map(fill, state.params, weights)
    ema = state.ema and jax.tree.map(jnp.copy, params)
    own = state.objective
    if own:
        begin = jax.jit(
            lambda p: jax.tree.map(jnp.copy, objective.state(p)),
            out_shardings=sharding.shardings_of(own),
        )
        own = begin(params)
    return state._replace(params=params, ema=ema, objective=own)
