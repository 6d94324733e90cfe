"""Figures, in one style: functions draw on axes, and pictures come back."""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Axes = Any  # Of matplotlib, which takes a second to import: only those who draw do.
Curves = Mapping[str, Mapping[str, Mapping[int, float]]]  # title -> label -> x -> y
DOTS_PER_INCH = 100
PANEL = (5.0, 3.5)  # Inches.


def _new_figure(size: tuple[float, float]) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _add_axes(figure: Any, *position: int) -> Axes:
    axes = figure.add_subplot(*position)
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def draw(paint: Callable[[Axes], None], size: tuple[float, float] = (5, 4)) -> np.ndarray:
    """The picture, uint8 [H, W, 3], of what `paint` draws on axes of so many inches."""
    figure = _new_figure(size)
    paint(_add_axes(figure))
    figure.canvas.draw()
    return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()


def draw_matrix(matrix: np.ndarray, row_label: str, column_label: str) -> np.ndarray:
    """The picture of a matrix of shares, dark where they are large."""

    def paint(axes: Axes) -> None:
        image = axes.imshow(matrix, cmap="Blues", vmin=0, interpolation="nearest")
        axes.figure.colorbar(image)
        axes.set(xlabel=column_label, ylabel=row_label)

    return draw(paint)


def draw_curves(curves: Curves, x_label: str) -> bytes:
    """A PNG file with a panel for each title, and in it a curve for each label."""
    columns = math.ceil(math.sqrt(len(curves)))
    rows = math.ceil(len(curves) / columns)
    figure = _new_figure((PANEL[0] * columns, PANEL[1] * rows))
    for number, (title, lines) in enumerate(curves.items(), 1):
        axes = _add_axes(figure, rows, columns, number)
        for label, points in lines.items():
            steps = sorted(points)
            values = [points[step] for step in steps]
            axes.plot(steps, values, marker="o" if len(steps) < 20 else "", label=label)
        axes.set(title=title, xlabel=x_label)
        axes.legend()
    content = io.BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()
