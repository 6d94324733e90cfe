"""What an objective updates itself (anchored.py): what it sees, when it changes, where it starts."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny
from tests.stages import Setup, mesh_of
from vit_jax.devices import sharding
from vit_jax.devices.topology import open_topology
from vit_jax.training import planning
from vit_jax.training.state import with_weights

LABELS, MASK = np.array([1, 2, 3, 4]), np.array([True, True, True, False])


@functools.cache
def setup_of(accumulation_steps):
    """SGD of rate 1 and no momentum: an update subtracts the gradient, 2 anchors for `LABELS`."""
    config = tiny.get_config()
    config.objective.name = "tests.objectives.anchored:Anchored"
    config.update_from_flattened_dict(
        {
            **{"optimizer.name": "sgd", "optimizer.momentum": 0.0, "optimizer.learning_rate": 1.0},
            **{"optimizer.weight_decay": 0.0, "optimizer.grad_clip_norm": 0.0, "warmup_steps": 0},
            **{"schedule.name": "constant", "batch_size": 4, "model.depth": 1},
            "optimizer.accumulation_steps": accumulation_steps,
        }
    )
    return Setup(config, mesh_of(1))


@pytest.mark.parametrize("accumulation_steps", [1, 2])
def test_it_sees_its_last_state_and_the_next_one_the_new_parameters(accumulation_steps):
    setup = setup_of(accumulation_steps)
    state = jax.tree.map(jnp.copy, setup.state)
    kernel = anchor = np.array(state.params["objective"]["kernel"])
    batch = {"image": np.zeros((4, 8, 8, 1), np.uint8), "label": np.int32(LABELS), "mask": MASK}
    for count in (1, 2):
        state, metrics = setup.step(state, jax.tree.map(jnp.asarray, batch))
        np.testing.assert_allclose(metrics["loss"], 2 * kernel @ anchor, rtol=1e-5)
        assert metrics["level"] == 2, "the mean of the three that count"
        assert "classes" not in metrics, "no number"
        kernel = anchor = kernel - 2 * anchor
        np.testing.assert_allclose(state.params["objective"]["kernel"], kernel, rtol=1e-5)
        np.testing.assert_allclose(state.objective["anchor"], anchor, rtol=1e-5)
        np.testing.assert_allclose(state.objective["seen"][1:5], np.array([1, 1, 1, 0]) * count / 3)


def test_it_starts_from_given_weights():
    setup = setup_of(1)
    weights = jax.tree.map(lambda leaf: np.full(leaf.shape, 7, leaf.dtype), setup.abstract.params)
    state = with_weights(setup.state, weights, setup.experiment.objective)
    np.testing.assert_array_equal(state.objective["anchor"], [7, 7, 7])
    assert sharding.shardings_of(state) == sharding.shardings_of(setup.abstract)
    assert state.objective["anchor"] is not state.params["objective"]["kernel"]  # Both are donated.


def test_its_parameters_are_not_drawn_with_the_models_key():
    """Else the same numbers would stand in both."""
    setup = setup_of(1)
    objective, key = setup.experiment.objective, jax.random.key(setup.experiment.config.seed)
    found = np.asarray(setup.state.params["objective"]["kernel"])
    assert (found != objective.init(key)["kernel"]).all()


def test_a_plan_counts_it(monkeypatch):
    """By its shapes: nothing is compiled."""
    monkeypatch.setattr(planning, "try_to_compile", lambda *arguments: (None, "refused"))
    config = setup_of(1).experiment.config.copy_and_resolve_references()
    config.batch_size = 8
    plan = planning.make_plan(config, open_topology("gpu:8"))
    assert plan.memory.objective == 4 * (3 + 10), "on each device"
