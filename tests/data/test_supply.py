"""What a host loads: the costs of an image's stages, and what is said to help."""

import dataclasses
import json
import time
import types

import numpy as np
import pytest

from tests import tiny
from tests.data.pictures import encode, photograph
from vit_jax.data import supply
from vit_jax.data.dataset import open_dataset
from vit_jax.data.loading.cache import Cached
from vit_jax.data.loading.chunks import Skipping
from vit_jax.data.sources.examples import Example, Source
from vit_jax.data.supply import STAGES, Costs, Supply
from vit_jax.errors import DataError


def costs(read=0.1, decode=0.1, augment=0.1, assemble=0.1, *, busy=None, decoded_bytes=4.0):
    seconds = dict(zip(STAGES, (read, decode, augment, assemble), strict=True))
    busy = sum(seconds.values()) if busy is None else busy
    return Costs(seconds, busy, 8, decoded_bytes)


def test_work_shares_the_cores_and_waiting_the_threads():
    assert costs().images_per_second(num_cores=4, num_threads=100) == pytest.approx(10)
    waiting = costs(read=0.7, busy=0.1)
    assert waiting.total == pytest.approx(1)
    assert waiting.images_per_second(num_cores=4, num_threads=8) == pytest.approx(8)
    assert waiting.images_per_second(num_cores=4, num_threads=1000) == pytest.approx(40)


def test_who_waits_and_by_how_much():
    found = Supply(300.0, costs(decode=0.7), 4, ("data.cache_gib=3, memory", "a disk"))
    enough, short = found.compare(100.0), found.compare(1200.0)
    assert "4 cores load about 300 images/s (8 measured: 1,000 ms each, 70% to decode" in enough
    assert enough.endswith("3.0 times as many: it is enough")
    assert "1.0 times as many: it is enough" in found.compare(300.0)
    assert short.endswith("wait 75% of the time. It helps: data.cache_gib=3, memory; a disk")


class Remote:
    remote = True


class Local:
    remote = False


@pytest.mark.parametrize(
    ("measured", "source", "keys", "expected"),
    [
        (costs(read=2), Remote, {}, ["data.shuffle=blocks", "a local disk", "data.cache_gib=1"]),
        (costs(read=2), Remote, {"shuffle": "blocks"}, ["a local disk", "data.cache_gib=1"]),
        (
            costs(decode=2, decoded_bytes=4e6),
            Local,
            {"source": "tfds:S", "data_dir": "my data", "label": "kind"},
            [
                "python -m vit_jax.prepare --source=tfds:S --output=DIR --shorter_side=256 "
                "'--config.data.data_dir=my data' --config.data.label=kind, smaller",
                "data.cache_gib=5",
            ],
        ),
        (
            costs(decode=2, decoded_bytes=9e6),
            Local,
            {},
            ["vit_jax.prepare"],
        ),  # More than half of it.
        (
            costs(decode=2, decoded_bytes=2e5),
            Local,
            {},
            ["data.cache_gib=1"],
        ),  # 1.4 of the model's.
        (costs(decode=2, decoded_bytes=4e6), Local, {"cache_gib": 2.0}, ["vit_jax.prepare"]),
        (costs(decode=2, decoded_bytes=4e9), Local, {}, ["vit_jax.prepare"]),  # No memory has that.
        (costs(decode=2, decoded_bytes=4e4), Local, {}, ["data.cache_gib=1"]),
        (costs(augment=2), Local, {"num_threads": 2}, ["data.num_threads=0", "data.augmentation"]),
        (costs(augment=2), Local, {"num_threads": 40}, ["data.augmentation"]),
        (costs(augment=2), Local, {"num_workers": 0}, ["data.num_workers=5", "data.augmentation"]),
    ],
)
def test_what_helps(monkeypatch, measured, source, keys, expected):
    monkeypatch.setattr(supply, "host_memory_bytes", lambda: 16 * 2**30)
    monkeypatch.setattr(supply.pipeline, "default_workers", lambda: 5)
    config = tiny.get_config()
    config.model.image_size = (160, 224)
    config.data.update({"num_workers": -1, **keys})
    dataset = type("Data", (), {"num_examples": 1200, "examples": source, "source": source})
    found = supply.remedies(config, dataset, measured, num_cores=40)
    assert len(found) == len(expected), found
    for remedy, part in zip(found, expected, strict=True):
        assert part in remedy


