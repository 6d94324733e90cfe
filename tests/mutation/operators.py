"""Small bugs that a program may have: each is one replacement in the text of a module."""

import ast
import dataclasses
import difflib
from collections.abc import Iterator

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Div,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
ALIKE = [("min", "max"), ("any", "all"), ("ceil", "floor"), ("minimum", "maximum"), ("mean", "sum")]
FUNCTIONS = dict(ALIKE) | {second: first for first, second in ALIKE}
INSTEAD = "argument for call"
UNCHANGED = ("getattr", "isinstance", "len", "print")  # A changed call of these only crashes.
NEW_KEYS = ("fold_in", "split")  # Functions of `jax.random` whose first argument is a key.
LOGGERS = ("logging", "logger", "log", "warnings")
Change = tuple[str, ast.AST, str]  # The operator, the node to replace, and by what text.


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One replacement of characters in a file, and the operator that it comes from."""

    path: str
    operator: str
    start: int
    stop: int
    text: str

    def apply(self, source: str) -> str:
        """The module's text with the bug in it."""
        return source[: self.start] + self.text + source[self.stop :]

    def diff(self, source: str) -> str:
        """The lines that change, as a unified diff with a line of context."""
        before, after = source.splitlines(), self.apply(source).splitlines()
        return "\n".join(difflib.unified_diff(before, after, self.path, self.path, "", "", 1, ""))

    def lines(self, source: str) -> tuple[str, str]:
        """The changed lines before and after, without indentation: they name it in any version."""
        changed = [line for line in self.diff(source).splitlines()[3:] if line[0] in "+-"]
        return tuple(
            "\n".join(line[1:].strip() for line in changed if line[0] == sign) for sign in "-+"
        )


def mutants_of(path: str, source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its text; none in messages, logs and annotations."""
    lengths = [len(line) for line in source.encode().splitlines(keepends=True)]
    starts = [sum(lengths[:number]) for number in range(len(lengths))]
    characters = source.encode()

    def position(line: int, column: int) -> int:
        return len(characters[: starts[line - 1] + column].decode())

    found = []
    for operator, node, text in _changes(ast.parse(source)):
        start = position(node.lineno, node.col_offset)
        stop = position(node.end_lineno, node.end_col_offset)
        if source[start:stop] != text:
            found.append(Mutant(path, operator, start, stop, text))
    return sorted(set(found), key=lambda mutant: (mutant.start, mutant.stop, mutant.text))


def _changes(node: ast.AST) -> Iterator[Change]:
    yield from _changes_here(node)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_text(child):
                for change in _changes(child):
                    if not (isinstance(node, ast.Expr) and change[:2] == (INSTEAD, child)):
                        yield change  # A statement that is an argument alone is a dropped call.


def _is_text(node: ast.AST) -> bool:
    """Whether it is read by people only: an error's message, a log line, a string."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        return ast.unparse(node.value.func).split(".")[0] in LOGGERS
    return isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr)


def _changes_here(node: ast.AST) -> Iterator[Change]:
    """Those of one node, without what it contains."""
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in COMPARISONS:
            other = COMPARISONS[type(operator)]()
            yield "comparison", node, _text(ast.Compare(node.left, [other], node.comparators))
        case ast.BinOp() if type(node.op) in ARITHMETIC and not _has_string(node):
            other = ARITHMETIC[type(node.op)]()
            yield "arithmetic", node, _text(ast.BinOp(node.left, other, node.right))
        case ast.BoolOp():
            other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield "and/or", node, _text(ast.BoolOp(other, node.values))
        case ast.UnaryOp(op=ast.Not()):
            yield "negation", node, _text(node.operand)
        case ast.Constant(value=bool()):
            yield "constant", node, str(not node.value)
        case ast.Constant(value=int()):
            yield "constant", node, str(node.value + 1)
        case ast.Constant(value=float()):
            yield "constant", node, str(2 * node.value if node.value else 0.5)
        case ast.If() | ast.While():
            yield "condition", node.test, f"not ({_text(node.test)})"
        case ast.IfExp():
            yield "branches", node, _text(ast.IfExp(node.test, node.orelse, node.body))
        case ast.Slice():
            yield from _other_bounds(node)
        case ast.Expr(value=ast.Call()):
            yield "dropped call", node, "pass"
        case ast.Call():
            yield from _other_call(node)


def _other_bounds(node: ast.Slice) -> Iterator[Change]:
    bounds = {"lower": node.lower, "upper": node.upper, "step": node.step}
    for name in ("lower", "upper"):
        if bounds[name]:
            yield "slice", node, _text(ast.Slice(**{**bounds, name: None}))


def _other_call(node: ast.Call) -> Iterator[Change]:
    """Another function, key, order of arguments, default, or no call at all."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) else _text(node.func)
    plain = [argument for argument in node.args if not isinstance(argument, ast.Starred)]
    if name in FUNCTIONS:
        yield "function", node.func, _text(node.func)[: -len(name)] + FUNCTIONS[name]
    if name in UNCHANGED:
        return
    if name in NEW_KEYS and "random" in _text(node.func):
        yield "key reuse", node, _same_key(name, *map(_text, node.args))
    elif plain and not _has_string(node):
        yield INSTEAD, node, f"({_text(plain[0])})"
    if len(plain) == len(node.args) >= 2 and name not in NEW_KEYS:
        swapped = [plain[1], plain[0], *plain[2:]]
        yield "swapped arguments", node, _text(ast.Call(node.func, swapped, node.keywords))
    for index, keyword in enumerate(node.keywords):
        if keyword.arg:
            others = node.keywords[:index] + node.keywords[index + 1 :]
            yield "default", node, _text(ast.Call(node.func, node.args, others))


def _same_key(name: str, key: str, count: str = "2", *_: str) -> str:
    """Text for the given key where new ones were made from it."""
    return key if name == "fold_in" else f"[{key}] * ({count})"


def _has_string(node: ast.AST) -> bool:
    """Whether an operand or the first argument is a text."""
    match node:
        case ast.BinOp():
            return _has_string(node.left) or _has_string(node.right)
        case ast.Call():
            return any(map(_has_string, node.args[:1]))
        case ast.Constant():
            return isinstance(node.value, str)
    return isinstance(node, ast.JoinedStr)


def _text(node: ast.AST) -> str:
    return ast.unparse(node)
