"""Parts of a batch: which rows each has, and what they come to together."""

import jax
import numpy as np
import pytest

from tests.calls import recorded
from tests.stages import Setup, config_with, mesh_of, run_on
from vit_jax.devices import sharding
from vit_jax.errors import ConfigError
from vit_jax.parameters import TrainablePart
from vit_jax.training import exchange, gradients
from vit_jax.training.exchange import Exchange, on_use
from vit_jax.training.gradients import axes_apart, check_batch, in_order, interleaved


def test_micro_batches_take_rows_from_all_over_the_batch():
    """So that each of two devices, with four rows each, has two rows of both."""
    rows = np.arange(8)
    np.testing.assert_array_equal(interleaved(rows, 2), [[0, 2, 4, 6], [1, 3, 5, 7]])


def test_shares_are_neighbours():
    np.testing.assert_array_equal(in_order(np.arange(8), 2), [[0, 1, 2, 3], [4, 5, 6, 7]])


HALF, MICRO = {"model.dtype": "bfloat16"}, {"optimizer.accumulation_steps": 2}
IN_ITS_TYPE, ONCE = {"optimizer.gradient_dtype": "model"}, {"optimizer.reduce_once": True}
SHARP = {"optimizer.sharpness.rho": 0.1}


@pytest.mark.parametrize(
    ("values", "axes"),
    [
        ({}, ()),
        (ONCE, ()),  # The compiler's own sum is the same.
        (HALF, ("data", "fsdp")),
        (MICRO, ("data", "fsdp")),
        (HALF | IN_ITS_TYPE, ()),
        (HALF | IN_ITS_TYPE | ONCE, ("data", "fsdp")),
        (MICRO | IN_ITS_TYPE | ONCE, ("data", "fsdp")),
        (SHARP | MICRO, ("data", "fsdp")),
        (SHARP | {"optimizer.sharpness.shares": 4}, ("data",)),
        (SHARP | {"optimizer.sharpness.shares": 3}, ()),  # Two devices work on one together.
    ],
    ids=str,
)
def test_the_axes_along_which_devices_compute_apart(values, axes):
    assert axes_apart(config_with(**values), mesh_of(4, data=2, fsdp=2)) == axes


