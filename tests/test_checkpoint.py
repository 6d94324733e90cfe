"""Checkpoints: what is saved comes back to the bit, on any devices, and nothing else is kept."""

import logging
import shutil
import threading
import types

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest

from tests.states import (
    DATA,
    FSDP,
    LARGE,
    ONE,
    SHAPES,
    abstract,
    assert_equal,
    everything_in,
    make_state,
)
from vit_jax import checkpoint, digests
from vit_jax.checkpoint import Checkpoints
from vit_jax.errors import CheckpointError
from vit_jax.nested import from_nested, to_nested
from vit_jax.optimizer import OPTIMIZERS


@pytest.fixture
def opened(tmp_path):
    """A function that opens the checkpoints of `tmp_path`; all are closed at the end."""
    every = []

    def open_checkpoints(**options):
        every.append(Checkpoints(tmp_path, **options))
        return every[-1]

    yield open_checkpoints
    for checkpoints in every:
        checkpoints.close()


def steps_on_disk(workdir):
    return sorted(int(p.name) for p in (workdir / "checkpoints").iterdir() if p.name.isdecimal())


@pytest.mark.parametrize("others", [(7, 5), (5, 7), (7, 7, 0)], ids=str)
def test_processes_that_would_resume_from_different_steps_end(opened, others, monkeypatch):
    """In each of them, whichever step it sees itself."""
    first = opened()
    first.save(7, make_state(7), {})
    first.wait()
    given = []
    monkeypatch.setattr(
        checkpoint.distributed, "gather", lambda step: given.append(step) or np.array(others)
    )
    steps = ", ".join(map(str, others))
    with pytest.raises(CheckpointError, match=f"processes see different checkpoints.* {steps}:"):
        opened()
    assert given == [7], "each says what it sees itself"
    monkeypatch.setattr(checkpoint.distributed, "gather", lambda step: np.array([step] * 3))
    assert opened().latest_step == 7


def test_who_only_reads_agrees_with_nobody(opened, monkeypatch):
    """Such as the evaluation of a run that goes on: the others would never answer."""
    first = opened()
    first.save(7, make_state(7), {})
    first.wait()
    monkeypatch.delattr(checkpoint.distributed, "gather")
    assert opened(read_only=True).latest_step == 7


@pytest.mark.parametrize(
    ("optimizer", "momentum_dtype", "ema"),
    [
        *((name, dtype, False) for name in OPTIMIZERS for dtype in ("float32", "bfloat16")),
        ("adamw", "bfloat16", True),
        *(  # An average is saved beside whatever the optimiser has.
            pytest.param(name, dtype, True, marks=pytest.mark.slow)
            for name in OPTIMIZERS
            for dtype in ("float32", "bfloat16")
            if (name, dtype) != ("adamw", "bfloat16")
        ),
    ],
)
def test_a_state_comes_back_to_the_bit(opened, optimizer, momentum_dtype, ema):
    state = make_state(7, optimizer=optimizer, momentum_dtype=momentum_dtype, ema=ema)
    half = [leaf for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.bfloat16]
    assert len(half) == (3 if momentum_dtype == "bfloat16" else 0)
    first = opened()
    assert first.latest_step == 0
    first.save(7, state, {})
    first.wait()
    second = opened()
    assert second.latest_step == 7
    assert_equal(second.restore(7, abstract(state)), state)


