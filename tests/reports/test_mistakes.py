"""A classifier's mistakes: order, tables, and images with several classes."""

import types

import numpy as np

import vit_jax
from vit_jax.data.sources.examples import Example
from vit_jax.errors import ConfigError, DataError
from vit_jax.evaluators.judgements import Answers
from vit_jax.reports import mistakes
from vit_jax.reports.mistakes import confusion_section, hardest_classes, mistake_sections

NAMES = ("cat", "dog", "owl")


def answers(label, prediction, probability):
    label, prediction = np.array(label), np.array(prediction)
    return Answers(
        10 + np.arange(len(label)),
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
            unreadable = DataError("torn") if index == 14 else None
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
        ("1", "13.png", "dog", "cat", "80.0%"),
        ("2", "11.png", "cat", "dog", "60.0%"),
    ]
    assert section.title == "Most confident mistakes"
    assert section.text.endswith("The model has no attention over patches to show.")
    assert section.table[0] == ("", "image", "label", "prediction", "probability")


def test_twelve_mistakes_are_shown_six_in_a_row(monkeypatch):
    split = types.SimpleNamespace(
        source=Source(), data=types.SimpleNamespace(transform=lambda image: image)
    )
    labelled = types.SimpleNamespace(split=split, names=NAMES)
    sure = np.linspace(0.3, 0.9, 15)
    sure[4] = 0.1
    found = answers([0] * 15, [-1, *[1] * 14], sure)._replace(index=np.arange(100, 115))
    rows = []
    monkeypatch.setattr(mistakes.tiles, "in_rows", lambda *given: rows.append(given) or [])
    monkeypatch.setattr(mistakes, "picture", lambda pixels: pixels)
    monkeypatch.setattr(mistakes, "attention_rollout", raise_config_error)
    section = mistakes.confident_mistakes(None, found, labelled)
    order = [14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 3, 2]
    assert [row[1] for row in section.table[1:]] == [f"{100 + n}.png" for n in order]
    ((shown, columns),) = rows
    assert (len(shown), columns) == (12, 6)
    assert [tile[0, 0, 0] for tile in shown] == [100 + n for n in order]
    none = found._replace(prediction=np.array([-1] + [0] * 14))
    (row,) = mistakes.confident_mistakes(None, none, labelled).table[1:]
    assert row == ("1", "100.png", "cat", "–", "30.0%")
    torn = found._replace(index=np.full(15, 14))  # All of them are one that cannot be read.
    section = mistakes.confident_mistakes(None, torn, labelled)
    assert (section.text, section.table) == ("None of the 12 pictures can be read.", ())
    right = found._replace(prediction=found.label)
    assert mistakes.confident_mistakes(None, right, labelled).text == "It made none."


def raise_config_error(*given):
    raise ConfigError("none")


def test_hardest_classes_and_what_they_are_taken_for():
    assert hardest_classes(FOUND, NAMES).table[1:] == [
        ("dog", "33.3%", "3", "cat (2)"),
        ("cat", "50.0%", "2", "dog (1)"),
        ("owl", "100.0%", "1", "–"),
    ]
    # A class without images has no score; of several that it is taken for the most frequent.
    found = answers([0, 0, 0, 0, 1], [1, 2, 2, -1, 1], [0.5] * 5)
    assert hardest_classes(found, (*NAMES, "emu")).table == [
        ("class", "accuracy", "images", "most often taken for"),
        ("cat", "0.0%", "4", "owl (2)"),
        ("dog", "100.0%", "1", "–"),
    ]
    many = answers(np.arange(12), (np.arange(12) + 1) % 12, [0.5] * 12)
    assert len(hardest_classes(many, tuple("abcdefghijkl")).table) == 1 + 10


def test_confusion_has_a_column_for_strangers_only_where_there_are_some(monkeypatch):
    seen, told = [], []
    monkeypatch.setattr(
        "vit_jax.reports.mistakes.plot", lambda paint, size: paint(types.SimpleNamespace())
    )
    monkeypatch.setattr(
        "vit_jax.reports.mistakes.paint_shares",
        lambda axes, shares, *labels: (
            seen.append(shares)
            or told.append(labels)
            or axes.__dict__.update(
                set_xticks=lambda *ticks, **_: told.append(ticks),
                set_yticks=lambda *ticks: told.append(ticks),
            )
        ),
    )
    confusion_section(FOUND, NAMES)
    np.testing.assert_allclose(seen[0], [[0.5, 0.5, 0], [2 / 3, 1 / 3, 0], [0, 0, 1]])
    confusion_section(answers([0, 0, 1, 2], [0, -1, 1, 2], [0.5] * 4), NAMES)
    assert seen[1].shape == (3, 4)
    assert seen[1][0, 3] == 0.5
    labels, columns, rows = told[3:]
    assert labels == ("class", "prediction")
    assert columns == (range(4), [*NAMES, "none of these"])
    assert rows == (range(3), NAMES)
    for count in (20, 21):
        told.clear()
        confusion_section(answers([0], [1], [0.5]), tuple(map(str, range(count))))
        assert len(told) == (3 if count == 20 else 1), "twenty have room for their names"


def test_images_with_several_classes_have_average_precisions():
    label = np.array([[1, 0, 1], [0, 1, 0]])
    scores = np.array([[0.9, 0.8, 0.9], [0.1, 0.7, 0.1]])
    found = FOUND._replace(label=label, scores=scores)
    sections = mistake_sections(None, found, types.SimpleNamespace(names=NAMES))
    assert [section.title for section in sections] == ["Hardest classes"]
    assert sections[0].table[1] == ("dog", "50.0%")