@pytest.mark.parametrize(
    ("values", "unit"),
    [
        ({}, 4),
        (MICRO, 8),
        (SHARP, 4),
        (SHARP | {"optimizer.sharpness.shares": 3}, 12),
        (SHARP | MICRO | {"optimizer.sharpness.shares": 4}, 16),  # data=2 has two shares each.
        ({"optimizer.sharpness.shares": 3}, 4),  # Without SAM there are none.
    ],
    ids=str,
)
def test_devices_micro_batches_and_shares_divide_the_batch(values, unit):
    mesh = mesh_of(4, data=2, fsdp=2)
    check_batch(config_with(**values, batch_size=5 * unit), mesh)
    with pytest.raises(ConfigError, match=rf"= {unit}; the nearest that is: {unit} or {2 * unit}"):
        check_batch(config_with(**values, batch_size=unit + unit // 2), mesh)


def test_devices_exchange_along_the_axes_apart_as_the_config_says(monkeypatch):
    made = recorded(monkeypatch, gradients, "Exchange", Exchange(None, (), False, {}, ""))
    mesh, kept = mesh_of(4, data=2, fsdp=2), TrainablePart({})
    spec = jax.sharding.PartitionSpec("fsdp", "tensor")
    shardings = {"kernel": jax.sharding.NamedSharding(mesh, spec)}
    for values, axes in ((HALF | ONCE, ("data", "fsdp")), (HALF, ("data", "fsdp")), ({}, ())):
        config = config_with(**values)
        gradients.make_gradient(config, None, kept, None, shardings, mesh)
        split = jax.sharding.PartitionSpec("fsdp" if axes else None, None)
        once, dtype = "optimizer.reduce_once" in values, config.model.dtype
        assert made.pop() == ((mesh, axes, once, {"kernel": split}, dtype), {})


def test_shares_draw_the_same_on_any_number_of_devices():
    values = {
        **{"model.dropout_rate": 0.3, "optimizer.sharpness.rho": 0.1},
        **{"optimizer.sharpness.shares": 4, "total_steps": 2, "warmup_steps": 0},
    }
    losses, _, state = run_on(mesh_of(2, data=2), **values)
    expected, _, whole = run_on(mesh_of(1), **values)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for one, other in zip(*map(jax.tree.leaves, (state.params, whole.params)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


def test_a_layers_array_is_gathered_as_it_was_left(monkeypatch):
    """Along its own dimension, without that of the layers, in the type of the products."""
    asked = []
    monkeypatch.setattr(exchange, "gathered", lambda *given: asked.append(given))
    split = jax.sharding.PartitionSpec(None, None, "fsdp")
    tree = {"blocks": {"kernel": np.zeros((2, 4, 6), np.float32)}, "head": np.zeros((4, 6))}
    specs = {"blocks": {"kernel": split}, "head": jax.sharding.PartitionSpec("fsdp")}
    found = on_use(tree, specs, "bfloat16")
    assert [given[:2] for given in asked] == [(0, np.float64)], "what is no block's is at once"
    found["blocks"]["kernel"].make("part")
    assert asked[1] == (1, "bfloat16", "part")
    untold = on_use(tree, specs)["blocks"]["kernel"].make
    assert (untold.dimension, untold.dtype) == (1, "float32")
    whole = jax.sharding.PartitionSpec()
    assert on_use({"a": 3}, {"a": whole}) == {"a": 3}


def test_of_blocks_kernels_alone_are_rounded_before_they_are_gathered():
    split = jax.sharding.PartitionSpec(None, "fsdp")
    names = ("attention/kernel", "norm1/scale", "mlp/bias")
    tree = {"blocks": {name: np.zeros((2, 4), np.float32) for name in names}}
    specs = {"blocks": dict.fromkeys(names, split)}
    found = {
        name: one.make.dtype for name, one in on_use(tree, specs, "bfloat16")["blocks"].items()
    }
    rest = dict.fromkeys(names[1:], "float32")
    assert found == {"attention/kernel": "bfloat16", **rest}


@pytest.fixture
def run_split(monkeypatch):
    """As `run_on`, of arrays that are split from a 64th of the usual size: an eighth as wide."""
    monkeypatch.setattr(sharding, "MIN_FSDP_ELEMENTS", sharding.MIN_FSDP_ELEMENTS // 64)
    return lambda mesh, **values: Setup(config_with(**values), mesh).run()


@pytest.mark.parametrize(
    ("once", "axes"),
    [
        pytest.param(
            False, {"data": 2, "fsdp": 2}, marks=pytest.mark.slow
        ),  # As the others' parts.
        (False, {"fsdp": 2, "tensor": 2}),
        (True, {"data": 2, "fsdp": 2}),
    ],
)
def test_split_parameters_are_trained_as_on_one_device(run_split, once, axes):
    """With dropout, two micro-batches, frozen layers and SAM, whose way uphill is that of all devices.

    Gathered where used, or once an update.
    """
    values = {
        **{"model.mlp_width": 32, "model.dropout_rate": 0.1, "optimizer.sharpness.rho": 0.3},
        **{"optimizer.accumulation_steps": 2, "optimizer.freeze": "blocks/00/|embedding/bias"},
        **{"total_steps": 3, "warmup_steps": 0, "optimizer.reduce_once": once},
    }
    losses, _, state = run_split(mesh_of(4, **axes), **values)
    expected, _, whole = run_on(mesh_of(1), **(values | {"optimizer.reduce_once": False}))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    spec = state.params["blocks"]["mlp"]["dense1"]["kernel"].sharding.spec
    assert "fsdp" in spec
    for one, other in zip(*map(jax.tree.leaves, (state.params, whole.params)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)


SMALL = {  # Their own arrays: wide enough to be split, or as small as they can be.
    "tests.objectives.twofold:Twofold": {},
    "masked_autoencoder": {"decoder_width": 32, "decoder_depth": 2, "decoder_heads": 4},
    "self_distillation": {
        "prototypes": 32,
        "head_width": 16,
        "bottleneck_width": 8,
        "local_views": 1,
    },
}


@pytest.mark.parametrize(
    "objective",
    # The first has own blocks, as the second, and a teacher, as the third.
    [name if ":" in name else pytest.param(name, marks=pytest.mark.slow) for name in SMALL],
)
def test_an_objectives_own_blocks_and_teachers_are_gathered_too(run_split, objective):
    """And its micro-batches come to what the whole batch does."""
    own = {f"objective.{name}": value for name, value in SMALL[objective].items()}
    values = {
        **{"model.mlp_width": 32, "total_steps": 2, "warmup_steps": 0},
        **{"optimizer.accumulation_steps": 2, "objective.name": objective, "model.num_classes": 0},
        **own,
    }
    losses, _, state = run_split(mesh_of(2, fsdp=2), **values)
    expected, _, whole = run_on(mesh_of(1), **(values | {"optimizer.accumulation_steps": 1}))
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    for one, other in zip(*map(jax.tree.leaves, (state, whole)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-4)
    own = state.params["objective"].get("blocks")
    for tree in (state.params, own, state.objective.get("teacher")):
        split = [leaf.sharding.spec for leaf in jax.tree.leaves(tree)]
        assert not tree or any("fsdp" in spec for spec in split)
