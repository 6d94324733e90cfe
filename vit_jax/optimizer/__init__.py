"""The optimiser: an optax chain, built from `config.optimizer`.

    gradients -> clip by global norm -> direction (Adam, momentum, ...) -> weight decay
              -> x rate multipliers -> x -rate

Weight decay is AdamW's: outside the moments, multiplied by the learning rate and its multipliers.
Block parameters are stacked with a leading layer axis; what looks at a whole parameter, such as a
norm, looks at one layer of them, so that a stacked array is treated as its layers one by one.

Every optimiser is a function to its direction; LAMB rescales it after the decay, and LARS decays and
rescales the gradients that make up its direction. Its keyword options are keys of `config.optimizer`,
with the defaults of its paper.
"""

import jax.numpy as jnp
import optax
from ml_collections import ConfigDict

from vit_jax.choices import Choices, chosen_options
from vit_jax.optimizer.adafactor import scale_by_adafactor
from vit_jax.optimizer.groups import ParameterGroups
from vit_jax.optimizer.layerwise import add_decay, multiply_rates, scale_by_trust_ratio
from vit_jax.optimizer.muon import scale_by_muon
from vit_jax.optimizer.schedules import Schedule


def adamw(
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    momentum_dtype: str = "float32",
) -> optax.GradientTransformation:
    """AdamW (1711.05101), epsilon 1e-8 outside the root."""
    return optax.scale_by_adam(b1, b2, eps=1e-8, mu_dtype=jnp.dtype(momentum_dtype))


def sgd(
    *,
    momentum: float = 0.9,
    momentum_dtype: str = "float32",
) -> optax.GradientTransformation:
    """SGD with momentum (not Nesterov's)."""
    return optax.trace(momentum, accumulator_dtype=jnp.dtype(momentum_dtype))


def lion(
    *,
    b1: float = 0.9,
    b2: float = 0.99,
    momentum_dtype: str = "float32",
) -> optax.GradientTransformation:
    """Lion (2302.06675): the sign of an interpolated momentum."""
    return optax.scale_by_lion(b1, b2, mu_dtype=jnp.dtype(momentum_dtype))


def lamb(
    *,
    b1: float = 0.9,
    b2: float = 0.999,
    momentum_dtype: str = "float32",
) -> optax.GradientTransformation:
    """LAMB (1904.00962): AdamW, each decayed parameter's update rescaled to its own norm."""
    return adamw(b1=b1, b2=b2, momentum_dtype=momentum_dtype)


def lars(
    *,
    momentum: float = 0.9,
    momentum_dtype: str = "float32",
) -> optax.GradientTransformation:
    """LARS (1708.03888): SGD, each decayed parameter's gradient rescaled to a share of its norm."""
    return sgd(momentum=momentum, momentum_dtype=momentum_dtype)


def adafactor(
    *,
    b2: float = 0.999,
    momentum: float = 0.9,
    momentum_dtype: str = "bfloat16",
) -> optax.GradientTransformation:
    """Adafactor (1804.04235) in the form of Scaling Vision Transformers (2106.04560)."""
    return scale_by_adafactor(b2, momentum, jnp.dtype(momentum_dtype))


def muon(
    *,
    momentum: float = 0.95,
    b1: float = 0.9,
    b2: float = 0.999,
    momentum_dtype: str = "float32",
) -> optax.GradientTransformation:
    """Muon on the hidden layers' matrices, AdamW on everything else."""
    return scale_by_muon(momentum, b1, b2, jnp.dtype(momentum_dtype))


LARS_TRUST = 0.001  # The share of a parameter's norm; section 5 of 1708.03888.

OPTIMIZERS: Choices = {
    "adamw": adamw,
    "sgd": sgd,
    "lion": lion,
    "lamb": lamb,
    "lars": lars,
    "adafactor": adafactor,
    "muon": muon,
}


def build_optimizer(
    config: ConfigDict, schedule: Schedule, groups: ParameterGroups
) -> optax.GradientTransformation:
    """The optimiser that `config.optimizer` names, of the trainable part of the parameters.

    The parts have names, not numbers, so that a checkpoint fits whether or not there is a clip or
    a decay.

    Args:
      config: `config.optimizer`.
      schedule: the learning rate by the number of completed updates.
      groups: how each parameter is trained.
    """
    chain: dict[str, optax.GradientTransformation] = {}
    if config.grad_clip_norm:
        chain["clip"] = optax.clip_by_global_norm(config.grad_clip_norm)
    options = chosen_options(config, OPTIMIZERS)
    direction = OPTIMIZERS[config.name](**options)
    decay = add_decay(config.weight_decay, groups)
    if config.name == "lars":
        ratio = scale_by_trust_ratio(groups, LARS_TRUST)
        chain |= {"decay": decay, "trust_ratio": ratio, "direction": direction}
    else:
        chain |= {"direction": direction, "decay": decay}
    if config.name == "lamb":
        chain["trust_ratio"] = scale_by_trust_ratio(groups)
    chain["multipliers"] = multiply_rates(groups)
    chain["rate"] = optax.scale_by_learning_rate(schedule)
    return optax.named_chain(*chain.items())
