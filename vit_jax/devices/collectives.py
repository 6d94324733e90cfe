"""The exchanges of the devices in one run of a compiled program, counted in its text (HLO)."""

import math
import re
from collections import Counter
from typing import NamedTuple

from vit_jax.devices.hlo import Instruction, Program, array_bytes

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

GROUP_LISTS = re.compile(r"replica_groups=\{\{([\d,]+)\}")  # {{0,1},{2,3}}
GROUP_SHAPE = re.compile(r"replica_groups=\[\d+,(\d+)\]<=")  # [groups, members of each]<=[...]
GROUP_AXES = re.compile(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}")  # of named mesh axes
CHANNEL = re.compile(r"\bchannel_id=(\d+)")
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


def collectives(program: Program) -> Counter[Collective]:
    """Every exchange of a compiled program, and how often one run makes it.

    Loops count as often as they run, where the program says how often (a `lax.scan` always does);
    others count once.
    """
    total: Counter[Collective] = Counter()
    begun: set[str] = set()  # A TPU's all-gather may go on through several fusions.
    for instruction, times, computation, caller in program.executed(into_fusions=True):
        kind = instruction.operation.removesuffix("-start")
        if kind in KINDS:
            names = f"{caller.name if caller else ''} {computation}"
            kind = "reduce-scatter" if FUSED_REDUCE_SCATTER in names else kind
            channel = _channel_in_fusion(instruction, caller)
            if kind != "all-gather" or channel not in begun:
                total[_collective(kind, instruction)] += times
            begun |= {channel} - {""}
    return total


def _channel_in_fusion(instruction: Instruction, caller: Instruction | None) -> str:
    """The channel of an exchange within a fusion; "" of one outside."""
    found = CHANNEL.search(instruction.rest)
    return found[1] if found and caller and caller.operation == "fusion" else ""


def _collective(kind: str, instruction: Instruction) -> Collective:
    """With the bytes of the larger side: the gathered result, or what is reduced."""
    sizes, operation = array_bytes(instruction.shape), instruction.operation
    group = _group(instruction.rest)
    size = sum(sizes)
    if kind == operation == "reduce-scatter":
        size *= group or 1
    elif operation == "all-gather-start":
        size = sum(sizes[len(sizes) // 2 :])
    elif operation == "collective-permute-start":
        size = sizes[0]
    return Collective(kind, size, group)


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
