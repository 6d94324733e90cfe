"""The command that measures what a config costs on this machine.

    python -m vit_jax.benchmark step --config=configs/vit.py:b16 [--config.KEY=VALUE ...] [--json]

    train  the loop, with its input, metrics and log, but nothing evaluated or saved
    step   the bare train step, on one batch that lies on the devices
    eval   the forward pass; with --models, --sizes and --plots the paper's Figure 12
    input  the training images' way from the files to the devices, without a model

`--data=synthetic` spares the loading, `--data=real` asks for it; `train` and `input` load, unless they
are told otherwise. Exit codes: 0 done; 2 the config or its data cannot be used.
"""

if __name__ == "__main__":  # Before imports that take seconds.
    from vit_jax.allocator import keep_freed_memory

    keep_freed_memory()

import argparse
import dataclasses
import itertools
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.benchmark.inference import config_for, measure_inference, write_plots
from vit_jax.benchmark.input import measure_input
from vit_jax.benchmark.loop import measure_loop
from vit_jax.benchmark.speed import DATA, REAL, SYNTHETIC, Speed, Timing
from vit_jax.benchmark.step import measure_step
from vit_jax.command_line import (
    DONE,
    Parser,
    at_least_one,
    parse_with_config,
    positive,
    run_command,
)
from vit_jax.config_file import load_config
from vit_jax.devices.hardware import GIB, memory_capacity_bytes
from vit_jax.errors import ConfigError

TRAIN, STEP, EVAL, INPUT = "train", "step", "eval", "input"
DEFAULT_DATA = {TRAIN: REAL, STEP: SYNTHETIC, EVAL: SYNTHETIC, INPUT: REAL}
BEFORE = (
    "Measuring for about %g s, once the data is open and the program compiled: a large model takes "
    "minutes to compile."
)
OF_EVAL = ("models", "sizes", "memory_gib", "plots")  # Flags.

logger = logging.getLogger("vit_jax")


def parse_flags(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the config's overrides; raises ConfigError if they are not understood."""
    parser = Parser("vit_jax.benchmark", "Measures what a config costs on this machine.")
    parser.add_argument("what", choices=list(DEFAULT_DATA), help="see docs/performance.md")
    parser.add_argument(
        "--seconds", type=positive, default=20, help="to measure (default: %(default)s)"
    )
    parser.add_argument(
        "--repeats", type=at_least_one, default=5, help="within them (default: %(default)s)"
    )
    parser.add_argument("--data", choices=DATA, help="default: real for train and input")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    group = parser.add_argument_group("of eval")
    group.add_argument("--models", metavar="NAME,...", help="instead of the config's")
    group.add_argument("--sizes", metavar="PIXELS,...", help="of the images' sides")
    group.add_argument(
        "--memory_gib", type=positive, help="of one device, for the largest batch; default: its own"
    )
    group.add_argument("--plots", metavar="DIR", help="for the plots, as PNG and SVG")
    flags, overrides = parse_with_config(parser, arguments)
    flags.data = flags.data or DEFAULT_DATA[flags.what]
    if flags.what == INPUT and flags.data == SYNTHETIC:
        raise ConfigError("--data=synthetic: input measures how real data is loaded.")
    for name in OF_EVAL:
        if flags.what != EVAL and getattr(flags, name) is not None:
            raise ConfigError(f"--{name}: only {EVAL} has it, not {flags.what}.")
    return flags, overrides


def variants(config: ConfigDict, flags: argparse.Namespace) -> list[ConfigDict]:
    """The config for each model and image size that is asked for; raises ConfigError if one cannot be."""
    models = (flags.models or "").split(",")
    sizes = (flags.sizes or "0").split(",")
    if not all(size.isdecimal() for size in sizes):
        raise ConfigError(f"--sizes={flags.sizes}: write whole numbers of pixels, 224,384.")
    pairs = itertools.product(models, map(int, sizes))
    configs = [config_for(config, model, size) for model, size in pairs]
    for one in configs:  # Before hours are spent on the others.
        config_lib.validate(one)
    return configs


def measure_eval(config: ConfigDict, flags: argparse.Namespace) -> list[Speed]:
    """A speed for each model and image size."""
    capacity = memory_capacity_bytes(jax.devices()[0])
    if flags.memory_gib is not None:
        capacity = int(flags.memory_gib * GIB)
    timing = Timing(flags.seconds, flags.repeats)
    speeds = [
        measure_inference(one, flags.data, timing, capacity) for one in variants(config, flags)
    ]
    if flags.plots:
        write_plots(speeds, flags.plots)
    return speeds


def run(arguments: Sequence[str]) -> int:
    """Measures and prints."""
    flags, overrides = parse_flags(arguments)
    config, timing = load_config(flags.config, overrides), Timing(flags.seconds, flags.repeats)
    logger.info(BEFORE, flags.seconds)
    document: Any
    if flags.what == INPUT:
        speed = measure_input(config, timing)
        document, text = dataclasses.asdict(speed), speed.describe()
    elif flags.what == EVAL:
        speeds = measure_eval(config, flags)
        document = [one.as_json() for one in speeds]
        text = "\n\n".join(one.describe() for one in speeds)
    else:
        measured = {STEP: measure_step, TRAIN: measure_loop}[flags.what](config, flags.data, timing)
        document, text = measured.as_json(), measured.describe()
    print(json.dumps(document) if flags.json else text)
    return DONE


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
