"""Reading checkpoints from elsewhere: parameters alone, other processes' runs, older versions."""

import contextlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.runs import GOLDEN
from tests.states import FSDP, abstract, assert_equal, everything_in, make_state
from vit_jax.checkpoint import Checkpoints, TrainState, restore_params
from vit_jax.errors import CheckpointError
from vit_jax.model_file import read_model_file
from vit_jax.models import registry

CHECKPOINT_V1 = GOLDEN / "checkpoint_v1"


@pytest.fixture
def finished(tmp_path):
    """A workdir with checkpoints 1 (the best), 2 and 3, and their states."""
    states = {step: make_state(step, ema=True, mesh=FSDP) for step in (1, 2, 3)}
    checkpoints = Checkpoints(tmp_path, keep=2, best_metric="eval/accuracy")
    for step, state in states.items():
        checkpoints.save(step, state, {"eval/accuracy": 1 / step})
    checkpoints.close()
    return tmp_path, states


@pytest.mark.parametrize(("name", "step"), [("latest", 3), ("best", 1), (2, 2)])
def test_parameters_alone(finished, name, step):
    workdir, states = finished
    params = restore_params(workdir, name)
    assert_equal(params, states[step].params)
    assert type(params) is dict
    assert all(len(leaf.sharding.device_set) == 1 for leaf in jax.tree.leaves(params))
    assert_equal(restore_params(str(workdir), name, ema=True), states[step].ema)


@pytest.mark.parametrize(("sign", "step"), [("", 2), ("-", 1)])
def test_the_best_by_a_metric_of_averages_are_averages_and_the_latest_are_not(tmp_path, sign, step):
    states = {step: make_state(step, ema=True) for step in (1, 2, 3)}
    checkpoints = Checkpoints(tmp_path, keep=3, best_metric=f"{sign}eval_ema/loss")
    for number, loss in ((1, 0.1), (2, 0.3), (3, 0.2)):
        checkpoints.save(number, states[number], {"eval_ema/loss": loss, "eval/loss": 0.0})
    checkpoints.close()
    assert_equal(restore_params(tmp_path, "best"), states[step].ema)
    assert_equal(restore_params(tmp_path, "latest"), states[3].params)
    assert_equal(restore_params(tmp_path, 2), states[2].params)


def test_reading_changes_nothing(finished):
    workdir, states = finished
    leftover = workdir / "checkpoints" / "4.orbax-checkpoint-tmp-0"
    leftover.mkdir()  # Another process is saving.
    before = everything_in(workdir)
    assert_equal(restore_params(workdir), states[3].params)
    assert everything_in(workdir) == before


def test_what_is_no_workdir_is_refused(tmp_path, finished):
    with pytest.raises(CheckpointError, match="not a run's workdir"):
        restore_params(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    workdir, _ = finished
    with pytest.raises(CheckpointError, match=r"no checkpoint 9; it has: 1, 2, 3"):
        restore_params(workdir, 9)


def test_absent_averaged_parameters_are_named(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, make_state(1), {})
    checkpoints.close()
    with pytest.raises(CheckpointError, match=r"checkpoints/1 has no ema .*ema_decay was 0"):
        restore_params(tmp_path, ema=True)
    with (
        contextlib.closing(Checkpoints(tmp_path, read_only=True)) as checkpoints,
        pytest.raises(CheckpointError, match=r"checkpoints/1 has no objective\.$"),
    ):
        checkpoints.restore_item(1, "objective")


def test_a_checkpoint_of_format_version_1_is_still_read():
    """Three steps of `tests/tiny.py`, 8 wide, with bfloat16 momentum, on one device."""
    nested = {}
    with np.load(CHECKPOINT_V1 / "expected.npz") as file:
        images, logits = file["images"], file["logits"]
        for key in set(file.files) - {"images", "logits"}:
            name, _, half = key.partition(":")
            *parents, last = name.split("/")
            place = nested
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = jnp.asarray(file[key].view(jnp.bfloat16) if half else file[key])
    before = everything_in(CHECKPOINT_V1)

    params = restore_params(CHECKPOINT_V1)
    assert_equal(params, nested["params"])
    checkpoints = Checkpoints(CHECKPOINT_V1, read_only=True)
    expected = TrainState(jnp.int32(3), nested["params"], nested["optimizer"], None)
    assert_equal(checkpoints.restore(checkpoints.step_of("best"), abstract(expected)), expected)
    checkpoints.close()

    model_file = read_model_file(CHECKPOINT_V1)
    graphdef, _ = nnx.split(registry.abstract_model(model_file.name, **model_file.options))
    found = nnx.merge(graphdef, params)(jnp.asarray(images))
    np.testing.assert_allclose(found, logits, rtol=0, atol=1e-5)
    assert len(model_file.class_names) == 10
    assert everything_in(CHECKPOINT_V1) == before


@pytest.mark.parametrize("damage", ["params", "optimizer", "format", "params/d"])
def test_a_damaged_checkpoint_is_named(tmp_path, damage):
    state = make_state()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, state, {})
    checkpoints.close()
    shutil.rmtree(tmp_path / "checkpoints" / "1" / damage)
    shutil.rmtree(tmp_path / "checkpoints" / "1" / "params" / "ocdbt.process_0", ignore_errors=True)
    with pytest.raises(CheckpointError, match="checkpoints/1 is damaged"):
        Checkpoints(tmp_path, read_only=True).restore(1, state)
