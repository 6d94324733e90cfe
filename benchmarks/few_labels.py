"""What images without labels, and a teacher, are worth: the table of docs/objectives.md.

    PYTHONPATH=. python benchmarks/few_labels.py DIR [--labels=100,1000] [--seeds=3] [--only=PATTERN]

Makes the runs of configs/few_labels.py under DIR, each in a process of its own, and prints the table of
those that are finished. Stopped at any time, the same command goes on: finished runs are not made
again. `--steps` shortens every run, to try the command out.
"""

import argparse
import fnmatch
import json
import pathlib
import statistics
import subprocess
import sys

from configs.few_labels import OBJECTIVES

SCRATCH, DISTILLATION, TEACHER = "scratch", "distillation", "teacher"
ROWS = (SCRATCH, *OBJECTIVES, DISTILLATION)


def train(workdir: pathlib.Path, arguments: str, *overrides: str) -> None:
    """Makes one run, or goes on with it."""
    command = [sys.executable, "-m", "vit_jax.main", f"--config=configs/few_labels.py:{arguments}"]
    command += [f"--workdir={workdir}", *(f"--config.{override}" for override in overrides)]
    print(f"{workdir.name}: {' '.join(command[1:])}", file=sys.stderr, flush=True)
    subprocess.run(command, check=True)


def accuracy(workdir: pathlib.Path) -> float | None:
    """The last record's on the test images; None of a run that is not finished."""
    file = workdir / "metrics.jsonl"  # These runs measure at their end alone.
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line).get("eval/accuracy") for line in lines if "eval/accuracy" in line]
    return found[-1] if found else None


def beginnings(directory: pathlib.Path, rows: list[str], steps: tuple[str, ...]) -> None:
    """What the runs with few labels start from: pre-trained models, and the teacher."""
    for row in rows:
        if row in OBJECTIVES:
            train(directory / row, row, *steps)
    if DISTILLATION in rows and accuracy(directory / TEACHER) is None:
        train(directory / TEACHER, TEACHER, *steps)


def cell(directory: pathlib.Path, row: str, labels: int, seed: int, steps: tuple[str, ...]) -> None:
    """One run with few labels."""
    workdir = workdir_of(directory, row, labels, seed)
    if accuracy(workdir) is not None:
        return
    run, overrides = row, list(steps)
    if row in OBJECTIVES:
        run = "finetune"
        overrides.append(f"init={directory / row}")
    if row == DISTILLATION:
        overrides.append(f"init_teacher={directory / TEACHER}")
    train(workdir, f"{run},{labels},{seed}", *overrides)


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
            found = [accuracy(workdir_of(directory, row, count, seed)) for seed in range(seeds)]
            done = [100 * value for value in found if value is not None]
            spread = f" ± {statistics.stdev(done):.1f}" if len(done) > 1 else ""
            missing = f" ({len(done)} of {seeds})" if len(done) < seeds else ""
            cells.append(f"{statistics.mean(done):.1f}{spread}{missing}" if done else "")
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Makes the runs that are missing, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=pathlib.Path, metavar="DIR")
    parser.add_argument("--labels", default="100,1000", help="numbers of labelled images")
    parser.add_argument("--seeds", type=int, default=3, help="parts of the training set")
    parser.add_argument("--only", default="*", help=f"of {', '.join(ROWS)}: such as 'masked*'")
    parser.add_argument("--steps", type=int, help="of every run; a directory has one value")
    flags = parser.parse_args()
    rows = [row for row in ROWS if fnmatch.fnmatch(row, flags.only)]
    labels = [int(text) for text in flags.labels.split(",")]
    shorter = ("total_steps={0}", "warmup_epochs=0.0", "warmup_steps=0")
    steps = tuple(text.format(flags.steps) for text in shorter) if flags.steps else ()
    beginnings(flags.directory, rows, steps)
    for seed in range(flags.seeds):  # A whole table of one seed comes first.
        for row in rows:
            for count in labels:
                cell(flags.directory, row, count, seed, steps)
    print(table(flags.directory, rows, labels, flags.seeds))


if __name__ == "__main__":
    main()
