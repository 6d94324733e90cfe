"""The command that prints runs side by side: how their configs differ, then what came of them.

    python -m vit_jax.compare RUN... [--metrics=EXPRESSION] [--curves=FILE.png] [--csv=FILE]

RUN is a workdir. First come the keys of the config that differ, then the last value of each metric of
evaluations, in the run (`metrics.jsonl`) and after it (`results.jsonl`). `--curves` draws the metrics
over the updates.
"""

import argparse
import csv
import dataclasses
import io
import itertools
import json
import re
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from vit_jax import storage
from vit_jax.checkpoint import AVERAGED
from vit_jax.command_line import DONE, Parser, named, run_command
from vit_jax.config import flatten
from vit_jax.earlier import recorded_values
from vit_jax.errors import ConfigError
from vit_jax.escaping import csv_row, printable
from vit_jax.evaluators.results import FILE_NAME
from vit_jax.figures import draw_curves
from vit_jax.records import read_records
from vit_jax.tables import format_table

EVALUATIONS = "^(?!train/|data/|time/|step$)"  # The metrics that are told by default.
ABSENT = "–"

Points = dict[int, float]  # By update.


@dataclasses.dataclass(frozen=True)
class Run:
    """What a workdir says of its run.

    Attributes:
      path: as given.
      config: flat, by key.
      metrics: values by update, by metric.
    """

    path: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Points]


def read_run(path: str) -> Run:
    """Reads a workdir; raises ConfigError if it is none, or its config is damaged."""
    file = storage.join(path, "config.json")
    try:
        config = recorded_values(json.loads(storage.read(file))["config"])
    except FileNotFoundError:
        raise ConfigError(f"{path} is no run's workdir: {file} is missing.") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ConfigError(f"{file} is damaged ({error!r}).") from error
    metrics: dict[str, Points] = {}
    for record in read_records(storage.join(path, "metrics.jsonl")):
        for name, value in record.items():
            if value is not None and record["step"] is not None:
                metrics.setdefault(name, {})[record["step"]] = value
    for result in read_records(storage.join(path, FILE_NAME)):
        for name, value in names_and_numbers(result, config):
            metrics.setdefault(name, {}).setdefault(result["step"], value)
    return Run(path, config, metrics)


def names_and_numbers(
    result: Mapping[str, Any], config: Mapping[str, Any]
) -> list[tuple[str, float]]:
    """The metrics of a record of results; those of other data than the run's name it."""
    own = (result["source"], result["split"]) == (
        config.get("data.source"),
        config.get("data.eval_split"),
    )
    named_split = result["arguments"].get("split") or result["arguments"].get("source")
    where = "" if own or named_split else f" on {result['source']} {result['split']}".rstrip()
    prefix = result["name"] + (AVERAGED if result["averaged"] else "")
    numbers = result["numbers"].items()
    return [(f"{prefix}/{name}{where}", value) for name, value in numbers if value is not None]


def differences(runs: Sequence[Run]) -> list[tuple[str, list[Any]]]:
    """The keys of which the runs' values are not all the same, with each run's."""
    configs = [flatten(run.config) for run in runs]
    keys = sorted(set().union(*configs))
    rows = [(key, [config.get(key) for config in configs]) for key in keys]
    return [(key, values) for key, values in rows if any(value != values[0] for value in values)]


def last_values(runs: Sequence[Run], chosen: re.Pattern[str]) -> list[tuple[str, list[Any]]]:
    """Each metric's value after the last update that has one, of each run; None for none."""
    names = dict.fromkeys(name for run in runs for name in run.metrics if chosen.search(name))
    rows = [(name, [run.metrics.get(name) or {} for run in runs]) for name in names]
    return [(name, [each[max(each)] if each else None for each in found]) for name, found in rows]


def short_names(paths: Sequence[str]) -> list[str]:
    """The paths without the folders that they all begin with."""
    parts = [path.rstrip("/").split("/") for path in paths]
    folders = zip(*(one[:-1] for one in parts), strict=False)
    common = [*itertools.takewhile(lambda names: len(set(names)) == 1, folders)]
    return ["/".join(one[len(common) :]) for one in parts]


def shown(value: Any) -> str:
    """A value in the table."""
    if value is None:
        return ABSENT
    return printable(f"{value:.6g}" if isinstance(value, float) else str(value))


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; raises ConfigError if it is not understood."""
    parser = Parser("vit_jax.compare", "Prints runs side by side.")
    parser.add_argument("runs", type=storage.expand, nargs="+", metavar="RUN", help="a workdir")
    parser.add_argument(
        "--metrics",
        default=EVALUATIONS,
        metavar="EXPRESSION",
        help="a regular expression that names of metrics match; default: those of evaluations",
    )
    parser.add_argument(
        "--curves", type=named(".png"), metavar="FILE", help="draw the metrics over the updates"
    )
    parser.add_argument("--csv", type=named(".csv"), metavar="FILE", help="write the table")
    flags = parser.parse_args(arguments)
    try:
        flags.metrics = re.compile(flags.metrics)
    except re.error as error:
        raise ConfigError(f"--metrics={flags.metrics}: no regular expression ({error}).") from error
    return flags


def run(arguments: Sequence[str]) -> int:
    """Reads the runs, prints the table, writes the files."""
    flags = parse_flags(arguments)
    runs = [read_run(path) for path in flags.runs]
    header, told = ("", short_names(flags.runs)), differences(runs)
    measured = last_values(runs, flags.metrics)
    rows = [header, *told, ("", [""] * len(runs)), *measured]
    print(format_table([[printable(name), *map(shown, values)] for name, values in rows]))
    if flags.csv:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        table = [header, *told, *measured]
        writer.writerows(csv_row([name, *values]) for name, values in table)
        write(flags.csv, text.getvalue().encode("utf-8", "surrogateescape"), "csv")
    if flags.curves:
        names = dict.fromkeys(n for one in runs for n in one.metrics if flags.metrics.search(n))
        curves = {
            name: {
                label: one.metrics[name]
                for label, one in zip(header[1], runs, strict=True)
                if name in one.metrics
            }
            for name in names
        }
        if not curves:
            raise ConfigError(f"--metrics={flags.metrics.pattern}: no run has such a metric.")
        write(flags.curves, draw_curves(curves, "update"), "curves")
    return DONE


def write(path: str, content: bytes, flag: str) -> None:
    """Writes a file that a flag asked for; raises ConfigError if it cannot."""
    try:
        storage.write(path, content)
    except OSError as error:
        raise ConfigError(
            f"--{flag}={path} cannot be written: {error.strerror or error}."
        ) from error


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
