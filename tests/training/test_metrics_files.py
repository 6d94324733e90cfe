import errno
import io
import json
import math
import os
import resource
import struct
import time
import uuid
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import PIL.Image
import pytest
from tensorboardX import record_writer
from tensorboardX.proto.event_pb2 import Event, SessionLog

from vit_jax import storage
from vit_jax.training import metrics_files
from vit_jax.training.metrics_files import MetricsWriter


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

    def test_records_come_to_the_disk_more_than_half_a_minute_after_the_last(
        self, tmp_path, monkeypatch
    ):
        now, synced, sync = [1000.0], set(), os.fsync
        clock = SimpleNamespace(monotonic=lambda: now[0], time=time.time, time_ns=time.time_ns)
        monkeypatch.setattr(metrics_files, "time", clock)
        writer = MetricsWriter(tmp_path, start_step=0)
        monkeypatch.setattr(os, "fsync", lambda file: (synced.add(now[0]), sync(file)))
        for step, seconds in enumerate((1000, 1029, 1030, 1031, 1060, 1061, 1062), 1):
            now[0] = seconds
            writer.write(step, {"train/loss": 1.0})
            writer.complete_before(step + 1)
        assert synced == {1000, 1031, 1062}
        writer.flush()
        writer.flush()  # Nothing is written twice.
        assert len(read_records(tmp_path)) == 7

    def test_only_a_record_of_an_earlier_step_is_complete(self, tmp_path):
        writer = MetricsWriter(tmp_path, start_step=0)
        writer.complete_before(9)  # There is none.
        writer.write(3, {"train/loss": 1.0})
        for step, count in ((2, 0), (3, 0), (4, 1)):
            writer.complete_before(step)
            assert len(read_records(tmp_path)) == count
        writer.close()

    def test_trackers_get_the_same_and_are_closed(self, tmp_path):
        told = []
        trackers = SimpleNamespace(
            scalars=lambda *what: told.append(what),
            image=lambda step, name, image: told.append((step, name, image.shape)),
            close=lambda: told.append("closed"),
        )
        writer = MetricsWriter(tmp_path, start_step=0, trackers=trackers)
        writer.write(4, {"train/loss": np.float32(0.5), "eval/loss": math.nan})
        writer.write_image(5, "eval/map", np.zeros((2, 3, 3), np.uint8))
        writer.close()
        (image, (step, numbers), end) = told
        assert (image, step, end) == ((5, "eval/map", (2, 3, 3)), 4, "closed")
        np.testing.assert_equal(numbers, {"train/loss": 0.5, "eval/loss": math.nan})

    def test_other_processes_write_nothing(self, tmp_path):
        writer = MetricsWriter(tmp_path, start_step=0, is_writer=False)
        writer.write(1, {"train/loss": 1.0})
        writer.write_image(1, "image", np.zeros((2, 2, 3), np.uint8))
        writer.write_text(1, "config", "text")
        writer.flush()
        writer.close()
        assert writer.last_record == {}
        assert list(tmp_path.iterdir()) == []

    def test_images_and_text_go_to_tensorboard_and_images_to_files_too(self, tmp_path):
        written = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
        writer = MetricsWriter(tmp_path, start_step=0)
        writer.write_image(7, "train/batch", written)
        writer.write_text(7, "config", "a: 1")
        writer.close()
        (path,) = (tmp_path / "tensorboard").iterdir()
        image, text = (event.summary.value[0] for event in read_events(path)[-2:])
        assert image.tag == "train/batch"
        decoded = PIL.Image.open(io.BytesIO(image.image.encoded_image_string))
        np.testing.assert_array_equal(np.asarray(decoded), written)
        np.testing.assert_array_equal(PIL.Image.open(tmp_path / "batch.png"), written)
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

    def test_values_are_the_last_of_each_metric_with_and_without_what_was_cut(self, tmp_path):
        writer = MetricsWriter(tmp_path, start_step=0)
        writer.write(2, {"time/steps": 4.0, "data/skipped": 3})
        writer.write(5, {"time/steps": 9.0})
        writer.write(6, {"time/steps": 11.0, "time/saving": 0.5})
        writer.close()
        for is_writer in (False, True):  # The second cuts.
            resumed = MetricsWriter(tmp_path, start_step=5, is_writer=is_writer)
            kept = {"step": 5, "time/steps": 9.0}
            assert resumed.last_record == kept
            assert resumed.last_values == {**kept, "data/skipped": 3}
            cut = {"step": 6, "time/steps": 11.0, "time/saving": 0.5}
            assert resumed.cut_values == {**cut, "data/skipped": 3}
        resumed.close()
        assert [record["step"] for record in read_records(tmp_path)] == [2, 5]

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
        damaged = b'{"step": 1}\n\x00\x00\xff\n{"step": 2}\n{"loss": 1}\n{"step": "3"}\n[3]\n'
        path.write_bytes(damaged)
        MetricsWriter(tmp_path, start_step=2).close()
        assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
        assert caplog.messages == [
            f"Dropped from {path} a line that is no whole record: {line!r}"
            for line in (b"\x00\x00\xff", b'{"loss": 1}', b'{"step": "3"}', b"[3]")
        ]

    def test_a_kill_while_cutting_leaves_the_old_file(self, tmp_path, monkeypatch):
        self.killed_run(tmp_path, steps=6)
        before = (tmp_path / "metrics.jsonl").read_bytes()

        def kill(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(os, "replace", kill)
        with pytest.raises(KeyboardInterrupt):
            MetricsWriter(tmp_path, start_step=4)
        assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_what_could_not_be_written_at_once_is_written_after(tmp_path, monkeypatch):
    writer, write = MetricsWriter(tmp_path, start_step=0), os.write
    monkeypatch.setattr(os, "write", lambda file, line: write(file, line[:9]))
    writer.write(1, {"train/loss": 0.25})
    writer.close()
    assert read_records(tmp_path) == [{"step": 1, "train/loss": 0.25}]


def test_a_record_for_which_there_is_no_room_is_told_with_the_file_system_s_reason(tmp_path):
    writer = MetricsWriter(tmp_path, start_step=0)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (9, limits[1]))
    try:
        writer.write(1, {"train/loss": 0.25})
        with pytest.raises(OSError, match=r"metrics\.jsonl") as raised:
            writer.complete_before(2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert raised.value.errno == errno.EFBIG
    writer.close()


def test_object_stores_get_the_whole_file_at_each_flush(monkeypatch):
    """Object stores cannot append."""
    events = SimpleNamespace(write=len, flush=lambda: None)
    store = SimpleNamespace(open=lambda _: events, directory_check=lambda _: None)
    monkeypatch.setitem(record_writer.REGISTERED_FACTORIES, "memory", store)
    workdir = f"memory://{uuid.uuid4().hex}"
    for start_step, end_step in ((0, 3), (2, 4)):
        writer = MetricsWriter(workdir, start_step=start_step)
        for step in range(start_step + 1, end_step + 1):
            writer.write(step, {"end": end_step})
        writer.flush()
    written = storage.read(f"{workdir}/metrics.jsonl").decode().splitlines()
    ends = {record["step"]: record["end"] for record in map(json.loads, written)}
    assert ends == {1: 3, 2: 3, 3: 4, 4: 4}
    assert len(written) == 4