@pytest.mark.parametrize("restored_on", [ONE, DATA, FSDP], ids=["one", "data=8", "fsdp=8"])
@pytest.mark.parametrize("saved_on", [ONE, FSDP], ids=["one", "fsdp=8"])
def test_a_state_comes_back_on_other_devices(opened, saved_on, restored_on):
    state = make_state(7, mesh=saved_on, ema=True, momentum_dtype="bfloat16")
    like = abstract(make_state(1, mesh=restored_on, ema=True, momentum_dtype="bfloat16"))
    first = opened()
    first.save(7, state, {})
    first.wait()
    found = opened().restore(7, like)
    assert_equal(found, state)
    for leaf, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=True):
        assert leaf.sharding == wanted.sharding
    kernel = found.params["embedding"]["kernel"]
    parts = restored_on.shape["fsdp"]
    assert {shard.data.size for shard in kernel.addressable_shards} == {kernel.size // parts}


@pytest.mark.parametrize("mesh", [ONE, DATA, FSDP], ids=["one", "data=8", "fsdp=8"])
def test_buffers_may_be_donated_as_soon_as_save_returns(opened, mesh):
    # Saving reads the buffers in the background; an update that overwrites them in place must not
    # reach the disk.
    num_saves = 5
    state = jax.tree.map(jnp.zeros_like, make_state(0, mesh=mesh, shapes=LARGE))
    places = jax.tree.map(lambda leaf: leaf.sharding, state)
    update = jax.jit(
        lambda state: jax.tree.map(lambda leaf: (leaf + 1).astype(leaf.dtype), state),
        donate_argnums=0,
        out_shardings=places,
    )
    checkpoints = opened(keep=num_saves)
    for step in range(1, num_saves + 1):
        previous, state = state, update(state)
        if step == 1:
            assert all(leaf.is_deleted() for leaf in jax.tree.leaves(previous))
        checkpoints.save(step, state, {})
    state = update(state)
    checkpoints.wait()
    like = abstract(state)
    for step in range(1, num_saves + 1):
        for leaf in jax.tree.leaves(checkpoints.restore(step, like)):
            np.testing.assert_array_equal(np.asarray(leaf), step)


def test_restored_buffers_may_be_donated(opened):
    # Restored arrays must own their memory, or an update in place overwrites someone else's.
    state = make_state(1, mesh=FSDP, shapes=LARGE)
    like, expected = abstract(state), jax.tree.map(lambda leaf: np.array(leaf) + 10, state)
    first = opened()
    first.save(1, state, {})
    first.wait()
    update = jax.jit(lambda state: jax.tree.map(lambda leaf: leaf + 1, state), donate_argnums=0)
    for _ in range(3):
        state = opened().restore(1, like)
        for _ in range(10):
            state = update(state)
            np.full((256, 1024), np.nan, np.float32)  # Takes memory that was set free.
        for found, wanted in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(np.asarray(found), wanted, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("keep", "best_metric", "scores", "kept"),
    [
        (1, "", [0.1, 0.2, 0.3], [3]),
        (2, "", [None, None, None], [2, 3]),
        (5, "", [None, None, None], [1, 2, 3]),
        (1, "eval/accuracy", [0.9, 0.2, 0.3], [1, 3]),
        (1, "eval/accuracy", [0.1, 0.9, None, None], [2, 4]),
        (1, "eval/accuracy", [0.1, 0.2, 0.3], [3]),
        (2, "eval/accuracy", [0.5, None, 0.4, None, 0.1], [1, 4, 5]),
        (1, "eval/accuracy", [None, None, None], [3]),
        (1, "eval/accuracy", [float("nan"), 0.1, None], [2, 3]),
    ],
)
def test_the_latest_and_the_best_are_kept(opened, tmp_path, keep, best_metric, scores, kept):
    checkpoints = opened(keep=keep, best_metric=best_metric)
    for step, score in enumerate(scores, start=1):
        metrics = {} if score is None else {"eval/accuracy": score, "eval/loss": 10.0 - score}
        checkpoints.save(step, make_state(step), metrics)
    checkpoints.wait()
    checkpoints.close()
    assert steps_on_disk(tmp_path) == kept


def test_an_old_checkpoint_that_has_no_metrics_at_all_goes_too(opened, tmp_path):
    """As one that an earlier version saved and nothing was measured of."""
    first = opened()
    first.save(1, make_state(1), {})
    first.close()
    shutil.rmtree(tmp_path / "checkpoints/1/metrics")
    (tmp_path / "checkpoints/1/digests.process_0.json").unlink()
    second = opened(best_metric="eval/accuracy")
    second.save(2, make_state(2), {"eval/accuracy": 0.5})
    second.wait()
    assert steps_on_disk(tmp_path) == [2]


def test_the_best_is_known_after_reopening(opened, tmp_path):
    first = opened(best_metric="eval/accuracy")
    assert first.is_best({"eval/accuracy": 0.0})
    assert not first.is_best({})
    assert not first.is_best({"eval/accuracy": float("nan")})
    first.save(1, make_state(1), {"eval/accuracy": 0.8})
    first.save(2, make_state(2), {"eval/accuracy": 0.5})
    assert not first.is_best({"eval/accuracy": 0.8})
    first.close()
    second = opened(best_metric="eval/accuracy")
    assert second.is_best({"eval/accuracy": 0.81})
    assert not second.is_best({"eval/accuracy": 0.8})
    assert (second.step_of("best"), second.step_of("latest"), second.step_of(2)) == (1, 2, 2)
    second.save(3, make_state(3), {"eval/accuracy": 0.9})
    second.wait()
    assert steps_on_disk(tmp_path) == [3]
    second.save(4, make_state(4), {})
    second.wait()
    assert opened(read_only=True).step_of("best") == 3, "the newest that was scored says by what"


def test_checkpoints_that_are_not_there_are_named_with_those_that_are(opened):
    checkpoints = opened(keep=2)
    with pytest.raises(CheckpointError, match=r"no checkpoint 'latest'.*none"):
        checkpoints.step_of("latest")
    checkpoints.save(3, make_state(3), {})
    checkpoints.save(5, make_state(5), {})
    checkpoints.wait()
    with pytest.raises(CheckpointError, match=r"no checkpoint 4.*3, 5"):
        checkpoints.step_of(4)
    with pytest.raises(CheckpointError, match=r"no checkpoint 'best'"):
        checkpoints.step_of("best")  # None was evaluated.
    with pytest.raises(CheckpointError, match=r"no checkpoint 'newest'"):
        checkpoints.step_of("newest")
    with pytest.raises(CheckpointError, match=r"no checkpoint '99[^;]{0,200}; it has: 3, 5"):
        checkpoints.step_of("9" * 5000)  # More digits than Python reads.


def test_a_step_is_saved_once(opened, tmp_path):
    checkpoints = opened()
    state = make_state(4)
    checkpoints.save(4, state, {})
    checkpoints.wait()
    before = everything_in(tmp_path)
    checkpoints.save(4, make_state(5), {})
    checkpoints.wait()
    assert everything_in(tmp_path) == before
    again = opened()
    again.save(4, make_state(5), {})
    again.wait()
    assert_equal(again.restore(4, abstract(state)), state)


def test_averaged_parameters_may_be_switched_on(opened, caplog):
    state = make_state(7)
    first = opened()
    first.save(7, state, {})
    first.wait()
    with caplog.at_level(logging.INFO, logger="vit_jax"):
        found = opened().restore(7, abstract(make_state(7, ema=True)))
    assert "has no averaged parameters: they start from here" in caplog.text
    assert_equal(found.ema, state.params)
    assert_equal(found._replace(ema=None), state)
    # Not the same buffers: a step donates both.
    pointers = {leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves((found.params, found.ema))}
    assert len(pointers) == 2 * len(SHAPES)


def test_averaged_parameters_may_be_switched_off(opened):
    state = make_state(7, ema=True)
    first = opened()
    first.save(7, state, {})
    first.wait()
    found = opened().restore(7, abstract(make_state(7)))
    assert found.ema is None
    assert_equal(found, state._replace(ema=None))


def test_momentum_may_change_its_precision(opened):
    state = make_state(7, momentum_dtype="float32")
    first = opened()
    first.save(7, state, {})
    first.wait()
    like = abstract(make_state(7, momentum_dtype="bfloat16"))
    found = opened().restore(7, like)
    expected = jax.tree.map(lambda leaf, wanted: leaf.astype(wanted.dtype), state, like)
    assert_equal(found, expected)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"optimizer": "sgd"}, r"7/optimizer: .* is .* in the checkpoint and .* in this run"),
        (
            {"shapes": {**SHAPES, "head/bias": (7,)}},
            r"7/params: head/bias is \(5,\) in the checkpoint and \(7,\) in this run.*config\.init",
        ),
        (
            {"shapes": {**SHAPES, "norm/scale": (3,)}},
            r"norm/scale is absent in the checkpoint and \(3,\) in this run",
        ),
        (
            {"shapes": {k: v for k, v in SHAPES.items() if k != "head/bias"}},
            r"head/bias is \(5,\) in the checkpoint and absent in this run",
        ),
    ],
)
def test_a_state_of_another_kind_is_refused_with_the_difference(opened, other, message):
    first = opened()
    first.save(7, make_state(7), {})
    first.wait()
    with pytest.raises(CheckpointError, match=message):
        opened().restore(7, abstract(make_state(7, **other)))