def test_a_look_measures_a_few_images_of_the_run(tmp_path, monkeypatch):
    """By this thread's own time, which a busy machine does not change."""
    own = types.SimpleNamespace(perf_counter=time.thread_time, thread_time=time.thread_time)
    monkeypatch.setattr(supply, "time", own)
    for index in range(4):
        path = tmp_path / "ab"[index % 2] / f"{index}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(photograph(), "JPEG"))
    config = tiny.get_config()
    config.data.source, config.model.channels = f"folder:{tmp_path}", 3
    config.data.held_out_fraction = 0.0
    found = supply.look_at(config, open_dataset(config))
    assert found.costs.num_images == supply.GLANCE_IMAGES
    assert found.costs.decoded_bytes == 96 * 128 * 4
    assert found.costs.bottleneck == "decode and crop"
    assert found.images_per_second > 0
    json.dumps(found.remedies)


class Chunked(Source):
    """100 images of 8×8, of which some fail, and what was asked for at once."""

    labels = np.zeros(100, np.int32)
    class_names = ("a", "b")

    def __init__(self, failing=(), error=DataError):
        self.failing, self.error, self.asked = failing, error, []

    def __len__(self):
        return 100

    def fetch(self, indices):
        self.asked.append(len(indices))
        for index in indices:
            broken = index in self.failing
            image = np.full((8, 8, 1), index, np.uint8)
            yield (
                self.error(f"train/{index} is broken") if broken else Example(image, 0, str(index))
            )

    def name_of(self, index):
        return f"train/{index}"


def dataset_of(source, **keys):
    config = tiny.get_config()
    config.data.update(keys)
    data = open_dataset(config)
    skipping = Skipping(np.zeros((8, 8, 1), np.uint8), 0) if keys.get("on_error") else None
    return config, dataclasses.replace(data, source=source, skipping=skipping)


def test_a_look_reads_chunks_as_the_pipeline_and_past_a_cache():
    source = Chunked(failing=range(0, 100, 2), error=OSError)
    config, data = dataset_of(Cached(source, 1, 1.0), on_error="skip", num_threads=2)
    found = supply.measure_costs(config, data, seconds=60)
    assert found.num_images == supply.GLANCE_IMAGES
    assert set(source.asked) == {config.batch_size // 2}
    assert found.decoded_bytes == 64


@pytest.mark.parametrize("error", [DataError, OSError])
@pytest.mark.parametrize("keys", [{}, {"on_error": "skip"}])
def test_a_look_at_what_cannot_be_read_ends_and_names_it_once(error, keys):
    config, data = dataset_of(Chunked(range(100), error), **keys)
    with pytest.raises(DataError, match=r"^train/\d+ is broken$"):
        supply.measure_costs(config, data, seconds=0.05)


def test_waiting_is_shared_by_the_threads_that_wait(monkeypatch):
    monkeypatch.setattr(supply.pipeline, "num_cores", lambda: 8)
    for remote, expected in ((False, 3 * 2), (True, 3 * 32)):
        source = Chunked()
        monkeypatch.setattr(Chunked, "remote", remote)
        config, data = dataset_of(source, num_workers=3)
        assert supply._num_waiting(config, data) == expected


def test_hosts_meet_before_what_may_fail_on_one(monkeypatch):
    met = []
    monkeypatch.setattr(supply.pipeline, "processes_on_host", lambda: met.append("met") or 1)

    def fail(*arguments):
        met.append("failed")
        raise DataError("broken")

    monkeypatch.setattr(supply, "measure_costs", fail)
    with pytest.raises(DataError, match="broken"):
        supply.look_at(*dataset_of(Chunked()))
    assert met == ["met", "failed"]


def test_the_rows_of_a_chunk_are_of_this_processs_part_of_a_batch(monkeypatch):
    """Threads of this process alone by default, where workers are none."""
    monkeypatch.setattr(supply.pipeline, "num_cores", lambda: 2)
    monkeypatch.setattr(supply.pipeline, "default_workers", lambda: 5)
    monkeypatch.setattr(supply.jax, "process_count", lambda: 4)
    config, data = dataset_of(Chunked(), num_workers=0)
    for batch_size, rows in ((64, 8), (12, 2), (2, 1)):
        config.batch_size = batch_size
        assert supply._chunk_rows(config, data) == rows
    config.data.num_workers = -1
    assert supply._num_threads(config, data) == 5 * 2
