"""The command that runs a study: a grid of models, data sizes, schedules and seeds, and its figures.

    python -m vit_jax.study STUDY --workdir=DIR [--cell=I | --draw | --list] [--retry_failed]

STUDY is a Python file with a `get_study()`, or the name of one that comes with the package
(configs/studies). --config=FILE[:ARGUMENTS], --config.KEY=VALUE, --sizes, --seeds and
--finetune=TASK=FILE[:ARGUMENTS] make it a study of your own data. Each cell is a run in a folder of
DIR; interrupted, the same command goes on where it was. A cell that fails is marked in figures and
tables, and the others go on. --cell runs one, for arrays of Slurm jobs (docs/studies.md). DIR gets
results.csv, the figures as PNG and SVG, and report.html.

Exit codes: 0 done; 1 done, but some cells failed; 2 a mistake; 75 stopped, start it again.
"""

if __name__ == "__main__":  # Before imports that take seconds.
    from vit_jax.allocator import keep_freed_memory
    from vit_jax.signals import nothing_to_save

    keep_freed_memory()
    nothing_to_save()

import argparse
import dataclasses
import logging
import sys
from collections.abc import Sequence

from vit_jax import storage
from vit_jax.command_line import DONE, Parser, parse_with_overrides, run_command
from vit_jax.errors import ConfigError
from vit_jax.pages import render
from vit_jax.studies import cells, results
from vit_jax.studies.definition import Cell, Study, check, load_study
from vit_jax.tables import format_table
from vit_jax.training.preemption import stop_signal

SOME_FAILED = 1
REPORT, TABLE = "report.html", "results.csv"

logger = logging.getLogger("vit_jax")


def parse_flags(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command line, and overrides for all cells; raises ConfigError if it is not understood."""
    parser = Parser("vit_jax.study", "Runs a grid of runs, and draws what came of it.")
    parser.add_argument("study", metavar="STUDY", help="a Python file, or a name of the package's")
    parser.add_argument(
        "--workdir", type=storage.expand, required=True, metavar="DIR", help="for all cells"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--cell", type=int, metavar="I", help="runs this one only, from 0")
    what.add_argument("--draw", action="store_true", help="runs none, draws what is there")
    what.add_argument("--list", action="store_true", help="runs none, lists the cells")
    parser.add_argument("--retry_failed", action="store_true", help="runs failed cells again")
    own = parser.add_argument_group("another grid", "--config.KEY=VALUE sets a key of all cells.")
    own.add_argument("--config", metavar="FILE[:ARGUMENTS]", help="instead of the study's")
    own.add_argument("--sizes", type=numbers, metavar="N,...", help="training images; 0: all")
    own.add_argument("--seeds", type=numbers, metavar="N,...", help="of the runs")
    own.add_argument(
        "--finetune",
        action="append",
        default=[],
        metavar="TASK=FILE[:ARGUMENTS]",
        help="fine-tunes each trained model on these, instead of the study's tasks",
    )
    return parse_with_overrides(parser, arguments)


def numbers(text: str) -> tuple[int, ...]:
    """The type of a flag that lists whole numbers."""
    parts = text.split(",")
    if not all(part.isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole numbers, as in 1000,10000")
    return tuple(map(int, parts))


def own_study(study: Study, flags: argparse.Namespace, overrides: Sequence[str]) -> Study:
    """The study with what the flags set; raises ConfigError for a task without a config."""
    if flags.config and not isinstance(study.config, str):
        raise ConfigError(
            "--config: this study has a recipe for each model; set keys of all with --config.KEY=VALUE."
        )
    changed = {name: getattr(flags, name) for name in ("config", "sizes", "seeds")}
    tasks = [text.partition("=") for text in flags.finetune]
    for task, _, recipe in tasks:
        if not (task and recipe):
            raise ConfigError(f"--finetune={task}: expected TASK=FILE[:ARGUMENTS].")
    changed["finetune"] = {task: (recipe,) for task, _, recipe in tasks}
    given = {name: value for name, value in changed.items() if value}
    return dataclasses.replace(study, overrides=(*study.overrides, *overrides), **given)


def chosen_cells(study: Study, flags: argparse.Namespace) -> list[Cell]:
    """The cells that the flags ask for; raises ConfigError for one that there is not."""
    every = study.cells()
    if flags.cell is None:
        return [] if flags.draw else every
    if not 0 <= flags.cell < len(every):
        raise ConfigError(f"--cell={flags.cell}: the study has cells 0 to {len(every) - 1}.")
    return [every[flags.cell]]


def write_results(study: Study, outcomes: results.Outcomes, directory: str) -> None:
    """Writes the table, the figures and the report."""
    storage.write(storage.join(directory, TABLE), results.as_csv(study, outcomes))
    found = results.sections(study, outcomes)
    for pictures, _ in found:
        for name, picture in pictures.items():
            storage.write(storage.join(directory, f"{name}.png"), picture.png)
            storage.write(storage.join(directory, f"{name}.svg"), picture.svg)
    page = render(study.title, f"The study in {directory}.", [section for _, section in found])
    storage.write(storage.join(directory, REPORT), page)


def run(arguments: Sequence[str]) -> int:
    """Runs the cells that are not done, one after another, and draws."""
    flags, overrides = parse_flags(arguments)
    study, directory = own_study(load_study(flags.study), flags, overrides), flags.workdir
    check(study, flags.study)
    every = study.cells()
    before = {cell: cells.outcome_of(cell, directory) for cell in every}
    if flags.list:
        rows = [(str(n), cell.folder, before[cell].status) for n, cell in enumerate(every)]
        print(format_table(rows))
        return DONE
    over = (cells.DONE,) if flags.retry_failed else (cells.DONE, cells.FAILED)
    with stop_signal() as stop:
        for cell in chosen_cells(study, flags):
            if before[cell].status not in over:
                logger.info("Cell %d of %d: %s", every.index(cell), len(every), cell.folder)
                cells.run_cell(study, cell, directory, stop)
    outcomes = {cell: cells.outcome_of(cell, directory) for cell in every}
    if flags.cell is None:
        write_results(study, outcomes, directory)
        for table in results.tables(study, outcomes):
            print(format_table(table))
        logger.info("%s has the figures.", storage.join(directory, REPORT))
    asked = every if flags.cell is None else chosen_cells(study, flags)
    return SOME_FAILED if any(outcomes[cell].status == cells.FAILED for cell in asked) else DONE


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
