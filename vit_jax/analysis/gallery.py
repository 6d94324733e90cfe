"""The figures of `python -m vit_jax.analyze`: each a function of a subject, listed in `FIGURES`.

To add one, write a function that returns a `Finding`, or raises ConfigError for a subject that it is
not defined for, and list it.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from vit_jax import analysis
from vit_jax.analysis import tiles
from vit_jax.analysis.captured import require_tokens
from vit_jax.analysis.subject import Subject
from vit_jax.errors import ConfigError
from vit_jax.escaping import six_digits
from vit_jax.figures import (
    MARKERS,
    PALETTE,
    Axes,
    Picture,
    add_legend,
    paint_matrix,
    picture,
    plot,
)

SHOWN = 12  # Pictures; arrays have all.
PAIRS_IN_A_ROW = 3
FILTERS, FILTERS_IN_A_ROW = 28, 7
NEIGHBORS = 5
CLASSES_SHOWN = 16  # By colour and mark; others are grey.
FEWEST = 5  # Pictures that a map of embeddings takes.
PERPLEXITY = 30.0  # scikit-learn's.


class Finding(NamedTuple):
    """A figure: the numbers behind it, what there is to see, and how to read it."""

    title: str
    caption: str
    arrays: dict[str, np.ndarray]
    picture: Picture
    table: Sequence[Sequence[Any]] = ()  # Rows for a CSV file, the first with the columns' names.


def rollout(subject: Subject) -> Finding:
    """Attention rollout (Figures 6 and 14)."""
    found = analysis.attention_rollout(subject.model, subject.images)
    return Finding(
        "Attention rollout",
        "Which patches the output depends on through attention in all layers: the heads' mean, half "
        "of it replaced by the identity for the residual, is multiplied layer by layer. Each picture "
        "stands beside itself, bright where attention ends up. It says where information may come "
        "from, not which class it speaks for. (Figure 6 of the paper.)",
        {"rollout": found, "images": np.array(subject.names)},
        pairs(subject, found, tiles.lit),
    )


def maps(subject: Subject) -> Finding:
    """Attention by head and layer, of one picture."""
    found = analysis.attention_maps(subject.model, subject.images[:1])
    layers, heads, rows, columns = found.shape[1:]
    scaled = found[0] / np.maximum(found[0].max(axis=(2, 3), keepdims=True), 1e-12)
    framed = np.pad(scaled, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    mosaic = framed.transpose(0, 2, 1, 3).reshape(layers * (rows + 1), heads * (columns + 1))
    mosaic = mosaic[:-1, :-1]  # Gaps between tiles only.

    def paint(axes: Axes) -> None:
        paint_matrix(axes, mosaic, "layer", "head", "attention, of the head's largest", vmin=0)
        axes.set_xticks((np.arange(heads) + 0.5) * (columns + 1) - 1, range(1, heads + 1))
        axes.set_yticks((np.arange(layers) + 0.5) * (rows + 1) - 1, range(1, layers + 1))

    height = 1 + 4 * layers * rows / (heads * columns)
    return Finding(
        "Attention by head and layer",
        f"The patches of {subject.names[0]} that the class token attends to (or the patches' mean, or "
        "the pooling's probe) in each head of each layer, as shares of the head's largest weight. Heads "
        "that look alike are redundant; one bright patch in all late layers is often a token that the "
        "model uses as a register.",
        {"maps": found, "images": np.array(subject.names[:1])},
        plot(paint, (5, min(max(height, 2.5), 12))),
    )


def distance(subject: Subject) -> Finding:
    """Mean attention distance by head and layer (Figures 7 right and 11)."""
    found = analysis.attention_distance(subject.model, subject.images)
    layers, heads = found.shape

    def paint(axes: Axes) -> None:
        depth = np.arange(1, layers + 1)
        dots = {"color": PALETTE[0], "alpha": 0.6, "label": "a head"}
        axes.plot(np.repeat(depth, heads), found.ravel(), "o", **dots)
        axes.plot(depth, found.mean(axis=1), color=PALETTE[3], label="mean of heads")
        axes.set(xlabel="network depth (layer)", ylabel="mean attention distance (pixels)")
        axes.set_ylim(0, 1.1 * found.max() or None)
        axes.xaxis.get_major_locator().set_params(integer=True)
        add_legend(axes.figure)

    rows = [
        (layer + 1, head + 1, six_digits(found[layer, head]))
        for layer in range(layers)
        for head in range(heads)
    ]
    return Finding(
        "Attention distance",
        "One dot a head: the distance between a patch and those that it attends to, weighted by "
        f"attention, mean over patches and {len(subject.pictures)} pictures. Low dots are heads that "
        "look nearby, as convolutions do. The class token is left out and weights are not normalised "
        "anew. (Figure 7, right.)",
        {"distance": found},
        plot(paint),
        [("layer", "head", "pixels"), *rows],
    )


def positions(subject: Subject) -> Finding:
    """Similarity of position embeddings (Figures 7 centre and 10)."""
    found = analysis.position_similarity(subject.model)
    rows, columns = found.shape[:2]
    framed = np.pad(found, ((0, 0), (0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    mosaic = framed.transpose(0, 2, 1, 3).reshape(rows * (rows + 1), columns * (columns + 1))
    mosaic = mosaic[:-1, :-1]

    def paint(axes: Axes) -> None:
        options = {"cmap": "viridis", "vmin": -1, "vmax": 1}
        paint_matrix(axes, mosaic, "patch row", "patch column", "cosine similarity", **options)
        axes.set_xticks((np.arange(columns) + 0.5) * (columns + 1) - 1, range(1, columns + 1))
        axes.set_yticks((np.arange(rows) + 0.5) * (rows + 1) - 1, range(1, rows + 1))

    return Finding(
        "Similarity of position embeddings",
        "Each tile is a patch's position embedding, compared to all patches'. Where the model has "
        "learned that images are flat, a tile is bright around its own patch, and along its row and "
        "column. (Figure 7, centre.)",
        {"similarity": found},
        plot(paint, (5, 4.6)),
    )


def filters(subject: Subject) -> Finding:
    """Principal components of the filters that see pixels (Figure 7 left)."""
    found = analysis.embedding_filters(subject.model, FILTERS)
    shown = [tiles.framed(tiles.as_tile(tiles.WHITE * colors_of(c))) for c in found]
    return Finding(
        "Filters of pixels",
        f"The first {len(found)} principal components of the patch embedding's filters (of a hybrid or "
        "ResNet, of its first convolution's), each scaled to its own range. Trained on many images "
        "they are smooth waves of different directions and frequencies; noise means too little "
        "training. (Figure 7, left.)",
        {"filters": found},
        picture(tiles.in_rows(shown, FILTERS_IN_A_ROW)),
    )


def tokens(subject: Subject) -> Finding:
    """Similarity of patches' tokens over depth."""
    found = analysis.token_similarity(subject.model, subject.images)

    def paint(axes: Axes) -> None:
        axes.plot(range(1, len(found) + 1), found, "o-")
        axes.set(
            xlabel="network depth (layer)", ylabel="cosine similarity of patches", ylim=(-1, 1)
        )
        axes.xaxis.get_major_locator().set_params(integer=True)

    return Finding(
        "Similarity of tokens",
        "How alike an image's patches are to one another after each block, mean over pairs and "
        f"{len(subject.pictures)} pictures. Near 1 all patches say the same, and what follows adds "
        "little.",
        {"similarity": found},
        plot(paint),
        [("layer", "similarity"), *((n + 1, six_digits(x)) for n, x in enumerate(found))],
    )


