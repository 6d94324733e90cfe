"""Speeds of one program, repeated, and the figures that stand beside them."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from vit_jax.devices import hardware
from vit_jax.devices.estimate import device_seconds
from vit_jax.devices.hlo import read_program

SYNTHETIC, REAL = "synthetic", "real"
DATA = (SYNTHETIC, REAL)
SHARE_TO_TRY = 0.1  # Of a repeat's time, from which on its number of runs can be told.


@dataclasses.dataclass(frozen=True)
class Timing:
    """How long to measure.

    Attributes:
      seconds: in all, about.
      repeats: of equal length, each with a speed of its own.
    """

    seconds: float
    repeats: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A compiled program.

    Attributes:
      compile_seconds: lowering included.
      temporary_bytes: of one device, by the compiler; None if it does not say.
      resident_bytes: of one device, arguments and results; None if it does not say.
      estimate_seconds: of one run, as `vit_jax.plan` estimates it; None where it cannot.
    """

    compile_seconds: float
    temporary_bytes: int | None
    resident_bytes: int | None
    estimate_seconds: float | None

    @property
    def bytes(self) -> int | None:
        """All that one device has to hold."""
        if self.temporary_bytes is None or self.resident_bytes is None:
            return None
        return self.temporary_bytes + self.resident_bytes


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Speed:
    """What was measured of one config; a JSON object with `--json`.

    Attributes:
      what: "train", "step" or "eval".
      model, image_size, batch_size, dtype: of the config.
      device: JAX's name of the kind; `devices`: how many.
      data: of `DATA`.
      execution: what was chosen for the devices.
      repeats: images/s of each.
      flops_per_image: of the model, nothing recomputed.
      peak_flops: of all devices; None if unknown.
      first_step_seconds: from the process's start to the end of the first step, or batch.
      peak_memory_bytes: of one device; on a CPU of the process. None if the device keeps no count.
      program: compiled.
      data_wait: share of the time; None where it is not told apart.
      largest_batch: over all devices, that fits; None where none was looked for.
    """

    what: str
    model: str
    image_size: tuple[int, int]
    batch_size: int
    dtype: str
    device: str
    devices: int
    data: str
    execution: dict[str, str | int]
    repeats: tuple[float, ...]
    flops_per_image: float
    peak_flops: float | None
    first_step_seconds: float
    peak_memory_bytes: int | None
    program: Program
    data_wait: float | None = None
    largest_batch: int | None = None

    @property
    def images_per_second(self) -> float:
        """The median of the repeats."""
        return statistics.median(self.repeats)

    @property
    def mfu(self) -> float | None:
        """The share of the devices' peak that goes into the model's arithmetic."""
        achieved = self.images_per_second * self.flops_per_image
        return achieved / self.peak_flops if self.peak_flops else None

    def as_json(self) -> dict[str, Any]:
        """As JSON can hold it: with the median, and the lowest and highest of the repeats."""
        derived = {
            "images_per_second": self.images_per_second,
            "images_per_second_range": (min(self.repeats), max(self.repeats)),
            "step_seconds": self.batch_size / self.images_per_second,
            "mfu": self.mfu,
        }
        fields = dataclasses.asdict(self)
        return derived | fields | {"jax": jax.__version__}

    def describe(self) -> str:
        """A few lines of text."""
        height, width = self.image_size
        lowest, highest = min(self.repeats), max(self.repeats)
        chosen = ", ".join(f"{name} {value}" for name, value in self.execution.items())
        mfu = "" if self.mfu is None else f", {self.mfu:.1%} MFU"
        rows = {
            "model": f"{self.model} at {height}x{width} px in {self.dtype}: {chosen}",
            "devices": f"{self.devices} x {self.device}, a batch of {self.batch_size:,}, "
            f"{self.data} data",
            "images/s": f"{self.images_per_second:,.1f}{mfu}; {lowest:,.1f} to {highest:,.1f} in "
            f"{len(self.repeats)} repeats",
            "a step": f"{1e3 * self.batch_size / self.images_per_second:,.1f} ms"
            + estimated(self.program),
            "largest": ""
            if self.largest_batch is None
            else f"a batch of {self.largest_batch:,} fits",
            "data wait": "" if self.data_wait is None else f"{self.data_wait:.1%} of the time",
            "start": f"{self.first_step_seconds:.1f} s to the first step's end, of them "
            f"{self.program.compile_seconds:.1f} s to compile",
            "memory": f"{gib(self.peak_memory_bytes)} at most, "
            f"{gib(self.program.temporary_bytes)} of temporaries by the compiler",
        }
        return "\n".join(f"{name:10} {text}" for name, text in rows.items() if text)


def estimated(program: Program) -> str:
    """The estimate in words, where there is one."""
    if program.estimate_seconds is None:
        return ""
    return f"; {1e3 * program.estimate_seconds:,.1f} ms by the estimate of vit_jax.plan"


def gib(size: int | None) -> str:
    """Bytes in words."""
    return "an unknown amount" if size is None else f"{size / hardware.GIB:.2f} GiB"


def compile_program(
    function: jax.stages.Wrapped, *arguments: Any
) -> tuple[jax.stages.Compiled, Program]:
    """The compiled function, and what the compiler says of it."""
    start = time.perf_counter()
    compiled = function.lower(*arguments).compile()
    seconds = time.perf_counter() - start
    analysis = compiled.memory_analysis()
    resident = analysis and (
        analysis.argument_size_in_bytes
        + analysis.output_size_in_bytes
        - analysis.alias_size_in_bytes
    )
    program = read_program(compiled.as_text() or "")
    return compiled, Program(
        compile_seconds=seconds,
        temporary_bytes=analysis and analysis.temp_size_in_bytes,
        resident_bytes=resident,
        estimate_seconds=device_seconds(program, jax.devices()[0].device_kind),
    )


def repeat(run: Callable[[int], None], images: int, timing: Timing) -> tuple[float, ...]:
    """The images/s of each repeat of a function that does so many runs and waits for the last.

    How many make a repeat is found by a few that do not count, until they last: the first batches
    may lie ready.
    """
    each, count, elapsed = timing.seconds / timing.repeats, 0, 0.0
    while elapsed < SHARE_TO_TRY * each:
        count = 2 * count or 1
        elapsed = seconds_of(run, count)
    count = max(1, round(count * each / elapsed))
    return tuple(count * images / seconds_of(run, count) for _ in range(timing.repeats))


def seconds_of(run: Callable[[int], None], count: int) -> float:
    """The wall time of so many runs."""
    start = time.perf_counter()
    run(count)
    return time.perf_counter() - start


def grouped(counts: Sequence[float], seconds: Sequence[float], groups: int) -> tuple[float, ...]:
    """Speeds of intervals that follow one another, joined to so many groups, or fewer."""
    size = max(1, len(counts) // groups)
    starts = range(0, size * min(groups, len(counts)), size)
    return tuple(sum(counts[i : i + size]) / sum(seconds[i : i + size]) for i in starts)


def peak_of_all(devices: Sequence[jax.Device]) -> float | None:
    """The peak FLOP/s of devices of one kind together; None if unknown."""
    peak = hardware.peak_flops(devices[0])
    return None if peak is None else peak * len(devices)
