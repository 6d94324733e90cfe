"""Other libraries' configurations in our options: what each key, or argument, means here."""

import re
from collections.abc import Callable, Mapping
from typing import Any

Arguments = Mapping[str, Any]
Translation = Callable[[Any], Mapping[str, Any]]  # a value -> options; ValueError if there are none


def nothing(value: Any) -> Arguments:
    """For an argument that the tensors show, or that evaluation does not depend on."""
    return {}


def only(*values: Any) -> Translation:
    """For an argument that changes the model; ValueError for any but these values."""

    def translate(value: Any) -> Arguments:
        if value not in values:
            raise ValueError
        return {}

    return translate


def named(option: str, words: Mapping[str, Any] | None = None) -> Translation:
    """For an argument that is our option, with the words for its values if they differ."""

    def translate(value: Any) -> Arguments:
        if words is None:
            return {option: value}
        if value not in words:
            raise ValueError
        return {option: words[value]}

    return translate


def article(family: str) -> str:
    """A family's name after "a" or "an", as "an MLP-Mixer" is read out."""
    return f"{'an' if re.match('[AEIOX]|M[A-Z]', family) else 'a'} {family}"