def test_a_newer_format_is_refused(opened, monkeypatch):
    first = opened()
    with monkeypatch.context() as newer:
        newer.setattr(checkpoint, "FORMAT_VERSION", checkpoint.FORMAT_VERSION + 1)
        first.save(7, make_state(7), {})
    first.wait()
    with pytest.raises(CheckpointError, match=r"checkpoints/7 has format version 2.*upgrade"):
        opened().restore(7, abstract(make_state(7)))


def test_a_tree_becomes_nested_dicts_and_comes_back():
    state = make_state(3)
    nested = to_nested(state.opt_state)
    assert set(nested["direction"]) == {"count", "mu", "nu"}
    assert_equal(from_nested(nested, state.opt_state), state.opt_state)


def test_what_a_killed_save_left_is_ignored_and_removed(opened, tmp_path):
    state = make_state(1)
    first = opened()
    first.save(1, state, {})
    first.close()
    directory = tmp_path / "checkpoints"
    leftover = directory / "2.orbax-checkpoint-tmp"
    shutil.copytree(directory / "1", leftover)
    shutil.rmtree(leftover / "params")
    second = opened(keep=2)
    assert second.latest_step == 1
    assert_equal(second.restore(1, abstract(state)), state)
    second.save(3, make_state(3), {})
    second.wait()
    assert steps_on_disk(tmp_path) == [1, 3]
    assert not leftover.exists()


