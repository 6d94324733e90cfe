"""What the evaluation command writes: each number in its own column."""

import csv
import dataclasses
import json
import math

import numpy as np
import pytest
from PIL import Image

from vit_jax import evaluation_files
from vit_jax.errors import ConfigError
from vit_jax.evaluation_files import (
    COLUMNS,
    Result,
    cells,
    table_row,
    write_csv,
    write_pictures,
    write_results,
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


REFUSED = pytest.mark.parametrize(
    ("error", "reason"),
    [(PermissionError(13, "not allowed"), "not allowed"), (OSError("no room"), "no room")],
)


@REFUSED
def test_a_run_that_cannot_be_written_keeps_no_record_and_says_so(
    monkeypatch, caplog, error, reason
):
    def refuse(path, record):
        raise error

    monkeypatch.setattr(evaluation_files, "append_record", refuse)
    evaluation_files.append_to_run("runs/a", {})
    assert caplog.messages == [f"runs/a keeps no record of this: {reason}."]
    assert caplog.records[0].levelname == "WARNING"


@REFUSED
def test_files_that_cannot_be_written_are_named_with_their_flag(monkeypatch, error, reason):
    def refuse(path, content):
        raise error

    monkeypatch.setattr(evaluation_files.storage, "write", refuse)
    pictures = Results({}, {"confusion": np.zeros((2, 4, 3), np.uint8)})
    for write, name in (
        (lambda: write_results([RESULT], "r.json", ""), "--json=r.json"),
        (lambda: write_results([RESULT], "", "r.csv"), "--csv=r.csv"),
        (lambda: write_pictures("shown", "v2", pictures), "--pictures=shown"),
    ):
        with pytest.raises(ConfigError, match=f"^{name} cannot be written: {reason}[.]$"):
            write()
    write_results([RESULT], "", "")  # None was asked for.


def test_names_are_harmless_to_a_terminal():
    result = dataclasses.replace(RESULT, model="a\x1b[2J", source="b\x1b", split="c")
    assert cells(result)[::2][:2] == ("a\\u001b[2J", "b\\u001b c")
    row = table_row([result.model], [result.origin])
    assert row.startswith("{:10}  {:14}  {:9}  ")


def test_names_that_are_no_text_keep_their_bytes(tmp_path):
    results = [RESULT, dataclasses.replace(RESULT, model="caf\udce9", unreadable=0)]
    write_results(results, str(tmp_path / "r.json"), str(tmp_path / "r.csv"))
    assert b"\ncaf\xe9,1200," in (tmp_path / "r.csv").read_bytes()
    told = (tmp_path / "r.json").read_text()
    assert [each["model"] for each in json.loads(told)] == ["run", "caf\udce9"]
    assert told.startswith('[\n  {\n    "model": "run",\n')
