"""Text that leaves the program."""

import csv
import io
import json
import logging

import pytest

from vit_jax.console import setup_logging
from vit_jax.escaping import csv_row, legible, printable

HOSTILE = "a\x1b]0;title\x07\x1b[2Kb\r\nI 12:00:00 Done\x9b1m\u202egnp\u2028"


def test_no_control_character_is_left():
    shown = printable(HOSTILE)
    assert shown == (r"a\u001b]0;title\u0007\u001b[2Kb\r\nI 12:00:00 Done\u009b1m\u202egnp\u2028")
    assert printable(shown) == shown
    assert printable("Ähre, 猫 👩‍🌾 -1") == "Ähre, 猫 👩‍🌾 -1"


def test_json_stays_what_it_was():
    assert json.loads(printable(json.dumps(HOSTILE, ensure_ascii=False))) == HOSTILE


@pytest.mark.parametrize(
    "text", ["=1+2", "+1", "-1", "@SUM(A1)", " =1", "\t=1", "\r=1", "＝1", "\ufeff=1", "\u200b@A"]
)
def test_no_cell_is_a_formula(text):
    file = io.StringIO()
    csv.writer(file).writerow(csv_row([text, -1.5, "a=b", None]))
    ((cell, *rest),) = csv.reader(io.StringIO(file.getvalue()))
    assert cell[0] in "'\\"
    assert rest == ["-1.5", "a=b", ""]


def test_log_lines_cannot_be_forged(capsys):
    setup_logging()
    logging.getLogger("vit_jax").info("class %s", HOSTILE)
    logging.getLogger("vit_jax").error("two\nlines")
    lines = capsys.readouterr().err.split("\n")
    assert len([line for line in lines if line[:2] in ("I ", "E ")]) == 2
    assert not any(ord(character) < 32 for line in lines for character in line)
    assert lines[-2] == "  lines"


def test_what_is_endless_is_shortened(capsys):
    path = "/".join(["folder"] * 200)
    for text in (path, "a b\n" * 1000, "Ünï"):
        assert legible(text) == text
    assert (
        legible(f"before {'x' * 100_000} after")
        == f"before {'x' * 200}... (100,000 characters) after"
    )
    assert len(legible("x " * 50_000 + "\nnext")) < 300
    setup_logging()
    logging.getLogger("vit_jax.test").error("No %s.", "y" * 100_000)
    assert len(capsys.readouterr().err) < 400