def test_what_was_moved_aside_goes_when_a_run_opens_or_saves(opened, tmp_path):
    """A kill may leave it between the two steps of Orbax's deletion."""
    aside = tmp_path / "checkpoints/deleted/1"
    aside.mkdir(parents=True)
    opened(read_only=True)
    assert aside.exists(), "another process's run"
    checkpoints = opened()
    assert not aside.parent.exists()
    aside.mkdir(parents=True)
    checkpoints.save(2, make_state(2), {})
    checkpoints.wait()
    assert not aside.parent.exists()


def test_another_process_than_the_first_removes_nothing_and_has_digests_of_its_own(
    opened, tmp_path, monkeypatch
):
    another = types.SimpleNamespace(**{**vars(jax), "process_index": lambda: 3})
    monkeypatch.setattr(checkpoint, "jax", another)  # Of ours alone: Orbax would wait for others.
    aside = tmp_path / "checkpoints/deleted/1"
    aside.mkdir(parents=True)
    checkpoints = opened()
    checkpoints.save(2, make_state(2), {})
    checkpoints.wait()
    found = (tmp_path / "checkpoints/2").glob("digests.*")
    assert [path.name for path in found] == ["digests.process_3.json"]
    assert aside.exists()


def test_a_checkpoint_that_lost_an_item_is_no_success_and_gets_no_digests(
    opened, tmp_path, monkeypatch
):
    """Digests would say that it is whole. What its threads say later is not printed."""
    wait = ocp.CheckpointManager.wait_until_finished
    folder = tmp_path / "checkpoints/7"

    def lose(manager):
        wait(manager)
        shutil.rmtree(folder / "optimizer", ignore_errors=True)

    checkpoints = opened()
    monkeypatch.setattr(checkpoint, "being_written", threading.Event())
    with monkeypatch.context() as losing:
        losing.setattr(ocp.CheckpointManager, "wait_until_finished", lose)
        checkpoints.save(7, make_state(7), {})
        with pytest.raises(CheckpointError, match=r"7 is damaged \(it has no readable optimizer\)"):
            checkpoints.wait()
    assert not [*folder.glob("digests.*")]
    assert checkpoint.being_written.is_set()
    checkpoints.save(8, make_state(8), {})
    checkpoints.wait()
    assert [*folder.with_name("8").glob("digests.*")]
    assert not checkpoint.being_written.is_set()


def test_the_latest_is_not_said_to_be_an_average(opened, tmp_path):
    first = opened(best_metric="-eval_ema/loss")
    assert first.best() is None
    for step, loss in ((3, 0.5), (4, 0.25)):
        first.save(step, make_state(step), {"eval_ema/loss": loss, "eval/loss": 9.0})
    first.wait()
    assert first.best() == (4, {"-eval_ema/loss": -0.25})
    assert first.is_best({"eval_ema/loss": 0.2})
    assert not first.is_best({"eval_ema/loss": 0.3})
    for name, is_average in (("latest", False), ("best", True), (4, False), ("4", False)):
        assert checkpoint.find_checkpoint(tmp_path, name) == (4, is_average), name


@pytest.mark.parametrize("read_only", [True, False])
def test_a_run_compares_digests_with_all_its_processes_and_a_reader_alone(
    opened, read_only, monkeypatch
):
    """Nobody would answer a reader, such as the evaluation of a run that goes on."""
    first = opened()
    first.save(7, make_state(7), {})
    first.wait()
    second, check, compared = opened(read_only=read_only), digests.check, []

    def watched(directory, step, items=None, *, shared=False):
        compared.append((items and sorted(items), shared))
        return check(directory, step, items, shared=shared)

    monkeypatch.setattr(digests, "check", watched)
    second.restore(7, abstract(make_state(7)))
    second.restore_item(7, "params")
    assert compared == [(None, not read_only), (["format", "params"], False)]


@pytest.mark.parametrize(
    ("metric", "is_average"),
    [("eval_ema/loss", True), ("-eval_ema/loss", True), ("eval/loss_ema", False), ("ema/x", False)],
)
def test_metrics_of_averages_are_told_by_their_evaluator(opened, metric, is_average):
    checkpoints = opened(best_metric=metric)
    checkpoints.save(3, make_state(3), {metric.removeprefix("-"): 1.0})
    checkpoints.wait()
    assert checkpoints.scored_average(3) == is_average


@pytest.mark.parametrize("lost", ["params", "params/_METADATA"])
def test_an_item_that_cannot_be_read_is_damage(opened, tmp_path, lost):
    """Also without digests, as where the process was killed before it wrote them."""
    first = opened()
    first.save(7, make_state(7), {})
    first.wait()
    folder = tmp_path / "checkpoints/7"
    (folder / "digests.process_0.json").unlink()
    path = folder / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    second = opened()
    for call in (
        lambda: second.restore(7, abstract(make_state(7))),
        lambda: second.restore_item(7, "params"),
    ):
        with pytest.raises(CheckpointError, match=r"7 is damaged \(it has no readable params\)"):
            call()
