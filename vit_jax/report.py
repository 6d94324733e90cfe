"""The command that writes a run's report: curves, config, time, and where the model is wrong.

    python -m vit_jax.report RUN [--output=FILE.html] [--config=FILE[:ARGUMENTS]]

RUN is a workdir, of a run that goes on or is over. The page, RUN/report.html by default, has its
pictures inside and asks nobody for anything. With --config, the run's config is compared to that
recipe, else to the defaults. Where the run's evaluation data is not at hand, or its model is no
classifier, the page says so and has the rest. Exit codes: 0 done; 2 a mistake.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

from vit_jax import evaluate, storage
from vit_jax.command_line import (
    DONE,
    Parser,
    add_model_flags,
    named,
    run_command,
)
from vit_jax.config import default_config
from vit_jax.config_file import load_config
from vit_jax.earlier import by_present_names
from vit_jax.errors import CommandError, ConfigError
from vit_jax.evaluators.classification import Classification
from vit_jax.pages import Section, render
from vit_jax.records import read_records
from vit_jax.reports.curves import curve_sections, time_section
from vit_jax.reports.mistakes import mistake_sections
from vit_jax.training.resuming import as_json

REPORT = "report.html"

logger = logging.getLogger("vit_jax")


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; raises ConfigError if it is not understood."""
    parser = Parser("vit_jax.report", "Writes a run's report.")
    parser.add_argument("run", type=storage.expand, metavar="RUN", help="its workdir")
    parser.add_argument(
        "--output",
        type=named(".html"),
        metavar="FILE",
        help=f"default: {REPORT} in the workdir",
    )
    parser.add_argument(
        "--config", metavar="FILE[:ARGUMENTS]", help="the recipe that the run is compared to"
    )
    add_model_flags(parser)
    return parser.parse_args(arguments)


def config_sections(record: dict[str, Any], recipe: str | None) -> list[Section]:
    """What the run's config sets otherwise than a recipe, or than the defaults; its versions."""
    config = load_config(recipe) if recipe else default_config()
    before, now = by_present_names(as_json(config)), by_present_names(record["config"])
    rows = [
        (key, _text(value), _text(before[key]) if key in before else "–")
        for key, value in now.items()
        if key not in before or before[key] != value
    ]
    against = recipe or "default"
    text = f"The {len(rows)} of {len(now)} keys whose value is not that of {against}."
    versions = record.get("versions", {})
    return [
        Section("Config", text, table=[("key", "this run", against), *rows]),
        Section("Versions", table=[("package", "version"), *sorted(versions.items())]),
    ]


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def judged_sections(flags: argparse.Namespace) -> list[Section]:
    """The model's mistakes on its run's evaluation data; or a section that says why not."""
    try:
        chosen = [f"--checkpoint={flags.checkpoint}", *["--ema"] * flags.ema]
        chosen += [f"--option={option}" for option in flags.option]
        measured = evaluate.parse_flags([flags.run, *chosen])
        task = evaluate.plan(flags.run, measured)
        loaded = evaluate.load_task(task, measured, needs_head=True)
        watch = evaluate.Stopwatch()
        setting, params = evaluate.open_setting(task, [loaded.model], measured, watch)
        evaluator = evaluate.asked_evaluators(measured, setting.loss)[0]
        if not isinstance(evaluator, Classification):
            raise ConfigError("the model is no classifier.")
        labelled = evaluator.open(setting)
        judge = evaluator.judge_all(setting, labelled, inspecting=True)
        numbers, found = judge(params)
        if not found or not numbers["count"]:
            raise ConfigError("none of the evaluation images can be read.")
        table = [("measure", "value"), *((name, f"{x:.5g}") for name, x in numbers.items())]
        text = f"On {task.origin}, of the checkpoint at step {loaded.step or 0:,}."
        measures = Section("Measured now", text, table=table)
        return [measures, *mistake_sections(loaded.model, found, labelled)]
    except CommandError as error:
        logger.warning("Mistakes are left out: %s", error)
        return [Section("Mistakes", f"Left out: {error}")]


def run(arguments: Sequence[str]) -> int:
    """Writes the report."""
    flags = parse_flags(arguments)
    path = storage.join(flags.run, "config.json")
    try:
        record = json.loads(storage.read(path))
        record["config"].items()
    except FileNotFoundError:
        raise ConfigError(f"{path} is missing: name a run's workdir.") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ConfigError(f"{path} cannot be read ({error!r}).") from error
    records = read_records(storage.join(flags.run, "metrics.jsonl"))
    spent = time_section(records)
    sections = [
        *curve_sections(records),
        *([spent] if spent else []),
        *judged_sections(flags),
        *config_sections(record, flags.config),
    ]
    output = flags.output or storage.join(flags.run, REPORT)
    done = f"{records[-1]['step']:,} updates" if records else "no updates yet"
    name = by_present_names(record["config"]).get("model.name")
    storage.write(output, render(f"Run {flags.run}", f"{name}; {done}.", sections))
    logger.info("%s has the report.", output)
    return DONE


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
