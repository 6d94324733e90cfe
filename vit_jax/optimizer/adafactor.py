"""Adafactor (1804.04235) as it trained Scaling Vision Transformers (2106.04560, section 3.4).

It differs from the original: momentum 0.9, kept in bfloat16; the second moment's decay,
1 - t^-0.8, is capped at 0.999; it is factored where two dimensions have 32 elements or more; no
clipping of updates (the recipe clips gradients by their global norm) and no relative step size.
"""

import jax
import jax.numpy as jnp
import optax

from vit_jax.optimizer.layerwise import map_layers

MIN_FACTORED_SIZE = 32


def scale_by_adafactor(
    b2: float, momentum: float, momentum_dtype: jnp.dtype
) -> optax.GradientTransformation:
    """Adafactor's direction.

    Args:
      b2: the second moment's highest decay.
      momentum: decay of the average of directions.
      momentum_dtype: that it is kept in.
    """
    return optax.named_chain(
        ("second_moment", scale_by_factored_moment(b2)),
        ("momentum", optax.ema(momentum, debias=False, accumulator_dtype=momentum_dtype)),
    )


def scale_by_factored_moment(b2: float) -> optax.GradientTransformation:
    """`optax.scale_by_factored_rms`, of each layer of stacked parameters by itself."""

    def decay_rate(step: jax.Array, exponent: float) -> jax.Array:
        return jnp.minimum(b2, 1 - (step + 1.0) ** -exponent)

    one_array = optax.scale_by_factored_rms(
        min_dim_size_to_factor=MIN_FACTORED_SIZE, decay_rate_fn=decay_rate
    )

    def init(params: dict) -> optax.FactoredState:
        moments = map_layers(lambda param: one_array.init(param)[1:], params)
        return optax.FactoredState(jnp.int32(0), *_transpose(params, moments, 3))

    def update(
        gradients: dict, state: optax.FactoredState, params: dict | None = None
    ) -> tuple[dict, optax.FactoredState]:
        del params

        def update_layer(gradient: jax.Array, *moments: jax.Array) -> tuple[jax.Array, ...]:
            before = optax.FactoredState(state.count, *moments)
            direction, after = one_array.update(gradient, before, gradient)
            return direction, *after[1:]

        results = map_layers(update_layer, gradients, *state[1:])
        directions, *moments = _transpose(gradients, results, 4)
        return directions, optax.FactoredState(state.count + 1, *moments)

    return optax.GradientTransformation(init, update)


def _transpose(like: dict, tree: dict, length: int) -> tuple[dict, ...]:
    """A tuple of trees like `like` from one of tuples of that length."""
    inner = jax.tree.structure((0,) * length)
    return jax.tree.transpose(jax.tree.structure(like), inner, tree)
