"""Transformations that treat each layer of the stacked blocks as a parameter of its own."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from vit_jax.optimizer.groups import ParameterGroups
from vit_jax.parameters import is_stacked, path_name


def map_layers(function: Callable[..., Any], tree: dict, *rest: dict) -> dict:
    """Maps a function of arrays over trees, over each layer of stacked ones.

    Args:
      function: from the arrays of one parameter, or of one layer of it, to a tree of arrays.
      tree: nested dict of arrays.
      rest: trees with the structure of `tree`.
    """

    def apply(path: tuple, *arrays: jax.Array) -> Any:
        stacked = is_stacked(path_name(path))
        return jax.vmap(function)(*arrays) if stacked else function(*arrays)

    return jax.tree_util.tree_map_with_path(apply, tree, *rest)


def add_decay(weight_decay: float, groups: ParameterGroups) -> optax.GradientTransformation:
    """Adds each parameter times the weight decay and its group's factor to its update."""
    factors = groups.factors(groups.decays)

    def decay(update: jax.Array, param: jax.Array, factor: Any) -> jax.Array:
        if isinstance(factor, float) and not factor:
            return update
        return update + weight_decay * factor * param

    def add(updates: dict, params: dict) -> dict:
        return jax.tree.map(decay, updates, params, factors)

    return optax.stateless(add) if weight_decay else optax.identity()


def multiply_rates(groups: ParameterGroups) -> optax.GradientTransformation:
    """Multiplies each update with its group's rate."""
    factors = groups.factors(groups.rates)

    def multiply(updates: dict, params: dict) -> dict:
        del params
        return jax.tree.map(lambda update, factor: factor * update, updates, factors)

    return optax.stateless(multiply)


def scale_by_trust_ratio(
    groups: ParameterGroups, share: float = 1.0
) -> optax.GradientTransformation:
    """Gives each update a share of the norm of its parameter, or layer: section 3 of 1904.00962.

    As in DeiT-III (2204.07118), only where the group's decay factor is not 0: biases and norms keep
    their updates, and so does what has a norm of 0.
    """
    factors = groups.factors(groups.decays)
    ratio = optax.scale_by_trust_ratio(trust_coefficient=share)

    def rescale_layer(update: jax.Array, param: jax.Array) -> jax.Array:
        return ratio.update(update, ratio.init(param), param)[0]

    def rescale(updates: dict, params: dict) -> dict:
        rescaled = map_layers(rescale_layer, updates, params)
        return jax.tree.map(
            lambda new, old, factor: jnp.where(factor == 0, old, new), rescaled, updates, factors
        )

    return optax.stateless(rescale)
