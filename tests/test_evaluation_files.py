"""What the evaluation command writes: each number in its own column."""

import csv
import dataclasses
import math

import numpy as np
import pytest
from PIL import Image

from vit_jax import evaluation_files
from vit_jax.evaluation_files import (
    COLUMNS,
    Result,
    cells,
    table_row,
    write_csv,
    write_pictures,
)
from vit_jax.evaluators.base import Results

RESULT = Result(
    model="run",
    checkpoint=1200,
    ema=True,
    parameters=86,
    image_size="24x32",
    source="folder:x",
    split="val",
    count=12345,
    unreadable=6,
    accuracy=0.123456,
    top5_accuracy=0.98765,
    loss=1.23456789,
    images_per_second=4321.9,
    metrics={"eval/accuracy": 0.123456},
)


def test_each_cell_of_the_table_stands_below_its_name():
    assert dict(zip(COLUMNS, cells(RESULT), strict=True)) == {
        "model": "run",
        "checkpoint": "1200 average",
        "data": "folder:x val",
        "images": "12,345",
        "accuracy": "12.35%",
        "top-5": "98.77%",
        "loss": "1.2346",
        "images/s": "4,322",
    }
    nothing = dict.fromkeys(("count", "accuracy", "top5_accuracy", "loss", "checkpoint"))
    found = cells(dataclasses.replace(RESULT, ema=False, split="", **nothing))
    assert found[1:-1] == ("–", "folder:x", *["–"] * 4)


def test_columns_are_as_wide_as_the_longest_names():
    row = table_row(["a", "longest", "bb"], ["x", "fake", "folder"])
    line = row.format("a", "1", "x", *"23456")
    assert line == "a        1               x     " + "".join(f"  {n:>8}" for n in "23456")


def test_the_csv_file_has_all_but_other_evaluators_numbers(tmp_path):
    write_csv(f"{tmp_path}/out.csv", [RESULT])
    (row,) = csv.DictReader((tmp_path / "out.csv").open())
    assert row == {name: str(v) for name, v in vars(RESULT).items() if name != "metrics"}


def test_pictures_have_the_name_of_their_evaluator(tmp_path):
    picture = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    write_pictures(str(tmp_path), "v2", Results({"loss": math.nan}, {"confusion": picture}))
    write_pictures("", "v2", Results({}, {"confusion": picture}))
    (path,) = tmp_path.iterdir()
    assert path.name == "v2_confusion.png"
    np.testing.assert_array_equal(np.asarray(Image.open(path)), picture)


@pytest.mark.parametrize("error", [PermissionError(13, "not allowed"), OSError(30, "read-only")])
def test_a_run_that_cannot_be_written_keeps_no_record_and_says_so(monkeypatch, caplog, error):
    def refuse(path, record):
        raise error

    monkeypatch.setattr(evaluation_files, "append_record", refuse)
    evaluation_files.append_to_run("runs/a", {})
    assert caplog.messages == [f"runs/a keeps no record of this: {error.strerror}."]
