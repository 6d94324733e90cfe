"""Sharpness-aware minimisation: gradients from where the loss is worse nearby, for any optimiser.

SAM (2010.01412) takes the gradient at params + rho g / |g|, where g is the gradient at params. GSAM
(2203.08065) adds two things: rho follows the learning rate, and the part of g that is orthogonal to
the new gradient is subtracted alpha times, which narrows the gap between the two losses.
"""

from collections.abc import Callable
from typing import Any

import jax
import optax
from ml_collections import ConfigDict

from vit_jax.choices import chosen_options
from vit_jax.optimizer.schedules import SCHEDULES, Schedule
from vit_jax.parameters import TrainablePart

# (state, frozen, batch, key) -> (loss, means of the objective's values), gradients of the trainable
# part
Gradient = Callable[
    [Any, dict, dict[str, jax.Array], jax.Array], tuple[tuple[jax.Array, dict], dict]
]

TINY = 1e-12  # Keeps a zero gradient from dividing by zero.


def num_shares(config: ConfigDict) -> int:
    """Parts of the batch, of `config.optimizer`, that have a perturbation each."""
    return config.sharpness.shares if config.sharpness.rho else 1


def sharpness_aware(
    gradient: Gradient, config: ConfigDict, schedule: Schedule, trainable: TrainablePart
) -> Gradient:
    """A gradient function that looks uphill first; `gradient` itself if `rho` is 0.

    The perturbation is that of the given gradient: of the whole batch, or of one of its
    `num_shares`. It costs a second gradient. The loss is the unperturbed one.

    Args:
      gradient: takes `state.params`.
      config: of the run.
      schedule: the learning rate, which rho follows if `rho_min` is set.
      trainable: the part of the parameters that gradients are of.
    """
    sharpness, peak = config.optimizer.sharpness, config.optimizer.learning_rate
    if not sharpness.rho:
        return gradient
    lowest = chosen_options(config.schedule, SCHEDULES).get("end", 0.0)
    rho_min = sharpness.rho if sharpness.rho_min is None else sharpness.rho_min

    def perturbed_gradient(
        state: Any, frozen: dict, batch: dict[str, jax.Array], key: jax.Array
    ) -> tuple[tuple[jax.Array, dict], dict]:
        values, clean = gradient(state, frozen, batch, key)
        # A rate that never falls is always at its peak.
        share = (schedule(state.step) - lowest) / (peak - lowest) if peak != lowest else 1.0
        rho = rho_min + (sharpness.rho - rho_min) * share
        uphill = optax.tree.scale(rho / (optax.tree.norm(clean) + TINY), clean)
        part = optax.tree.add(trainable.select(state.params), uphill)
        moved = state._replace(params=trainable.insert(part, state.params))
        _, robust = gradient(moved, frozen, batch, key)
        return values, subtract_orthogonal(robust, clean, sharpness.alpha)

    return perturbed_gradient


def subtract_orthogonal(robust: dict, clean: dict, alpha: float) -> dict:
    """`robust` less `alpha` times the part of `clean` that is orthogonal to it."""
    if not alpha:
        return robust
    parallel = optax.tree.vdot(robust, clean) / (optax.tree.norm(robust, squared=True) + TINY)
    return jax.tree.map(lambda r, c: r - alpha * (c - parallel * r), robust, clean)
