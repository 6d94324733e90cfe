"""What a study's cells came to: figures as in the paper, and tables."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vit_jax.escaping import csv_row
from vit_jax.figures import MARKERS, PALETTE, Axes, Picture, add_legend, plot
from vit_jax.pages import Section
from vit_jax.studies.cells import DONE, FAILED, Outcome
from vit_jax.studies.definition import Cell, Study

EXAFLOPS, DEVICE_HOURS = "train/exaflops", "train/device_hours"
ALL = "all"  # Images, where the size is 0.
FAILED_AT = 0.03  # Of the axes' height, where failed cells are marked.

Outcomes = dict[Cell, Outcome]
Place = Callable[[Cell, Outcome], float | None]  # On the horizontal axis.


def sections(study: Study, outcomes: Outcomes) -> list[tuple[str, Section]]:
    """The sections of a study's report, each with the name of its picture's file, if it has one."""
    counts = {
        status: sum(o.status == status for o in outcomes.values()) for status in (DONE, FAILED)
    }
    missing = len(outcomes) - sum(counts.values())
    state = f"Of {len(outcomes)} cells {counts[DONE]} are done, {counts[FAILED]} failed"
    state += f", {missing} are missing." if missing else "."
    marks = "Points are means over seeds, bands reach from the lowest to the highest."
    found = [
        ("", Section("Results", f"{study.notes} {state}".strip(), table=table(study, outcomes)))
    ]
    if len(study.sizes) > 1 and counts[DONE]:
        text = (
            f"{marks} A cross at the bottom is a cell that failed. (Figures 3 and 4 of the paper.)"
        )
        drawn = draw(study, outcomes, size_of, "training images")
        found.append(("size", Section("Against the number of training images", text, (drawn,))))
    if any(exaflops_of(cell, outcome) for cell, outcome in outcomes.items()):
        text = (
            f"{marks} Compute is that of training: three times the forward pass's multiply-adds, two "
            "operations each. (Figures 5, 8 and 13 of the paper.)"
        )
        drawn = draw(study, outcomes, exaflops_of, "training compute (exaFLOPs)")
        found.append(("exaflops", Section("Against compute", text, (drawn,))))
    failed = [(cell.folder, o.reason) for cell, o in outcomes.items() if o.status == FAILED]
    if failed:
        text = "They run again with --retry_failed."
        found.append(("", Section("Failed cells", text, table=[("cell", "reason"), *failed])))
    return found


def size_of(cell: Cell, outcome: Outcome) -> float | None:
    """A cell's training images; where it takes all, what it saw is not known here."""
    del outcome
    return cell.size or None


def exaflops_of(cell: Cell, outcome: Outcome) -> float | None:
    """A done cell's compute."""
    del cell
    return outcome.numbers.get(EXAFLOPS)


def draw(study: Study, outcomes: Outcomes, place: Place, label: str) -> Picture:
    """The metric against something, a line for each family and schedule."""
    lines: dict[str, dict[tuple, list[tuple[Cell, Outcome]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for cell, outcome in outcomes.items():
        lines[cell.line][cell.model, cell.size].append((cell, outcome))

    def paint(axes: Axes) -> None:
        for number, (line, groups) in enumerate(lines.items()):
            style = {"color": PALETTE[number % len(PALETTE)]}
            points = [point for group in groups.values() if (point := summary(study, group, place))]
            if points:
                x, mean, lowest, highest = np.array(sorted(points)).T
                marker = MARKERS[number % len(MARKERS)]
                axes.plot(x, mean, marker=marker, ms=5, label=line, **style)
                axes.fill_between(x, lowest, highest, alpha=0.2, lw=0, **style)
            failed = [
                place(cell, outcome)
                for group in groups.values()
                for cell, outcome in group
                if outcome.status == FAILED and place(cell, outcome)
            ]
            axes.plot(
                failed,
                [FAILED_AT] * len(failed),
                "x",
                transform=axes.get_xaxis_transform(),
                ms=8,
                mew=2,
                **style,
            )
        axes.set_xscale("log")
        axes.set(xlabel=label, ylabel=study.metric_label)
        add_legend(axes)

    return plot(paint)


def summary(
    study: Study, group: Sequence[tuple[Cell, Outcome]], place: Place
) -> tuple[float, float, float, float] | None:
    """Position, mean, lowest and highest metric of the done ones of cells that differ by seed."""
    done = [(place(cell, o), o.numbers[study.metric]) for cell, o in group if o.status == DONE]
    known = [(x, value) for x, value in done if x]
    if not known:
        return None
    x, values = np.array(known, np.float64).T
    return float(x.mean()), float(values.mean()), float(values.min()), float(values.max())


def table(study: Study, outcomes: Outcomes) -> list[tuple[str, ...]]:
    """A row for each model and schedule, a column for each size: mean ± deviation over seeds."""
    rows: dict[tuple[str, str], dict[int, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for cell, outcome in outcomes.items():
        rows[cell.model, cell.schedule][cell.size].append(outcome)
    sizes = [f"{size:,} images" if size else f"{ALL} images" for size in study.sizes]
    lines = [
        (", ".join(filter(None, name)), *(in_words(study, cells[size]) for size in study.sizes))
        for name, cells in rows.items()
    ]
    return [(study.metric, *sizes), *lines]


def in_words(study: Study, outcomes: Sequence[Outcome]) -> str:
    """The cells of one place in the table: the mean of those that are done, and what others are."""
    values = [o.numbers[study.metric] for o in outcomes if o.status == DONE]
    mean = f"{np.mean(values):.4f}" if values else ""
    spread = f" ± {np.std(values):.4f}" if len(values) > 1 else ""
    others = [o.status for o in outcomes if o.status != DONE]
    rest = ", ".join(f"{others.count(status)} {status}" for status in dict.fromkeys(others))
    return ", ".join(filter(None, (mean + spread, rest)))


def as_csv(study: Study, outcomes: Outcomes) -> bytes:
    """A row for each cell, failed and missing ones too."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head = ("model", "schedule", "images", "seed", "status")
    writer.writerow((*head, study.metric, EXAFLOPS, DEVICE_HOURS, "reason"))
    for cell, outcome in outcomes.items():
        numbers: list[Any] = [
            outcome.numbers.get(name, "") for name in (study.metric, EXAFLOPS, DEVICE_HOURS)
        ]
        size = cell.size or ALL
        row = (cell.model, cell.schedule, size, cell.seed, outcome.status, *numbers, outcome.reason)
        writer.writerow(csv_row(row))
    return text.getvalue().encode()
