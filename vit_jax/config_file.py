"""Reading a config: a Python file's `get_config()`, then the command line's `KEY=VALUE`."""

import ast
import difflib
import importlib.util
import inspect
import os
import pathlib
import re
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from ml_collections import ConfigDict

import vit_jax
from vit_jax.choices import Choices, chosen_options
from vit_jax.config import (
    declare_options,
    default_config,
    flatten,
    lookup,
    resolved,
)
from vit_jax.durations import DURATIONS, UNITS
from vit_jax.earlier import MOVED, current_name
from vit_jax.errors import ConfigError, UserError
from vit_jax.kinds import shortened, shown
from vit_jax.optimizer import OPTIMIZERS
from vit_jax.optimizer.schedules import SCHEDULES
from vit_jax.storage import expand, expand_source

CONFIGS = "configs"  # The folder of the package's own.
# Keys that are paths -> what replaces `~` and environment variables in them.
PATH_KEYS: dict[str, Callable[[str], str]] = {
    "init": expand,
    "init_head_map": expand,
    "init_teacher": expand,
    "data.source": expand_source,
    "data.data_dir": expand,
    "data.index_dir": expand,
    "data.exclude": expand,
}
BOOLEANS = {"true": True, "false": False}


def parse_any(text: str) -> Any:
    """A Python literal, true or false; any other text stands for itself."""
    try:
        return BOOLEANS[text.lower()] if text.lower() in BOOLEANS else ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _parse_tuple(text: str) -> tuple:
    """A Python tuple or list; raises ValueError for anything else, such as ('cat') without comma."""
    value = ast.literal_eval(text)
    if not isinstance(value, tuple | list):
        raise ValueError(text)
    return tuple(value)


# A key's type -> what reads it from the command line, and how to call what is expected there.
PARSERS: dict[type, tuple[Callable[[str], Any], str]] = {
    bool: (lambda text: BOOLEANS[text.lower()], "true or false"),
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "text"),
    tuple: (_parse_tuple, "a tuple such as (0.1,0.2), ('cat','dog') or ('cat',)"),
    object: (parse_any, "a number or a tuple"),
}


def load_config(path: str, overrides: Sequence[str] = ()) -> ConfigDict:
    """The config that a file makes, with some keys set anew, and whole paths: see `expand_paths`.

    Args:
      path: FILE, or FILE:ARGUMENTS for `get_config(ARGUMENTS)` of that Python file. A file of the
        package, such as configs/vit.py, is found from any folder that has none of that name.
      overrides: "KEY=VALUE" each, such as "optimizer.learning_rate=3e-4". A duration given in one
        unit replaces the file's in any other.

    Raises:
      ConfigError: the file is not there or fails, a key is unknown, or a value has a wrong type.
    """
    config = _run_config_file(path)
    override(config, overrides)
    return expand_paths(config)


def expand_paths(config: ConfigDict) -> ConfigDict:
    """The config with `~` and environment variables replaced in every key of it that is a path."""
    config = config.copy_and_resolve_references()
    for key in PATH_KEYS.keys() & flatten(config).keys():
        *parents, last = key.split(".")
        section = lookup(config, ".".join(parents)) if parents else config
        section[last] = PATH_KEYS[key](section[last])
    return config


def override(config: ConfigDict, overrides: Sequence[str]) -> None:
    """Sets keys anew; see `load_config`."""
    assignments = dict(override.split("=", 1) for override in overrides)
    for key in assignments:
        config.update({other: 0 for other in other_units(key)})
    if name := assignments.get("objective.name"):
        declare_options(config, name)
    for key, text in assignments.items():
        _set(config, key, text)


def chosen_keys(overrides: Sequence[str]) -> set[str]:
    """The keys that overrides set: those they name, and a duration's in its other units."""
    named = [override.partition("=")[0] for override in overrides]
    return {*named, *(other for key in named for other in other_units(key))}


def other_units(key: str) -> list[str]:
    """The keys of the same duration in other units; none for what is no duration."""
    duration, _, unit = key.rpartition("_")
    if duration not in DURATIONS or unit not in UNITS:
        return []
    return [f"{duration}_{other}" for other in UNITS if other != unit]


