"""What figures draw: which number stands where, and what axes and tables say."""

import sys
import types

import numpy as np
import pytest

from vit_jax import figures
from vit_jax.analysis import gallery, tiles
from vit_jax.errors import ConfigError
from vit_jax.figures import PALETTE, Picture

NAMES = tuple(f"{number}.png" for number in range(14))


def subject_of(count=14, **attributes):
    pictures = np.zeros((count, 4, 6, 3), np.uint8) + np.arange(count)[:, None, None, None]
    given = {"names": NAMES[:count], "pictures": pictures, "images": pictures, "model": None}
    return types.SimpleNamespace(**{**given, **attributes})


@pytest.fixture
def drawn(monkeypatch):
    """Plots as (paint, size), and rows of tiles as they are given."""
    plots = []

    def plot(paint, size=figures.SIZE):
        plots.append((paint, size))
        return Picture(b"")

    monkeypatch.setattr(gallery, "plot", plot)
    return plots


def axes_of(paint, size):
    with figures.painted(paint, size) as figure:
        figure.canvas.draw()
        (axes,) = figure.axes
    return axes


def ticks(axis):
    """Where each labelled tick stands."""
    return {
        text.get_text(): tick
        for text, tick in zip(axis.get_ticklabels(), axis.get_ticklocs(), strict=True)
    }


def test_maps_have_a_row_for_each_layer_and_a_column_for_each_head(drawn, monkeypatch):
    found = np.arange(1, 1 + 3 * 2 * 2 * 5.0).reshape(1, 3, 2, 2, 5)  # Layers, heads, grid.
    monkeypatch.setattr(gallery.analysis, "attention_maps", lambda model, images: found)
    finding = gallery.maps(subject_of())
    assert finding.arrays["images"].tolist() == ["0.png"]
    ((paint, size),) = drawn
    assert size == (5, pytest.approx(1 + 4 * 3 * 2 / (2 * 5)))
    axes = axes_of(paint, size)
    matrix = np.ma.filled(axes.images[0].get_array(), np.nan)
    assert matrix.shape == (3 * 3 - 1, 2 * 6 - 1)
    for layer in range(3):
        for head in range(2):
            tile = matrix[3 * layer : 3 * layer + 2, 6 * head : 6 * head + 5]
            np.testing.assert_allclose(tile, found[0, layer, head] / found[0, layer, head].max())
    assert np.isnan(matrix[2]).all()
    assert np.isnan(matrix[:, 5]).all()
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("head", "layer")
    assert ticks(axes.xaxis) == {"1": 2, "2": 8}
    assert ticks(axes.yaxis) == {"1": 0.5, "2": 3.5, "3": 6.5}
    assert axes.images[0].norm.vmin == 0


def test_positions_have_a_tile_for_each_patch(drawn, monkeypatch):
    found = np.linspace(-1, 1, 2 * 3 * 2 * 3).reshape(2, 3, 2, 3)
    monkeypatch.setattr(gallery.analysis, "position_similarity", lambda model: found)
    finding = gallery.positions(subject_of())
    assert finding.arrays == {"similarity": found}
    axes = axes_of(*drawn[0])
    matrix = np.ma.filled(axes.images[0].get_array(), np.nan)
    for row in range(2):
        for column in range(3):
            tile = matrix[3 * row : 3 * row + 2, 4 * column : 4 * column + 3]
            np.testing.assert_allclose(tile, found[row, column])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("patch column", "patch row")
    assert ticks(axes.xaxis) == {"1": 1, "2": 5, "3": 9}
    assert ticks(axes.yaxis) == {"1": 0.5, "2": 3.5}
    assert (axes.images[0].norm.vmin, axes.images[0].norm.vmax) == (-1, 1)


def test_distances_are_dots_over_depth_with_their_mean(drawn, monkeypatch):
    found = np.array([[1.0, 3.0, 8.0], [10.0, 20.0, 60.0]])
    monkeypatch.setattr(gallery.analysis, "attention_distance", lambda model, images: found)
    finding = gallery.distance(subject_of())
    assert finding.table[1:] == [
        *[(1, 1, "1"), (1, 2, "3"), (1, 3, "8")],
        *[(2, 1, "10"), (2, 2, "20"), (2, 3, "60")],
    ]
    assert "mean over patches and 14 pictures." in finding.caption
    assert finding.arrays == {"distance": found}
    axes = axes_of(*drawn[0])
    assert axes.get_ylabel() == "mean attention distance (pixels)"
    assert [line.get_label() for line in axes.lines] == ["a head", "mean of heads"]
    dots, mean = (line.get_xydata().tolist() for line in axes.lines)
    assert dots == [[1, 1], [1, 3], [1, 8], [2, 10], [2, 20], [2, 60]]
    assert mean == [[1, 4], [2, 30]]
    assert axes.get_ylim() == pytest.approx((0, 66))
    assert axes.get_xlabel() == "network depth (layer)"


