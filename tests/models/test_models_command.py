"""`python -m vit_jax.models`."""

import csv
import io

import pytest

from vit_jax.models import __main__ as command
from vit_jax.models.__main__ import main
from vit_jax.weights.pretrained import list_pretrained


def test_a_pattern_chooses_lines(capsys):
    assert main(["vit-b/32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "parameters", "GMACs", "tokens", "input", "size"]
    assert [line.split() for line in lines[1:]] == [
        ["ViT-b/32", "22,878,952", "1.14", "50", "224x224"],
        ["ViT-B/32", "88,224,232", "4.41", "50", "224x224"],
        ["R26+ViT-B/32", "101,383,976", "6.71", "50", "224x224"],
        ["R50+ViT-B/32", "110,945,832", "8.46", "50", "224x224"],
        ["Axial-ViT-B/32", "173,277,160", "8.45", "49", "224x224"],
    ]


def test_a_model_without_tokens_has_a_dash(capsys, monkeypatch):
    monkeypatch.setattr(command, "count_parameters", lambda name, **options: 1_234)
    assert main(["BiT-v1-R50x1", "--image_size=64"]) == 0
    (_, line) = capsys.readouterr().out.splitlines()
    assert line.split()[:2] == ["BiT-v1-R50x1", "1,234"]
    assert line.split()[3:] == ["–", "64x64"]
    assert main(["BiT-v1-R50x1", "--csv"]) == 0
    assert next(csv.DictReader(io.StringIO(capsys.readouterr().out)))["tokens"] == ""


def test_csv_and_image_size(capsys):
    assert main(["ViT-L/16", "--csv", "--image_size", "384"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["name"] for row in rows] == ["ViT-L/16", "R50+ViT-L/16"]
    assert float(rows[0].pop("gmacs")) == pytest.approx(191.07, abs=0.005)
    assert rows[0] == {
        "name": "ViT-L/16",
        "parameters": "304715752",
        "tokens": "577",
        "input_size": "384x384",
    }


def test_a_size_that_a_model_does_not_take_is_reported_and_the_rest_printed(capsys):
    assert main(["ViT-[BH]/1[46]", "--image_size=384"]) == 0
    captured = capsys.readouterr()
    assert "ViT-B/16" in captured.out
    assert "ViT-H/14" not in captured.out
    assert "ViT-H/14: model.image_size 384 (height) is not divisible" in captured.err
    assert "378 and 392" in captured.err


def test_a_size_that_no_model_takes_is_an_error(capsys):
    assert main(["ViT-H/14", "--image_size", "100"]) == 2
    assert "ViT-H/14: model.image_size 100 (height) is not divisible" in capsys.readouterr().err


def test_an_unlisted_patch_size_is_a_model_and_nonsense_is_not(capsys):
    assert main(["ViT-Ti/2", "--image_size", "32"]) == 0
    assert "ViT-Ti/2" in capsys.readouterr().out
    assert main(["ResNeXt"]) == 2
    assert "'ResNeXt' is unknown; the nearest:" in capsys.readouterr().err


def test_each_cell_of_the_weights_stands_below_its_name(capsys):
    assert main(["--pretrained", "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    expected = list_pretrained("*")
    assert [(row["licence"], row["source"]) for row in rows] == [
        (entry.licence, entry.source) for entry in expected
    ]
    assert [(row["model"], row["pixels"], row["repository"]) for row in rows] == [
        (entry.model, str(entry.image_size), entry.reference) for entry in expected
    ]
