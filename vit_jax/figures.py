"""Figures, in one style: a function draws on axes, and its picture comes back as pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Axes = Any  # Of matplotlib, which takes a second to import: only those who draw do.
DOTS_PER_INCH = 100


def draw(paint: Callable[[Axes], None], size: tuple[float, float] = (5, 4)) -> np.ndarray:
    """The picture, uint8 [H, W, 3], of what `paint` draws on axes of so many inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    paint(axes)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def draw_matrix(matrix: np.ndarray, row_label: str, column_label: str) -> np.ndarray:
    """The picture of a matrix of shares, dark where they are large."""

    def paint(axes: Axes) -> None:
        image = axes.imshow(matrix, cmap="Blues", vmin=0, interpolation="nearest")
        axes.figure.colorbar(image)
        axes.set(xlabel=column_label, ylabel=row_label)

    return draw(paint)
