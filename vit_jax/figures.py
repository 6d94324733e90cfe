"""Plots: one style, and their content as pixels, PNG and SVG.

Colours are told apart by colour-blind readers, axes have labels with units, legends stand below the
axes. A plot is a function that paints on axes; it knows nothing of files.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

Axes = Any  # Of matplotlib, which takes a second to import: only those who draw do.
Figure = Any
Paint = Callable[[Axes], None]
Curves = Mapping[str, Mapping[str, Mapping[int, float]]]  # title -> label -> x -> y
Size = tuple[float, float]  # Width and height in inches; of 5, text is readable on a phone.

DOTS_PER_INCH = 100
DENSE = 2  # Of files: so many times the dots, for print and for screens that have them.
SIZE: Size = (5, 3.6)
# Of Okabe and Ito (2008); the yellow, faint on white, comes last.
PALETTE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#56B4E9",
    "#CC79A7",
    "#000000",
    "#F0E442",
)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
LEGEND_COLUMNS = 3
LEGEND_CHARACTERS = 13  # That an inch of it holds; a mark takes as much as `LEGEND_MARK` of them.
LEGEND_MARK = 7
MARKED = 20  # Points of a curve, up to which each has a mark.
STYLE = {
    "font.size": 11,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "0.9",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "svg.hashsalt": "vit_jax",  # The same plot is the same file.
}


class Picture(NamedTuple):
    """A picture as contents of files."""

    png: bytes
    svg: bytes = b""  # Of a plot.


def draw(paint: Paint, size: Size = (5, 4)) -> np.ndarray:
    """The pixels, uint8 [H, W, 3], of what `paint` draws on axes of so many inches."""
    with painted(paint, size) as figure:
        figure.canvas.draw()
        return np.asarray(figure.canvas.buffer_rgba())[..., :3].copy()


def plot(paint: Paint, size: Size = SIZE) -> Picture:
    """What `paint` draws on axes of so many inches, as PNG and SVG."""
    with painted(paint, size) as figure:
        png, svg = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png", dpi=DENSE * DOTS_PER_INCH, metadata={"Software": None})
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return Picture(png.getvalue(), svg.getvalue())


def picture(pixels: np.ndarray) -> Picture:
    """Pixels, uint8 [H, W, 3], as PNG."""
    png = io.BytesIO()
    Image.fromarray(pixels).save(png, "PNG")
    return Picture(png.getvalue())


@contextmanager
def styled(size: Size) -> Iterator[Figure]:
    """An empty figure in the style, which what is drawn inside has too."""
    from matplotlib import rc_context, rcsetup
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: Any = {**STYLE, "axes.prop_cycle": rcsetup.cycler(color=PALETTE)}
    with rc_context(style):
        figure = Figure(figsize=size, dpi=DOTS_PER_INCH, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


@contextmanager
def painted(paint: Paint, size: Size) -> Iterator[Figure]:
    """A figure of one pair of axes, painted on."""
    with styled(size) as figure:
        paint(figure.add_subplot())
        yield figure


def add_legend(figure: Figure) -> None:
    """A legend of each label in a figure, below its axes, where it covers no data.

    It has as many columns as the longest label leaves room for.
    """
    found = {
        label: handle
        for axes in figure.axes
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    width = max(map(len, found), default=0) + LEGEND_MARK
    columns = int(LEGEND_CHARACTERS * figure.get_figwidth() / width)
    figure.legend(
        found.values(),
        found.keys(),
        loc="outside lower center",
        ncols=min(max(columns, 1), LEGEND_COLUMNS),
        fontsize="small",
    )


def paint_matrix(
    axes: Axes, matrix: np.ndarray, row_label: str, column_label: str, unit: str, **options: Any
) -> None:
    """Draws a matrix as colours, with a bar that says what they are; `options` are `imshow`'s."""
    axes.grid(False)
    image = axes.imshow(matrix, interpolation="nearest", **options)
    beside = axes.inset_axes((1.04, 0, 0.05, 1))  # As high as the matrix.
    axes.figure.colorbar(image, cax=beside, label=unit)
    axes.set(xlabel=column_label, ylabel=row_label)


def draw_matrix(matrix: np.ndarray, row_label: str, column_label: str) -> np.ndarray:
    """The picture of a matrix of shares, dark where they are large."""
    return draw(lambda axes: paint_shares(axes, matrix, row_label, column_label))


def paint_shares(axes: Axes, matrix: np.ndarray, row_label: str, column_label: str) -> None:
    """Draws a matrix of shares, dark where they are large."""
    paint_matrix(axes, matrix, row_label, column_label, "share", cmap="Blues", vmin=0)


def draw_curves(curves: Curves, x_label: str) -> bytes:
    """A PNG file with a panel for each title, and in it a curve for each label."""
    columns = math.ceil(math.sqrt(len(curves)))
    rows = math.ceil(len(curves) / columns)
    content = io.BytesIO()
    with styled((SIZE[0] * columns, SIZE[1] * rows)) as figure:
        for number, (title, lines) in enumerate(curves.items(), 1):
            axes = figure.add_subplot(rows, columns, number)
            for label, points in lines.items():
                paint_curve(axes, sorted(points), [points[step] for step in sorted(points)], label)
            axes.set(title=title, xlabel=x_label)
        add_legend(figure)
        figure.savefig(content, format="png")
    return content.getvalue()


def paint_curve(axes: Axes, steps: Any, values: Any, label: str) -> None:
    """Draws values over steps; a few have marks."""
    axes.plot(steps, values, "o-" if len(steps) <= MARKED else "-", ms=4, label=label)
