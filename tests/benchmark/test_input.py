"""The input benchmark: what it measures, and what it says of what it cannot."""

import json
import math

import pytest

from tests.data.pictures import encode, photograph
from vit_jax.benchmark.__main__ import main
from vit_jax.benchmark.input import STAGES


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
