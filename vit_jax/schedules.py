"""Learning-rate schedules: functions from the number of completed updates to the rate.

Each is a decay in progress p times a linear warm-up min(1, step / warmup). p runs from 0 at the
end of the warm-up to 1 when all updates are done, and stays 0 in a run that ends within its warm-up.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

LINEAR_END = 1e-5  # The reference's linear decay ends here, not at 0.

Schedule = Callable[[jax.Array], jax.Array]


def cosine(progress: jax.Array, base: float, linear_end: float) -> jax.Array:
    """From `base` to 0 along half a cosine."""
    del linear_end
    return base * 0.5 * (1 + jnp.cos(jnp.pi * progress))


def linear(progress: jax.Array, base: float, linear_end: float) -> jax.Array:
    """From `base` to `linear_end` along a line."""
    return linear_end + (base - linear_end) * (1 - progress)


def constant(progress: jax.Array, base: float, linear_end: float) -> jax.Array:
    """`base` all the time."""
    del linear_end
    return base * jnp.ones_like(progress)


SCHEDULES = {"cosine": cosine, "linear": linear, "constant": constant}


def make_schedule(
    name: str,
    *,
    base: float,
    total_steps: int,
    warmup_steps: int,
    linear_end: float = LINEAR_END,
) -> Schedule:
    """The rate of each update, by the number of updates before it: the first has rate(0).

    Args:
      name: one of `SCHEDULES`.
      base: the peak rate.
      total_steps: where the decay ends.
      warmup_steps: where the warm-up ends; 0 for none.
      linear_end: the last rate of `linear`.

    Returns:
      A function of an integer array, the number of completed updates, to float32 rates.
    """
    decay_steps = max(total_steps - warmup_steps, 1)

    def schedule(step: jax.Array) -> jax.Array:
        progress = jnp.clip((step - warmup_steps) / decay_steps, 0.0, 1.0)
        warmup = jnp.minimum(1.0, step / warmup_steps) if warmup_steps else 1.0
        return SCHEDULES[name](progress, base, linear_end) * warmup

    return schedule
