"""Which runs fit on which TPUs, by the TPU's own compiler: a table for docs/scaling.md.

    python benchmarks/plan_table.py [--only=PATTERN] [--output=plans.json]

Needs libtpu (`pip install 'jax[tpu]'`), no TPU. Each line is one compilation, in a process of its own,
of some minutes on two cores; those that the output file has already are not made again.
"""

import argparse
import fnmatch
import json
import pathlib
import subprocess
import sys

GIB = 2**30

FSDP, KEPT, REMAT_FULL = "mesh.fsdp={devices}", "model.remat=none", "model.remat=full"

# Config, topology, number of JAX devices, changes; all at the paper's batch of 4,096 and 224 px.
PLANS = [
    ("vit.py:b16", "v3:4x4", 32, (KEPT,)),
    ("vit.py:b16", "v3:4x4", 32, ()),
    ("vit.py:b16", "v3:4x4", 32, (REMAT_FULL,)),
    ("vit.py:b16", "v5e:4x4", 16, (KEPT,)),
    ("vit.py:b16", "v5e:4x4", 16, ()),
    ("vit.py:b16", "v6e:16x16", 256, ()),
    ("vit.py:l16", "v5e:16x16", 256, ()),
    ("vit.py:l16", "v5e:16x16", 256, (FSDP,)),
    ("vit.py:h14", "v5e:16x16", 256, ()),
    ("vit.py:h14", "v5e:16x16", 256, (REMAT_FULL,)),
    ("vit.py:h14", "v5e:16x16", 256, (FSDP,)),
    ("vit.py:h14", "v5e:16x16", 256, (FSDP, REMAT_FULL)),
    ("vit.py:h14", "v5p:4x4x4", 64, (KEPT,)),
    ("vit.py:h14", "v5p:4x4x4", 64, ()),
    ("vit.py:h14", "v5p:4x4x4", 64, (FSDP,)),
]


def name_of(config: str, topology: str, devices: int, changes: tuple[str, ...]) -> str:
    """One plan's name: its flags."""
    overrides = [change.format(devices=devices) for change in changes]
    return " ".join([config, topology, *overrides])


def compile_plan(name: str) -> dict:
    """What `vit_jax.plan` says of one plan."""
    config, topology, *overrides = name.split()
    command = [sys.executable, "-m", "vit_jax.plan", "--json"]
    command += [f"--config=configs/{config}", f"--topology={topology}"]
    command += [f"--config.{override}" for override in overrides]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 1):
        raise SystemExit(done.returncode)
    return json.loads(done.stdout)[0]


def row(name: str, plan: dict) -> str:
    """One line of the table."""
    config, topology, *overrides = name.split()
    memory = plan["memory"]
    state = memory["parameters"] + memory["optimizer"] + memory["average"]
    sent = sum(kind["bytes"] for kind in plan["exchanges"].values())
    bound = plan["bound_seconds"]
    limit = max(("compute", "memory", "network"), key=lambda key: bound[key] or 0)
    cells = [
        f"`{config}`",
        topology,
        " ".join(f"`{override}`" for override in overrides) or "–",
        f"{state / GIB:.2f}",
        f"{memory['temporaries'] / GIB:.2f}",
        f"{memory['total'] / GIB:.2f} of {memory['capacity'] / GIB:.3g}",
        "yes" if plan["fits"] else "**no**",
        f"{sent / 1e9:.2f}" if plan["exchanges"] else "?",
        f"{bound['step'] * 1e3:.0f} ms, {limit}",
        f"{plan['compile_seconds']:.0f}",
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Compiles what is missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="a glob of names, such as '*h14*'")
    parser.add_argument("--output", default="plans.json", help="where the plans are kept")
    flags = parser.parse_args()
    output = pathlib.Path(flags.output)
    plans = json.loads(output.read_text()) if output.exists() else {}
    names = [name_of(*plan) for plan in PLANS]
    for name in names:
        if name not in plans and fnmatch.fnmatch(name, flags.only):
            print(f"{name} ...", file=sys.stderr, flush=True)
            plans[name] = compile_plan(name)
            output.write_text(json.dumps(plans, indent=1))
    print(
        "| config | slice | with | state, GiB | temporaries, GiB | total, GiB | fits "
        "| exchanged, GB | a step takes at least | compiled in, s |"
    )
    print("|" + "---|" * 10)
    for name in names:
        if name in plans:
            print(row(name, plans[name]))


if __name__ == "__main__":
    main()
