"""The stages of `train.run` one by one, on a mesh of a test's choosing."""

import functools

import jax
import numpy as np

from tests import tiny
from vit_jax import train
from vit_jax.config import default_config
from vit_jax.data.dataset import open_dataset, train_batches
from vit_jax.devices import sharding
from vit_jax.forward import make_forward
from vit_jax.training.step import make_train_step


def mesh_of(num_devices: int = 8, **axes: int) -> jax.sharding.Mesh:
    config = default_config().mesh
    config.update({"data": 1, "fsdp": 1, "tensor": 1, **axes})
    return sharding.build_mesh(config, jax.devices()[:num_devices])


def config_with(**values):
    """`tests/tiny.py` with some keys set, as in `**{"optimizer.name": "sgd"}`."""
    config = tiny.get_config()
    config.update_from_flattened_dict(values)
    return config


@functools.cache
def run_on(mesh: jax.sharding.Mesh, **values):
    """`Setup.run` of `config_with(**values)`; made once, for all tests that look at it."""
    return Setup(config_with(**values), mesh).run()


class Setup:
    """The stages of `train.run` up to the step, on a mesh of the test's choosing."""

    def __init__(self, config, mesh):
        self.config, self.mesh = config, mesh
        self.dataset = open_dataset(config)
        parts = train.assemble(config, self.dataset, mesh)
        self.options, self.durations, self.schedule = parts.options, parts.durations, parts.schedule
        self.optimizer, self.trainable = parts.optimizer, parts.groups.trainable
        self.initialize, self.abstract = parts.initialize, parts.state
        structure = train.model_structure(config.model.name, self.options)
        forward = make_forward(structure, train.preprocessing_of(config.data), mesh)
        self.step = make_train_step(
            config, forward, self.optimizer, self.trainable, self.schedule, self.abstract, mesh
        )

    @functools.cached_property
    def state(self):
        """The state before the first step, which the first step takes: copy it to use it again."""
        return train.initial_state(self.initialize, self.config.seed, self.abstract)

    def batches(self):
        rows = sharding.batch_sharding(self.mesh)
        stop = self.durations.total
        return train_batches(self.config, self.dataset, rows, start=0, stop=stop)

    def run(self):
        """All steps: losses, indices of the examples of every batch in order, the last state."""
        losses, indices, state = [], [], self.state
        for batch in self.batches():
            indices.append(np.asarray(batch["index"]))
            state, metrics = self.step(state, batch)
            losses.append(float(metrics["loss"]))
        return np.array(losses), np.array(indices), state
