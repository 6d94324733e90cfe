"""Learning-rate schedules: functions from the number of completed updates to the rate.

Each is a decay in progress p, which runs from 0 at the end of the warm-up to 1 when all updates are
done, and stays 0 in a run that ends within its warm-up. Before it comes a linear warm-up, over its
last updates a linear cooldown to 0. Keyword options of a decay are keys of `config.schedule`.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from vit_jax.choices import Choices

Schedule = Callable[[jax.Array | int], jax.Array]


class Moment(NamedTuple):
    """An update's position in a run."""

    step: jax.Array | int  # updates before it, int32
    warmup_steps: int
    total_steps: int

    @property
    def elapsed(self) -> jax.Array:
        """Updates since the end of the warm-up."""
        return jnp.maximum(self.step - self.warmup_steps, 0)

    @property
    def progress(self) -> jax.Array:
        """The share of the updates after the warm-up that are done, 0 to 1."""
        return jnp.minimum(self.elapsed / max(self.total_steps - self.warmup_steps, 1), 1.0)


def cosine(moment: Moment, base: float, *, end: float = 0.0) -> jax.Array:
    """From `base` to `end` along half a cosine."""
    return end + (base - end) * 0.5 * (1 + jnp.cos(jnp.pi * moment.progress))


def linear(moment: Moment, base: float, *, end: float = 1e-5) -> jax.Array:
    """From `base` to `end` along a line; the reference code's ends at 1e-5, not at 0."""
    return end + (base - end) * (1 - moment.progress)


def rsqrt(moment: Moment, base: float, *, timescale: float = 10_000.0) -> jax.Array:
    """`base` over the root of 1 + t / timescale, t updates after the warm-up (2106.04560)."""
    return base / jnp.sqrt(1 + moment.elapsed / timescale)


def constant(moment: Moment, base: float) -> jax.Array:
    """`base` all the time."""
    return base * jnp.ones_like(moment.progress)


def step(
    moment: Moment,
    base: float,
    *,
    boundaries: Sequence[float] = (0.3, 0.6, 0.9),
    factor: float = 0.1,
) -> jax.Array:
    """`base`, times `factor` at each share of the run; by default BiT's (1912.11370)."""
    shares = [round(share * moment.total_steps) for share in boundaries]
    ends = jnp.maximum(jnp.asarray(shares, jnp.int32), moment.warmup_steps)
    passed = jnp.sum(jnp.asarray(moment.step)[..., None] >= ends, axis=-1)
    return base * jnp.float32(factor) ** passed


SCHEDULES: Choices = {
    "cosine": cosine,
    "linear": linear,
    "rsqrt": rsqrt,
    "constant": constant,
    "step": step,
}


def make_schedule(
    name: str,
    *,
    base: float,
    total_steps: int,
    warmup_steps: int,
    warmup_start: float = 0.0,
    cooldown_steps: int = 0,
    **options: Any,
) -> Schedule:
    """The rate of each update, by the number of updates before it: the first has rate(0).

    Args:
      name: one of `SCHEDULES`.
      base: the peak rate.
      total_steps: where the decay ends.
      warmup_steps: where the warm-up ends; 0 for none.
      warmup_start: the rate that the warm-up starts from.
      cooldown_steps: over so many last updates the rate goes to 0; 0 for none.
      options: of the schedule.

    Returns:
      A function of an integer array, the number of completed updates, to float32 rates.
    """

    def schedule(step: jax.Array | int) -> jax.Array:
        rate = SCHEDULES[name](Moment(step, warmup_steps, total_steps), base, **options)
        if warmup_steps:
            warmup = jnp.minimum(1.0, step / warmup_steps)
            rate = rate * warmup + warmup_start * (1 - warmup)
        if cooldown_steps:
            rate = rate * jnp.clip((total_steps - step) / cooldown_steps, 0.0, 1.0)
        return rate

    return schedule
