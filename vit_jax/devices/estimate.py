"""How long a compiled program takes, estimated from what the compiler wrote.

A TPU's compiler states the cycles of each instruction. A GPU's states none: each kernel takes the
longer of its bytes and its products, and a launch. `SHARE_OF_*` and `LAUNCH_SECONDS` are fixed, so
that estimates of different programs compare; docs/performance.md says how far off they are.
"""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from vit_jax.devices.hardware import CHIPS, Chip
from vit_jax.devices.hlo import Instruction, Program, array_bytes, array_shapes

# Of the nominal figures, what kernels of this size reach, and what each costs beside its work.
SHARE_OF_BANDWIDTH = 0.85
SHARE_OF_PEAK = 0.70
LAUNCH_SECONDS = 2.5e-6

# Operations that start no kernel: names of what is there already, control flow, ends of exchanges.
FREE = frozenset(
    [
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "while",
        "conditional",
        "call",
        "after-all",
        "opt-barrier",
        "partition-id",
        "replica-id",
        "async-start",
        "async-update",
        "async-done",
        "copy-done",
    ]
)
EXCHANGE = re.compile("(all-|reduce-scatter|collective-)")  # Counted by the network's bound.
MATMUL, CONVOLUTION = "__cublas", "__cudnn$conv"
SLICES = ("dynamic-slice", "gather", "slice")  # They read what they return, not all they are given.

TARGET = re.compile(r'custom_call_target="([^"]+)"')
CONTRACTED = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
EXACT = re.compile(r'"operand_precision":\["HIGHEST"')
LABELS = re.compile(r"dim_labels=\w+_(\w+)->")
CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')

# The cycles of a TPU core in a second. v2 to v4: Google's own account of them, arXiv 2304.01433. v5e,
# v5p: the published peak by a cycle's work, 4 and 8 units of 128 x 128 multiplications and additions.
TPU_CLOCKS = {
    "TPU v2": 0.70e9,
    "TPU v3": 0.94e9,
    "TPU v4": 1.05e9,
    "TPU v5 lite": 1.5e9,  # v5e, as a device that is there calls itself
    "TPU v5e": 1.5e9,
    "TPU v5": 1.75e9,  # v5p
    "TPU v5p": 1.75e9,
}


class Kernel(NamedTuple):
    """One launch on a GPU.

    Attributes:
      name: of its instruction.
      times: how often a run launches it.
      bytes: that it reads and writes.
      flops: of matrix products and convolutions.
      exact: whether the products are of float32 without tensor cores.
      float32: whether the products' inputs are float32.
    """

    name: str
    times: int
    bytes: int
    flops: float = 0.0
    exact: bool = False
    float32: bool = False


def device_seconds(program: Program, kind: str) -> float | None:
    """One run on a device of the kind that a program was compiled for; None if it cannot be told."""
    if kind in TPU_CLOCKS:
        return tpu_seconds(program, kind)
    chip = CHIPS.get(kind)
    return None if chip is None else gpu_seconds(gpu_kernels(program), chip)


def tpu_seconds(program: Program, kind: str) -> float | None:
    """The compiler's cycles over all that runs; None for a kind whose clock is not published."""
    clock = TPU_CLOCKS.get(kind)
    if clock is None:
        return None
    cycles = sum(
        int(stated[1]) * times
        for instruction, times, _, _ in program.executed()
        if instruction.operation != "while" and (stated := CYCLES.search(instruction.rest))
    )
    return cycles / clock or None


def gpu_seconds(kernels: list[Kernel], chip: Chip) -> float | None:
    """The sum over all kernels; None without the figures of the chip."""
    if not (chip.bandwidth and chip.float32_flops):
        return None
    return sum(kernel.times * kernel_seconds(kernel, chip) for kernel in kernels)


def kernel_seconds(kernel: Kernel, chip: Chip) -> float:
    """One launch, on a chip whose figures are known. TensorFloat-32 has half of bfloat16's speed."""
    assert chip.bandwidth is not None
    assert chip.float32_flops is not None
    peak = chip.float32_flops if kernel.exact else chip.flops / (2 if kernel.float32 else 1)
    moving = kernel.bytes / (SHARE_OF_BANDWIDTH * chip.bandwidth)
    return LAUNCH_SECONDS + max(moving, kernel.flops / (SHARE_OF_PEAK * peak))


def gpu_kernels(program: Program) -> list[Kernel]:
    """What a GPU launches in one run of a program."""
    return list(_kernels(program))


