"""The style of plots: legends off the data, colours apart, text in the files."""

import io
import itertools

import numpy as np
import pytest
from PIL import Image

from vit_jax import figures


def test_a_legend_stands_below_the_axes_and_names_each_label_once():
    def paint(axes):
        axes.plot([0, 1], [0, 1], label="one")
        axes.plot([0, 1], [1, 0], label="two")

    with figures.painted(paint, figures.SIZE) as figure:
        paint(figure.axes[0])  # The labels twice.
        figures.add_legend(figure)
        figure.canvas.draw()
        (legend,) = figure.legends
        assert [text.get_text() for text in legend.get_texts()] == ["one", "two"]
        assert legend.get_window_extent().y1 <= figure.axes[0].get_tightbbox().y0
        assert legend.get_window_extent().x0 >= 0


# Machado et al. (2009), severity 1: what linear RGB becomes to readers without one kind of cone.
VISION = {
    "all cones": np.eye(3),
    "deuteranopia": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
    "protanopia": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
}
TO_XYZ = np.array(  # Linear sRGB, white at 1.
    [[0.4339, 0.3763, 0.1898], [0.2126, 0.7152, 0.0722], [0.0177, 0.1095, 0.8728]]
)


def linear(color):
    values = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb):
    xyz = TO_XYZ @ np.clip(rgb, 0, 1)
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("vision", VISION)
def test_colours_are_told_apart_by_all_readers(vision):
    seen = [lab(VISION[vision] @ linear(color)) for color in figures.PALETTE]
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
    assert min(distances) > 15  # A difference of 2 is just seen, side by side.


def test_pictures_have_the_size_that_was_asked_for():
    picture = figures.draw(lambda axes: axes.plot([0, 1]), (3, 2))
    assert picture.shape == (200, 300, 3)
    assert picture.dtype == np.uint8
    red = figures.draw(lambda axes: axes.figure.set_facecolor("#ff8000"))
    assert red.shape == (400, 500, 3)
    assert red[0, 0].tolist() == [255, 128, 0]


def test_a_matrix_of_shares_is_dark_where_they_are_large():
    def paint(axes):
        figures.paint_shares(axes, np.array([[0.25, 0.75], [1.0, 0.0]]), "class", "prediction")

    with figures.painted(paint, figures.SIZE) as figure:
        (axes,) = figure.axes
        (image,) = axes.images
        assert (axes.get_ylabel(), axes.get_xlabel()) == ("class", "prediction")
        assert (image.get_interpolation(), image.norm.vmin) == ("nearest", 0)
        colors = image.cmap(image.norm([0.0, 1.0])).sum(axis=1)
        assert colors[1] < colors[0]


def test_panels_have_their_curves_in_order_of_the_steps(monkeypatch):
    seen = []
    monkeypatch.setattr(figures, "paint_curve", lambda axes, *given: seen.append((axes, *given)))
    curves = {"one": {"a": {20: 2.0, 3: 1.0}}, "two": {"a": {1: 4.0}, "b": {2: 5.0}}}
    content = figures.draw_curves(curves, "update")
    assert Image.open(io.BytesIO(content)).size == (1000, 360), "side by side"
    assert [given for _, *given in seen] == [
        *([[3, 20], [1.0, 2.0], "a"], [[1], [4.0], "a"], [[2], [5.0], "b"])
    ]
    assert [axes.get_title() for axes, *_ in seen] == ["one", "two", "two"]
    assert {axes.get_xlabel() for axes, *_ in seen} == {"update"}


def test_a_curve_of_twenty_points_has_marks():
    for count, marker in ((20, "o"), (21, "None")):
        with figures.painted(lambda axes: None, figures.SIZE) as figure:
            (axes,) = figure.axes
            figures.paint_curve(axes, np.arange(count), np.arange(count), "label")
            (line,) = axes.lines
            assert (line.get_marker(), line.get_label()) == (marker, "label")


def test_the_style_is_no_one_else_s():
    import matplotlib

    before = dict(matplotlib.rcParams)
    figures.plot(lambda axes: axes.plot([0, 1]))
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("label", ["short", "hybrid: R50x1+L/16, 14 epochs", "w" * 60])
def test_a_legend_has_as_many_columns_as_its_labels_leave_room_for(label):
    with figures.painted(lambda axes: None, figures.SIZE) as figure:
        for number in range(8):
            figure.axes[0].plot([0, 1], [0, number], label=f"{label} {number}")
        figures.add_legend(figure)
        figure.canvas.draw()
        (legend,) = figure.legends
        columns = {"short": 3, "w" * 60: 1}.get(label, 1)
        assert legend._ncols == columns
        box = legend.get_window_extent()
        assert box.y1 <= figure.axes[0].get_tightbbox().y0
        if len(label) < 60:  # No number of columns would do.
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.x1


def test_the_bar_of_colours_is_as_high_as_the_matrix():
    def paint(axes):
        figures.paint_matrix(axes, np.eye(3), "row", "column", "unit")

    with figures.painted(paint, figures.SIZE) as figure:
        figure.canvas.draw()
        axes = figure.axes[0]
        (bar,) = axes.child_axes
        heights = [box.get_window_extent().height for box in (axes, bar)]
        assert heights[0] == pytest.approx(heights[1])
        assert bar.get_tightbbox().x1 <= figure.bbox.x1
