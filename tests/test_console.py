import io
import logging
import os
import subprocess
import sys

import numpy as np
import pytest

from vit_jax.console import (
    Console,
    format_count,
    format_duration,
    format_line,
    python_command,
    setup_logging,
)


@pytest.mark.parametrize("words", [["-c", "print('$HOME')"], ["a b", "it's", "[v1]", "~", "é"]])
def test_a_printed_command_runs_as_it_stands(words):
    show = ["-c", "import sys; print(sys.executable, sys.argv[1:])", *words]
    for folder in ("", os.path.dirname(sys.executable)):  # Another `python` first, or this one.
        environment = {**os.environ, "PATH": f"{folder}:/nowhere"}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PATH", environment["PATH"])
            line = python_command(*show)
        assert line.startswith("python " if folder else sys.executable)
        shown = subprocess.check_output(["/bin/sh", "-c", line], env=environment, text=True)
        assert shown == f"{sys.executable} {words}\n"


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


def test_format_line_hides_what_is_for_files_and_keeps_the_order_of_others():
    metrics = {"time/eval": 1.0, "eval/b": 0.123456, "timely": 2.0, "eval/a": 3.0}
    assert format_line(7, 7, metrics) == "step 7/7 | eval/b 0.1235 | timely 2 | eval/a 3"


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
        (999.49, "999"),
        (1000, "1k"),
        (9.994e8, "999M"),
        (1e9, "1B"),
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
        (60, "1m00s"),
        (3600, "1h00m"),
        (86_400, "1d00h"),
        (3599, "59m59s"),
    ],
)
def test_format_duration(seconds, text):
    assert format_duration(seconds) == text


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def console_logging(monkeypatch):
    """Calls `setup_logging` with a stderr to read."""

    def setup(stderr, process_index=0):
        monkeypatch.setattr("sys.stderr", stderr)
        logging.getLogger().handlers[:] = []  # Pytest's own must not be closed.
        setup_logging(process_index)
        return stderr

    return setup


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

    def test_the_second_process_is_marked_too(self, console_logging):
        stderr = console_logging(io.StringIO(), process_index=1)
        logging.getLogger("vit_jax.train").info("ours")
        logging.getLogger("absl").info("noise")
        logging.getLogger("orbax").warning("theirs")
        (line,) = stderr.getvalue().splitlines()
        assert line.endswith(" [process 1] theirs")

    def test_a_message_that_cannot_be_made_ends_nothing(self, console_logging):
        stderr = console_logging(io.StringIO())
        logging.getLogger("vit_jax.train").info("%d images", "few")
        logging.getLogger("vit_jax.train").info("next")
        assert "--- Logging error ---" in stderr.getvalue()
        assert stderr.getvalue().endswith(" next\n")

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
