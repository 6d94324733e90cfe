"""A run that cannot learn says so before it starts."""

import pytest

from tests.stages import config_with
from vit_jax.durations import durations
from vit_jax.training.experiment import build_schedule


@pytest.mark.parametrize(
    ("values", "learns"),
    [
        ({"total_steps": 1, "warmup_steps": 1}, False),
        ({"total_steps": 1, "warmup_steps": 10}, False),
        ({"total_steps": 0, "total_epochs": 0.001, "warmup_steps": 0, "warmup_epochs": 5}, False),
        ({"total_steps": 9, "warmup_steps": 0, "optimizer.learning_rate": 0.0}, False),
        ({"total_steps": 1, "warmup_steps": 0}, True),
        ({"total_steps": 1, "warmup_steps": 1, "schedule.warmup_start": 1e-6}, True),
        ({"total_steps": 2, "warmup_steps": 2}, True),
        ({"total_steps": 2, "warmup_steps": 0, "cooldown_steps": 1}, True),
    ],
)
def test_a_run_of_updates_with_rate_0(values, learns, caplog):
    config = config_with(**values)
    build_schedule(config, durations(config, 1000))
    assert ("NOTHING WILL BE LEARNED" in caplog.text) == (not learns)


@pytest.mark.parametrize(
    ("warmup", "cooldown", "told"), [(9, 1, False), (9, 2, True), (10, 0, True), (0, 10, False)]
)
def test_a_run_without_room_for_its_peak(warmup, cooldown, told, caplog):
    config = config_with(total_steps=10, warmup_steps=warmup, cooldown_steps=cooldown)
    build_schedule(config, durations(config, 1000))
    assert ("has no room for its warm-up" in caplog.text) == told
