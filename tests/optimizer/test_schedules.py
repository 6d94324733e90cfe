"""Learning rates, against the reference code's (tests/golden/schedules.npz) and by hand."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from vit_jax.optimizer.schedules import SCHEDULES, make_schedule


def steps_until(last):
    """All of them, or as many as are compiled for: one program for any number."""
    return np.linspace(0, last, 512).astype(np.int32)


GOLDEN = pathlib.Path(__file__).parent.parent / "golden"


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
    [
        ("cosine", 0.25, 0.0),
        ("linear", (0.5 + 1e-5) / 2, 1e-5),
        ("constant", 0.5, 0.5),
        ("step", 0.05, 0.0005),
    ],
)
def test_without_warmup_the_first_update_has_the_peak(name, half, end):
    schedule = make_schedule(name, base=0.5, total_steps=100, warmup_steps=0)
    rates = [schedule(step) for step in (0, 50, 100, 1000)]
    np.testing.assert_allclose(rates, [0.5, half, end, end], atol=1e-7)


def test_linear_decay_may_end_elsewhere():
    schedule = make_schedule("linear", base=1.0, total_steps=4, warmup_steps=0, end=0.2)
    np.testing.assert_allclose([schedule(step) for step in range(5)], [1, 0.8, 0.6, 0.4, 0.2])


def test_rsqrt_falls_with_the_root_of_the_updates_after_the_warmup():
    schedule = make_schedule("rsqrt", base=0.8, total_steps=1000, warmup_steps=10, timescale=100.0)
    found = schedule(np.array([0, 5, 10, 110, 310, 810]))
    np.testing.assert_allclose(found, [0, 0.4, 0.8, 0.8 / 2**0.5, 0.4, 0.8 / 3], rtol=1e-6)
    slow = make_schedule("rsqrt", base=0.8, total_steps=1000, warmup_steps=0)
    np.testing.assert_allclose(slow(300), 0.8 / np.sqrt(1.03), rtol=1e-6)  # 10,000 by default.


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_cooldown_goes_to_zero_over_the_last_updates(name):
    options = {"base": 0.8, "total_steps": 100, "warmup_steps": 10}
    steps = np.arange(101)
    plain = np.asarray(make_schedule(name, **options)(steps))
    cooled = np.asarray(make_schedule(name, **options, cooldown_steps=20)(steps))
    np.testing.assert_array_equal(cooled[:81], plain[:81])
    np.testing.assert_allclose(cooled[81:], plain[81:] * np.arange(19, -1, -1) / 20, rtol=1e-5)


def test_scaling_vits_schedule():
    """2106.04560: rsqrt of 10,000 after as long a warm-up, 50,000 updates of cooldown."""
    schedule = make_schedule(
        "rsqrt", base=8e-4, total_steps=1_000_000, warmup_steps=10_000, cooldown_steps=50_000
    )
    rates = schedule(np.array([10_000, 40_000, 950_000, 975_000, 1_000_000]))
    plain = 8e-4 / np.sqrt(1 + np.array([0, 30_000, 940_000, 965_000, 0]) / 10_000)
    np.testing.assert_allclose(rates, plain * [1, 1, 1, 0.5, 0], rtol=1e-5)


def test_steps_come_where_the_shares_of_the_run_end():
    """BiT's HyperRule: 500 updates, a tenth at 200, 300 and 400."""
    schedule = make_schedule(
        "step", base=3e-3, total_steps=500, warmup_steps=100, boundaries=(0.4, 0.6, 0.8)
    )
    rates = schedule(np.array([0, 50, 100, 199, 200, 299, 300, 399, 400, 499]))
    expected = [0, 1.5e-3, 3e-3, 3e-3, 3e-4, 3e-4, 3e-5, 3e-5, 3e-6, 3e-6]
    np.testing.assert_allclose(rates, expected, rtol=1e-5)


def test_steps_have_any_factor_and_number():
    schedule = make_schedule(
        "step", base=1.0, total_steps=90, warmup_steps=0, boundaries=(1 / 3, 2 / 3), factor=0.5
    )
    rates = schedule(np.array([29, 30, 59, 60, 89]))
    np.testing.assert_allclose(rates, [1, 0.5, 0.5, 0.25, 0.25])
    rounded = make_schedule(
        "step", base=1.0, total_steps=100, warmup_steps=0, boundaries=(0.29, 0.586), factor=0.5
    )  # 28.999… and 58.6
    np.testing.assert_allclose(rounded(np.array([28, 29, 58, 59])), [1, 0.5, 0.5, 0.25])
    flat = make_schedule("step", base=1.0, total_steps=9, warmup_steps=0, boundaries=())
    np.testing.assert_array_equal(flat(np.arange(9)), np.ones(9))


def test_warmup_and_decay_may_start_and_end_elsewhere():
    """DeiT-III as re-implemented in JAX: 1e-6, up to the peak, and down to 1e-5."""
    schedule = make_schedule(
        "cosine", base=3e-3, total_steps=1000, warmup_steps=100, warmup_start=1e-6, end=1e-5
    )
    expected = optax.warmup_cosine_decay_schedule(1e-6, 3e-3, 100, 1000, end_value=1e-5)
    steps = np.arange(1001)
    np.testing.assert_allclose(schedule(steps), expected(steps), rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("total", [1, 2, 9, 10])
def test_a_run_within_its_warmup_only_warms_up(name, total):
    schedule = make_schedule(name, base=1.0, total_steps=total, warmup_steps=10)
    steps = steps_until(total - 1)
    np.testing.assert_allclose(schedule(steps), steps / 10, rtol=1e-6)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("total", "warmup"), [(1, 0), (1, 1), (5, 5), (5, 50), (100_000, 10_000)])
def test_rates_are_always_finite_and_never_above_the_peak(name, total, warmup):
    schedule = make_schedule(name, base=3e-3, total_steps=total, warmup_steps=warmup)
    rates = np.asarray(schedule(steps_until(total + 1)))
    assert np.isfinite(rates).all()
    assert rates.min() >= 0
    assert rates.max() <= 3e-3 * (1 + 1e-6)
