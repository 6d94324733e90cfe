"""Text that leaves the program."""

import csv
import io
import json
import logging

import pytest

from vit_jax.console import setup_logging
from vit_jax.escaping import csv_row, legible, printable, six_digits

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


def test_a_number_is_no_formula():
    numbers = (-0.12345678, 1e-7, -2.0, float("nan"))
    assert csv_row(map(six_digits, numbers)) == ["-0.123457", "1e-07", "-2", "nan"]


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


@pytest.mark.parametrize("first", "\x00\x1b\x1f\x7f\x80\x9f\u2028\u2029\u202a\u202e\u2066\u2069")
def test_every_character_that_acts_is_an_escape(first):
    assert printable(f"a{first}b") == f"a\\u{ord(first):04x}b"
    assert printable(f"a{first}b", keep=first) == f"a{first}b"


@pytest.mark.parametrize("text", " ~\xa0\u2027\u202f\u2065\u206a")
def test_their_neighbours_are_not(text):
    assert printable(text) == text


def test_escapes_with_a_letter():
    assert printable("\n\r\t") == r"\n\r\t"
    assert printable("a\nb\tc", keep="\n\t") == "a\nb\tc"


@pytest.mark.parametrize("sign", "=+-@＝＋－＠")
@pytest.mark.parametrize("before", ["", " ", "\u200b", "\u200f", "\u2060", "\ufeff", "\xa0 "])
def test_every_sign_that_begins_a_formula(sign, before):
    assert csv_row([f"{before}{sign}1"]) == [f"'{before}{sign}1"]
    assert csv_row([f"a{sign}1", 3]) == [f"a{sign}1", 3]


def test_words_and_lines_just_long_enough_stay():
    assert legible("x" * 1999) == "x" * 1999
    assert legible("x" * 2000) == f"{'x' * 200}... (2,000 characters)"
    line = "x " * 24_999 + "x"
    assert legible(line) == line
    assert legible(line + " ").endswith("... (50,000 characters)")