def find_file(file: str) -> str:
    """The file itself if there is one, else the package's own of that name, such as configs/vit.py.

    An installed package has them inside, a checkout beside it.
    """
    package, path = pathlib.Path(vit_jax.__file__).parent, pathlib.Path(file)
    if os.path.exists(file) or path.parts[:1] != (CONFIGS,):
        return file
    inside = package / CONFIGS
    own = (inside if inside.is_dir() else package.parent / CONFIGS).joinpath(*path.parts[1:])
    return str(own) if own.is_file() else file


def _run_config_file(path: str) -> ConfigDict:
    file, *arguments = path.split(":", 1)
    file = find_file(expand(file))
    if not os.path.isfile(file):
        raise ConfigError(f"--config={path}: there is no file {file}.")
    if not file.endswith(".py"):
        raise ConfigError(f"--config={path}: {file} is not a Python file (.py).")
    spec = importlib.util.spec_from_file_location("config_file", file)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        if arguments and not inspect.signature(module.get_config).parameters:
            raise ConfigError(
                f"--config={path}: {file} takes no arguments: leave out :{arguments[0]}."
            )
        config = module.get_config(*arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # exit() would end the program as if all were done.
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == spec.origin]
        location = f"{file}, line {lines[-1]}" if lines else file
        # ml_collections lists the whole config.
        reason = re.sub(r' Other fields present: "\{.*\}"', "", str(error), flags=re.DOTALL)
        if isinstance(error, AttributeError | KeyError):
            named = (old for old in MOVED if re.search(rf"['\"]{old}['\"]", reason))
            reason += "".join(f" config.{old} is config.{MOVED[old]} now." for old in named)
        reason = " ".join(reason.split())
        if " " not in reason:  # A key alone, or nothing, does not say what is wrong.
            reason = f"{type(error).__name__} {reason}".rstrip()
        raise ConfigError(f"{location}: {reason}") from error
    if not isinstance(config, ConfigDict):
        given = " ".join(shown(config).split())  # That of a config has many lines.
        raise ConfigError(f"{file}: get_config() must return a ConfigDict, not {given}.")
    if "objective" not in config:
        raise ConfigError(f"{file}: get_config() must return the default config, with changes.")
    declare_options(config, config.objective.name)  # Of one that is imported by its name.
    return config


def describe(config: ConfigDict) -> str:
    """Every key with its resolved value, one a line; what differs from the default is marked by *."""

    def values(config: ConfigDict) -> dict[str, Any]:
        chosen: dict[str, Choices] = {"optimizer": OPTIMIZERS, "schedule": SCHEDULES}
        return resolved(config) | {
            f"{section}.{key}": value
            for section, choices in chosen.items()
            for key, value in chosen_options(config[section], choices).items()
        }

    defaults = values(default_config())
    return "\n".join(
        f"{'* ' if value != defaults.get(key) else '  '}{key} = {value!r}"
        for key, value in values(config).items()
    )


def _set(config: ConfigDict, key: str, text: str) -> None:
    """Sets one key from the command line's text, by the type that the key has."""
    known, asked = list(flatten(config)), shortened(key)
    if key not in known:
        if (name := current_name(key)) in known:
            raise ConfigError(f"--config.{asked}: no such key any more; it is --config.{name} now.")
        section = key.rpartition(".")[0]
        near = difflib.get_close_matches(asked, known, n=3, cutoff=0)
        near += [name for name in known if name.rpartition(".")[0] == section and section]
        raise ConfigError(
            f"--config.{asked}: no such key; the nearest: {', '.join(dict.fromkeys(near))}."
        )
    *sections, name = key.split(".")
    parent = lookup(config, ".".join(sections)) if sections else config
    parse, expected = PARSERS[parent.get_type(name)]
    try:
        parent[name] = parse(text)
    except (
        ValueError,
        SyntaxError,
        TypeError,
        KeyError,
        ArithmeticError,
        MemoryError,
        RecursionError,
    ) as error:
        raise ConfigError(f"--config.{key}={shortened(text)}: expected {expected}.") from error
