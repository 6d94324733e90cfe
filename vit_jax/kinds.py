"""Types with a rule, for options: they stand beside its default.

    warmup: Amount = 0.5
    batch_size: whole(1) = 128
    interpolation: one_of("bilinear", "bicubic") = "bilinear"
    decay: optional(Fraction) = None

Crops, augmentations, evaluators, objectives and the config annotate their options so. Options that
belong together are the fields of a frozen dataclass; a field may be such a section itself.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import sys
import typing
from collections.abc import Callable
from typing import Annotated, Any

SHOWN = 80  # Characters of a value in a message.
MOST = 10**12  # Of a whole number that has no limit of its own; far from those of int64.


def _nothing(value: Any) -> str:
    return ""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A rule for values, in words and as a test."""

    meaning: str
    accepts: Callable[[Any], bool]
    hint: Callable[[Any], str] = _nothing  # What else to say of a value that is not accepted.

    def fault(self, value: Any) -> str:
        """The rule that `value` breaks, as the end of a sentence; "" for one that is accepted."""
        return "" if self.accepts(value) else f"must be {self.meaning}{self.hint(value)}"


def shortened(text: str) -> str:
    """Text as it stands in a message: its beginning, where it is long."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text):,} characters)"


def shown(value: Any) -> str:
    """A value as it stands in a message, not longer than anybody would read."""
    try:
        return shortened(repr(value))
    except ValueError:  # Python writes no integer of more than 4,300 digits.
        return "an integer of thousands of digits"


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number; true and false are none."""
    real = is_whole(value) or isinstance(value, float)
    return real and abs(value) <= sys.float_info.max  # NaN is not.


def is_whole(value: Any) -> bool:
    """Whether `value` is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole(lowest: int, highest: int = MOST) -> Any:
    """The type of whole numbers from `lowest` to `highest`."""
    limited = f"a whole number from {lowest} to {highest}"
    meaning = f"a whole number, at least {lowest}" if highest == MOST else limited

    def hint(value: Any) -> str:
        return f" and at most {MOST:,}" if is_whole(value) and value > highest == MOST else ""

    return Annotated[
        int, Kind(meaning, lambda value: is_whole(value) and lowest <= value <= highest, hint)
    ]


def number(lowest: float, highest: float = math.inf) -> Any:
    """The type of finite numbers from `lowest` to `highest`."""
    limited = f"a number from {lowest} to {highest}"
    meaning = f"a number, at least {lowest}" if highest == math.inf else limited
    return Annotated[
        float, Kind(meaning, lambda value: is_number(value) and lowest <= value <= highest)
    ]


def one_of(*choices: str) -> Any:
    """The type of text that is one of `choices`."""

    def nearest(value: Any) -> str:
        (near,) = difflib.get_close_matches(str(value)[:SHOWN], choices, n=1, cutoff=0)
        return f"; the nearest: {near}"

    meaning = f"one of {', '.join(choices)}"
    return Annotated[str, Kind(meaning, lambda value: value in choices, nearest)]


def optional(annotation: Any) -> Any:
    """The type of options that are None until set."""
    kind = kind_of(annotation)

    def accepts(value: Any) -> bool:
        return value is None or kind.accepts(value)

    return Annotated[type_of(annotation) | None, Kind(kind.meaning, accepts, kind.hint)]


def tuple_of(annotation: Any) -> Any:
    """The type of tuples whose elements are of one kind."""
    kind = kind_of(annotation)

    def refused(values: Any) -> list[Any]:
        return [value for value in values if not kind.accepts(value)]

    def accepts(values: Any) -> bool:
        return isinstance(values, tuple | list) and not refused(values)

    def hint(values: Any) -> str:
        return kind.hint(refused(values)[0]) if isinstance(values, tuple | list) else ""

    return Annotated[tuple, Kind(f"a tuple, each element {kind.meaning}", accepts, hint)]


def _expression_error(value: Any) -> str:
    """Why `value` is no regular expression; "" for one that is."""
    try:
        re.compile(value)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        return f": {error}"
    return ""


def _is_expression(value: Any) -> bool:
    return isinstance(value, str) and not _expression_error(value)


def _is_factor_rule(value: Any) -> bool:
    return (
        isinstance(value, tuple | list)
        and len(value) == 2
        and _is_expression(value[0])
        and is_number(value[1])
        and value[1] >= 0
    )


def _factor_rule_error(value: Any) -> str:
    return _expression_error(value[0]) if isinstance(value, tuple | list) and value else ""


Count = whole(0)
Pixels = whole(0, 10_000)  # Of a side: a square of them fits into memory.
Few = whole(0, 1000)  # Of what is done one after the other, or side by side.
Amount = number(0)
Positive = Annotated[float, Kind("a positive number", lambda value: is_number(value) and value > 0)]
Share = number(0, 1)
Fraction = Annotated[
    float,
    Kind("a number, at least 0 and less than 1", lambda value: is_number(value) and 0 <= value < 1),
]
Text = Annotated[str, Kind("text", lambda value: isinstance(value, str))]
Flag = Annotated[bool, Kind("true or false", lambda value: isinstance(value, bool))]
Expression = Annotated[str, Kind("a regular expression", _is_expression, _expression_error)]
FactorRule = Annotated[
    tuple,
    Kind(
        "a pair (regular expression, factor), such as ('^head/', 10.0)",
        _is_factor_rule,
        _factor_rule_error,
    ),
]
# Checked where it is used; `object` leaves the command line free to give a number or a tuple.
Anything = Annotated[object, Kind("anything", lambda value: True)]


def kind_of(annotation: Any) -> Kind:
    """The rule that an annotation carries."""
    (kind,) = annotation.__metadata__
    return kind


def type_of(annotation: Any) -> type:
    """The type that an annotation carries; of an optional one, of its values other than None."""
    origin = annotation.__origin__
    return next((t for t in typing.get_args(origin) if t is not type(None)), origin)
