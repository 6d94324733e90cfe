"""Does a run fit, and how fast can it be at best? Asked before any accelerator is paid for.

    python -m vit_jax.plan --config=configs/vit.py:h14 --topology=v5e:16x16 [--config.KEY=VALUE ...]

Compiles the real train step for devices that are not here (`vit_jax.devices.topology`), and prints what one
device has to hold, what the devices exchange in a step, and a lower bound of the step's time.
`--suggest` compiles changes of the config until one fits; `--json` prints one JSON document.

Exit codes: 0 it fits; 1 it does not, and nothing that was tried does; 2 a mistake in what was asked.
"""

import dataclasses
import json
import logging
import math
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

if __name__ == "__main__":  # Before JAX looks for devices: only libtpu's compiler is of use here.
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",  # There is no TPU to ask what it is,
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nor one that two plans could quarrel about.
    }

import jax
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.command_line import OVERRIDE, Parser, parse_with_config, run_command
from vit_jax.config_file import load_config
from vit_jax.console import format_duration
from vit_jax.data.dataset import open_dataset
from vit_jax.devices import sharding
from vit_jax.devices.collectives import Collective, collectives
from vit_jax.devices.hardware import GIB
from vit_jax.devices.topology import Topology, open_topology
from vit_jax.tables import format_table
from vit_jax.training.architecture import with_architecture
from vit_jax.training.experiment import make_experiment
from vit_jax.training.step import TrainStep

FITS, DOES_NOT_FIT = 0, 1
REMATS = ("none", "dots", "full")  # config.model.remat, by the memory that each saves.

