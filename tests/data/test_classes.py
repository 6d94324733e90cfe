"""A model's classes for the data's."""

import numpy as np
import pytest

from vit_jax.data.classes import UNREADABLE, LabelledForModel, match_classes
from vit_jax.data.splits import Example
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


class Three:
    class_names = ("cat", "dog")

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index == 1:
            raise PermissionError(13, "Permission denied", "dog/1.jpg")
        return Example(b"good" if index == 0 else b"bad", index % 2, f"cat/{index}.jpg")


def decode(content):
    if content == b"bad":
        raise DataError("cannot decode the image")
    return np.ones((2, 2, 1), np.uint8)


def test_what_cannot_be_read_is_named_once_and_marked(caplog):
    blank = np.zeros((2, 2, 1), np.uint8)
    examples = LabelledForModel(Three(), decode, np.array([5, 7], np.int32), blank)
    read = [examples[index] for index in (0, 1, 2, 2)]
    assert [example.label for example in read] == [5, UNREADABLE, UNREADABLE, UNREADABLE]
    assert [example.image.max() for example in read] == [1, 0, 0, 0]
    assert len(examples) == 3
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "dog/1.jpg" in messages[0]
    assert messages[1] == "Not counted: cat/2.jpg: cannot decode the image"
