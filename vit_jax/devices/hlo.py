"""Compiled programs, read in their text (HLO): which instructions run, and how often."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

# XLA's names of element types -> bytes of one.
ITEM_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64"), 8),
}

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
OPERAND = re.compile(r"%([\w.\-]+)")
CALLED = re.compile(r"\b(?:calls|body|true_computation|false_computation)=%?([\w.\-]+)")
APPLIED = re.compile(r"\bto_apply=%?([\w.\-]+)")
BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
INTEGER = re.compile(r"= [su]\d+\[\]\S* constant\((\d+)\)")


class Instruction(NamedTuple):
    """One line of a computation.

    Attributes:
      name: of the instruction.
      shape: of its result, as text.
      operation: such as "fusion".
      rest: what follows the bracket that opens the operands.
      is_root: whether it is the computation's result.
    """

    name: str
    shape: str
    operation: str
    rest: str
    is_root: bool

    @property
    def operands(self) -> list[str]:
        """The names of the instructions that it reads."""
        return OPERAND.findall(self.rest.partition(")")[0])

    @property
    def called(self) -> list[str]:
        """The computations that it runs: of a fusion, a loop, a branch, a call."""
        called = CALLED.findall(self.rest)
        for branches in BRANCHES.findall(self.rest):
            called += [branch.strip(" %") for branch in branches.split(",")]
        return called + (APPLIED.findall(self.rest) if self.operation == "call" else [])


class Executed(NamedTuple):
    """An instruction of a program that runs.

    Attributes:
      instruction: which one.
      times: how often.
      computation: the name of the one that it is in.
      caller: what runs that computation; None: the program itself.
    """

    instruction: Instruction
    times: int
    computation: str
    caller: Instruction | None


class Program(NamedTuple):
    """A compiled program.

    Attributes:
      computations: name -> its instructions by their names, in order.
      entry: which computation is run.
    """

    computations: Mapping[str, dict[str, Instruction]]
    entry: str

    def instructions(self, name: str) -> list[Instruction]:
        """Those of a computation; none of one that is not known."""
        return list(self.computations.get(name, {}).values())

    def repeats(self, instruction: Instruction) -> int:
        """How often a loop runs: as stated, else the number that its condition compares with.

        1 for any other instruction, and where it cannot be told.
        """
        if instruction.operation != "while":
            return 1
        if stated := TRIP_COUNT.search(instruction.rest):
            return int(stated[1])
        condition = CONDITION.search(instruction.rest)
        limits = [
            int(found[1])
            for _, shape, operation, rest, _ in self.instructions(condition[1] if condition else "")
            if (found := INTEGER.search(f"= {shape} {operation}({rest}"))
        ]
        return limits[0] if len(limits) == 1 else 1

    def executed(self, *, into_fusions: bool = False) -> Iterator[Executed]:
        """What runs, in order; a fusion is one instruction, or also those within it."""

        def visit(name: str, times: int, caller: Instruction | None) -> Iterator[Executed]:
            for instruction in self.instructions(name):
                yield Executed(instruction, times, name, caller)
                if instruction.operation != "fusion" or into_fusions:
                    for inner in instruction.called:
                        yield from visit(inner, times * self.repeats(instruction), instruction)

        return visit(self.entry, 1, None)


def read_program(text: str) -> Program:
    """The program of `jax.stages.Compiled.as_text()`."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        if found := COMPUTATION.match(line):
            current = found[2]
            entry = current if found[1] else entry
            computations[current] = {}
        elif current and (found := INSTRUCTION.match(line)):
            root, name, shape, operation, rest = found.groups()
            computations[current][name] = Instruction(name, shape, operation, rest, bool(root))
    return Program(computations, entry)


def array_shapes(shape: str) -> list[tuple[str, tuple[int, ...]]]:
    """The element type and the dimensions of each array of a shape's text."""
    return [
        (item, tuple(map(int, dims.split(","))) if dims else ())
        for item, dims in SHAPE.findall(shape)
        if item in ITEM_BYTES
    ]


def array_bytes(shape: str) -> list[int]:
    """The bytes of each array of a shape's text."""
    return [ITEM_BYTES[item] * math.prod(dims) for item, dims in array_shapes(shape)]