def test_similarity_of_tokens_is_over_layers(drawn, monkeypatch):
    found = np.array([0.25, 0.5, 0.75])
    monkeypatch.setattr(gallery.analysis, "token_similarity", lambda model, images: found)
    finding = gallery.tokens(subject_of())
    assert finding.table[1:] == [(1, "0.25"), (2, "0.5"), (3, "0.75")]
    assert "mean over pairs and 14 pictures." in finding.caption
    assert finding.arrays == {"similarity": found}
    axes = axes_of(*drawn[0])
    labels = "network depth (layer)", "cosine similarity of patches"
    assert (axes.get_xlabel(), axes.get_ylabel()) == labels
    assert axes.lines[0].get_xydata().tolist() == [[1, 0.25], [2, 0.5], [3, 0.75]]
    assert axes.get_ylim() == (-1, 1)


def test_twelve_pictures_are_shown_from_end_to_end(monkeypatch):
    assert gallery.chosen(subject_of(3)) == [0, 1, 2]
    chosen = [0, 1, 2, 4, 5, 6, 7, 8, 9, 11, 12, 13]
    assert gallery.chosen(subject_of()) == chosen
    rows = []
    monkeypatch.setattr(gallery.tiles, "in_rows", lambda *given: rows.append(given) or [])
    monkeypatch.setattr(gallery, "picture", lambda pixels: pixels)
    values = np.arange(14)
    gallery.pairs(
        subject_of(), values, lambda image, value: np.full_like(tiles.as_tile(image), 100 + value)
    )
    ((shown, columns),) = rows
    assert columns == 3
    assert [tile[0, 0, 0] for tile in shown] == chosen
    assert [tile[0, -1, 0] for tile in shown] == [100 + number for number in chosen]


@pytest.mark.parametrize(
    ("figure", "function", "drawn"),
    [
        ("rollout", "attention_rollout", tiles.lit),
        ("colors", "patch_colors", tiles.patches_as_tile),
    ],
)
def test_what_is_computed_is_drawn_beside_each_picture(figure, function, drawn, monkeypatch):
    subject = subject_of(model="MODEL")
    found = np.arange(3.0)

    def computed(model, images):
        assert (model, images) == ("MODEL", subject.images)
        return found

    monkeypatch.setattr(gallery.analysis, function, computed)
    monkeypatch.setattr(gallery, "pairs", lambda *given: given)
    finding = gallery.FIGURES[figure](subject)
    assert finding.picture == (subject, found, drawn)
    assert finding.arrays[figure] is found
    assert finding.arrays["images"].tolist() == list(NAMES)


def test_relevance_is_for_the_predicted_class(monkeypatch):
    given = []
    monkeypatch.setattr(gallery, "require_tokens", lambda model, figure: model)
    monkeypatch.setattr(gallery.analysis, "class_relevance", lambda *a: given.append(a) or "found")
    monkeypatch.setattr(gallery, "pairs", lambda subject, found, drawn: (found, drawn))
    names, predictions = tuple(f"class {n}" for n in range(14)), np.arange(14)
    subject = subject_of(predictions=predictions, predicted_names=names)
    finding = gallery.relevance(subject)
    assert given[0][2] is predictions
    assert finding.picture == ("found", tiles.coloured)
    shown = ", ".join(f"class {n}" for n in gallery.chosen(subject))
    assert finding.caption.endswith(f"Predicted, row by row: {shown}.")
    assert finding.arrays["classes"].tolist() == list(names)
    assert finding.arrays["images"].tolist() == list(NAMES)
    assert finding.arrays["relevance"] == "found"


def test_filters_are_shown_seven_in_a_row(monkeypatch):
    rows = []
    found = np.random.default_rng(0).random((28, 4, 4, 3)).astype(np.float32)
    monkeypatch.setattr(gallery.analysis, "embedding_filters", lambda model, n: found[:n])
    monkeypatch.setattr(gallery.tiles, "in_rows", lambda *given: rows.append(given) or [])
    monkeypatch.setattr(gallery, "picture", lambda pixels: pixels)
    finding = gallery.filters(subject_of())
    assert "The first 28 principal" in finding.caption
    np.testing.assert_array_equal(finding.arrays["filters"], found)
    ((shown, columns),) = rows
    assert (len(shown), columns) == (28, 7)
    np.testing.assert_array_equal(shown[3][16, 16], (255 * found[3, 0, 0]).astype(np.uint8))
    two = np.stack([np.zeros((2, 2)), np.ones((2, 2))], axis=-1)
    np.testing.assert_array_equal(gallery.colors_of(two), np.full((2, 2, 1), 0.5))


