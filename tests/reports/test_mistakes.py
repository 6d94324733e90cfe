"""A classifier's mistakes: order, tables, and images with several classes."""

import types

import numpy as np

import vit_jax
from vit_jax.data.sources.examples import Example
from vit_jax.errors import DataError
from vit_jax.evaluators.judgements import Answers
from vit_jax.reports.mistakes import confusion_section, hardest_classes, mistake_sections

NAMES = ("cat", "dog", "owl")


def answers(label, prediction, probability):
    label, prediction = np.array(label), np.array(prediction)
    return Answers(
        np.arange(len(label)),
        label,
        prediction,
        np.array(probability),
        np.zeros(len(label)),
        np.zeros((len(label), 0)),
    )


FOUND = answers([0, 0, 1, 1, 1, 2], [0, 1, 1, 0, 0, 2], [0.9, 0.6, 0.5, 0.8, 0.7, 0.9])


class Source:
    def fetch(self, indices):
        for index in indices:
            unreadable = DataError("torn") if index == 4 else None
            yield unreadable or Example(np.full((4, 4, 3), index, np.uint8), 0, "")

    def name_of(self, index):
        return f"{index}.png"


def test_mistakes_are_ordered_by_how_sure_they_were():
    split = types.SimpleNamespace(
        source=Source(), data=types.SimpleNamespace(transform=lambda image: image)
    )
    labelled = types.SimpleNamespace(split=split, names=NAMES)
    model = vit_jax.create_model(
        "BiT-R50x1", image_size=4, num_classes=3, stage_depths=(1,), width_factor=0.5
    )
    *_, section = mistake_sections(model, FOUND, labelled)
    assert section.table[1:] == [  # Between them, one whose image cannot be read.
        ("1", "3.png", "dog", "cat", "80.0%"),
        ("2", "1.png", "cat", "dog", "60.0%"),
    ]
    assert "no attention" in section.text


def test_hardest_classes_and_what_they_are_taken_for():
    assert hardest_classes(FOUND, NAMES).table[1:] == [
        ("dog", "33.3%", "3", "cat (2)"),
        ("cat", "50.0%", "2", "dog (1)"),
        ("owl", "100.0%", "1", "–"),
    ]


def test_confusion_has_a_column_for_strangers_only_where_there_are_some(monkeypatch):
    seen = []
    monkeypatch.setattr(
        "vit_jax.reports.mistakes.plot", lambda paint, size: paint(types.SimpleNamespace())
    )
    monkeypatch.setattr(
        "vit_jax.reports.mistakes.paint_shares",
        lambda axes, shares, *labels: (
            seen.append(shares)
            or axes.__dict__.update(
                set_xticks=lambda *ticks, **_: None, set_yticks=lambda *ticks: None
            )
        ),
    )
    confusion_section(FOUND, NAMES)
    np.testing.assert_allclose(seen[0], [[0.5, 0.5, 0], [2 / 3, 1 / 3, 0], [0, 0, 1]])
    confusion_section(answers([0, 0, 1, 2], [0, -1, 1, 2], [0.5] * 4), NAMES)
    assert seen[1].shape == (3, 4)
    assert seen[1][0, 3] == 0.5


def test_images_with_several_classes_have_average_precisions():
    label = np.array([[1, 0, 1], [0, 1, 0]])
    scores = np.array([[0.9, 0.8, 0.9], [0.1, 0.7, 0.1]])
    found = FOUND._replace(label=label, scores=scores)
    sections = mistake_sections(None, found, types.SimpleNamespace(names=NAMES))
    assert [section.title for section in sections] == ["Hardest classes"]
    assert sections[0].table[1] == ("dog", "50.0%")
