"""What is kept of a block for the backward pass, and what it computes again ("rematerialisation").

`model.remat` is "none" (all is kept), "full" (nothing but the block's input), "dots" (the results of all
layers named below), or some of those names, as "query+key+value+out". Fused attention, whose forward pass
costs more than what it writes, is kept by all but "full".
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from flax import nnx
from jax.ad_checkpoint import checkpoint_name

from vit_jax.models.attention import FUSED_PRIMITIVE

AUTO, NONE, FULL, DOTS = "auto", "none", "full", "dots"
CONVOLUTION = "convolution"  # All of a ResNet's.
LAYERS = ("query", "key", "value", "out", "dense1", "gate", "dense2")  # Of attention and MLPs.
NAMES = (*LAYERS, CONVOLUTION)
SEPARATOR = "+"

Policy = Callable[..., bool]


def name_result(x: jax.Array, layer: str) -> jax.Array:
    """The result of a layer, under the name by which it can be kept."""
    assert layer in LAYERS
    return checkpoint_name(x, layer)


def is_remat(remat: str) -> bool:
    """Whether a value of `model.remat` has a meaning."""
    names = remat.split(SEPARATOR)
    known = all(name in NAMES for name in names) and len(set(names)) == len(names)
    return known or remat in (AUTO, NONE, FULL, DOTS)


@functools.cache  # So that equal values are one and the same policy, which JAX compares.
def remat_policy(remat: str) -> Policy | None:
    """The policy for `jax.checkpoint`; None where all is kept.

    "auto" is as "none", where no devices are known to choose for.
    """
    if remat in (AUTO, NONE):
        return None
    if remat == FULL:
        return jax.checkpoint_policies.nothing_saveable
    names = NAMES if remat == DOTS else remat.split(SEPARATOR)
    named = jax.checkpoint_policies.save_only_these_names(*names)

    def keep(primitive: Any, *args: Any, **params: Any) -> bool:
        convolution = primitive is jax.lax.conv_general_dilated_p and CONVOLUTION in names
        fused = FUSED_PRIMITIVE in primitive.name
        return convolution or fused or named(primitive, *args, **params)

    return keep


def rematerialize(function: Callable, remat: str, **kwargs: Any) -> Callable:
    """`function`, of which the backward pass finds only what `remat` keeps."""
    policy = remat_policy(remat)
    return function if policy is None else jax.checkpoint(function, policy=policy, **kwargs)


def call_block(block: nnx.Module, x: jax.Array, remat: str) -> Any:
    """`block(x)`, of which the backward pass finds only what `remat` keeps."""
    graphdef, parameters = nnx.split(block)
    call = rematerialize(lambda parameters, x: nnx.merge(graphdef, parameters)(x), remat)
    return call(parameters, x)
