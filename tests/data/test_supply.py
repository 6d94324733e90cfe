"""What a host loads: the costs of an image's stages, and what is said to help."""

import json

import pytest

from tests import tiny
from tests.data.pictures import encode, photograph
from vit_jax.data import supply
from vit_jax.data.dataset import open_dataset
from vit_jax.data.supply import STAGES, Costs, Supply


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
    assert "4 cores load about 300 images/s (8 measured: 1e+03 ms each, 70% to decode" in enough
    assert enough.endswith("3.0 times as many: it is enough")
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
        (costs(decode=2, decoded_bytes=4e6), Local, {}, ["vit_jax.prepare", "data.cache_gib=5"]),
        (costs(decode=2, decoded_bytes=4e6), Local, {"cache_gib": 2.0}, ["vit_jax.prepare"]),
        (costs(decode=2, decoded_bytes=4e9), Local, {}, ["vit_jax.prepare"]),  # No memory has that.
        (costs(decode=2, decoded_bytes=4e4), Local, {}, ["data.cache_gib=1"]),
        (costs(augment=2), Local, {"num_threads": 2}, ["data.num_threads=0", "data.augmentation"]),
        (costs(augment=2), Local, {"num_workers": 0}, ["data.num_workers=5", "data.augmentation"]),
    ],
)
def test_what_helps(monkeypatch, measured, source, keys, expected):
    monkeypatch.setattr(supply, "host_memory_gib", lambda: 16)
    monkeypatch.setattr(supply.pipeline, "default_workers", lambda: 5)
    config = tiny.get_config()
    config.model.image_size = 224
    config.data.update({"num_workers": -1, **keys})
    dataset = type("Data", (), {"num_examples": 1200, "examples": source, "source": source})
    found = supply.remedies(config, dataset, measured, num_cores=40)
    assert len(found) == len(expected), found
    for remedy, part in zip(found, expected, strict=True):
        assert part in remedy


def test_a_look_measures_a_few_images_of_the_run(tmp_path):
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
