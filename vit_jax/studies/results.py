"""What a study's cells came to: figures as in the paper, and tables."""

from __future__ import annotations

import csv
import io
import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from vit_jax.escaping import csv_row
from vit_jax.figures import MARKERS, PALETTE, Axes, Picture, add_legend, plot
from vit_jax.pages import Section
from vit_jax.studies.cells import DONE, FAILED, Outcome
from vit_jax.studies.definition import Cell, Study, as_file_name
from vit_jax.studies.views import EXAFLOPS, View

DEVICE_HOURS = "train/device_hours"
ALL = "all"  # Images, where the size is 0.
NONE = "–"  # In a table, where the grid has no cell.
FAILED_AT = 0.03  # Of the axes' height, where failed cells are marked.
APART, FEW_TICKS = 1.5, 3  # On a logarithmic axis.

Outcomes = dict[Cell, Outcome]
Table = list[tuple[str, ...]]


def sections(study: Study, outcomes: Outcomes) -> list[tuple[dict[str, Picture], Section]]:
    """The sections of a study's report, each with its pictures by the names of their files."""
    statuses = [outcome.status for outcome in outcomes.values()]
    state = ", ".join(f"{statuses.count(each)} {each}" for each in dict.fromkeys(statuses))
    text = f"{study.notes} Of {len(outcomes)} cells: {state}.".strip()
    first, *others = tables(study, outcomes)
    found: list[tuple[dict[str, Picture], Section]] = [({}, Section("Results", text, table=first))]
    found += [({}, Section(f"Results: {table[0][0]}", table=table)) for table in others]
    for view in study.views:
        pictures = dict(pictures_of(study, outcomes, view))
        if pictures:
            found.append((pictures, Section(view.title, view.text, tuple(pictures.values()))))
    failed = [(cell.folder, o.reason) for cell, o in outcomes.items() if o.status == FAILED]
    if failed:
        rows = [("cell", "reason"), *failed]
        found.append(({}, Section("Failed cells", "--retry_failed runs them again.", table=rows)))
    return found


def pictures_of(study: Study, outcomes: Outcomes, view: View) -> Iterator[tuple[str, Picture]]:
    """Each metric against a view, by the name of its files; those that have no point are left out."""
    for label, metric in study.all_metrics.items():
        if any(points_of(study, [each], view, metric) for each in outcomes.items()):
            end = "" if len(study.all_metrics) == 1 else f"-{as_file_name(metric)}"
            yield f"{view.name}{end}", draw(study, outcomes, view, (label, metric))


def draw(study: Study, outcomes: Outcomes, view: View, metric: tuple[str, str]) -> Picture:
    """A metric, by its label and name, against something, line by line."""
    lines: dict[str, list[tuple[Cell, Outcome]]] = defaultdict(list)
    for cell, outcome in outcomes.items():
        for line in view.lines(cell):
            lines[line].append((cell, outcome))

    def paint(axes: Axes) -> None:
        for number, (line, each) in enumerate(lines.items()):
            style = {"color": PALETTE[number % len(PALETTE)]}
            points = points_of(study, each, view, metric[1])
            if points:
                x, mean, lowest, highest = np.array(points).T
                marker = MARKERS[number % len(MARKERS)]
                axes.plot(x, mean, marker=marker, ms=5, label=line, **style)
                axes.fill_between(x, lowest, highest, alpha=0.2, lw=0, **style)
            crosses = [x for cell, o in each if (x := failed_at(study, cell, o, view))]
            where = {"transform": axes.get_xaxis_transform(), "ms": 8, "mew": 2}
            axes.plot(crosses, [FAILED_AT] * len(crosses), "x", **where, **style)
        axes.set(xscale=view.scale, xlabel=view.label, ylabel=metric[0])
        if view.scale == "log":
            set_ticks(axes, sorted({x for line in axes.lines for x in line.get_xdata()}))
        add_legend(axes.figure)

    return plot(paint)


def failed_at(study: Study, cell: Cell, outcome: Outcome, view: View) -> float | None:
    """Where a failed cell is marked; None: it did not fail, or stands nowhere."""
    return view.position(study, cell, {}) if outcome.status == FAILED else None


def set_ticks(axes: Axes, positions: Sequence[float]) -> None:
    """Ticks of a logarithmic axis with points at ascending positions, in ordinary numbers."""
    axes.xaxis.minorticks_off()
    ticks = ticks_of(positions)
    axes.set_xticks(ticks, [f"{x:,.0f}" if x >= 10 else f"{x:.2g}" for x in ticks])


