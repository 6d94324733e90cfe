import io
import json
import logging
import os
import struct
from contextlib import suppress

import jax
import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from tensorboardX.proto.event_pb2 import Event, SessionLog

from vit_jax.logging import (
    Clock,
    Console,
    MetricsWriter,
    Throughput,
    format_count,
    format_duration,
    format_line,
    image_grid,
    parameter_overview,
    setup_logging,
)


def read_records(workdir):
    return [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]


def read_events(path):
    """The events of one file: length, its checksum, an `Event`, its checksum, and so on."""
    content, events, position = path.read_bytes(), [], 0
    while position < len(content):
        (length,) = struct.unpack_from("<Q", content, position)
        events.append(Event.FromString(content[position + 12 : position + 12 + length]))
        position += 12 + length + 4
    return events


def read_scalars(workdir):
    """(step, name, value) as TensorBoard shows them: a restart purges its step and later ones."""
    scalars = []
    for path in sorted((workdir / "tensorboard").iterdir()):
        for event in read_events(path):
            if event.session_log.status == SessionLog.START:
                scalars = [scalar for scalar in scalars if scalar[0] < event.step]
            for value in event.summary.value:
                scalars.append((event.step, value.tag, value.simple_value))
    return scalars


class TestMetricsWriter:
    def test_writes_one_record_a_step(self, tmp_path):
        writer = MetricsWriter(tmp_path, start_step=0)
        writer.write(1, {"train/loss": 2.5})
        writer.write(1, {"eval/accuracy": 0.25, "eval/count": 8})
        writer.write(2, {"train/loss": 1.5})
        writer.close()
        assert read_records(tmp_path) == [
            {"step": 1, "train/loss": 2.5, "eval/accuracy": 0.25, "eval/count": 8},
            {"step": 2, "train/loss": 1.5},
        ]
        assert read_scalars(tmp_path) == [
            (1, "train/loss", 2.5),
            (1, "eval/accuracy", 0.25),
            (1, "eval/count", 8),
            (2, "train/loss", 1.5),
        ]

    @pytest.mark.parametrize("array", [np.float32, jnp.float32])
    def test_float32_reads_back_equal(self, tmp_path, array):
        values = np.random.default_rng(0).standard_normal(50).astype(np.float32)
        writer = MetricsWriter(tmp_path, start_step=0)
        for step, value in enumerate(values, start=1):
            writer.write(step, {"train/loss": array(value)})
        writer.close()
        read = [record["train/loss"] for record in read_records(tmp_path)]
        np.testing.assert_array_equal(np.float32(read).view(np.int32), values.view(np.int32))

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_non_finite_values_are_null_in_json_and_kept_in_events(self, tmp_path, value):
        writer = MetricsWriter(tmp_path, start_step=0)
        writer.write(1, {"train/loss": value})
        writer.close()
        assert read_records(tmp_path) == [{"step": 1, "train/loss": None}]
        np.testing.assert_equal(read_scalars(tmp_path)[0][2], value)

    @pytest.mark.parametrize("step", [3, 4])
    def test_steps_must_increase(self, tmp_path, step):
        writer = MetricsWriter(tmp_path, start_step=0)
        writer.write(4, {"train/loss": 1.0})
        writer.flush()
        with pytest.raises(ValueError, match=f"step {step} .* expected step 5 or later"):
            writer.write(step, {"train/loss": 1.0})

    def test_flush_puts_both_files_on_disk(self, tmp_path, monkeypatch):
        writer = MetricsWriter(tmp_path, start_step=0)
        writer.write(1, {"train/loss": 1.0})
        synced, fsync = set(), os.fsync
        monkeypatch.setattr(
            os,
            "fsync",
            lambda file: (synced.add(os.readlink(f"/proc/self/fd/{file}")), fsync(file)),
        )
        writer.flush()
        (events,) = (tmp_path / "tensorboard").iterdir()
        assert synced == {str(tmp_path / "metrics.jsonl"), str(events)}
        assert read_records(tmp_path) == [{"step": 1, "train/loss": 1.0}]
        assert read_scalars(tmp_path) == [(1, "train/loss", 1.0)]

    def test_other_processes_write_nothing(self, tmp_path):
        writer = MetricsWriter(tmp_path, start_step=0, is_writer=False)
        writer.write(1, {"train/loss": 1.0})
        writer.write_images(1, "images", np.zeros((1, 2, 2, 3), np.uint8))
        writer.write_text(1, "config", "text")
        writer.flush()
        writer.close()
        assert writer.last_record == {}
        assert list(tmp_path.iterdir()) == []

    def test_images_and_text_go_to_tensorboard(self, tmp_path):
        images = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 3), np.uint8)
        writer = MetricsWriter(tmp_path, start_step=0)
        writer.write_images(7, "train/images", images)
        writer.write_text(7, "config", "a: 1")
        writer.close()
        (path,) = (tmp_path / "tensorboard").iterdir()
        image, text = (event.summary.value[0] for event in read_events(path)[-2:])
        assert image.tag == "train/images"
        decoded = PIL.Image.open(io.BytesIO(image.image.encoded_image_string))
        np.testing.assert_array_equal(np.asarray(decoded), image_grid(images))
        assert text.tensor.string_val == [b"a: 1"]


