"""Where a classifier is wrong: confusion, hardest classes, its most confident mistakes."""

from __future__ import annotations

import numpy as np

from vit_jax.analysis import attention_rollout, tiles
from vit_jax.analysis.gallery import pairs
from vit_jax.analysis.subject import Subject
from vit_jax.data.sources.examples import Example
from vit_jax.errors import ConfigError
from vit_jax.evaluators.answer_files import describe_label
from vit_jax.evaluators.class_groups import NONE
from vit_jax.evaluators.classification import LabelledSplit, class_scores, confusion_of
from vit_jax.evaluators.judgements import Answers
from vit_jax.figures import Axes, Picture, paint_shares, picture, plot
from vit_jax.models.base import ImageClassifier
from vit_jax.pages import Section

NAMED = 20  # Classes, up to which axes have their names.
HARDEST = 10  # Classes.
WORST = 12  # Mistakes.


def mistake_sections(
    model: ImageClassifier, found: Answers, labelled: LabelledSplit
) -> list[Section]:
    """The sections on mistakes; of images with several classes the hardest classes only.

    Args:
      model: that gave the answers.
      found: an answer for each image.
      labelled: the images, and the names of their classes.
    """
    if found.label.ndim == 2:
        return [hardest_classes(found, labelled.names)]
    return [
        confusion_section(found, labelled.names),
        hardest_classes(found, labelled.names),
        confident_mistakes(model, found, labelled),
    ]


def confusion_section(found: Answers, names: tuple[str, ...]) -> Section:
    """Which share of each class is taken for which."""
    confusion = confusion_of(found, len(names))[:-1]
    shares = confusion / np.maximum(confusion.sum(1, keepdims=True), 1)
    shares = shares if confusion[:, -1].any() else shares[:, :-1]

    def paint(axes: Axes) -> None:
        paint_shares(axes, shares, "class", "prediction")
        if len(names) <= NAMED:
            columns = [*names, "none of these"][: shares.shape[1]]
            axes.set_xticks(range(len(columns)), columns, rotation=90)
            axes.set_yticks(range(len(names)), names)

    text = "Which share of the images of a class (row) is taken for which (column)."
    return Section("Confusion", text, (plot(paint, (5, 4.6)),))


def hardest_classes(found: Answers, names: tuple[str, ...]) -> Section:
    """The classes with the lowest scores, and what they are most often taken for."""
    scores, several = class_scores(found, len(names)), found.label.ndim == 2
    order = [
        number for number in np.argsort(scores, kind="stable") if not np.isnan(scores[number])
    ][:HARDEST]
    if several:
        rows = [(names[number], f"{scores[number]:.1%}") for number in order]
        table = [("class", "average precision"), *rows]
        return Section("Hardest classes", "Lowest average precision first.", table=table)
    confusion = confusion_of(found, len(names))
    known = [*names, "none of these"]
    lines = []
    for number in order:
        wrong = np.where(np.arange(len(known)) == number, 0, confusion[number])
        taken = f"{known[wrong.argmax()]} ({wrong.max()})" if wrong.any() else "–"
        lines.append((names[number], f"{scores[number]:.1%}", f"{confusion[number].sum()}", taken))
    head = ("class", "accuracy", "images", "most often taken for")
    return Section("Hardest classes", "Lowest accuracy first.", table=[head, *lines])


def confident_mistakes(model: ImageClassifier, found: Answers, labelled: LabelledSplit) -> Section:
    """The wrong answers with the highest probabilities, their pictures, and attention over them."""
    title, names = "Most confident mistakes", labelled.names
    wrong = np.flatnonzero(found.prediction != found.label)
    worst = wrong[np.argsort(-found.probability[wrong], kind="stable")][:WORST].tolist()
    if not worst:
        return Section(title, "It made none.")
    source, transform = labelled.split.source, labelled.split.data.transform
    examples = source.fetch(found.index[worst].tolist())
    read = [
        (row, transform(example.image))
        for row, example in zip(worst, examples, strict=True)
        if isinstance(example, Example)
    ]
    if not read:
        return Section(title, f"None of the {len(worst)} pictures can be read.")
    pictures = np.stack([image for _, image in read])
    rows = [
        (
            f"{number}",
            source.name_of(int(found.index[row])),
            describe_label(found.label[row], names),
            names[found.prediction[row]] if found.prediction[row] != NONE else "–",
            f"{found.probability[row]:.1%}",
        )
        for number, (row, _) in enumerate(read, 1)
    ]
    drawn, text = with_attention(model, pictures)
    head = ("", "image", "label", "prediction", "probability")
    text = (
        f"Row by row, the most confident first; a label may be wrong rather than the answer. {text}"
    )
    return Section(title, text, (drawn,), [head, *rows])


def with_attention(model: ImageClassifier, pictures: np.ndarray) -> tuple[Picture, str]:
    """Pictures beside attention rollout over them, where that is defined; and what is shown."""
    subject = Subject(model, pictures)
    try:
        seen = attention_rollout(model, subject.images)
    except ConfigError:
        plain = [tiles.as_tile(image) for image in pictures]
        return picture(tiles.in_rows(plain, 6)), "The model has no attention over patches to show."
    text = "Beside each picture it is bright where attention ends up (rollout)."
    return pairs(subject, seen, tiles.lit), text