def colors(subject: Subject) -> Finding:
    """Patches' features as colours."""
    found = analysis.patch_colors(subject.model, subject.images)
    return Finding(
        "Features as colours",
        "The first three principal components of all patches' last features, as red, green and blue: "
        "patches of like colour have like features, in one picture and in another. Models that have "
        "learned parts of objects give these parts one colour. Colours mean nothing by themselves.",
        {"colors": found, "images": np.array(subject.names)},
        pairs(subject, found, tiles.patches_as_tile),
    )


def relevance(subject: Subject) -> Finding:
    """How much each patch speaks for the predicted class."""
    model = require_tokens(subject.model, "relevance for a class")
    found = analysis.class_relevance(model, subject.images, subject.predictions)
    names = ", ".join(subject.predicted_names[number] for number in chosen(subject))
    return Finding(
        "Relevance for the predicted class",
        "Orange patches speak for the class that the model predicts, blue ones against it, to first "
        "order: by so much would the logit fall if the patch's token before the last block became the "
        f"mean of all. Each picture has its own scale. Predicted, row by row: {names}.",
        {
            "relevance": found,
            "classes": np.array(subject.predicted_names),
            "images": np.array(subject.names),
        },
        pairs(subject, found, tiles.coloured),
    )


def pca(subject: Subject) -> Finding:
    """The first two principal components of embeddings, by class."""
    points = analysis.principal_components(enough(subject), 2)
    return scatter(
        subject,
        points,
        "Embeddings: principal components",
        "component",
        "The two directions in which the inputs of the head vary most. Distances are true, but most "
        "of what separates classes may lie in other directions.",
    )


