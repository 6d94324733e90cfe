"""Does a run fit, and how fast can it be at best? Asked before any accelerator is paid for.

    python -m vit_jax.plan --config=configs/vit.py:h14 --topology=v5e:16x16 [--config.KEY=VALUE ...]

Compiles the real train step for devices that are not here (`vit_jax.devices.topology`), and prints what one
device has to hold, what the devices exchange in a step, how long the step takes at least, and where the
devices' own compiler is installed an estimate.
`--suggest` compiles changes of the config until one fits; `--json` prints one JSON document.

Exit codes: 0 it fits; 1 it does not, and nothing that was tried does; 2 a mistake in what was asked.
"""

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

if __name__ == "__main__":  # Before JAX looks for devices: only libtpu's compiler is of use here.
    os.environ |= {
        "JAX_PLATFORMS": "cpu",
        "TPU_SKIP_MDS_QUERY": "1",  # There is no TPU to ask what it is,
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nor one that two plans could quarrel about.
        "TF_CPP_MIN_LOG_LEVEL": "2",  # Nor a GPU, which XLA's plug-in for NVIDIA remarks.
    }

from ml_collections import ConfigDict

from vit_jax.command_line import OVERRIDE, Parser, parse_with_config, positive, run_command
from vit_jax.config_file import load_config
from vit_jax.console import format_duration
from vit_jax.data.dataset import Dataset
from vit_jax.data.supply import Supply
from vit_jax.devices.hardware import GIB
from vit_jax.devices.topology import CUDA, Topology, open_topology
from vit_jax.models.remat import DOTS, FULL, NONE
from vit_jax.tables import format_table
from vit_jax.training import execution
from vit_jax.training.planning import Plan, make_plan, measure_supply, open_data

FITS, DOES_NOT_FIT = 0, 1
WITHOUT_HIDDEN = "query+key+value+out"  # Not what is widest of a block: the MLP's hidden layer.
REMATS = (NONE, DOTS, WITHOUT_HIDDEN, FULL)  # config.model.remat, by the memory that each saves.

UNKNOWN_WITHOUT_A_GPU = (
    "  (not known without a GPU: which product kernels tuning chooses, and cuDNN's workspaces)"
)

logger = logging.getLogger("vit_jax")


# ----------------------------------------------------------------------------------- suggestions


def suggestions(config: ConfigDict, topology: Topology, plan: Plan) -> Iterator[tuple[str, ...]]:
    """Changes of the config that save memory, those that cost least time first.

    What cannot suffice is left out: recomputation, if the state alone is too large.
    """
    rest = len(topology.devices) // plan.mesh["tensor"]
    given = str(plan.execution["remat"].value)
    more = REMATS[REMATS.index(given) + 1 :] if given in REMATS else (FULL,)
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
            yield (*everywhere, f"model.remat={FULL}", f"optimizer.accumulation_steps={micro}")


def try_suggestions(
    path: str, overrides: Sequence[str], topology: Topology, plan: Plan, dataset: Dataset
) -> Iterator[Plan]:
    """Compiles one suggestion after the other, up to the first that fits; none changes the data."""
    for changes in suggestions(load_config(path, overrides), topology, plan):
        logger.info("Trying %s ...", " ".join(OVERRIDE + change for change in changes))
        replaced = {change.partition("=")[0] for change in changes}
        kept = [given for given in overrides if given.partition("=")[0] not in replaced]
        attempt = make_plan(load_config(path, [*kept, *changes]), topology, changes, dataset)
        yield attempt
        if attempt.fits:
            return


# ------------------------------------------------------------------------------------------ text


def describe(plan: Plan, topology: Topology, price: float | None) -> str:
    """The plan as text for the screen; `price` of a chip-hour."""
    chips = num_chips(topology)
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
        execution.describe(plan.execution),
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
        f"at most {plan.batch_size / bound:,.0f} images/s; "
        f"{plan.steps:,} steps at least {format_duration(plan.steps * bound)}, "
        f"{plan.steps * bound * chips / 3600:,.1f} chip-hours",
        *describe_estimate(plan, topology, price),
    ]
    return "\n".join(lines)


def num_chips(topology: Topology) -> int:
    """The chips that are paid for."""
    return len(topology.devices) // topology.devices_per_chip


def chip_hours(plan: Plan, topology: Topology) -> float:
    """Of the whole run, as estimated."""
    return plan.run_seconds * num_chips(topology) / 3600


