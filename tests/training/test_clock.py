import time
import types
from contextlib import suppress

import pytest

from vit_jax.training import clock
from vit_jax.training.clock import (
    Clock,
    Kind,
    Throughput,
    describe,
    end_of_run,
    free_since,
    spent_before,
)


class FakeTime:
    """A clock's hands, moved by the test."""

    def __init__(self):
        self.seconds = 100.0

    def __call__(self):
        return self.seconds


class TestClock:
    def test_each_moment_is_of_one_kind(self):
        time = FakeTime()
        clock = Clock(time, since=98.0)
        time.seconds += 3
        with clock.spending(Kind.DATA_WAIT):  # Of the first batch.
            time.seconds += 1
        with clock.spending(Kind.COMPILE):
            time.seconds += 7
        clock.begin(Kind.STEPS)
        time.seconds += 10
        with clock.spending(Kind.DATA_WAIT):
            time.seconds += 2
        with clock.spending(Kind.EVALUATION):
            time.seconds += 60
        time.seconds += 4
        with clock.spending(Kind.SAVING):
            time.seconds += 5
        expected = {"start": 5, "data_wait": 3, "compile": 7, "steps": 14}
        expected |= {"evaluation": 60, "saving": 5, "lost": 0}
        assert clock.metrics() == {f"time/{kind}": value for kind, value in expected.items()}
        assert sum(expected.values()) == time.seconds - 98
        assert clock.seconds == 14 + 3

    def test_an_error_ends_what_it_was_in(self):
        time = FakeTime()
        clock = Clock(time)
        clock.begin(Kind.STEPS)
        with suppress(RuntimeError), clock.spending(Kind.SAVING):
            time.seconds += 60
            raise RuntimeError
        time.seconds += 1
        assert clock.seconds == 1

    def test_what_was_recorded_after_the_checkpoint_is_lost(self):
        kept = {"step": 3, "time/start": 5.0, "time/steps": 10.0, "time/lost": 1.0}
        cut = {
            "step": 5,
            "time/start": 5.0,
            "time/steps": 14.0,
            "time/saving": 3.0,
            "time/lost": 1.0,
        }
        clock = Clock(FakeTime(), before=spent_before(kept, cut))
        expected = dict.fromkeys(Kind, 0.0) | {"start": 5, "steps": 10, "lost": 1 + 4 + 3}
        assert clock.metrics() == {f"time/{kind}": value for kind, value in expected.items()}
        assert spent_before(kept, kept)["lost"] == 1
        assert spent_before(cut, kept)["lost"] == 1, "nothing can be won"
        nulls = {"time/steps": None, "time/lost": 2.0}
        assert spent_before(nulls, nulls) == dict.fromkeys(Kind, 0.0) | {"lost": 2.0}

    def test_earlier_versions_recorded_nothing(self):
        assert not any(spent_before({"step": 3}, {"step": 5}).values())

    def test_it_is_described_in_a_line(self):
        seconds = {"time/start": 10.0, "time/steps": 80.0, "time/data_wait": 10.0, "time/lost": 0.0}
        text = "Wall time 1m40s: steps 80.0%, start 10.0%, data wait 10.0%."
        assert describe(seconds) == text
        assert describe({"time/steps": 0.0}) == "Wall time 0s: none."
        shares = {"time/steps": 9990.0, "time/saving": 5.0, "time/start": 4.0, "time/lost": 1.0}
        assert describe(shares).endswith("steps 99.9%, saving 0.1%."), "from half a thousandth on"

    def test_a_run_begins_with_its_process_or_when_the_last_one_ended(self, monkeypatch):
        monkeypatch.setattr(clock, "_last_end", 0.0)
        before = time.monotonic()
        assert free_since() < before - 0.1  # Python itself was started longer ago.
        end_of_run()
        assert before <= free_since() <= time.monotonic()


def test_the_age_of_a_process_is_since_its_own_start(monkeypatch):
    """The 22nd field of its status, in ticks after the boot; its name may hold anything."""
    fields = ["S", *map(str, range(4, 22)), "41200", "99", "98"]
    status = f"17 (a) (b c)) {' '.join(fields)}"
    monkeypatch.setattr(clock, "Path", lambda path: types.SimpleNamespace(read_text=lambda: status))
    monkeypatch.setattr(clock.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(clock.time, "clock_gettime", lambda which: 500.0)
    assert clock._process_age() == pytest.approx(88.0)


@pytest.mark.parametrize("status", [None, "17 (a) S 1 2", f"17 (a) {'1 ' * 19} 9999999"])
def test_a_system_that_does_not_tell_the_age_makes_it_0(monkeypatch, status):
    """Nor is a process younger than nothing."""

    def read(path):
        assert path == "/proc/self/stat"
        if status is None:
            raise FileNotFoundError
        return types.SimpleNamespace(read_text=lambda: status)

    monkeypatch.setattr(clock, "Path", read)
    monkeypatch.setattr(clock.os, "sysconf", lambda name: 100)
    monkeypatch.setattr(clock.time, "clock_gettime", lambda which: 500.0)
    assert clock._process_age() == 0.0


def test_what_is_free_is_since_the_later_of_start_and_last_end(monkeypatch):
    monkeypatch.setattr(clock, "_process_age", lambda: 30.0)
    monkeypatch.setattr(clock.time, "monotonic", lambda: 100.0)
    for end, since in ((0.0, 70.0), (60.0, 70.0), (80.0, 80.0)):
        monkeypatch.setattr(clock, "_last_end", end)
        assert free_since() == since


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
        time.seconds += 7
        throughput.clock.begin(Kind.STEPS)
        time.seconds += 2
        throughput.start(1)
        time.seconds += 7
        with throughput.clock.spending(Kind.DATA_WAIT):
            time.seconds += 3  # Of an interval that is over.
        throughput.metrics(11)  # 1 s a step
        with throughput.clock.spending(Kind.EVALUATION):
            time.seconds += 1000
        time.seconds += 15
        with throughput.clock.spending(Kind.DATA_WAIT):
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

    def test_no_speed_is_told_where_none_was_measured(self):
        time = FakeTime()
        throughput = self.make(time, device_hours=0.25)
        throughput.clock.begin(Kind.STEPS)
        time.seconds += 9
        names = {"train/examples", "train/device_hours", "train/exaflops"}
        found = throughput.metrics(3)  # Before the start.
        assert found.keys() == names
        assert found["train/device_hours"] == 0.25 + 4 * 9 / 3600
        assert throughput.metrics(4).keys() == names, "no time has passed"
        time.seconds += 2
        assert throughput.metrics(4).keys() == names, "nothing was done"
        time.seconds += 2
        assert throughput.metrics(6)["train/images_per_second"] == 2 * 50 / 2

    def test_unknown_peak_leaves_mfu_out(self):
        time = FakeTime()
        throughput = self.make(time)
        throughput.clock.begin(Kind.STEPS)
        throughput.start(1)
        time.seconds += 1
        assert "train/mfu" not in throughput.metrics(2)
