"""The optimiser: an optax chain, built from `config.optimizer`.

    gradients -> clip by global norm -> direction (Adam, momentum) -> weight decay -> x -rate

Weight decay is AdamW's: multiplied by the learning rate, outside the moments, on kernels only.
Block parameters are stacked with a leading layer axis; everything here is elementwise or global,
so that a stacked array is treated as its layers would be one by one.
"""

import jax
import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from vit_jax.parameters import path_name
from vit_jax.schedules import Schedule


def adam(config: ConfigDict) -> optax.GradientTransformation:
    """Adam's direction, epsilon 1e-8 outside the root."""
    return optax.scale_by_adam(
        b1=config.b1, b2=config.b2, eps=1e-8, mu_dtype=jnp.dtype(config.momentum_dtype)
    )


def momentum(config: ConfigDict) -> optax.GradientTransformation:
    """SGD's direction with momentum (not Nesterov's)."""
    return optax.trace(decay=config.momentum, accumulator_dtype=jnp.dtype(config.momentum_dtype))


OPTIMIZERS = {"adamw": adam, "sgd": momentum}


def decay_mask(params: dict) -> dict:
    """True for the parameters that weight decay shrinks: kernels, not biases, norms, embeddings."""
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path_name(path[-1:]) == "kernel", params
    )


def build_optimizer(config: ConfigDict, schedule: Schedule) -> optax.GradientTransformation:
    """The optimiser that `config.optimizer` names, with the rate that `schedule` gives.

    The parts have names, not numbers, so that a checkpoint fits whether or not there is a clip or
    a decay.
    """
    chain = {}
    if config.grad_clip_norm:
        chain["clip"] = optax.clip_by_global_norm(config.grad_clip_norm)
    chain["direction"] = OPTIMIZERS[config.name](config)
    if config.weight_decay:
        chain["decay"] = optax.add_decayed_weights(config.weight_decay, mask=decay_mask)
    chain["rate"] = optax.scale_by_learning_rate(schedule)
    return optax.named_chain(*chain.items())
