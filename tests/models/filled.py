"""Models whose parameters are all random and non-zero, without the time that initialising takes."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from vit_jax.models import abstract_model


def fill(model, seed=0):
    """An abstract model with arrays: norms' scales near 1, all else drawn from N(0, 1 / fan-in)."""
    rng = np.random.default_rng(seed)
    graphdef, state = nnx.split(model)

    def draw(path, leaf):
        shape = leaf.shape[path[0] == "blocks" :]  # of one layer
        if path[-1] in ("bias", "scale") or len(shape) == 1:
            fan_in = 4
        elif len(path) > 1 and path[-2] in ("query", "key", "value"):
            fan_in = shape[0]
        else:
            fan_in = math.prod(shape[:-1])
        array = rng.normal(0, fan_in**-0.5, leaf.shape)
        return leaf.replace(jnp.asarray(array + (path[-1] == "scale"), jnp.float32))

    flat = [(path, draw(path, leaf)) for path, leaf in nnx.to_flat_state(state)]
    return nnx.merge(graphdef, nnx.from_flat_state(flat))


def filled_model(name, seed=0, **options):
    """A named model with these options and random parameters."""
    return fill(abstract_model(name, **options), seed)


def random_images(options, batch_size=2, seed=0):
    """Images of the model's size in [-1, 1]."""
    shape = (batch_size, *options.image_size, options.channels)
    return np.random.default_rng(seed).uniform(-1, 1, shape).astype(np.float32)


def flat_parameters(model):
    """Parameters by name, as "blocks/norm1/scale"."""
    return {
        "/".join(map(str, path)): leaf[...] for path, leaf in nnx.to_flat_state(nnx.state(model))
    }


def predict(model, images, key=None):
    """The model's output, compiled in one piece."""
    return _predict(*nnx.split(model), images, key)


@functools.partial(jax.jit, static_argnums=0)
def _predict(graphdef, state, images, key):
    return nnx.merge(graphdef, state)(images, key=key)


def intermediates(model, images, *names):
    """The model's intermediates, compiled in one piece."""
    return _intermediates(*nnx.split(model), images, names)


@functools.partial(jax.jit, static_argnums=(0, 3))
def _intermediates(graphdef, state, images, names):
    return nnx.merge(graphdef, state).intermediates(images, *names)


def with_parameters(model, replacements):
    """The model with some of its parameters replaced, by name."""
    graphdef, state = nnx.split(model)
    flat = [
        (path, leaf.replace(jnp.asarray(replacements.get("/".join(map(str, path)), leaf[...]))))
        for path, leaf in nnx.to_flat_state(state)
    ]
    return nnx.merge(graphdef, nnx.from_flat_state(flat))
