"""The formats of predictions, to the character."""

import io
import json

import pytest

from vit_jax.errors import ConfigError
from vit_jax.prediction_files import FORMATS, Columns, Prediction, RankedClass, open_output

CLASSES = (RankedClass(7, "crane, bird", 0.87654321), RankedClass(0, "=cat", 0.00012345678))
OF_CLASSES = [
    Prediction("a.png", CLASSES),
    Prediction("b.png", (), "torn"),
    Prediction("c.png", CLASSES[:1]),
    Prediction("é.png", ()),  # No class is as probable as was asked for.
]
OF_NUMBERS = [
    Prediction("a.png", (), values=(("=age", -1234.5678), ("size", 0.00012345678))),
    Prediction("b.png", (), "torn"),
]


def written(format, predictions, columns):
    file = io.StringIO()
    FORMATS[format](file, predictions, columns)
    return file.getvalue().splitlines()


def test_classes_as_text():
    assert written("text", OF_CLASSES, Columns(2)) == [
        "a.png: crane, bird (87.65%), =cat (0.01%)",
        "b.png: error: torn",
        "c.png: crane, bird (87.65%)",
        "é.png: none",
    ]


def test_classes_as_csv():
    assert written("csv", OF_CLASSES, Columns(2)) == [
        "path,error,class_1,index_1,probability_1,class_2,index_2,probability_2",
        'a.png,,"crane, bird",7,0.876543,\'=cat,0,0.000123457',
        "b.png,torn,,,,,,",
        'c.png,,"crane, bird",7,0.876543,,,',
        "é.png,,,,,,,",
    ]


def test_classes_as_json_lines():
    assert written("jsonl", OF_CLASSES, Columns(2)) == [
        '{"path": "a.png", "error": null, "classes": [{"class": "crane, bird", "index": 7, '
        '"probability": 0.876543}, {"class": "=cat", "index": 0, "probability": 0.000123457}]}',
        '{"path": "b.png", "error": "torn", "classes": []}',
        '{"path": "c.png", "error": null, "classes": [{"class": "crane, bird", "index": 7, '
        '"probability": 0.876543}]}',
        '{"path": "é.png", "error": null, "classes": []}',
    ]


def test_numbers_in_each_format():
    columns = Columns(0, ("=age", "size"))
    assert written("text", OF_NUMBERS, columns) == [
        "a.png: =age -1234.57, size 0.000123457",
        "b.png: error: torn",
    ]
    assert written("csv", OF_NUMBERS, columns) == [
        "path,error,'=age,size",
        "a.png,,-1234.57,0.000123457",
        "b.png,torn,,",
    ]
    assert [json.loads(line) for line in written("jsonl", OF_NUMBERS, columns)] == [
        {"path": "a.png", "error": None, "values": {"=age": -1234.57, "size": 0.000123457}},
        {"path": "b.png", "error": "torn", "values": {}},
    ]


def test_each_line_is_there_as_soon_as_it_is_told():
    for format in FORMATS:
        flushed = []
        file = io.StringIO()
        file.flush = lambda file=file, flushed=flushed: flushed.append(file.tell())
        FORMATS[format](file, OF_CLASSES, Columns(2))
        assert len(set(flushed)) == len(OF_CLASSES), format


def test_files_are_utf_8_whatever_bytes_are_in_names(tmp_path):
    with open_output(f"{tmp_path}/x.txt") as file:
        file.write("é \udcff\n")
    assert (tmp_path / "x.txt").read_bytes() == "é \\udcff\n".encode()


def test_no_picture_is_written_over(tmp_path):
    with pytest.raises(ConfigError, match="would be taken for a picture"):
        open_output(f"{tmp_path}/a.PNG")