def _kernels(program: Program) -> Iterator[Kernel]:
    for instruction, times, computation, _ in program.executed():
        operation = instruction.operation
        if operation in FREE or EXCHANGE.match(operation):
            continue
        around = program.computations[computation]
        operands = [around[name].shape for name in instruction.operands if name in around]
        moved = _moved_bytes(program, instruction, operands)
        found = TARGET.search(instruction.rest)
        target = found[1] if found else ""
        flops = 0.0
        if target.startswith(MATMUL):
            flops = _matmul_flops(instruction, operands)
        elif target.startswith(CONVOLUTION):
            flops = _convolution_flops(target, instruction, operands)
        inputs = [item for operand in operands[:2] for item, _ in array_shapes(operand)]
        float32 = "f32" in inputs
        exact = float32 and bool(EXACT.search(instruction.rest))
        yield Kernel(instruction.name, times, moved, flops, exact, float32)


def _moved_bytes(program: Program, instruction: Instruction, operands: list[str]) -> int:
    """What is read and written; of a stack of layers that is sliced, the slice."""
    if instruction.operation in SLICES:
        return 2 * sum(array_bytes(instruction.shape))
    if instruction.operation == "dynamic-update-slice":
        return 2 * sum(array_bytes(operands[1]))
    if instruction.operation != "fusion":
        results = array_bytes(instruction.shape)
        # A library's second result is its workspace.
        written = results[0] if MATMUL in instruction.rest and results else sum(results)
        return written + sum(sum(array_bytes(operand)) for operand in operands)
    return sum(_fusion_bytes(program, called) for called in instruction.called)


def _fusion_bytes(program: Program, name: str) -> int:
    """The parameters that a fused computation reads, and its results."""
    inside = program.computations.get(name, {})
    total = 0
    users: dict[str, list[Instruction]] = {}
    for instruction in inside.values():
        for operand in instruction.operands:
            users.setdefault(operand, []).append(instruction)
    for instruction in inside.values():
        if instruction.operation == "parameter":
            total += _read_bytes(instruction, users)
        if instruction.is_root:
            total += _written_bytes(inside, instruction)
    return total


def _read_bytes(source: Instruction, users: dict[str, list[Instruction]]) -> int:
    """Of an array: all of it, or no more than what its users slice out of it."""
    whole, needed = sum(array_bytes(source.shape)), 0
    for user in users.get(source.name, []):
        if user.operation in SLICES:
            needed += sum(array_bytes(user.shape))
        elif user.operation == "bitcast":
            needed += _read_bytes(user, users)
        elif not (user.operation == "dynamic-update-slice" and user.operands[0] == source.name):
            return whole
    return min(whole, needed)


def _written_bytes(inside: dict[str, Instruction], root: Instruction) -> int:
    """Of a result: all of it, or the slice that it updates."""
    if root.operation == "tuple":
        return sum(_written_bytes(inside, inside[n]) for n in root.operands if n in inside)
    if root.operation == "bitcast" and root.operands and root.operands[0] in inside:
        return _written_bytes(inside, inside[root.operands[0]])
    if root.operation == "dynamic-update-slice":
        return sum(array_bytes(inside[root.operands[1]].shape))
    return sum(array_bytes(root.shape))


def _matmul_flops(instruction: Instruction, operands: list[str]) -> float:
    """Two for each element of the result and of the summed dimensions."""
    (_, left), *_ = array_shapes(operands[0])
    (_, result), *_ = array_shapes(instruction.shape)
    found = CONTRACTED.search(instruction.rest)
    dimensions = re.findall(r"\d+", found[1]) if found else []
    return 2.0 * math.prod(result) * math.prod(left[int(index)] for index in dimensions)


def _convolution_flops(target: str, instruction: Instruction, operands: list[str]) -> float:
    """Of the forward pass that it is, or that it is a gradient of."""
    (_, result), *_ = array_shapes(instruction.shape)
    first, second = (array_shapes(operand)[0][1] for operand in operands[:2])
    if target.endswith("BackwardFilter"):
        kernel, output = result, second
    elif target.endswith("BackwardInput"):
        kernel, output = second, first
    else:
        kernel, output = second, result
    labels = LABELS.search(instruction.rest)
    channels = kernel[labels[1].index("o")] if labels and "o" in labels[1] else kernel[-1]
    return 2.0 * math.prod(output) * math.prod(kernel) / channels
