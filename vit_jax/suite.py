"""The command that trains a suite of tasks, each with several seeds, and prints its table.

    python -m vit_jax.suite configs/suites/vtab.py --workdir=DIR --config.init=WEIGHTS

A suite is a Python file whose `SUITE` maps names of groups to their tasks, and these to configs:

    SUITE = {"natural": {"cifar100": "configs/vtab.py:cifar100,b16"}}

Each task and seed is a run of its own, in DIR/TASK/SEED. Interrupted, the same command goes on, and
repeats none that is finished. Tasks of a Slurm array (or `--share=2/8`) each take a part of the runs;
whoever comes last prints all. With --sweep, each run chooses its learning rate first, as
`vit_jax.sweep` does. Exit codes are those of `vit_jax.main`.
"""

if __name__ == "__main__":  # Before imports that take seconds.
    from vit_jax.allocator import keep_freed_memory
    from vit_jax.signals import nothing_to_save

    keep_freed_memory()
    nothing_to_save()

import argparse
import dataclasses
import json
import logging
import math
import os
import runpy
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence

from vit_jax import storage, train
from vit_jax.command_line import (
    DONE,
    Parser,
    at_least_one,
    parse_with_overrides,
    run_command,
)
from vit_jax.config_file import chosen_keys, find_file, load_config
from vit_jax.errors import ConfigError, UserError
from vit_jax.sweep import sweep
from vit_jax.tables import format_table
from vit_jax.training.evaluation import wanted_metric
from vit_jax.training.preemption import stop_signal

RESULT = "suite_result.json"  # In the workdir of a run that is finished.
MISSING = "–"

Tasks = Mapping[str, Mapping[str, str]]  # group -> task -> config
Measures = Mapping[str, Sequence[float]]  # task -> of each seed that is finished

logger = logging.getLogger("vit_jax")


@dataclasses.dataclass(frozen=True)
class Trial:
    """A task with one seed."""

    task: str
    config: str
    seed: int

    def directory(self, workdir: str) -> str:
        """Of its run."""
        return storage.join(workdir, self.task, str(self.seed))


def read_suite(path: str) -> Tasks:
    """The groups of a suite's file; raises ConfigError if it is none, or what the file itself raises."""
    try:
        suite = runpy.run_path(find_file(path))["SUITE"]
        tasks = [task for group in suite.values() for task in group]
        configs = [config for group in suite.values() for config in group.values()]
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # Any that a program can end with.
        raise ConfigError(
            f"{path} is no suite ({error!r}): expected a Python file with SUITE = "
            "{'GROUP': {'TASK': 'CONFIG.py:ARGUMENTS'}}."
        ) from error
    named = all(isinstance(task, str) and task and "/" not in task for task in tasks)
    if not tasks or len(set(tasks)) < len(tasks) or not named:
        raise ConfigError(f"{path}: tasks need names, each another one, without '/'.")
    if not all(isinstance(config, str) for config in configs):
        raise ConfigError(f"{path}: each task needs a config, such as 'configs/vtab.py:dtd,b16'.")
    return suite


def trials_of(suite: Tasks, num_seeds: int) -> list[Trial]:
    """Every task with every seed; those with seed 0 first, so that a table comes early."""
    tasks = [pair for group in suite.values() for pair in group.items()]
    return [Trial(task, config, seed) for seed in range(num_seeds) for task, config in tasks]


def share_of(text: str, environment: Mapping[str, str]) -> tuple[int, int]:
    """This process's (index from 0, count): of "2/8", of a Slurm array, or the only one.

    Raises ConfigError for another text, and for an array of which numbers are left out, or that makes
    no sense.
    """
    if not text:
        try:
            return _share_of_array(environment)
        except ValueError as error:
            raise ConfigError(
                f"SLURM_ARRAY_TASK_ID, _MIN, _MAX and _STEP are of no Slurm array ({error}): give "
                "--share=k/K."
            ) from error
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and 1 <= int(index) <= int(count)):
        raise ConfigError(f"--share={text}: expected k/K, the k-th of K parts, such as 2/8.")
    return int(index) - 1, int(count)


def _share_of_array(environment: Mapping[str, str]) -> tuple[int, int]:
    """The same of a Slurm array; raises ValueError too."""

    def told(name: str, otherwise: int) -> int:
        return int(environment.get(f"SLURM_ARRAY_TASK_{name}", otherwise))

    first, last = told("MIN", 0), told("MAX", 0)
    tasks = range(first, last + 1, told("STEP", 1))
    if told("COUNT", len(tasks)) != len(tasks):
        raise ConfigError(
            f"Of the Slurm array {first}-{last} numbers are left out, whose parts nobody would "
            "train: submit a whole row, such as --array=0-7, or give each task its --share=k/K."
        )
    return tasks.index(told("ID", first)), len(tasks)


