"""The exchanges of the devices in one run of a compiled program, counted in its text (HLO)."""

import math
import re
from collections import Counter
from typing import NamedTuple

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

# XLA's names of element types -> bytes of one.
ITEM_BYTES = {
    **dict.fromkeys(("pred", "s8", "u8", "f8e4m3fn", "f8e5m2"), 1),
    **dict.fromkeys(("s16", "u16", "f16", "bf16"), 2),
    **dict.fromkeys(("s32", "u32", "f32"), 4),
    **dict.fromkeys(("s64", "u64", "f64"), 8),
}

COMPUTATION = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\{$")
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$")
SHAPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
CALLED = re.compile(r"\b(?:calls|body|true_computation|false_computation)=%?([\w.\-]+)")
BRANCHES = re.compile(r"\bbranch_computations=\{([^}]*)\}")
CONDITION = re.compile(r"\bcondition=%?([\w.\-]+)")
TRIP_COUNT = re.compile(r'"known_trip_count":\{"n":"(\d+)"')
INTEGER = re.compile(r"= [su]\d+\[\]\S* constant\((\d+)\)")
GROUP_LISTS = re.compile(r"replica_groups=\{\{([\d,]+)\}")  # {{0,1},{2,3}}
GROUP_SHAPE = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")  # [groups, members of each]<=[...]
GROUP_AXES = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")  # of named mesh axes
FUSED_REDUCE_SCATTER = "all-reduce-scatter"  # A TPU's fusion of an all-reduce and a slice of it.


class Collective(NamedTuple):
    """One exchange.

    Attributes:
      kind: one of `KINDS`.
      size: bytes on one device: of what is reduced, of what is gathered, else of what is sent.
      group: number of devices that take part; 0 means all.
    """

    kind: str
    size: int
    group: int

    def bytes_sent(self, num_devices: int) -> float:
        """The bytes that a device has to send at least."""
        others = 1 - 1 / (self.group or num_devices)
        rounds = {"all-reduce": 2 * others, "collective-permute": 1.0}
        return self.size * rounds.get(self.kind, others)


def collectives(text: str) -> Counter[Collective]:
    """Every exchange of a compiled program, and how often one run makes it.

    Args:
      text: of `jax.stages.Compiled.as_text()`. Loops count as often as they run, where the text
        says how often (a `lax.scan` always does); others count once.
    """
    computations, entry = _computations(text)
    total: Counter[Collective] = Counter()

    def visit(name: str, times: int, in_reduce_scatter: bool = False) -> None:
        for instruction in computations.get(name, ()):
            instruction_name, shape, operation, rest = instruction
            kind = operation.removesuffix("-start")
            if kind in KINDS:
                kind = "reduce-scatter" if in_reduce_scatter else kind
                total[Collective(kind, _size(kind, operation, shape, rest), _group(rest))] += times
            repeats = _repeats(rest, computations) if operation == "while" else 1
            called = CALLED.findall(rest)
            for branches in BRANCHES.findall(rest):
                called += [branch.strip(" %") for branch in branches.split(",")]
            scattered = FUSED_REDUCE_SCATTER in f"{instruction_name} {called}"
            for inner in called:
                visit(inner, times * repeats, scattered)

    visit(entry, 1)
    return total


def _computations(text: str) -> tuple[dict[str, list[tuple[str, ...]]], str]:
    """Name -> instructions as (name, shape, operation, the rest), and which one is run."""
    computations: dict[str, list[tuple[str, ...]]] = {}
    entry, current = "", ""
    for line in text.splitlines():
        if found := COMPUTATION.match(line):
            current = found[2]
            entry = current if found[1] else entry
            computations[current] = []
        elif current and (found := INSTRUCTION.match(line)):
            computations[current].append(found.groups())
    return computations, entry


def _repeats(rest: str, computations: dict) -> int:
    """How often a loop runs: as stated, else the number that its condition compares with."""
    if stated := TRIP_COUNT.search(rest):
        return int(stated[1])
    condition = CONDITION.search(rest)
    limits = [
        int(found[1])
        for name, shape, operation, tail in computations.get(condition[1] if condition else "", ())
        if (found := INTEGER.search(f"= {shape} {operation}({tail}"))
    ]
    return limits[0] if len(limits) == 1 else 1


def _size(kind: str, operation: str, shape: str, rest: str) -> int:
    """Bytes of the larger side: the gathered result, or what is reduced."""
    result = [
        math.prod(map(int, dims.split(","))) * ITEM_BYTES[item] if dims else ITEM_BYTES[item]
        for item, dims in SHAPE.findall(shape)
        if item in ITEM_BYTES
    ]
    if kind == "reduce-scatter" and operation == "reduce-scatter":
        return sum(result) * (_group(rest) or 1)
    if operation in ("all-gather-start", "collective-permute-start"):
        return sum(result[len(result) // 2 :]) if operation.startswith("all") else result[0]
    return sum(result)


def _group(rest: str) -> int:
    """How many devices exchange with each other; 0 for all."""
    if found := GROUP_LISTS.search(rest):
        return len(found[1].split(","))
    if found := GROUP_SHAPE.search(rest):
        return int(found[1])
    if found := GROUP_AXES.search(rest):
        sizes = dict(re.findall(r"'([^']+)'=(\d+)", found[1]))
        return math.prod(int(sizes[axis]) for axis in re.findall(r"'([^']+)'", found[2]))
    return 0
