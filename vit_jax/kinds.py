"""What an option may be: types with a rule, which stand beside its default.

    warmup: Amount = 0.5
    interpolation: one_of("bilinear", "bicubic") = "bilinear"

Crops, augmentations, evaluators, objectives and the config annotate their options so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Annotated, Any


@dataclasses.dataclass(frozen=True)
class Kind:
    """What a value may be, in words and as a test."""

    meaning: str
    accepts: Callable[[Any], bool]


def is_number(value: Any) -> bool:
    """Whether `value` is a finite number; true and false are none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_whole(value: Any) -> bool:
    """Whether `value` is a whole number; true and false are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def one_of(*choices: str) -> Any:
    """The type of text that is one of `choices`."""
    meaning = f"one of {', '.join(choices)}"
    return Annotated[str, Kind(meaning, lambda value: value in choices)]


def kind_of(annotation: Any) -> Kind:
    """The rule that an annotation carries."""
    (kind,) = annotation.__metadata__
    return kind


Count = Annotated[
    int, Kind("a whole number, at least 0", lambda value: is_whole(value) and value >= 0)
]
Amount = Annotated[
    float, Kind("a number, at least 0", lambda value: is_number(value) and value >= 0)
]
Share = Annotated[
    float, Kind("a number from 0 to 1", lambda value: is_number(value) and 0 <= value <= 1)
]
Fraction = Annotated[
    float,
    Kind("a number, at least 0 and less than 1", lambda value: is_number(value) and 0 <= value < 1),
]
Text = Annotated[str, Kind("text", lambda value: isinstance(value, str))]
Flag = Annotated[bool, Kind("true or false", lambda value: isinstance(value, bool))]
