"""The digest of a list of examples, by which a resumed run knows its data again."""

import dataclasses

import numpy as np
import pytest

from vit_jax.data.sources import examples
from vit_jax.data.sources.examples import LabelSets, Source, Targets, digest_of


@dataclasses.dataclass(frozen=True)
class Named(Source):
    labels: np.ndarray | LabelSets | Targets | None = dataclasses.field()
    names: tuple[str, ...] = ("a.jpg", "b.jpg", "c.jpg")
    class_names: tuple[str, ...] = ("cat", "dog")

    def __len__(self):
        return len(self.names)

    def name_of(self, index):
        return self.names[index]


def sets(classes, ends):
    return LabelSets(np.array(classes, np.int32), np.array(ends), 2)


LISTS = [
    Named(np.array([0, 1, 1])),
    Named(np.array([0, 1, 0])),
    Named(None),
    Named(np.array([0, 1, 1]), names=("a.jpg", "c.jpg", "b.jpg")),
    Named(np.array([0, 1, 1]), class_names=("cat", "cow")),
    Named(np.array([0, 1, 1]), class_names=("dog", "cat")),
    Named(sets([0, 1, 1], [1, 2, 3])),
    Named(sets([0, 1, 1], [1, 1, 3])),
    Named(sets([0, 1, 0], [1, 2, 3])),
    Named(Targets(np.float32([[0.5], [1], [2]]))),
    Named(Targets(np.float32([[0.25], [1], [2]]))),
]


def test_whatever_differs_tells_lists_apart():
    assert len({digest_of(source) for source in LISTS}) == len(LISTS)
    assert digest_of(LISTS[0]) == digest_of(Named(np.array([0, 1, 1], np.int32)))


def test_digests_never_change():
    """Else a run that is resumed would take its own data for another."""
    assert [digest_of(LISTS[index]) for index in (0, 6, 9)] == [
        "913603da8171d3d8",
        "0ea56e45197ca6ce",
        "605687a64c1bd3b2",
    ]


@pytest.mark.parametrize(("most", "stride"), [(4, 3), (5, 2), (10, 1), (1, 10)])
def test_of_many_examples_the_names_of_some_stand_for_all(monkeypatch, most, stride):
    monkeypatch.setattr(examples, "_MOST_NAMES", most)
    many = Named(None, names=tuple(map(str, range(10))))
    for index in range(10):
        other = dataclasses.replace(
            many, names=(*many.names[:index], "x", *many.names[index + 1 :])
        )
        assert (digest_of(other) != digest_of(many)) == (index % stride == 0)
