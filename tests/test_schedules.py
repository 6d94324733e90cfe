"""Learning rates, against the reference code's (tests/golden/schedules.npz) and by hand."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.schedules import SCHEDULES, make_schedule

GOLDEN = pathlib.Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", ["cosine", "linear"])
def test_rates_are_the_reference_codes(name):
    with np.load(GOLDEN / "schedules.npz") as file:
        total, base, warmup = file["total_base_warmup"]
        steps, expected = file["steps"], file[name]
    schedule = make_schedule(
        name, base=float(base), total_steps=int(total), warmup_steps=int(warmup)
    )
    assert len(steps) == 10
    np.testing.assert_allclose(schedule(jnp.asarray(steps)), expected, rtol=0, atol=1e-6 * base)
    # One by one, traced, as the trainer asks for them.
    one = jax.jit(schedule)(jnp.int32(steps[5]))
    np.testing.assert_allclose(one, expected[5], rtol=0, atol=1e-6 * base)
    assert one.dtype == jnp.float32


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_first_update_of_a_warmup_has_rate_0_and_its_end_the_peak(name):
    schedule = make_schedule(name, base=0.5, total_steps=100, warmup_steps=10)
    np.testing.assert_allclose([schedule(step) for step in (0, 1, 5, 10)], [0, 0.05, 0.25, 0.5])


@pytest.mark.parametrize(
    ("name", "half", "end"),
    [("cosine", 0.25, 0.0), ("linear", (0.5 + 1e-5) / 2, 1e-5), ("constant", 0.5, 0.5)],
)
def test_without_warmup_the_first_update_has_the_peak(name, half, end):
    schedule = make_schedule(name, base=0.5, total_steps=100, warmup_steps=0)
    rates = [schedule(step) for step in (0, 50, 100, 1000)]
    np.testing.assert_allclose(rates, [0.5, half, end, end], atol=1e-7)


def test_linear_decay_may_end_elsewhere():
    schedule = make_schedule("linear", base=1.0, total_steps=4, warmup_steps=0, linear_end=0.2)
    np.testing.assert_allclose([schedule(step) for step in range(5)], [1, 0.8, 0.6, 0.4, 0.2])


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("total", [1, 2, 9, 10])
def test_a_run_within_its_warmup_only_warms_up(name, total):
    schedule = make_schedule(name, base=1.0, total_steps=total, warmup_steps=10)
    np.testing.assert_allclose(schedule(np.arange(total)), np.arange(total) / 10, rtol=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (1, 1), (5, 5), (5, 50), (100_000, 10_000)])
def test_rates_are_always_finite_and_never_above_the_peak(name, total, warmup):
    schedule = make_schedule(name, base=3e-3, total_steps=total, warmup_steps=warmup)
    rates = np.asarray(schedule(np.arange(total + 2)))
    assert np.isfinite(rates).all()
    assert rates.min() >= 0
    assert rates.max() <= 3e-3 * (1 + 1e-6)
