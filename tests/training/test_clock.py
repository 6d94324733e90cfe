from contextlib import suppress

import pytest

from vit_jax.training.clock import Clock, Throughput


class FakeTime:
    """A clock's hands, moved by the test."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


class TestClock:
    def test_pauses_do_not_count(self):
        time = FakeTime()
        clock = Clock(time)
        time.seconds += 5
        with clock.paused():
            time.seconds += 60
        time.seconds += 2
        assert clock.seconds == 7

    def test_waiting_for_data_counts_twice(self):
        time = FakeTime()
        clock = Clock(time)
        time.seconds += 3
        with clock.waiting_for_data():
            time.seconds += 1
        assert (clock.seconds, clock.data_wait) == (4, 1)

    def test_an_error_ends_the_pause(self):
        time = FakeTime()
        clock = Clock(time)
        with suppress(RuntimeError), clock.paused():
            time.seconds += 60
            raise RuntimeError
        time.seconds += 1
        assert clock.seconds == 1


class TestThroughput:
    def make(self, time, **options):
        defaults = {"batch_size": 50, "total_steps": 100, "num_devices": 4, "flops_per_image": 1e12}
        return Throughput(clock=Clock(time), **(defaults | options))

    def test_first_step_has_cost_but_no_speed(self):
        throughput = self.make(FakeTime())
        throughput.start(1)
        assert throughput.metrics(1) == {
            "train/examples": 50,
            "train/device_hours": 0,
            "train/exaflops": 50e12 / 1e18,
        }

    def test_speeds_are_those_of_the_interval(self):
        time = FakeTime()
        throughput = self.make(time, peak_flops=1e14, device_hours=0.5)
        time.seconds += 2
        throughput.start(1)
        time.seconds += 10
        throughput.metrics(11)  # 1 s a step
        with throughput.clock.paused():
            time.seconds += 1000
        time.seconds += 15
        with throughput.clock.waiting_for_data():
            time.seconds += 5
        metrics = throughput.metrics(21)  # 2 s a step
        assert metrics == pytest.approx(
            {
                "train/examples": 21 * 50,
                "train/images_per_second": 25,
                "train/data_wait": 0.25,
                "train/eta_seconds": 79 * 2,
                "train/mfu": 25 * 1e12 / (4 * 1e14),
                "train/device_hours": 0.5 + 32 * 4 / 3600,
                "train/exaflops": 21 * 50 * 1e12 / 1e18,
            }
        )

    def test_unknown_peak_leaves_mfu_out(self):
        time = FakeTime()
        throughput = self.make(time)
        throughput.start(1)
        time.seconds += 1
        assert "train/mfu" not in throughput.metrics(2)
