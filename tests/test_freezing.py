"""Training with frozen parameters: they keep their bits, and cost the optimiser nothing."""

import jax
import numpy as np
import pytest
from flax import nnx

import vit_jax
from tests import stages
from tests.stages import Setup, mesh_of, random_model
from vit_jax import train
from vit_jax.checkpoint import restore_params
from vit_jax.devices import sharding
from vit_jax.errors import CheckpointError
from vit_jax.parameters import layer_names, named_leaves

SIZES = ("image_size", "channels", "width", "depth", "num_heads", "mlp_width")


@pytest.fixture(scope="module", autouse=True)
def _on_one_device(on_one_device):
    """See there."""


def config_with(**values):
    return stages.config_with(**{"model.depth": 3, "warmup_steps": 0, **values})


def by_layer(params):
    """Every parameter of every layer by its name for regular expressions."""
    layers = {}
    for name, leaf in named_leaves(params):
        names = layer_names(name, leaf.shape)
        rows = np.asarray(leaf) if len(names) > 1 else [np.asarray(leaf)]
        layers.update(zip(names, rows, strict=True))
    return layers


def changed_names(before, after):
    before, after = by_layer(before), by_layer(after)
    return {name for name in before if not np.array_equal(before[name], after[name])}


@pytest.mark.parametrize(
    ("freeze", "is_frozen", "axes"),
    [
        pytest.param(  # As the probe below.
            *("^(?!head/)", lambda name: not name.startswith("head/"), {}), marks=pytest.mark.slow
        ),
        ("blocks/0[01]/", lambda name: "blocks/00" <= name < "blocks/02", {"fsdp": 2}),
        (
            "blocks/01/attention|bias$",
            lambda name: name.startswith("blocks/01/attention") or name.endswith("bias"),
            {},
        ),
    ],
)
def test_exactly_the_frozen_keep_their_bits(freeze, is_frozen, axes, monkeypatch):
    """Updates of AdamW with weight decay, averaging, accumulation and stochastic depth."""
    monkeypatch.setattr(sharding, "MIN_FSDP_ELEMENTS", 2048)  # So that kernels are split.
    values = {
        "optimizer.freeze": freeze,
        "optimizer.accumulation_steps": 2,
        "batch_size": 16,
        "total_steps": 4,
        "ema_decay": 0.9,
        "model.stochastic_depth_rate": 0.2,
    }
    config = config_with(**values)
    setup = Setup(config, mesh_of(2 if axes else 1, **axes))
    kernel = setup.abstract.params["blocks"]["mlp"]["dense1"]["kernel"]
    assert ("fsdp" in kernel.sharding.spec) == bool(axes)
    before = jax.tree.map(np.array, setup.state.params)
    _, _, state = setup.run()
    expected = {name for name in by_layer(before) if not is_frozen(name)}
    # A bias on all keys changes no softmax: its gradient is zero but for rounding.
    expected = {name for name in expected if "key/bias" not in name}
    for after in (state.params, state.ema):
        assert {n for n in changed_names(before, after) if "key/bias" not in n} == expected
    moments = state.opt_state["direction"]
    wanted = {name: leaf.shape for name, leaf in named_leaves(setup.trainable.select(before))}
    for moment in (moments.mu, moments.nu):
        assert {name: leaf.shape for name, leaf in named_leaves(moment)} == wanted


def test_a_frozen_layer_leaves_the_others_gradients_alone():
    """One step of SGD: what is trained moves as if nothing were frozen."""
    states = {}
    for freeze in ("", "blocks/01/"):
        config = config_with(**{"optimizer.name": "sgd", "optimizer.freeze": freeze})
        config.optimizer.grad_clip_norm, config.total_steps = 0.0, 1
        _, _, states[freeze] = Setup(config, mesh_of(1)).run()
    free, frozen = (by_layer(state.params) for state in states.values())
    for name, value in free.items():
        if not name.startswith("blocks/01/"):
            np.testing.assert_allclose(frozen[name], value, atol=1e-7, err_msg=name)


def test_fsdp_splits_the_state_of_the_layers_that_are_trained():
    values = {"optimizer.freeze": "blocks/01/", "model.width": 64, "model.mlp_width": 512}
    config = config_with(**values)
    setup = Setup(config, mesh_of(fsdp=8))
    moments = dict(named_leaves(setup.abstract.opt_state["direction"].mu))
    kernel = moments["blocks/mlp/dense1/kernel"]
    assert kernel.shape == (2, 64, 512)
    assert kernel.sharding.shard_shape(kernel.shape) == (2, 64, 64)


def test_a_probe_starts_from_the_weights_of_a_model_and_keeps_what_it_froze(tmp_path):
    probe = config_with(total_steps=2, **{"optimizer.freeze": "^(?!head/)", "init_skip": "^head/"})
    sizes = {name: probe.model[name] for name in SIZES}
    model = random_model(probe.model.name, num_classes=10, **sizes)
    vit_jax.save_model(model, tmp_path / "pretrained", "vit_jax")
    probe.init = str(tmp_path / "pretrained")
    train.run(probe, tmp_path / "probe")
    trunk = nnx.to_pure_dict(nnx.split(model)[1])
    found = restore_params(tmp_path / "probe")
    assert changed_names(trunk, found) == {"head/bias", "head/kernel"}

    probe.optimizer.freeze = "blocks/01/"
    with pytest.raises(
        CheckpointError, match=r"optimizer\.freeze='\^\(\?!head/\)', not 'blocks/01"
    ):
        train.run(probe, tmp_path / "probe")
