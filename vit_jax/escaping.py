"""Text of others, such as names of files and classes, made harmless where it leaves the program.

Escape sequences could move a terminal's cursor or set its title, line breaks forge lines of a log,
and spreadsheets run cells that begin like formulas.
"""

import re
from collections.abc import Iterable
from typing import Any

# Control characters, line separators, and what turns the direction of text.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SHORT = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
# Longer than any path (4,096 on Linux is the limit of one call) that somebody would name by hand.
_LONG_WORD = re.compile(r"\S{2000,}")
_LONG_LINE = re.compile(r".{50000,}")
_SHOWN = 200  # Characters of these.
# To spreadsheets that skip what is not seen, and take full-width signs for signs.
_FORMULA = re.compile(r"[\s\u200b-\u200f\u2060\ufeff]*[=+\-@＝＋－＠]")


def printable(text: str, keep: str = "") -> str:
    """The text with control characters as escapes, as in Python and JSON, but those in `keep`."""

    def escape(match: re.Match[str]) -> str:
        character = match[0]
        if character in keep:
            return character
        return _SHORT.get(character, f"\\u{ord(character):04x}")

    return _UNPRINTABLE.sub(escape, text)


def legible(text: str) -> str:
    """The text with the beginnings of words and lines that nobody would read to their end."""

    def beginning(match: re.Match[str]) -> str:
        return f"{match[0][:_SHOWN]}... ({len(match[0]):,} characters)"

    return _LONG_LINE.sub(beginning, _LONG_WORD.sub(beginning, text))


class NumberText(str):
    """A number as text: no formula, though it may begin with a sign."""


def six_digits(value: float) -> NumberText:
    """A number with six digits, for a cell of a CSV file."""
    return NumberText(f"{value:.6g}")


def csv_row(cells: Iterable[Any]) -> list[Any]:
    """Cells for a CSV file: texts printable, and no formulas: those begin with an apostrophe."""
    return [_csv_text(cell) if isinstance(cell, str) else cell for cell in cells]


def _csv_text(text: str) -> str:
    if isinstance(text, NumberText):
        return text
    shown = printable(text)
    return f"'{shown}" if _FORMULA.match(shown) else shown
