"""Crops and augmentations as text: names with arguments, joined by `|`.

    randaug_tf(layers=2, magnitude=15) | random_erasing(0.25)

A name stands for a function. Its positional-only parameters are what the pipeline gives, an image
and a random generator; the others are what the text may set, each annotated with what it may be.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import typing
from collections.abc import Callable, Mapping
from typing import Any

from vit_jax.errors import ConfigError
from vit_jax.kinds import SHOWN, kind_of, shown


@dataclasses.dataclass(frozen=True)
class Operation:
    """A function with the arguments that the config gave it, or its defaults; picklable."""

    name: str
    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __call__(self, *given: Any) -> Any:
        """Applies the function to what the pipeline gives."""
        return self.function(*given, **self.arguments)

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.name}({arguments})" if arguments else self.name

    def describe(self) -> str:
        """The operation with all its arguments, and what it does: its docstring's first line."""
        return f"{self}: {inspect.getdoc(self.function).splitlines()[0]}"


def parse(text: str, table: Mapping[str, Callable[..., Any]], key: str) -> tuple[Operation, ...]:
    """Reads a chain of operations.

    Args:
        text: `NAME | NAME(VALUE, ARGUMENT=VALUE) | ...`; empty: no operation.
        table: the functions by name.
        key: what holds the text, a key or a flag, for messages.

    Raises:
        ConfigError: a name or an argument is unknown, or a value is not what it may be.
    """
    assignment = f"{key}={shown(text)}"
    try:
        calls = _calls(ast.parse(text.strip(), mode="eval").body) if text.strip() else []
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError) as error:
        raise ConfigError(
            f"{assignment}: expected NAME or NAME(ARGUMENT=VALUE, ...), each argument once, joined by "
            f"|, with the names {', '.join(table)}."
        ) from error
    return tuple(_operation(*call, table, assignment) for call in calls)


def _calls(node: ast.expr) -> list[tuple[str, list, dict[str, Any]]]:
    """The (name, positional values, named values) of each part; raises ValueError for others."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _calls(node.left) + _calls(node.right)
    function = node.func if isinstance(node, ast.Call) else node
    expanded = isinstance(node, ast.Call) and any(word.arg is None for word in node.keywords)
    if not isinstance(function, ast.Name) or expanded:
        raise ValueError(ast.dump(node))
    if not isinstance(node, ast.Call):
        return [(function.id, [], {})]
    names = [word.arg for word in node.keywords]
    if len(set(names)) < len(names):
        raise ValueError(f"an argument of {function.id} is given twice")
    values = [ast.literal_eval(value) for value in node.args]
    return [
        (function.id, values, {word.arg: ast.literal_eval(word.value) for word in node.keywords})
    ]


def _operation(
    name: str, values: list, named: dict[str, Any], table: Mapping[str, Callable], assignment: str
) -> Operation:
    if name not in table:
        nearest = difflib.get_close_matches(name[:SHOWN], table, n=1, cutoff=0)[0]
        raise ConfigError(
            f"{assignment}: {shown(name)} is not one of {', '.join(table)}; the nearest: {nearest}."
        )
    signature = inspect.signature(table[name])
    free = [one for one in signature.parameters.values() if one.kind is not one.POSITIONAL_ONLY]
    form = f"{name}({', '.join(str(one.replace(annotation=one.empty)) for one in free)})"
    try:
        bound = signature.replace(parameters=free).bind(*values, **named)
    except TypeError as error:
        raise ConfigError(f"{assignment}: {error}; the form is {form}.") from error
    bound.apply_defaults()
    hints = typing.get_type_hints(table[name], include_extras=True)
    for argument, value in bound.arguments.items():
        if fault := kind_of(hints[argument]).fault(value):
            raise ConfigError(f"{assignment}: {argument} of {name} {fault}, not {shown(value)}.")
    return Operation(name, table[name], dict(bound.arguments))