def ticks_of(positions: Sequence[float]) -> list[float]:
    """The positions where their labels have room, else a few round ones from end to end; ascending."""
    if all(after > APART * before for before, after in itertools.pairwise(positions)):
        return [*positions]
    few = np.geomspace(positions[0], positions[-1], FEW_TICKS)
    return [float(f"{x:.2g}") for x in few]


def points_of(
    study: Study, line: Sequence[tuple[Cell, Outcome]], view: View, metric: str
) -> list[tuple[float, float, float, float]]:
    """Position, mean, lowest and highest metric of cells that differ by seed only, in order."""
    groups: dict[tuple, list[tuple[float, float]]] = defaultdict(list)
    for cell, outcome in line:
        records = outcome.records if view.every_record else [outcome.numbers]
        measured = [r for r in records if r.get(metric) is not None and outcome.status == DONE]
        for number, record in enumerate(measured):
            position = view.position(study, cell, record)
            if position:
                key = (cell.model, cell.schedule, cell.size, number)
                groups[key].append((position, record[metric]))
    arrays = [np.array(group, np.float64).T for group in groups.values()]
    return sorted(
        (float(x.mean()), float(y.mean()), float(y.min()), float(y.max())) for x, y in arrays
    )


def tables(study: Study, outcomes: Outcomes) -> list[Table]:
    """A row for each model and schedule, with mean ± deviation over seeds.

    Of several sizes a table for each metric with a column for each size; of one size a single table
    with a column for each metric, and for the compute where it is known.
    """
    metrics = study.all_metrics
    if len(study.sizes) == 1:
        known = any(EXAFLOPS in outcome.numbers for outcome in outcomes.values())
        columns = {**metrics, **({"training exaFLOPs": EXAFLOPS} if known else {})}
        every = [(label, study.sizes[0], name) for label, name in columns.items()]
        return [table(outcomes, "model", every)]
    sizes = {size: f"{size:,} images" if size else f"{ALL} images" for size in study.sizes}
    return [
        table(outcomes, label, [(text, size, name) for size, text in sizes.items()])
        for label, name in metrics.items()
    ]


def table(outcomes: Outcomes, head: str, columns: Sequence[tuple[str, int, str]]) -> Table:
    """A table of (label, size, metric) as columns, whose rows have their names below `head`."""
    rows: dict[str, dict[int, list[Outcome]]] = defaultdict(lambda: defaultdict(list))
    for cell, outcome in outcomes.items():
        rows[cell.name][cell.size].append(outcome)
    lines = [
        (name, *(in_words(cells[size], metric) for _, size, metric in columns))
        for name, cells in rows.items()
    ]
    return [(head, *(label for label, _, _ in columns)), *lines]


def in_words(outcomes: Sequence[Outcome], metric: str) -> str:
    """An entry of a table: the mean of the cells that are done, and what others are."""
    values = [o.numbers[metric] for o in outcomes if o.status == DONE and metric in o.numbers]
    mean = as_text(float(np.mean(values))) if values else ""
    spread = f" ± {as_text(float(np.std(values)))}" if len(values) > 1 else ""
    others = [o.status for o in outcomes if o.status != DONE]
    rest = ", ".join(f"{others.count(status)} {status}" for status in dict.fromkeys(others))
    return ", ".join(filter(None, (mean + spread, rest))) or NONE


def as_text(value: float) -> str:
    """A share with four decimals; of large numbers and small ones four digits that count."""
    return f"{value:.4f}" if value == 0 or 1e-2 <= value < 10 else f"{value:.4g}"


def as_csv(study: Study, outcomes: Outcomes) -> bytes:
    """A row for each cell, failed and missing ones too."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    head, numbers = ("model", "schedule", "images", "seed", "status"), study.all_metrics.values()
    names = (*numbers, EXAFLOPS, DEVICE_HOURS)
    writer.writerow((*head, *names, "reason"))
    for cell, outcome in outcomes.items():
        found: list[Any] = [outcome.numbers.get(name, "") for name in names]
        size = cell.size or ALL
        row = (cell.model, cell.schedule, size, cell.seed, outcome.status, *found, outcome.reason)
        writer.writerow(csv_row(row))
    return text.getvalue().encode()
