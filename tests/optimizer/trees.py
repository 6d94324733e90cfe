"""Trees of parameters and gradients, and updates of them."""

import jax
import numpy as np
import optax
from flax.traverse_util import unflatten_dict

from vit_jax.config import default_config
from vit_jax.optimizer import build_optimizer
from vit_jax.optimizer.groups import parameter_groups
from vit_jax.parameters import LAYERS, layer_names, named_leaves

SHAPES = {
    "embedding/kernel": (2, 2, 3, 4),
    "class_token": (1, 1, 4),
    "blocks/mlp/kernel": (3, 4, 6),
    "blocks/norm/scale": (3, 4),
    "head/bias": (4,),
}


def settings(**values):
    """`config.optimizer` with some keys set."""
    config = default_config().optimizer
    config.update(values)
    return config


def random_tree(seed, scale=1.0, shapes=SHAPES):
    """A nested dict of normal values."""
    generator = np.random.default_rng(seed)
    flat = {
        name: np.float32(scale * generator.normal(size=shape)) for name, shape in shapes.items()
    }
    return unflatten_dict(flat, sep="/")


def leaves(tree):
    """Arrays by name."""
    return {name: np.asarray(leaf) for name, leaf in named_leaves(tree)}


def separate(tree):
    """The tree with an array for each layer, not under `blocks/`: nothing is stacked."""
    flat = {}
    for name, array in leaves(tree).items():
        names = [n.replace(LAYERS, "block") for n in layer_names(name, array.shape)]
        flat.update(zip(names, array if name.startswith(LAYERS) else [array], strict=True))
    return unflatten_dict(flat, sep="/")


def update_all(config, schedule, params, gradients):
    """Applies all gradients: the parameters and the optimiser's state at the end."""
    optimizer = build_optimizer(config, schedule, parameter_groups(config, params))
    state, update = optimizer.init(params), jax.jit(optimizer.update)
    for gradient in gradients:
        updates, state = update(gradient, state, params)
        params = optax.apply_updates(params, updates)
    return params, state
