"""A run's records as curves, and where its time went."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax.console import format_duration
from vit_jax.figures import Axes, Picture, add_legend, paint_curve, plot
from vit_jax.pages import Section

TIME = "time/"  # Of the records' names that are seconds of wall time.


class Curve(NamedTuple):
    """What one plot shows: the metrics that a pattern matches, over steps."""

    title: str
    pattern: str
    label: str  # Of the vertical axis, with its unit.
    reading: str


CURVES = (
    Curve(
        "Loss",
        r"(train|[^/]+)/loss",
        "loss (nats)",
        "Of the batches trained on, and of evaluations. Training's counts augmentation, mixing and "
        "label smoothing, so it may lie above the evaluations'. An evaluation that rises while "
        "training falls is overfitting.",
    ),
    Curve(
        "Accuracy",
        r"(?!train/).*(accuracy|_shot)",
        "accuracy (share of images)",
        "Of each evaluator, as in metrics.jsonl.",
    ),
    Curve("Learning rate", r"train/learning_rate", "learning rate", "That each update used."),
    Curve(
        "Norm of the gradient",
        r"train/grad_norm",
        "norm",
        "Before it is cut. Steps up are where training is about to diverge.",
    ),
    Curve("Speed", r"train/images_per_second", "images/s", "Between two lines of the log."),
    Curve(
        "Waiting for data",
        r"train/data_wait",
        "share of training time",
        "Above a few percent the devices wait for images: see docs/performance.md.",
    ),
)


def series(records: Sequence[dict[str, Any]], name: str) -> tuple[np.ndarray, np.ndarray]:
    """The steps and values of a metric, where it is a finite number."""
    points = [
        (record["step"], record[name])
        for record in records
        if record.get("step") is not None and isinstance(record.get(name), int | float)
    ]
    steps, values = np.array(points, np.float64).reshape(-1, 2).T
    return steps, values


def curve_sections(records: Sequence[dict[str, Any]]) -> list[Section]:
    """A section for each of `CURVES` that the records have something of."""
    names = list(dict.fromkeys(name for record in records for name in record))
    sections = []
    for curve in CURVES:
        matching = [name for name in names if re.fullmatch(curve.pattern, name)]
        found = {name: series(records, name) for name in matching}
        found = {name: points for name, points in found.items() if len(points[0])}
        if found:
            sections.append(Section(curve.title, curve.reading, (draw_curves(found, curve.label),)))
    return sections


def draw_curves(found: dict[str, tuple[np.ndarray, np.ndarray]], label: str) -> Picture:
    """The plot of some metrics over steps."""

    def paint(axes: Axes) -> None:
        for name, (steps, values) in found.items():
            paint_curve(axes, steps, values, name)
        axes.set(xlabel="step (updates)", ylabel=label)
        if len(found) > 1:
            add_legend(axes.figure)

    return plot(paint)


def short(number: float) -> str:
    """A number of any size in few characters."""
    return f"{number:,.0f}" if number >= 1000 else f"{number:.4g}"


def time_section(records: Sequence[dict[str, Any]]) -> Section | None:
    """Where the wall time went, and what the run cost; None before the first record."""
    last: dict[str, Any] = {}
    for record in records:
        last |= {name: value for name, value in record.items() if value is not None}
    spent = {name.removeprefix(TIME): last[name] for name in last if name.startswith(TIME)}
    total = sum(spent.values())
    if not total:
        return None
    largest_first = sorted(spent.items(), key=lambda item: -item[1])
    rows = [
        (kind.replace("_", " "), format_duration(seconds), f"{seconds / total:.1%}")
        for kind, seconds in largest_first
        if seconds
    ]
    costs = {
        "device-hours of training": "train/device_hours",
        "exaFLOPs of training": "train/exaflops",
        "images seen": "train/examples",
    }
    measured = [f"{what} {short(last[name])}" for what, name in costs.items() if last.get(name)]
    text = (
        f"{last['step']:,} updates; {', '.join(measured)}. Wall time over all starts of the run; lost "
        "is what restarts did again. Energy is not measured."
    )
    head = ("wall time", "spent", "share")
    return Section("Time", text, table=[head, *rows, ("all", format_duration(total), "100.0%")])
