"""A model's classes for the data's."""

import dataclasses

import numpy as np
import pytest

from vit_jax.data.classes import LabelledForModel, difference, match_classes
from vit_jax.data.sources.examples import Example, Source
from vit_jax.errors import DataError


@pytest.mark.parametrize(
    ("model", "data", "labels", "remark"),
    [
        (("a", "b", "c"), ("a", "b", "c"), [0, 1, 2], ""),
        (("a", "b", "c"), ("a", "c", "b"), [0, 2, 1], "matched by name: 'c' is 1 here, 2 there"),
        (
            ("a", "b", "c"),
            ("c", "a"),
            [2, 0],
            "has 2 of the model's 3 classes; classes are matched",
        ),
        (("a", "b", "c"), ("a", "b"), [0, 1], "has 2 of the model's 3 classes"),
        (("a", "a", "c"), ("a", "a", "c"), [0, 1, 2], ""),
        ((), ("x", "y", "z"), [0, 1, 2], "matched by number, and the data calls 0 'x'"),
    ],
)
def test_labels(model, data, labels, remark):
    found, said = match_classes(model, 3, data)
    np.testing.assert_array_equal(found, labels)
    assert found.dtype == np.int32
    assert remark in said
    assert bool(remark) == bool(said)


def test_a_remark_tells_how_many_there_are_and_the_first_that_moved():
    model = ("cat", "hen", "cow", "dog", "bee")
    assert match_classes(model, 5, ("cat", "dog", "cow", "hen"))[1] == (
        "the data has 4 of the model's 5 classes; classes are matched by name: 'dog' is 1 here, 3 there"
    )


@pytest.mark.parametrize(
    ("model", "count", "data", "message"),
    [
        (("a",), 3, ("a", "x"), r"class 1 of the data, 'x', .* \(1 is absent there\)"),
        ((), 21843, tuple("abcdefghij"), "model has 21,843 classes, the data 10: a, b, c"),
        (
            ("a", "b"),
            2,
            ("a", "x"),
            r"class 1 of the data, 'x', is not .* \(1 is 'b' there\): a, b",
        ),
        (("a", "b"), 2, ("a", "b", "x"), r"class 2 of the data, 'x', .* \(2 is absent there\)"),
        (("a", "a", "b"), 3, ("b", "a"), "a class name occurs twice"),
        (("a", "b", "c"), 3, ("b", "a", "a"), "a class name occurs twice"),
    ],
)
def test_lists_that_do_not_match_are_refused(model, count, data, message):
    with pytest.raises(DataError, match=message):
        match_classes(model, count, data)


@dataclasses.dataclass(frozen=True)
class Labelled(Source):
    """One example of each label."""

    labels: tuple = dataclasses.field()
    class_names = ("cat", "dog")

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return Example(b"", self.labels[index], f"{index}.jpg")


def test_labels_become_the_models():
    source = LabelledForModel(Labelled((0, 1, 1)), np.array([2, 0]), num_classes=3)
    assert [source[index].label for index in range(len(source))] == [2, 0, 0]
    assert source.class_names == ("cat", "dog")


def test_targets_become_the_models():
    both, cat = np.float32([1, 1]), np.float32([1, 0])
    source = LabelledForModel(Labelled((both, cat)), np.array([2, 0]), num_classes=3)
    assert [source[index].label.tolist() for index in range(2)] == [[1, 0, 1], [0, 0, 1]]
    assert source.multi_label is False  # As the source says.


def test_several_are_read_at_once():
    source = LabelledForModel(Labelled((0, 1, 1)), np.array([2, 0]), num_classes=3)
    assert [example.label for example in source.fetch([1, 0])] == [0, 2]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ("abc", "ab", "missing: c"),
        ("ab", "abc", "new: c"),
        ("abc", "xbc", "missing: a; new: x"),
        ("abc", "acb", "class 1 was 'b' and is 'c'"),
        ("ab", "abb", "there were 2 classes and are 3"),
        ("aba", "ab", "there were 3 classes and are 2"),
    ],
)
def test_the_difference_of_two_lists(before, now, expected):
    assert difference(tuple(before), tuple(now)) == expected
