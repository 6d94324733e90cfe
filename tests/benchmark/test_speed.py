"""Speeds of repeats: how many runs make one, what is derived, the largest batch that fits."""

import dataclasses

import pytest

from vit_jax.benchmark import speed as speed_lib
from vit_jax.benchmark.inference import largest_batch
from vit_jax.benchmark.loop import speeds_of
from vit_jax.benchmark.speed import Program, Speed, Timing, grouped, repeat

PROGRAM = Program(
    compile_seconds=2.0, temporary_bytes=2**30, resident_bytes=2**29, estimate_seconds=0.5
)
SPEED = Speed(
    what="step",
    model="ViT-B/16",
    image_size=(224, 192),
    batch_size=64,
    dtype="bfloat16",
    device="H",
    devices=2,
    data="synthetic",
    execution={"remat": "dots"},
    repeats=(90.0, 100.0, 80.0),
    flops_per_image=1e9,
    peak_flops=4e11,
    first_step_seconds=3.0,
    peak_memory_bytes=None,
    program=PROGRAM,
)


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only as a test says."""
    now = [0.0]
    monkeypatch.setattr(speed_lib.time, "perf_counter", lambda: now[0])
    return now


def test_a_repeat_lasts_its_share_of_the_time(clock):
    """Two batches lie ready and cost nothing; each further run takes a quarter of a second."""
    ran = []

    def run(count):
        clock[0] += 0.25 * max(0, sum(ran) + count - 2) - 0.25 * max(0, sum(ran) - 2)
        ran.append(count)

    speeds = repeat(run, images=8, timing=Timing(seconds=30, repeats=3))
    assert ran == [1, 2, 4, 40, 40, 40]
    assert speeds == (32.0, 32.0, 32.0)


def test_the_median_stands_for_the_repeats():
    assert SPEED.images_per_second == 90
    assert SPEED.mfu == 90 * 1e9 / 4e11
    assert dataclasses.replace(SPEED, peak_flops=None).mfu is None
    made = SPEED.as_json()
    assert made["images_per_second_range"] == (80, 100)
    assert made["step_seconds"] == 64 / 90
    assert made["program"]["temporary_bytes"] == 2**30
    text = SPEED.describe()
    assert "90.0, 22.5% MFU; 80.0 to 100.0 in 3 repeats" in text
    assert "711.1 ms; 500.0 ms by the estimate" in text
    assert "an unknown amount at most, 1.00 GiB of temporaries" in text
    assert "data wait" not in text
    assert "6.0% of the time" in dataclasses.replace(SPEED, data_wait=0.06).describe()


def test_intervals_are_joined_to_repeats():
    assert grouped([4, 4, 4, 4, 4], [1, 1, 2, 2, 9], 2) == (4.0, 2.0)
    assert grouped([4, 4], [1, 2], 5) == (4.0, 2.0)


def test_a_loop_s_speed_is_that_between_its_records():
    """The first step's, and that of the interval which it begins, are left out."""
    records = [
        {"train/examples": 8 * step, "time/steps": 9.0 + step, "time/data_wait": wait}
        for step, wait in ((1, 5.0), (2, 5.5), (4, 5.5), (6, 6.5))
    ]
    assert speeds_of(records, 2) == ((16 / 2.0, 16 / 3.0), 1.0 / 5.0)


def test_the_largest_batch_is_a_power_of_two_on_each_device():
    tried = []

    def needed(batch):
        tried.append(batch)
        return 100 + 10 * batch if batch < 64 else None

    assert largest_batch(needed, devices=2, capacity=500) == 32
    assert tried == [2, 4, 8, 16, 32, 64]
    assert largest_batch(needed, devices=2, capacity=300) == 16
    assert largest_batch(needed, devices=8, capacity=100) == 0


def test_a_program_holds_its_arguments_and_its_temporaries():
    assert PROGRAM.bytes == 2**30 + 2**29
    assert dataclasses.replace(PROGRAM, temporary_bytes=None).bytes is None
