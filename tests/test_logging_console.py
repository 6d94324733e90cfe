import io
import logging
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from vit_jax.logging import (
    Clock,
    Console,
    Throughput,
    format_count,
    format_duration,
    format_line,
    parameter_overview,
    setup_logging,
)


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


def test_format_line():
    metrics = {
        "eval/accuracy": 0.76543,
        "train/loss": 2.30123,
        "train/learning_rate": 1e-3,
        "train/grad_norm": 0.8712,
        "train/images_per_second": 1234.5,
        "train/mfu": 0.4512,
        "train/data_wait": 0.0031,
        "train/device_memory_bytes": 12.3 * 2**30,
        "train/epoch": 3.2,
        "train/examples": 1_230_000,
        "train/device_hours": 3.412,
        "train/exaflops": 0.0123,
        "train/eta_seconds": 192,
    }
    assert format_line(900, 10_000, metrics) == (
        "step   900/10000 | epoch 3.20 | loss 2.3012 | lr 1.00e-03 | grad 0.871 | 1.23k img/s"
        " | MFU 45.1% | data wait  0.3% | mem 12.3 GiB | 1.23M examples | 3.41 device-h"
        " | 0.0123 exaFLOPs | ETA 3m12s | eval/accuracy 0.7654"
    )


def test_format_line_leaves_out_what_is_unknown():
    assert format_line(1, 10, {"train/loss": np.float32(np.nan)}) == "step  1/10 | loss nan"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.5, "0.5"),
        (950, "950"),
        (999.7, "1k"),
        (1234, "1.23k"),
        (999_900, "1M"),
        (7.891e9, "7.89B"),
    ],
)
def test_format_count(value, text):
    assert format_count(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0s"),
        (45, "45s"),
        (59.7, "1m00s"),
        (192, "3m12s"),
        (7500, "2h05m"),
        (273_700, "3d04h"),
    ],
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def console_logging(monkeypatch):
    """Calls `setup_logging` with a stderr to read, and undoes it."""
    loggers = [logging.getLogger(name) for name in ("", "vit_jax", "absl")]
    before = [(logger.level, logger.handlers[:]) for logger in loggers]

    def setup(stderr, process_index=0):
        monkeypatch.setattr("sys.stderr", stderr)
        loggers[0].handlers[:] = []  # Pytest's own must not be closed.
        setup_logging(process_index)
        return stderr

    yield setup
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


class TestConsole:
    def test_our_lines_are_shown_and_libraries_silent(self, console_logging):
        stderr = console_logging(io.StringIO())
        logging.getLogger("vit_jax.train").info("ours")
        for name in ("absl", "jax._src.dispatch", "grain", "orbax"):
            logging.getLogger(name).info("noise")
        logging.getLogger("absl").warning("theirs")
        first, second = stderr.getvalue().splitlines()
        assert first.startswith("I ")
        assert first.endswith(" ours")
        assert second.startswith("W ")
        assert second.endswith(" theirs")

    def test_other_processes_only_warn(self, console_logging):
        stderr = console_logging(io.StringIO(), process_index=3)
        logging.getLogger("vit_jax.train").info("ours")
        logging.getLogger("vit_jax.train").warning("trouble")
        assert stderr.getvalue().endswith(" [process 3] trouble\n")
        assert "ours" not in stderr.getvalue()

    def test_no_bar_off_a_terminal(self, console_logging):
        stderr = console_logging(io.StringIO())
        console = Console(total_steps=10)
        console.update(5)
        console.line("step 5/10")
        console.close()
        (line,) = stderr.getvalue().splitlines()
        assert line.endswith(" step 5/10")

    def test_a_bar_on_a_terminal_stays_below_the_lines(self, console_logging):
        stderr = console_logging(Terminal())
        console = Console(total_steps=10, start_step=4)
        assert "4/10" in stderr.getvalue()
        console.update(6)
        console.line("step 6/10")
        written = stderr.getvalue()
        console.close()
        assert "6/10 [" in written.split(" step 6/10\n")[1]

    def test_only_one_process_has_a_bar(self, console_logging):
        stderr = console_logging(Terminal())
        Console(total_steps=10, is_writer=False).close()
        assert stderr.getvalue() == ""


class TestParameterOverview:
    def test_of_shapes(self):
        kernel = jax.ShapeDtypeStruct((12, 8, 4), jnp.bfloat16)
        text = parameter_overview({"blocks": {"kernel": kernel}})
        assert "| blocks/kernel | (12, 8, 4) | bfloat16 | 384  |" in text
        assert "Total: 384 -- 768 bytes" in text
        assert "Mean" not in text

    @pytest.mark.parametrize("array", [np.full, jnp.full])
    def test_of_arrays(self, array):
        text = parameter_overview({"blocks": {"kernel": array((12, 8, 4), 2, np.float32)}})
        assert "| blocks/kernel | (12, 8, 4) | float32 | 384  | 2.0  | 0.0 |" in text

    def test_half_precision_has_no_statistics(self):
        assert "Mean" not in parameter_overview({"kernel": jnp.full((384,), 2, jnp.bfloat16)})