def read_result(trial: Trial, workdir: str) -> float | None:
    """What a finished run came to; None for one that is not finished, NaN if that is no number."""
    try:
        value = json.loads(storage.read(storage.join(trial.directory(workdir), RESULT)))["value"]
    except FileNotFoundError:
        return None
    return math.nan if value is None else value


def summarize(values: Sequence[float]) -> str:
    """Mean ± deviation over seeds, in percent."""
    if not values:
        return MISSING
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.fmean(values):.2f}{spread}"


def rows_of(suite: Tasks, measures: Measures) -> Iterator[tuple[str, str, str]]:
    """(group, task, result) of each task, then of each group's mean and of all tasks' mean.

    A mean over tasks is of their means, as in Table 9 of the paper (arXiv 2010.11929), and told once
    all have one.
    """
    for group, tasks in suite.items():
        for task in tasks:
            yield group, task, summarize(measures[task])
    everything = [task for tasks in suite.values() for task in tasks]
    for group, names in {**{g: [*t] for g, t in suite.items()}, "all": everything}.items():
        means = [statistics.fmean(measures[name]) for name in names if measures[name]]
        yield (
            group,
            "mean",
            summarize([statistics.fmean(means)] if len(means) == len(names) else []),
        )


def as_latex(rows: Sequence[tuple[str, str, str]]) -> str:
    """The table for a paper, with booktabs' rules."""
    lines = [" & ".join(row).replace("_", r"\_").replace("±", r"$\pm$") for row in rows]
    body = "\n".join(f"{line} \\\\" for line in lines).replace(MISSING, "--")
    return f"\\begin{{tabular}}{{llr}}\n\\toprule\n{body}\n\\bottomrule\n\\end{{tabular}}\n"


def parse_flags(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The command line and the overrides for all runs; raises ConfigError if not understood."""
    parser = Parser("vit_jax.suite", "Trains a suite of tasks, each with several seeds.")
    parser.epilog = "--config.KEY=VALUE sets any key of vit_jax/config.py, for all runs."
    parser.add_argument("suite", metavar="FILE", help="such as configs/suites/vtab.py")
    parser.add_argument(
        "--workdir", type=storage.expand, required=True, metavar="DIR", help="for all runs"
    )
    parser.add_argument("--seeds", type=at_least_one, default=3, help="of each task (default: 3)")
    parser.add_argument(
        "--share", default="", metavar="k/K", help="the k-th of K parts; default: of a Slurm array"
    )
    parser.add_argument(
        "--sweep", action="store_true", help="each run chooses its rate by config.sweep first"
    )
    parser.add_argument("--latex", default="", metavar="FILE", help="write the table")
    flags, overrides = parse_with_overrides(parser, arguments)
    if any(text.partition("=")[0] == "seed" for text in overrides):
        raise ConfigError("--config.seed: a suite sets it; --seeds says how many there are.")
    return flags, overrides


def run(arguments: Sequence[str]) -> int:
    """Trains what is not finished, and prints the table."""
    flags, overrides = parse_flags(arguments)
    suite = read_suite(flags.suite)
    trials = trials_of(suite, flags.seeds)
    configs = {
        trial: load_config(trial.config, [*overrides, f"seed={trial.seed}"]) for trial in trials
    }  # Better an error now than after the work.
    index, count = share_of(flags.share, os.environ)
    train_one = sweep if flags.sweep else train.run
    chosen = {*chosen_keys(overrides), "seed"}
    with stop_signal() as stop:
        for trial in trials[index::count]:
            if read_result(trial, flags.workdir) is not None:
                continue
            logger.info("Task %s, seed %d:", trial.task, trial.seed)
            directory, metric = trial.directory(flags.workdir), wanted_metric(configs[trial])
            name = metric.removeprefix("-")
            last = train_one(configs[trial], directory, stop=stop, chosen=chosen)
            if name not in last:
                raise ConfigError(
                    f"{trial.task}: {name!r} is not measured, but {', '.join(last)}: name one in "
                    "--config.best_metric."
                )
            result = {"metric": name, "value": last[name]}
            storage.write_json(storage.join(directory, RESULT), result)
    measures: dict[str, list[float]] = {trial.task: [] for trial in trials}
    for trial in trials:
        value = read_result(trial, flags.workdir)
        measures[trial.task] += [] if value is None else [value]
    rows = [*rows_of(suite, measures)]
    print(format_table([("group", "task", "result in %"), *rows]))
    if flags.latex:
        try:
            storage.write(flags.latex, as_latex(rows).encode())
        except OSError as error:
            raise ConfigError(
                f"--latex={flags.latex} cannot be written: {error.strerror or error}."
            ) from error
    return DONE


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
