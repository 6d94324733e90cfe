"""Optimisers, schedules and losses in the trainer, on the smallest model."""

import jax.numpy as jnp
import numpy as np
import pytest

from tests.stages import Setup, config_with, mesh_of, run_on
from vit_jax import train
from vit_jax.optimizer import OPTIMIZERS
from vit_jax.parameters import named_leaves

RATES = {
    "adamw": 2e-3,
    "sgd": 0.1,
    "lion": 2e-3,
    "lamb": 0.02,
    "adafactor": 5e-3,
    "muon": 5e-3,
    "lars": 0.3,
}


def fit_one_batch(**values):
    """The losses of 20 updates on the same batch."""
    config = config_with(**{"warmup_steps": 0, "model.position_std": 0.5, **values})
    setup = Setup(config, mesh_of(1))
    batch, state, losses = next(setup.batches()), setup.state, []
    for _ in range(20):
        state, metrics = setup.step(state, batch)
        losses.append(float(metrics["loss"]))
    assert {leaf.dtype for _, leaf in named_leaves(state.params)} == {jnp.dtype("float32")}
    return np.array(losses)


# The fast tests have their values: `test_train.py`, `optimizer/`; and see muon below.
FOLLOWED = ("adamw", "sgd", "lion", "lamb", "lars", "muon")


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in FOLLOWED)) for n in OPTIMIZERS]
)
def test_every_optimizer_learns(name):
    losses = fit_one_batch(
        total_steps=20, **{"optimizer.name": name, "optimizer.learning_rate": RATES[name]}
    )
    assert losses[-1] < 0.95 * losses[0]


@pytest.mark.parametrize(
    "name",
    ["muon", *(pytest.param(name, marks=pytest.mark.slow) for name in ("lamb", "adafactor"))],
)
def test_optimizers_of_whole_matrices_train_alike_on_every_mesh(name):
    """Norms, factors and orthogonal matrices must not be those of a device's shard."""
    values = {"model.width": 64, "model.mlp_width": 512, "total_steps": 3, "warmup_steps": 0}
    values |= {"optimizer.name": name, "optimizer.momentum_dtype": "float32"}
    losses, _, _ = run_on(mesh_of(1), **values)
    mesh_losses, _, _ = run_on(mesh_of(fsdp=8), **values)
    np.testing.assert_allclose(mesh_losses, losses, atol=2e-4)


def test_smoothing_is_of_training_only(tmp_path):
    """The rate is 0, the head's kernel too: every logit is -2, in training and in evaluation."""
    values = {
        "total_steps": 1,
        "objective.loss": "sigmoid",
        "objective.label_smoothing": 0.5,
        "model.head_bias": -2.0,
    }
    found = train.run(config_with(**values, **{"optimizer.learning_rate": 0.0}), tmp_path)
    present, absent = np.logaddexp(0, 2), np.logaddexp(0, -2)
    np.testing.assert_allclose(found["eval/loss"], present + 9 * absent, rtol=1e-5)
    # The own class has 1 / 2 and a tenth of the other half, every other one a tenth of that half.
    own, other = 0.55 * present + 0.45 * absent, 0.05 * present + 0.95 * absent
    np.testing.assert_allclose(found["train/loss"], own + 9 * other, rtol=1e-5)


def test_bfloat16_with_accumulation_tracks_float32():
    values = {"total_steps": 20, "optimizer.accumulation_steps": 4}
    values |= {"optimizer.learning_rate": 3e-3}
    exact, rounded = (
        fit_one_batch(**values, **{"model.dtype": dtype}) for dtype in ("float32", "bfloat16")
    )
    np.testing.assert_allclose(rounded, exact, atol=1e-2)
    assert (rounded != exact).any()
    assert exact[-1] < exact[0] - 0.5  # There is something to track.


def test_a_dry_run_says_how_every_parameter_is_trained(caplog):
    config = config_with(
        **{
            "optimizer.freeze": "^embedding",
            "optimizer.layer_decay": 0.5,
            "optimizer.rate_multipliers": (("^head/", 10.0),),
        }
    )
    with caplog.at_level("INFO"):
        train.run(config, "", dry_run=True)
    text = caplog.text
    for line in (
        "freeze '^embedding': 2 names, embedding/bias, embedding/kernel",
        "rate_multipliers '^head/' x 10: 2 names, head/bias, head/kernel",
        "320         x 10           0.1           head/kernel",
        "x 0.25         0.1           blocks/00/attention/key/kernel and 5 more",
        "frozen                       embedding/bias and 1 more",
    ):
        assert line in text
