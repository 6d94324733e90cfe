"""Sections of the config: declared as dataclasses of kinds, made and checked as a ConfigDict.

    @dataclasses.dataclass(frozen=True)
    class Sweep:
        learning_rates: tuple_of(Amount) = ()  # To compare.

A field may be a section itself.
"""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference

from vit_jax.errors import ConfigError
from vit_jax.kinds import kind_of, shown, type_of


def section_of(section: type, *, unset: bool = False) -> ConfigDict:
    """The options of a section, by their defaults; where `unset`, all are None until set."""
    config = ConfigDict()
    for name, annotation, default in options_of(section):
        if isinstance(annotation, type):
            config[name] = section_of(annotation, unset=unset)
            continue
        value, declared = None if unset else default, type_of(annotation)
        if value is None or declared is object:
            value = FieldReference(value, field_type=declared)
        config[name] = value
    return config


def check(config: ConfigDict, section: type, prefix: str = "", *, unset: bool = False) -> None:
    """Raises ConfigError, naming the key, for a value that the section does not allow.

    Args:
      config: made by `section_of`, with the same `unset`.
      section: the dataclass that declares its options.
      prefix: of the keys, such as "optimizer.".
    """
    for name, annotation, _ in options_of(section):
        if isinstance(annotation, type):
            check(config[name], annotation, f"{prefix}{name}.", unset=unset)
            continue
        value = config[name]
        if (fault := kind_of(annotation).fault(value)) and not (unset and value is None):
            raise ConfigError(f"config.{prefix}{name}={shown(value)}: {fault}.")


def options_of(section: type) -> Iterator[tuple[str, Any, Any]]:
    """The name, annotation and default of each option of a section."""
    annotations = typing.get_type_hints(section, include_extras=True)
    for field in dataclasses.fields(section):
        yield field.name, annotations[field.name], field.default
