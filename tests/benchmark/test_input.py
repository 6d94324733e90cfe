"""The input benchmark: what it measures, and what it says of what it cannot."""

import itertools
import json
import math

import pytest

from tests.data.pictures import encode, photograph
from tests.stages import config_with
from vit_jax.benchmark import input as input_lib
from vit_jax.benchmark.__main__ import main
from vit_jax.benchmark.input import STAGES, InputSpeed
from vit_jax.benchmark.speed import Timing
from vit_jax.data.supply import Costs


@pytest.fixture
def photographs(tmp_path):
    """The flag of a folder of eight photographs."""
    for index in range(8):
        path = tmp_path / ("one" if index % 2 else "two") / f"{index}.jpg"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode(photograph(), "JPEG"))
    return f"--config.data.source=folder:{tmp_path}"


def run(*arguments):
    return main(
        ("input", "--config=tests/tiny.py", "--config.batch_size=8", "--seconds=0.2", *arguments)
    )


def test_measures_are_a_json_object(photographs, capsys):
    flags = ("--config.model.channels=3", "--config.data.augmentation=three_augment")
    assert run(photographs, "--json", *flags) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["images_per_second"] > 0
    assert math.isclose(
        found["images_per_second_per_core"] * found["cores"], found["images_per_second"]
    )
    assert found["first_batch_seconds"] > 0
    assert found["workers"] == 0
    assert found["peak_memory_bytes"] > 2**20
    stages = found["stage_milliseconds"]
    assert list(stages) == list(STAGES)
    assert all(cost > 0 for cost in stages.values()), stages
    assert stages["decode and crop"] > stages["assemble"]


def test_measures_are_a_few_lines_of_text(capsys):
    assert run() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("images/s")
    stages = lines[4 : 4 + len(STAGES)]
    assert [line.split("  ")[1] for line in stages] == list(STAGES)
    shares = [int(line.split()[-1].rstrip("%")) for line in stages]
    bottleneck = lines[4 + len(STAGES)].removeprefix("bottleneck  ")
    assert shares[STAGES.index(bottleneck)] == max(shares)


SPEED = InputSpeed(
    images_per_second=2000.0,
    images_per_second_repeats=(1900.0, 2000.0, 2600.0),
    images_per_second_per_core=500.0,
    cores=4,
    workers=0,
    first_batch_seconds=1.5,
    stage_milliseconds={"decode": 3.0, "transfer": 1.0},
    peak_memory_bytes=3 * 2**29,
    bottleneck="decode",
    remedies=("more cores",),
)


def test_each_number_stands_in_its_line():
    assert SPEED.describe().splitlines() == [
        "images/s    2,000 (1,900 to 2,600): 500 on each of 4 cores, with no worker processes",
        "first batch 1.50 s after the start",
        "peak memory 1.50 GiB",
        "one image   4.000 ms on one thread:",
        "  decode             3.000 ms   75%",
        "  transfer           1.000 ms   25%",
        "bottleneck  decode",
        "  it helps: more cores",
    ]


def test_what_is_derived_of_the_measures(monkeypatch):
    """Rates of 1, 6 and 2 batches of eight a second; a clock that goes a second at each look."""
    rates, seconds, memory = iter([1.0, 6.0, 2.0]), [], iter([300, 50])
    costs = Costs({"decode and crop": 0.5, "assemble": 0.001}, 0.25, 3, 100.0)

    def measure_costs(config, dataset, limit, count):
        seconds.append(limit)
        return costs

    def count_batches(batches, each):
        seconds.append(each)
        return next(rates)

    monkeypatch.setattr(input_lib, "count_batches", count_batches)
    monkeypatch.setattr(input_lib.supply, "measure_costs", measure_costs)
    monkeypatch.setattr(input_lib.supply, "remedies", lambda *given: given[2:])
    monkeypatch.setattr(input_lib.pipeline, "num_cores", lambda: 4)
    monkeypatch.setattr(input_lib, "peak_host_memory_bytes", lambda *whose: next(memory))
    monkeypatch.setattr(input_lib.time, "perf_counter", itertools.count().__next__)
    monkeypatch.setattr(input_lib.pipeline, "default_workers", lambda: 0)
    config = config_with(batch_size=8, **{"data.num_workers": -1})
    found = input_lib.measure_input(config, Timing(seconds=12, repeats=3))
    assert seconds == [4, 4, 4, 3]
    assert found.images_per_second_repeats == (8, 48, 16)
    assert (found.images_per_second, found.images_per_second_per_core, found.cores) == (16, 4, 4)
    assert (found.workers, found.peak_memory_bytes, found.bottleneck) == (0, 350, "decode and crop")
    milliseconds = {"decode and crop": 500, "assemble": 1, "transfer": 1000 / 8}
    assert found.remedies == (costs, 4)
    assert found.stage_milliseconds == pytest.approx(milliseconds)


def test_batches_are_counted_until_the_time_is_over(monkeypatch):
    monkeypatch.setattr(input_lib.time, "perf_counter", itertools.count(0, 2).__next__)
    batches = iter(range(9))
    assert input_lib.count_batches(batches, 5) == 2 / 6
    assert input_lib.count_batches(batches, 1) == 1 / 4, "one at least"


def test_every_device_gets_its_rows(capsys):
    assert run("--config.mesh.data=4", "--config.mesh.tensor=2") == 0


def test_mistakes_are_named(photographs, tmp_path, capsys):
    assert run("--config.data.source=folder:nowhere") == 2
    assert "nowhere: no such folder" in capsys.readouterr().err
    assert run("--config.data.augmentation=nothing") == 2
    assert main(("output", "--config=tests/tiny.py")) == 2
    assert "invalid choice: 'output'" in capsys.readouterr().err
    for index in (1, 3, 5, 7):
        (tmp_path / "one" / f"{index}.jpg").write_bytes(b"")
    assert run(photographs) == 2
    assert "Cannot read one/" in capsys.readouterr().err
    assert run(photographs, "--config.data.on_error=skip") == 0
    for index in (0, 2, 4, 6):
        (tmp_path / "two" / f"{index}.jpg").write_bytes(b"")
    assert run(photographs, "--config.data.on_error=skip") == 2
    assert "cannot decode the image (it is empty)" in capsys.readouterr().err.splitlines()[-1]