def test_classes_are_told_apart_and_rare_ones_are_grey(drawn):
    """Eighteen classes: `a` and `b` have one picture, the others two; `r` comes first."""
    classes = tuple("r" + "cdefghijklmnopqr" + "cdefghijklmnopq" + "ab")
    points = np.random.default_rng(0).normal(size=(len(classes), 2))
    subject = types.SimpleNamespace(
        classes=classes, classes_are="their folder", names=tuple(map(str, range(len(classes))))
    )
    finding = gallery.scatter(subject, points, "T", "component", "Read.")
    assert (finding.title, finding.caption) == ("T", "Read. Classes are those of their folder.")
    assert finding.arrays["points"] is points
    assert finding.arrays["classes"].tolist() == list(classes)
    assert finding.arrays["images"].tolist() == list(subject.names)
    assert finding.table[:2] == [
        ("image", "class", "x", "y"),
        ("0", "r", *(f"{value:.6g}" for value in points[0])),
    ]
    axes = axes_of(*drawn[0])
    rest, *groups = axes.collections
    np.testing.assert_allclose(rest.get_offsets(), points[-2:])
    assert [group.get_label() for group in groups] == [*"cdefghijklmnopqr"], "by name"
    for group in groups:
        own = points[np.array(classes) == group.get_label()]
        np.testing.assert_allclose(group.get_offsets(), own)
    filled = [bool(len(group.get_facecolor())) for group in groups]
    assert filled == [True] * len(PALETTE) + [False] * (16 - len(PALETTE))
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("component 1", "component 2")


def test_a_map_keeps_a_third_of_the_pictures_near(monkeypatch):
    given = []

    class Tsne:
        def __init__(self, **options):
            given.append(options)

        def fit_transform(self, features):
            return features[:, :2]

    stub = types.SimpleNamespace(TSNE=Tsne)  # The library takes a second to import.
    monkeypatch.setitem(sys.modules, "sklearn.manifold", stub)
    monkeypatch.setattr(gallery, "scatter", lambda subject, *given: given)
    for count, perplexity in ((7, 2), (1000, 30)):
        features = np.arange(3.0 * count).reshape(count, 3)
        subject = types.SimpleNamespace(images=features, features=features)
        points, title, axis, text = gallery.tsne(subject)
        np.testing.assert_array_equal(points, features[:, :2])
        assert (title, axis) == ("Embeddings: t-SNE", "dimension")
        assert f"perplexity {perplexity})" in text
    assert given == [{"perplexity": p, "init": "pca", "random_state": 0} for p in (2, 30)]


def test_a_map_by_principal_components_has_the_first_two(monkeypatch):
    monkeypatch.setattr(gallery, "scatter", lambda subject, *given: given)
    features = np.outer(np.arange(9.0), [3, 0, 4])  # All on one line.
    subject = types.SimpleNamespace(images=features, features=features)
    points, title, axis, _ = gallery.pca(subject)
    assert (title, axis) == ("Embeddings: principal components", "component")
    expected = np.stack([5 * np.abs(np.arange(9) - 4), np.zeros(9)], axis=1)
    np.testing.assert_allclose(np.abs(points), expected, atol=1e-6)


def test_neighbours_are_others_even_of_equal_pictures(monkeypatch):
    rows = []
    monkeypatch.setattr(gallery.tiles, "in_rows", lambda *given: rows.append(given) or [])
    monkeypatch.setattr(gallery, "picture", lambda pixels: pixels)
    angles = np.radians([0, 0, 10, 30, 60, 80, 170])  # The first two are one.
    features = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    finding = gallery.neighbors(subject_of(7, features=features))
    assert finding.arrays["nearest"][:2].tolist() == [[1, 2, 3, 4, 5], [0, 2, 3, 4, 5]]
    cosines = [1, *np.cos(np.radians([10, 30, 60, 80]))]
    np.testing.assert_allclose(finding.arrays["similarity"][:2], [cosines] * 2, rtol=1e-6)
    assert finding.arrays["images"].tolist() == list(NAMES[:7])
    assert "the 5 others nearest to it follow" in finding.caption
    assert finding.caption.endswith("among 7 pictures.")
    assert finding.table[1] == ("0.png", 1, "1.png", "1")
    assert finding.table[7] == ("1.png", 2, "2.png", f"{np.cos(np.radians(10)):.6g}")
    assert len(finding.table) == 1 + 7 * 5
    ((shown, columns),) = rows
    assert columns == 6
    assert [tile[0, 0, 0] for tile in shown[6:12]] == [1, 0, 2, 3, 4, 5]


def test_few_pictures_have_fewer_neighbours(monkeypatch):
    monkeypatch.setattr(gallery.tiles, "in_rows", lambda *given: given)
    monkeypatch.setattr(gallery, "picture", lambda pixels: pixels)
    features = np.eye(6)[:5]
    finding = gallery.neighbors(subject_of(5, features=features))
    assert "the 4 others nearest" in finding.caption
    with pytest.raises(ConfigError, match="needs 5 pictures at least"):
        gallery.neighbors(subject_of(4, features=features[:4]))