def describe_estimate(plan: Plan, topology: Topology, price: float | None) -> list[str]:
    """The likely time and cost, a line or two; the cost by the bound where nothing is estimated."""
    lines, hours = [], chip_hours(plan, topology)
    if plan.estimate is not None:
        kernels = "" if plan.kernels is None else f", {plan.kernels:,} kernels"
        lines.append(
            f"a step takes about {plan.estimate * 1e3:.3g} ms{kernels}: "
            f"{plan.images_per_second:,.0f} images/s, {plan.mfu:.1%} MFU; {plan.steps:,} steps about "
            f"{format_duration(plan.run_seconds)}, {hours:,.1f} chip-hours"
        )
    if topology.compiler == CUDA:
        lines.append(UNKNOWN_WITHOUT_A_GPU)
    if price is not None:
        known = "about" if plan.estimate is not None else "at least"
        lines.append(f"cost: {known} {price * hours:,.2f} at {price:g} an hour of a chip")
    return lines


def describe_input(plan: Plan, topology: Topology, supply: Supply | None) -> list[str]:
    """Whether hosts like this one load as many images as the devices take, a line; none unmeasured."""
    if supply is None:
        return []
    needed = plan.images_per_second / topology.hosts
    return [
        f"input: each of {topology.hosts} hosts needs {needed:,.0f} images/s; {supply.compare(needed)}"
    ]


def input_json(supply: Supply | None) -> dict[str, Any]:
    """The same as what JSON can hold."""
    if supply is None:
        return {}
    found = {
        "images_per_second": supply.images_per_second,
        "stage_milliseconds": {name: 1e3 * cost for name, cost in supply.costs.seconds.items()},
        "bottleneck": supply.costs.bottleneck,
        "remedies": supply.remedies,
    }
    return {"input": found}


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


def as_json(plan: Plan, topology: Topology, price: float | None) -> dict[str, Any]:
    """The plan as what JSON can hold; sizes in bytes, times in seconds.

    What follows from the time is of the estimate, or of the bound where that is None.
    """
    hours = chip_hours(plan, topology)
    return {
        "topology": topology.name,
        "kind": topology.kind,
        "devices": len(topology.devices),
        "devices_per_chip": topology.devices_per_chip,
        "hosts": topology.hosts,
        "compiler": topology.compiler,
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
        "estimate_seconds": plan.estimate,
        "kernels": plan.kernels,
        "execution": execution.as_json(plan.execution),
        "images_per_second": plan.images_per_second,
        "mfu": plan.mfu,
        "steps": plan.steps,
        "device_hours": hours * topology.devices_per_chip,
        "chip_hours": hours,
        "cost": None if price is None else price * hours,
        "compile_seconds": plan.compile_seconds,
    }


# --------------------------------------------------------------------------------------- command


def main(arguments: Sequence[str]) -> int:
    """Prints a plan, and with `--suggest` one that fits; returns the exit code."""
    return run_command(run, arguments)


def run(arguments: Sequence[str]) -> int:
    """Parses the flags and prints the plans; raises UserError."""
    parser = Parser("vit_jax.plan", "Whether a run fits, before it is paid for.")
    parser.add_argument("--topology", required=True, help="v5e:16x16, h100:8, a100:4x8, ...")
    parser.add_argument("--suggest", action="store_true", help="if it does not fit, find what does")
    parser.add_argument("--price_per_hour", type=positive, metavar="MONEY", help="of one chip")
    parser.add_argument(
        "--input", action="store_true", help="measure whether this host loads as many images"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON document")
    flags, overrides = parse_with_config(parser, arguments)
    topology = open_topology(flags.topology)
    config = load_config(flags.config, overrides)
    dataset = open_data(config)
    plans = [make_plan(config, topology, dataset=dataset)]
    if flags.suggest and not plans[0].fits:
        plans += try_suggestions(flags.config, overrides, topology, plans[0], dataset)
    supply = measure_supply(config) if flags.input else None
    price = flags.price_per_hour
    if flags.json:
        documents = [as_json(plan, topology, price) | input_json(supply) for plan in plans]
        print(json.dumps(documents, indent=2))
    else:
        texts = [
            "\n".join([describe(plan, topology, price), *describe_input(plan, topology, supply)])
            for plan in plans
        ]
        print("\n\n".join(texts))
    return FITS if plans[-1].fits else DOES_NOT_FIT


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
