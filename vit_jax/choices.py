"""Options that belong to one choice of several, such as Adam's among the optimisers.

A config section has the `name` of the choice, and the options of all choices, None until set. The
choices are functions; their keyword-only parameters are the options, with their defaults.
"""

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ml_collections import ConfigDict

Choices = Mapping[str, Callable[..., Any]]


def chosen_options(section: ConfigDict, choices: Choices) -> dict[str, Any]:
    """All options of the section's choice: as set, else their defaults."""
    defaults = _options(choices[section.name])
    return {key: default if section[key] is None else section[key] for key, default in defaults}


def unused_options(section: ConfigDict, choices: Choices) -> list[str]:
    """Options that are set but are another choice's."""
    own = dict(_options(choices[section.name]))
    every = dict.fromkeys(key for choice in choices.values() for key, _ in _options(choice))
    return [key for key in every if key not in own and section[key] is not None]


def _options(function: Callable[..., Any]) -> list[tuple[str, Any]]:
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.default) for p in parameters if p.kind is p.KEYWORD_ONLY]
