"""What a study's cells came to: figures as in the paper, and tables."""

from __future__ import annotations

import csv
import io
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.escaping import csv_row
from vit_jax.figures import MARKERS, PALETTE, Axes, Picture, add_legend, plot
from vit_jax.pages import Section
from vit_jax.studies.cells import DONE, FAILED, Outcome
from vit_jax.studies.definition import Cell, Study

EXAFLOPS, DEVICE_HOURS = "train/exaflops", "train/device_hours"
EXAMPLES, EPOCHS = "train/examples", "train/epoch"
ALL = "all"  # Images, where the size is 0.
FAILED_AT = 0.03  # Of the axes' height, where failed cells are marked.
APART, FEW_TICKS = 1.5, 3  # On a logarithmic axis.
MARKS = "Points are means over seeds, bands reach from the lowest to the highest."

Outcomes = dict[Cell, Outcome]


def size_of(study: Study, cell: Cell, outcome: Outcome) -> float | None:
    """A cell's training images; where it takes all, an epoch's, once it is done."""
    if len(study.sizes) == 1:
        return None
    epochs = outcome.numbers.get(EPOCHS)
    return cell.size or (round(outcome.numbers[EXAMPLES] / epochs) if epochs else None)


def exaflops_of(study: Study, cell: Cell, outcome: Outcome) -> float | None:
    """The compute of a done cell, of those with most images."""
    largest = 0 if 0 in study.sizes else max(study.sizes)
    return outcome.numbers.get(EXAFLOPS) if cell.size == largest else None


class View(NamedTuple):
    """A figure of a study.

    Attributes:
      name: of its files.
      title, text: of its section.
      label: of the horizontal axis, with its unit.
      position: (study, cell, outcome) -> where a cell stands on it; None: it does not.
      line: the cells that share one.
    """

    name: str
    title: str
    text: str
    label: str
    position: Callable[[Study, Cell, Outcome], float | None]
    line: Callable[[Cell], str]


VIEWS = (
    View(
        "size",
        "Against the number of training images",
        f"{MARKS} A cross at the bottom is a cell that failed. (Figures 3 and 4 of the paper.)",
        "training images",
        size_of,
        lambda cell: cell.name,
    ),
    View(
        "exaflops",
        "Against compute",
        f"{MARKS} Compute is that of training: three times the forward pass's multiply-adds, two "
        "operations each; of the cells with most images. (Figures 5, 8 and 13 of the paper.)",
        "training compute (exaFLOPs)",
        exaflops_of,
        lambda cell: cell.family,
    ),
)


def sections(study: Study, outcomes: Outcomes) -> list[tuple[str, Section]]:
    """The sections of a study's report, each with the name of its picture's files, if it has one."""
    statuses = [outcome.status for outcome in outcomes.values()]
    state = ", ".join(f"{statuses.count(each)} {each}" for each in dict.fromkeys(statuses))
    text = f"{study.notes} Of {len(outcomes)} cells: {state}.".strip()
    found = [("", Section("Results", text, table=table(study, outcomes)))]
    for view in VIEWS:
        places = [
            view.position(study, *each) for each in outcomes.items() if each[1].status == DONE
        ]
        if any(places):
            picture = draw(study, outcomes, view)
            found.append((view.name, Section(view.title, view.text, (picture,))))
    failed = [(cell.folder, o.reason) for cell, o in outcomes.items() if o.status == FAILED]
    if failed:
        rows = [("cell", "reason"), *failed]
        found.append(("", Section("Failed cells", "--retry_failed runs them again.", table=rows)))
    return found


def draw(study: Study, outcomes: Outcomes, view: View) -> Picture:
    """The metric against something, line by line."""
    lines: dict[str, list[tuple[Cell, Outcome]]] = defaultdict(list)
    for cell, outcome in outcomes.items():
        lines[view.line(cell)].append((cell, outcome))

    def paint(axes: Axes) -> None:
        for number, (line, each) in enumerate(lines.items()):
            style = {"color": PALETTE[number % len(PALETTE)]}
            points = points_of(study, each, view)
            if points:
                x, mean, lowest, highest = np.array(points).T
                marker = MARKERS[number % len(MARKERS)]
                axes.plot(x, mean, marker=marker, ms=5, label=line, **style)
                axes.fill_between(x, lowest, highest, alpha=0.2, lw=0, **style)
            failed = [o for o in each if o[1].status == FAILED]
            crosses = [place for o in failed if (place := view.position(study, *o))]
            where = {"transform": axes.get_xaxis_transform(), "ms": 8, "mew": 2}
            axes.plot(crosses, [FAILED_AT] * len(crosses), "x", **where, **style)
        places = {place for o in outcomes.items() if (place := view.position(study, *o))}
        axes.set(xscale="log", xlabel=view.label, ylabel=study.metric_label)
        axes.minorticks_off()
        ticks = ticks_of(sorted(places))
        axes.set_xticks(ticks, [f"{x:,.0f}" if x >= 1 else f"{x:.2g}" for x in ticks])
        add_legend(axes.figure)

    return plot(paint)


def ticks_of(places: Sequence[float]) -> list[float]:
    """The places themselves where their labels have room, else a few between the ends; ascending."""
    if all(after > APART * before for before, after in itertools.pairwise(places)):
        return [*places]
    return np.geomspace(places[0], places[-1], FEW_TICKS).tolist()


def points_of(
    study: Study, line: Sequence[tuple[Cell, Outcome]], view: View
) -> list[tuple[float, float, float, float]]:
    """Position, mean, lowest and highest metric of cells that differ by seed only, in order."""
    groups: dict[tuple, list[tuple[float, float]]] = defaultdict(list)
    for cell, outcome in line:
        place = view.position(study, cell, outcome) if outcome.status == DONE else None
        if place:
            key = (cell.model, cell.schedule, cell.size)
            groups[key].append((place, outcome.numbers[study.metric]))
    arrays = [np.array(group, np.float64).T for group in groups.values()]
    return sorted(
        (float(x.mean()), float(y.mean()), float(y.min()), float(y.max())) for x, y in arrays
    )


def table(study: Study, outcomes: Outcomes) -> list[tuple[str, ...]]:
    """A row for each model and schedule, a column for each size: mean ± deviation over seeds."""
    rows: dict[str, dict[int, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for cell, outcome in outcomes.items():
        rows[cell.name][cell.size].append(outcome)
    sizes = [f"{size:,} images" if size else f"{ALL} images" for size in study.sizes]
    lines = [
        (name, *(in_words(study, cells[size]) for size in study.sizes))
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
