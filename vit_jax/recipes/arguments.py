"""The arguments of config files: `configs/vit.py:b16,imagenet21k,90`."""

import re
from collections.abc import Collection

from vit_jax.errors import ConfigError


def split_arguments(arguments: str, form: str) -> list[str]:
    """The arguments one by one, as many as `form` names; "" for those that are not given.

    Args:
      arguments: as given on the command line.
      form: such as "MODEL[,DATASET[,EPOCHS]]".

    Raises:
      ConfigError: there are too many.
    """
    given, names = arguments.split(","), re.findall("[A-Z]+", form)
    if len(given) > len(names):
        raise ConfigError(f"{arguments!r}: expected {form}.")
    return given + [""] * (len(names) - len(given))


def choose(arguments: str, value: str, known: Collection[str]) -> str:
    """`value`, which stands in a config's `arguments`; raises ConfigError unless it is known."""
    if value not in known:
        whole = "" if value == arguments else f"{arguments!r}: "
        raise ConfigError(f"{whole}{value!r} is not one of {', '.join(known)}.")
    return value


def choose_epochs(arguments: str, value: str, known: Collection[int]) -> float:
    """The length that stands in a config's `arguments`, the longest by default."""
    if value and value not in map(str, known):
        raise ConfigError(
            f"{arguments!r}: the table has {' and '.join(map(str, known))} epochs here, not {value}; "
            "for others set --config.total_epochs."
        )
    return float(value or max(known))
