"""What images without labels, and a teacher, are worth: the table of docs/objectives.md.

    PYTHONPATH=. python benchmarks/few_labels.py DIR [--labels=100,1000] [--seeds=3] [--only=ROWS]

Makes the runs of configs/few_labels.py under DIR, one after another, and prints the table. Stopped at
any time, the same command goes on: finished runs are not made again. `--steps` shortens every run, to
try the command out.
"""

import argparse
import json
import pathlib
import statistics
import sys

from configs.few_labels import OBJECTIVES
from vit_jax import main

SCRATCH, DISTILLATION, TEACHER = "scratch", "distillation", "teacher"
ROWS = (SCRATCH, "masked_patches", "masked_autoencoder", DISTILLATION)


def train(workdir: pathlib.Path, arguments: str, *overrides: str) -> None:
    """Makes one run, or goes on with it; one that is finished is left alone."""
    if measured(workdir):
        return
    flags = [f"--config=configs/few_labels.py:{arguments}", f"--workdir={workdir}"]
    flags += [f"--config.{override}" for override in overrides]
    if code := main.main(flags):
        sys.exit(code)  # It has said why: a signal, or an error.


def measured(workdir: pathlib.Path) -> dict[str, float]:
    """The numbers of a finished run on the test images; these runs measure at their end alone."""
    file = workdir / "metrics.jsonl"
    records = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return next((record for record in records if "eval/loss" in record), {})


def beginnings(directory: pathlib.Path, rows: list[str], overrides: list[str]) -> None:
    """What the runs with few labels start from: pre-trained models, and the teacher."""
    for row in rows:
        if row in OBJECTIVES:
            train(directory / row, row, *overrides)
    if DISTILLATION in rows:
        train(directory / TEACHER, TEACHER, *overrides)


def cell(directory: pathlib.Path, row: str, labels: int, seed: int, overrides: list[str]) -> None:
    """One run with few labels."""
    run = row
    if row in OBJECTIVES:
        run, overrides = "finetune", [*overrides, f"init={directory / row}"]
    if row == DISTILLATION:
        overrides = [*overrides, f"init_teacher={directory / TEACHER}"]
    train(workdir_of(directory, row, labels, seed), f"{run},{labels},{seed}", *overrides)


def workdir_of(directory: pathlib.Path, row: str, labels: int, seed: int) -> pathlib.Path:
    """Of one run with few labels."""
    return directory / f"{row}_{labels}_{seed}"


def table(directory: pathlib.Path, rows: list[str], labels: list[int], seeds: int) -> str:
    """Markdown: the mean accuracy over the seeds, and its standard deviation."""
    head = [f"{count:,} labels" for count in labels]
    lines = [f"| run | {' | '.join(head)} |", f"|---{'|---' * len(labels)}|"]
    for row in rows:
        cells = []
        for count in labels:
            runs = [measured(workdir_of(directory, row, count, seed)) for seed in range(seeds)]
            done = [100 * run["eval/accuracy"] for run in runs if run]
            spread = f" ± {statistics.stdev(done):.1f}" if len(done) > 1 else ""
            missing = f" ({len(done)} of {seeds})" if len(done) < seeds else ""
            cells.append(f"{statistics.mean(done):.1f}{spread}{missing}" if done else "")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def parse_flags() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--labels", default="100,1000", help="numbers of labelled images")
    parser.add_argument("--seeds", type=int, default=3, help="parts of the training set")
    parser.add_argument("--only", default=",".join(ROWS), help="rows; self_distillation too")
    parser.add_argument("--steps", type=int, help="of every run; a directory has one value")
    return parser.parse_args()


if __name__ == "__main__":
    flags = parse_flags()
    rows = flags.only.split(",")
    labels = [int(text) for text in flags.labels.split(",")]
    shorter = [f"total_steps={flags.steps}", "warmup_epochs=0.0", "warmup_steps=0"]
    overrides = shorter if flags.steps else []
    beginnings(flags.directory, rows, overrides)
    for seed in range(flags.seeds):  # A whole table of one seed comes first.
        for row in rows:
            for count in labels:
                cell(flags.directory, row, count, seed, overrides)
    print(table(flags.directory, rows, labels, flags.seeds))
