"""A mapping of classes: which of a model's classes each of the data's is, in a text file.

Each line is the data's name of a class, a tab, the model's name of it; several may share one. A class
that no line names keeps its name. The classes of a model without names are called 0, 1, 2, ...
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from vit_jax import storage
from vit_jax.errors import ConfigError

BY_NAME = "names"  # Instead of a file: each class keeps its name.
EXPECTED = "a class of the data in each line"
ABSENT = -1  # Instead of a class that the model does not have.
_SHOWN = 5  # Names in a message.


@dataclasses.dataclass(frozen=True)
class ClassMapping:
    """The model's name for each of the data's names; the default maps each name to itself.

    Attributes:
        names: the data's name -> the model's.
        origin: the key and the file, for messages.
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    origin: str = ""

    def find(
        self, data_names: Sequence[str], model_names: Sequence[str], num_classes: int
    ) -> np.ndarray:
        """The number of the model's class for each of the data's.

        Args:
            data_names: of the data's K classes.
            model_names: of the model's classes; empty if it has no names.
            num_classes: how many those are.

        Returns:
            int32 [K]; `ABSENT` for a class that no line names and the model does not have.

        Raises:
            ConfigError: a line names no class of the model, none names one of the data, or a name
                is that of two classes.
        """
        model_names = model_names or [str(number) for number in range(num_classes)]
        self._check_lines(data_names, model_names)
        wanted = [self.names.get(name, name) for name in data_names]
        self._check_unique("data", data_names, data_names)
        self._check_unique("model", model_names, wanted)
        known = {name: number for number, name in enumerate(model_names)}
        return np.array([known.get(name, ABSENT) for name in wanted], np.int32)

    def _check_lines(self, data_names: Sequence[str], model_names: Sequence[str]) -> None:
        used = [name for name in data_names if name in self.names]
        if self.names and not used:
            raise ConfigError(
                f"{self.origin}: none of its lines begins with a class of the data, which are "
                f"{_some(data_names)}; the first begins with {next(iter(self.names))!r}."
            )
        known = set(model_names)
        for name in used:
            if self.names[name] not in known:
                raise ConfigError(
                    f"{self.origin}: {name!r} is mapped to {self.names[name]!r}, which is none of "
                    f"the model's {len(model_names):,} classes: {_some(model_names)}."
                )

    def _check_unique(self, whose: str, names: Sequence[str], needed: Sequence[str]) -> None:
        counts = Counter(names)
        for name in needed:
            if counts[name] > 1:
                raise ConfigError(
                    f"{self.origin or 'classes'}: {counts[name]} classes of the {whose} are called "
                    f"{name!r}, so they cannot be told apart by name."
                )


def chosen_mapping(value: str, key: str) -> ClassMapping | None:
    """The mapping that an option names: `BY_NAME` or a file; None for "".

    Raises ConfigError as `read_class_mapping`.
    """
    if value == BY_NAME:
        return ClassMapping(origin=f"{key}={value}")
    return read_class_mapping(value, key) if value else None


def read_class_mapping(path: str, key: str) -> ClassMapping:
    """The mapping in a file.

    Args:
        path: of a text file, local or a URL.
        key: the option that names it, such as "config.init_head_map", for messages.

    Raises:
        ConfigError: it cannot be read, or a line is not of the form.
    """
    origin = f"{key}={path}"
    names: dict[str, str] = {}
    for number, (data_name, model_name) in read_pairs(path, key).items():
        if names.setdefault(data_name, model_name) != model_name:
            raise ConfigError(
                f"{origin}: line {number} maps {data_name!r} to {model_name!r}, an earlier one to "
                f"{names[data_name]!r}: keep one of them."
            )
    return ClassMapping(names, origin)


def read_pairs(path: str, key: str) -> dict[int, tuple[str, str]]:
    """The lines of a mapping's file by number: (the data's name, the model's); errors as above."""
    origin = f"{key}={path}"
    pairs: dict[int, tuple[str, str]] = {}
    for number, line in enumerate(storage.read_lines(path, origin, EXPECTED, ConfigError), start=1):
        if not line.strip():
            continue
        data_name, *others = line.split("\t")
        if len(others) != 1 or not (data_name and others[0]):
            raise ConfigError(
                f"{origin}: line {number} is {line!r}: expected the data's name of a class, one tab, "
                "the model's name."
            )
        pairs[number] = data_name, others[0]
    if not pairs:
        raise ConfigError(f"{origin} is empty; expected {EXPECTED}.")
    return pairs


def _some(names: Sequence[str]) -> str:
    more = f", ... ({len(names):,})" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