class TestResume:
    def killed_run(self, workdir, steps):
        """A run killed while it wrote the record after `steps`."""
        writer = MetricsWriter(workdir, start_step=0)
        for step in range(1, steps + 1):
            writer.write(step, {"train/loss": 1 / step})
        writer.flush()
        with open(workdir / "metrics.jsonl", "a") as file:
            file.write(f'{{"step": {steps + 1}, "train/lo')

    def test_later_records_and_the_half_line_are_cut(self, tmp_path):
        self.killed_run(tmp_path, steps=6)
        writer = MetricsWriter(tmp_path, start_step=4)
        assert writer.last_record == {"step": 4, "train/loss": 0.25}
        for step in range(5, 9):
            writer.write(step, {"train/loss": -float(step)})
        writer.close()
        expected = [1, 1 / 2, 1 / 3, 1 / 4, -5, -6, -7, -8]
        assert [r["step"] for r in read_records(tmp_path)] == list(range(1, 9))
        assert [r["train/loss"] for r in read_records(tmp_path)] == expected
        scalars = read_scalars(tmp_path)
        assert [step for step, _, _ in scalars] == list(range(1, 9))
        np.testing.assert_array_equal([value for _, _, value in scalars], np.float32(expected))

    def test_resume_between_records(self, tmp_path):
        writer = MetricsWriter(tmp_path, start_step=0)
        writer.write(10, {"train/loss": 1.0})
        writer.write(20, {"train/loss": 2.0})
        writer.close()
        writer = MetricsWriter(tmp_path, start_step=15)
        writer.write(15, {"eval/loss": 3.0})
        writer.close()
        assert [record["step"] for record in read_records(tmp_path)] == [10, 15]

    def test_a_run_without_checkpoint_starts_empty(self, tmp_path):
        self.killed_run(tmp_path, steps=3)
        writer = MetricsWriter(tmp_path, start_step=0)
        assert writer.last_record == {}
        writer.close()
        assert read_records(tmp_path) == []
        assert read_scalars(tmp_path) == []

    def test_garbage_is_dropped_with_a_warning(self, tmp_path, caplog):
        path = tmp_path / "metrics.jsonl"
        path.write_bytes(b'{"step": 1}\n\x00\x00\xff\n{"step": 2}\n')
        MetricsWriter(tmp_path, start_step=2).close()
        assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
        assert "no whole record" in caplog.text

    def test_a_kill_while_cutting_leaves_the_old_file(self, tmp_path, monkeypatch):
        self.killed_run(tmp_path, steps=6)
        before = (tmp_path / "metrics.jsonl").read_bytes()

        def kill(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            MetricsWriter(tmp_path, start_step=4)
        assert (tmp_path / "metrics.jsonl").read_bytes() == before


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


def test_image_grid_goes_row_by_row():
    images = np.arange(1, 6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 1), np.uint8)
    grid = image_grid(images)
    assert grid.shape == (4, 9, 1)
    np.testing.assert_array_equal(grid[::2, ::3, 0], [[1, 2, 3], [4, 5, 0]])


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
