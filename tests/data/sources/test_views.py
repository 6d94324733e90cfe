import dataclasses
import pickle

import numpy as np
import pytest

from vit_jax.data.sources.examples import Example, LabelSets, Source
from vit_jax.data.sources.views import Labelled, Slices, Subset
from vit_jax.errors import DataError


@dataclasses.dataclass(frozen=True)
class Numbers(Source):
    """Ten examples; the sixth cannot be read."""

    class_names = ("even", "odd")

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index == 6:
            raise DataError("6 is damaged")
        return Example(b"", index % 2, self.name_of(index))

    def name_of(self, index):
        return f"train/{index}"


class Fetching(Numbers):
    """One that reads several examples at once."""

    def __init__(self):
        object.__setattr__(self, "asked", [])

    def fetch(self, indices):
        self.asked.append(list(indices))
        return list(Numbers().fetch(indices))


VIEWS = {
    "subset": (lambda source: Subset(source, np.array([7, 6, 0])), [7, 6, 0]),
    "relabelled": (
        lambda source: Labelled(source, np.arange(10), tuple("abcdefghij")),
        range(10),
    ),
    "slices": (
        lambda source: Slices(((source, range(5, 8)), (source, range(0)), (source, range(1, 3)))),
        [5, 6, 7, 1, 2],
    ),
    "nested": (
        lambda source: Subset(
            Slices(((Subset(source, np.arange(3, 8)), range(1, 5)),)), np.array([2])
        ),
        [6],
    ),
}


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("source_type", [Numbers, Fetching])
def test_views_show_the_examples_at_their_places(kind, source_type):
    make, places = VIEWS[kind]
    view = make(source_type())
    assert len(view) == len(places)
    assert [view.name_of(index) for index in range(len(view))] == [f"train/{p}" for p in places]
    fetched = list(view.fetch(range(len(view))))
    for index, place in enumerate(places):
        if place == 6:
            assert isinstance(fetched[index], DataError)
            with pytest.raises(DataError, match="6 is damaged"):
                view[index]
        else:
            assert fetched[index] == view[index]
            assert view[index].name == f"train/{place}"
            assert view[index].label == (place if kind == "relabelled" else place % 2)
    assert pickle.loads(pickle.dumps(make(Numbers()))).name_of(0) == view.name_of(0)


def test_neighbours_are_asked_for_at_once():
    source = Fetching()
    parts = Slices(((Subset(source, np.arange(4)), range(4)), (source, range(4, 10))))
    list(parts.fetch([1, 2, 3, 4, 5, 0]))
    assert source.asked == [[1, 2, 3], [4, 5], [0]]


# ---------------------------------------------------------------------------- several labels

ROWS = [[0, 2], [], [1], [2, 1], []]
SETS = LabelSets(np.array([0, 2, 1, 2, 1], np.int32), np.array([2, 2, 3, 5, 5]), 3)


def rows(sets):
    return [np.flatnonzero(row).tolist() for row in sets]


def test_label_sets_are_rows_of_zeros_and_ones():
    assert len(SETS) == 5
    assert rows(SETS) == [sorted(row) for row in ROWS]
    assert SETS[0].dtype == np.float32
    assert SETS[3].tolist() == [0, 1, 1]
    with pytest.raises(IndexError):
        SETS[5]


@pytest.mark.parametrize("indices", [[], [0], [1, 4], [3, 3, 0, 1], [4, 3, 2, 1, 0]])
def test_label_sets_are_taken(indices):
    taken = SETS.take(np.array(indices, np.int64))
    assert rows(taken) == [sorted(ROWS[index]) for index in indices]


def test_label_sets_of_some_classes():
    indices, sets = SETS.restricted(np.array([2, 0]))
    assert indices.tolist() == [0, 3]
    assert [row.tolist() for row in sets] == [[1, 1], [1, 0]]
    indices, sets = SETS.restricted(np.array([], np.int64))
    assert len(indices) == len(sets) == 0