def tsne(subject: Subject) -> Finding:
    """A t-SNE map of embeddings, by class."""
    from sklearn.manifold import TSNE  # Takes a second to import.

    features = enough(subject)
    perplexity = min(PERPLEXITY, (len(features) - 1) / 3)
    points = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(features)
    return scatter(
        subject,
        points,
        "Embeddings: t-SNE",
        "dimension",
        f"A map that keeps near neighbours near (t-SNE, perplexity {perplexity:.3g}). Which pictures "
        "stand together says something; sizes of groups and distances between them say nothing.",
    )


def neighbors(subject: Subject) -> Finding:
    """The pictures nearest to some, by their embeddings."""
    features = enough(subject)
    count = min(NEIGHBORS, len(features) - 1)
    order, similarities = analysis.nearest_neighbors(features, features, len(features))
    others = order != np.arange(len(features))[:, None]  # Not the picture itself.
    nearest, near = (x[others].reshape(len(features), -1)[:, :count] for x in (order, similarities))
    rows = [
        [tiles.as_tile(subject.pictures[number]) for number in (query, *nearest[query])]
        for query in chosen(subject)
    ]
    return Finding(
        "Nearest neighbours",
        f"Each row begins with a picture; the {count} others nearest to it follow, by cosine "
        f"similarity of the inputs of the head, among {len(features)} pictures.",
        {"nearest": nearest, "similarity": near, "images": np.array(subject.names)},
        picture(tiles.in_rows([tile for row in rows for tile in row], count + 1)),
        [
            ("image", "rank", "neighbour", "similarity"),
            *(
                (
                    subject.names[i],
                    rank + 1,
                    subject.names[nearest[i, rank]],
                    six_digits(near[i, rank]),
                )
                for i in range(len(features))
                for rank in range(count)
            ),
        ],
    )


FIGURES: dict[str, Callable[[Subject], Finding]] = {
    "rollout": rollout,
    "maps": maps,
    "distance": distance,
    "positions": positions,
    "filters": filters,
    "tokens": tokens,
    "colors": colors,
    "relevance": relevance,
    "pca": pca,
    "tsne": tsne,
    "neighbors": neighbors,
}


def chosen(subject: Subject) -> list[int]:
    """The pictures that are shown: some of all, evenly spread."""
    count = len(subject.pictures)
    return np.linspace(0, count - 1, min(count, SHOWN)).round().astype(int).tolist()


def pairs(subject: Subject, values: np.ndarray, drawn: Callable[..., np.ndarray]) -> Picture:
    """Some pictures, each beside the tile that is drawn of it and its values."""
    beside = [
        tiles.side_by_side([tiles.as_tile(image), drawn(image, values[number])])
        for number in chosen(subject)
        for image in [subject.pictures[number]]
    ]
    return picture(tiles.in_rows(beside, PAIRS_IN_A_ROW))


def colors_of(component: np.ndarray) -> np.ndarray:
    """A filter [P, Q, C] with as many channels as a picture: of others their mean."""
    return component if component.shape[-1] in (1, 3) else component.mean(axis=-1, keepdims=True)


def enough(subject: Subject) -> np.ndarray:
    """The embeddings of all pictures [B, R]; raises ConfigError if they are too few."""
    if subject.images.shape[0] < FEWEST:
        raise ConfigError(f"needs {FEWEST} pictures at least.")
    return subject.features


def scatter(subject: Subject, points: np.ndarray, title: str, axis: str, reading: str) -> Finding:
    """A map of pictures as points [B, 2], by class."""
    classes = np.array(subject.classes)
    counts = collections.Counter(subject.classes).most_common(CLASSES_SHOWN)
    common = sorted(name for name, _ in counts)

    def paint(axes: Axes) -> None:
        rest = points[~np.isin(classes, common)]
        if len(rest):
            axes.scatter(*rest.T, color="0.75", s=20, label="other classes")
        for number, name in enumerate(common):
            axes.scatter(
                *points[classes == name].T,
                color=PALETTE[number % len(PALETTE)],
                marker=MARKERS[number % len(MARKERS)],
                facecolors=PALETTE[number % len(PALETTE)] if number < len(PALETTE) else "none",
                s=24,
                label=name or None,
            )
        axes.set(xlabel=f"{axis} 1", ylabel=f"{axis} 2")
        if subject.classes_are:
            add_legend(axes.figure)

    source = f" Classes are those of {subject.classes_are}." if subject.classes_are else ""
    coordinates = [[six_digits(value) for value in point] for point in points.tolist()]
    rows = zip(subject.names, subject.classes, coordinates, strict=True)
    return Finding(
        title,
        reading + source,
        {"points": points, "classes": classes, "images": np.array(subject.names)},
        plot(paint, (5, 4.6)),
        [("image", "class", "x", "y"), *((name, label, *point) for name, label, point in rows)],
    )