# The TPU compiler's words for a program that needs more memory than there is.
NEEDED = re.compile(r"(?:Used|HLO temporaries \()\s*([\d.]+)([KMGT])")
UNITS = {"K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}

logger = logging.getLogger("vit_jax")


class Memory(NamedTuple):
    """The memory of one device during a step, in bytes."""

    parameters: int
    optimizer: int
    average: int  # of the parameters (EMA)
    objective: int  # its frozen arrays, and what it updates itself
    batch: int
    temporaries: int  # activations, gradients, buffers of exchanges
    program: int

    @property
    def state(self) -> int:
        """The bytes that stay from step to step."""
        return self.parameters + self.optimizer + self.average + self.objective

    @property
    def total(self) -> int:
        """All of it at once."""
        return sum(self)


class Bound(NamedTuple):
    """Seconds that a step takes at least, by what limits it; None where a figure is unknown."""

    compute: float
    memory: float | None
    network: float | None

    @property
    def seconds(self) -> float:
        """The largest: at best, all three go on at the same time."""
        return max(value for value in self if value is not None)


@dataclasses.dataclass(frozen=True)
class Plan:
    """One config, compiled for one topology.

    Attributes:
      changes: "KEY=VALUE" of the config, beyond what was asked for.
      mesh: axis -> devices along it.
      memory: of one device. Temporaries are the compiler's, if it refused as far as it says.
      capacity: of one device's memory, nominal, bytes.
      refusal: the compiler's words if the program does not fit, else "".
      flops: of one step, forward and backward, recomputation not counted.
      exchanges: of one device in one step -> how often.
      bound: of a step's time.
      steps: of the whole run.
      compile_seconds: for lowering and compiling here.
    """

    changes: tuple[str, ...]
    mesh: dict[str, int]
    memory: Memory
    capacity: int
    refusal: str
    flops: float
    exchanges: Counter[Collective]
    bound: Bound
    steps: int
    compile_seconds: float

    @property
    def fits(self) -> bool:
        """Whether the compiler takes it and the nominal memory holds it."""
        return not self.refusal and self.memory.total <= self.capacity


def make_plan(config: ConfigDict, topology: Topology, changes: Sequence[str] = ()) -> Plan:
    """Compiles the train step of `config` for the devices of `topology`.

    Raises:
      UserError: the config is wrong, or does not divide over these devices.
    """
    config_lib.validate(config)
    config = with_architecture(config, cached_only=True)
    mesh = sharding.build_mesh(config.mesh, topology.devices)
    experiment = make_experiment(config, mesh, open_dataset(config, required=False))
    state, frozen, batch = experiment.state, experiment.frozen, experiment.batch

    start = time.perf_counter()
    compiled, refusal = try_to_compile(experiment.step, state, frozen, batch)
    seconds = time.perf_counter() - start
    analysis = compiled and compiled.memory_analysis()
    memory = Memory(
        bytes_per_device(state.params),
        bytes_per_device(state.opt_state),
        bytes_per_device(state.ema),
        bytes_per_device((frozen, state.objective)),
        bytes_per_device(batch),
        analysis.temp_size_in_bytes if analysis else needed_bytes(refusal),
        analysis.generated_code_size_in_bytes if analysis else 0,
    )
    exchanges = collectives(compiled.as_text()) if compiled else Counter()
    flops = experiment.flops_per_image * config.batch_size
    return Plan(
        tuple(changes),
        dict(mesh.shape),
        memory,
        int(topology.memory),
        refusal,
        flops,
        exchanges,
        lower_bound(topology, flops, memory, exchanges),
        experiment.durations.total,
        seconds,
    )


def try_to_compile(step: TrainStep, *arguments: Any) -> tuple[jax.stages.Compiled | None, str]:
    """The compiled program, or None and the compiler's words if there is not enough memory."""
    try:
        return step.lower(*arguments).compile(), ""
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None, str(error).splitlines()[0]


def bytes_per_device(tree: Any) -> int:
    """The bytes on one device of the arrays that a tree of shapes describes."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def needed_bytes(refusal: str) -> int:
    """The memory that the compiler says a refused program needs; 0 if it does not say."""
    found = NEEDED.search(refusal)
    return int(float(found[1]) * UNITS[found[2]]) if found else 0


def lower_bound(
    topology: Topology, flops: float, memory: Memory, exchanges: Counter[Collective]
) -> Bound:
    """The roofline: no step is faster than its arithmetic, its state's way through memory, or what
    a chip has to send to others.

    The state is read and written once; activations and a second reading of the parameters come on
    top. What the devices of one chip exchange among themselves is not counted twice.
    """
    count = len(topology.devices)
    sent = sum(exchange.bytes_sent(count) * times for exchange, times in exchanges.items())
    bandwidth, link = topology.bandwidth, topology.chip.interconnect
    return Bound(
        flops / (count * topology.peak_flops),
        (2 * memory.state + memory.batch) / bandwidth if bandwidth else None,
        sent / link if link else None,
    )


# ----------------------------------------------------------------------------------- suggestions


def suggestions(config: ConfigDict, topology: Topology, plan: Plan) -> Iterator[tuple[str, ...]]:
    """Changes of the config that save memory, those that cost least time first.

    What cannot suffice is left out: recomputation, if the state alone is too large.
    """
    rest = len(topology.devices) // plan.mesh["tensor"]
    more = REMATS[REMATS.index(config.model.remat or "none") + 1 :]
    remats = [f"model.remat={how}" for how in more]
    everywhere = () if rest == 1 else (f"mesh.fsdp={rest}", "mesh.data=1")
    if plan.memory.state < plan.capacity:
        yield from ((remat,) for remat in remats)
    if everywhere and plan.mesh["fsdp"] != rest:
        yield everywhere
        yield from ((*everywhere, remat) for remat in remats)
    per_device = config.batch_size // rest
    for micro in (2, 4, 8, 16, 32):
        if per_device % micro == 0 and micro > config.optimizer.accumulation_steps:
            yield (*everywhere, "model.remat=full", f"optimizer.accumulation_steps={micro}")


def try_suggestions(
    path: str, overrides: Sequence[str], topology: Topology, plan: Plan
) -> Iterator[Plan]:
    """Compiles one suggestion after the other, up to the first that fits."""
    for changes in suggestions(load_config(path, overrides), topology, plan):
        logger.info("Trying %s ...", " ".join(OVERRIDE + change for change in changes))
        replaced = {change.partition("=")[0] for change in changes}
        kept = [given for given in overrides if given.partition("=")[0] not in replaced]
        attempt = make_plan(load_config(path, [*kept, *changes]), topology, changes)
        yield attempt
        if attempt.fits:
            return


# ------------------------------------------------------------------------------------------ text


def describe(plan: Plan, topology: Topology, batch_size: int) -> str:
    """The plan as text for the screen."""
    chips = len(topology.devices) // topology.devices_per_chip
    axes = " x ".join(f"{axis}={size}" for axis, size in plan.mesh.items())
    core = "" if topology.devices_per_chip == 1 else " (two devices make a chip)"
    bound = plan.bound.seconds
    limits = ", ".join(
        f"{name} {value * 1e3:.3g} ms" for name, value in plan.bound._asdict().items() if value
    )
    lines = [
        f"{topology.name}: {chips} x {topology.kind}, {len(topology.devices)} devices{core}: {axes}",
        *([f"NOTE: {topology.stand_in}."] if topology.stand_in else []),
        *(
            [f"with {' '.join(OVERRIDE + change for change in plan.changes)}"]
            if plan.changes
            else []
        ),
        f"compiled in {plan.compile_seconds:.0f} s",
        "",
        format_table(memory_rows(plan)),
        "",
        verdict(plan),
        "",
        "exchanged per device and step:",
        format_table(exchange_rows(plan), indent="  ") if plan.exchanges else "  nothing known",
        "",
        f"model FLOPs per step: {plan.flops:.4g} (forward and backward, nothing recomputed)",
        f"a step takes at least {bound * 1e3:.3g} ms ({limits}): "
        f"at most {batch_size / bound:,.0f} images/s; "
        f"{plan.steps:,} steps at least {format_duration(plan.steps * bound)}, "
        f"{plan.steps * bound * chips / 3600:,.1f} chip-hours",
    ]
    return "\n".join(lines)


def memory_rows(plan: Plan) -> list[tuple[str, str]]:
    """The memory of one device, a line for each part."""
    rows = [("on each device", "GiB")]
    rows += [(name, f"{size / GIB:.3f}") for name, size in plan.memory._asdict().items() if size]
    return [
        *rows,
        ("total", f"{plan.memory.total / GIB:.3f}"),
        ("of", f"{plan.capacity / GIB:.3g}"),
    ]


def verdict(plan: Plan) -> str:
    """Whether it fits, in a sentence."""
    if plan.refusal:
        return f"DOES NOT FIT. The compiler: {plan.refusal}"
    if not plan.fits:
        return "DOES NOT FIT."
    return f"FITS: {plan.memory.total / plan.capacity:.0%} of the memory."


def exchange_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Kind, how often, and how many bytes."""
    return [
        (kind, f"{times:,} x", f"{size:,} bytes")
        for kind, (times, size) in sorted(exchanges_by_kind(plan).items())
    ]


def exchanges_by_kind(plan: Plan) -> dict[str, tuple[int, int]]:
    """Kind -> how often, and how many bytes in all."""
    totals: dict[str, tuple[int, int]] = {}
    for exchange, count in plan.exchanges.items():
        times, size = totals.get(exchange.kind, (0, 0))
        totals[exchange.kind] = times + count, size + count * exchange.size
    return totals


def as_json(plan: Plan, topology: Topology) -> dict[str, Any]:
    """The plan as what JSON can hold; sizes in bytes, times in seconds."""
    return {
        "topology": topology.name,
        "kind": topology.kind,
        "devices": len(topology.devices),
        "devices_per_chip": topology.devices_per_chip,
        "stand_in": topology.stand_in,
        "changes": plan.changes,
        "mesh": plan.mesh,
        "fits": plan.fits,
        "refusal": plan.refusal,
        "memory": plan.memory._asdict() | {"total": plan.memory.total, "capacity": plan.capacity},
        "exchanges": {
            kind: {"times": times, "bytes": size}
            for kind, (times, size) in exchanges_by_kind(plan).items()
        },
        "flops": plan.flops,
        "bound_seconds": plan.bound._asdict() | {"step": plan.bound.seconds},
        "steps": plan.steps,
        "compile_seconds": plan.compile_seconds,
    }


# --------------------------------------------------------------------------------------- command


def main(arguments: Sequence[str]) -> int:
    """Prints a plan, and with `--suggest` one that fits; returns the exit code."""
    return run_command(run, arguments)


def run(arguments: Sequence[str]) -> int:
    """Parses the flags and prints the plans; raises UserError."""
    parser = Parser("vit_jax.plan", "Whether a run fits, before it is paid for.")
    parser.add_argument("--topology", required=True, help="v5e:16x16, v4:2x2x4, gpu:8, ...")
    parser.add_argument("--suggest", action="store_true", help="if it does not fit, find what does")
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    flags, overrides = parse_with_config(parser, arguments)
    topology = open_topology(flags.topology)
    config = load_config(flags.config, overrides)
    plans = [make_plan(config, topology)]
    if flags.suggest and not plans[0].fits:
        plans += try_suggestions(flags.config, overrides, topology, plans[0])
    if flags.json:
        print(json.dumps([as_json(plan, topology) for plan in plans], indent=2))
    else:
        print("\n\n".join(describe(plan, topology, config.batch_size) for plan in plans))
    return FITS if plans[-1].fits else DOES_NOT_FIT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
