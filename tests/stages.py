"""The stages of `train.run` one by one, on a mesh of a test's choosing."""

import contextlib
import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests import tiny
from vit_jax.config import default_config
from vit_jax.data.dataset import open_dataset
from vit_jax.devices import sharding
from vit_jax.models.registry import abstract_model
from vit_jax.parameters import OBJECTIVE
from vit_jax.training.experiment import make_experiment
from vit_jax.training.state import initial_state, load_frozen


def mesh_of(num_devices: int = 8, **axes: int) -> jax.sharding.Mesh:
    config = default_config().mesh
    config.update({"data": 1, "fsdp": 1, "tensor": 1, **axes})
    return sharding.build_mesh(config, jax.devices()[:num_devices])


def random_model(name, seed=0, **options):
    """A model with random numbers in every array, by numpy: to draw them takes seconds to compile."""
    structure, params = nnx.split(abstract_model(name, **options))
    rng = np.random.default_rng(seed)

    def fill(path, leaf):
        around = "scale" in str(path[-2:])  # Of a norm: around 1.
        return jnp.asarray(around + rng.normal(0, 0.2, leaf.shape), leaf.dtype)

    return nnx.merge(structure, jax.tree_util.tree_map_with_path(fill, params))


@contextlib.contextmanager
def one_device():
    """Runs and commands have one device, for which they are compiled in two thirds of the time."""
    build = sharding.build_mesh

    def alone(config, devices=None):
        return build(config, jax.devices()[:1] if devices is None else devices)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharding, "build_mesh", alone)
        yield


def config_with(**values):
    """`tests/tiny.py` with some keys set, as in `**{"optimizer.name": "sgd"}`."""
    config = tiny.get_config()
    config.update_from_flattened_dict(values)
    return config


@functools.cache
def run_on(mesh: jax.sharding.Mesh, **values):
    """`Setup.run` of `config_with(**values)`; made once, for all tests that look at it."""
    return Setup(config_with(**values), mesh).run()


DRAWN = {}
WHEN_RUN = dict.fromkeys(("dropout_rate", "stochastic_depth_rate", "dtype", "scan_unroll"))


def drawing_once(experiment):
    """The experiment's initialiser, whose parameters are drawn once for all setups that agree on them.

    Drawing them takes more to compile than a step does.
    """
    objective, seed = experiment.objective, experiment.config.seed
    model = dataclasses.asdict(experiment.options) | WHEN_RUN
    has_own = OBJECTIVE in experiment.state.params
    own = (type(objective), objective.options) if has_own else ()
    what = repr((experiment.config.model.name, model, objective.head_bias, own, seed))

    def params(key):
        return DRAWN[what]

    if what not in DRAWN:
        draw = jax.jit(lambda: experiment.initialize.params(jax.random.key(seed)))
        DRAWN[what] = jax.device_get(draw())
    return experiment.initialize._replace(params=params)


class Setup:
    """The stages of `train.run` up to the step, on a mesh of the test's choosing."""

    def __init__(self, config, mesh):
        self.experiment = make_experiment(config, mesh, open_dataset(config))

    @property
    def abstract(self):
        return self.experiment.state

    @property
    def trainable(self):
        return self.experiment.groups.trainable

    def step(self, state, batch):
        return self.experiment.step(state, self.frozen, batch)

    @functools.cached_property
    def frozen(self):
        return load_frozen(self.experiment.objective, self.experiment.frozen)

    @functools.cached_property
    def state(self):
        """The state before the first step, which the first step takes: copy it to use it again."""
        experiment = self.experiment
        return initial_state(drawing_once(experiment), experiment.config.seed, experiment.state)

    def batches(self):
        return self.experiment.batches(start=0)

    def prepared(self):
        """The first batch, as the objective prepares it."""
        return jax.jit(self.experiment.objective.prepare)(next(self.batches()), 0, 0)

    def run(self):
        """All steps: losses, indices of the examples of every batch in order, the last state."""
        losses, indices, state = [], [], self.state
        for batch in self.batches():
            indices.append(np.asarray(batch["index"]))
            state, metrics = self.step(state, batch)
            losses.append(float(metrics["loss"]))
        return np.array(losses), np.array(indices), state


def without_branches(params):
    """The parameters with residual branches of 0: blocks, and a decoder's, change nothing."""
    blocks = params["blocks"]
    attention, mlp = blocks["attention"], blocks["mlp"]
    nothing = functools.partial(jax.tree.map, np.zeros_like)
    attention = {**attention, "out": nothing(attention["out"])}
    mlp = {**mlp, "dense2": nothing(mlp["dense2"])}
    return {**params, "blocks": {**blocks, "attention": attention, "mlp": mlp}}
