"""Classes that are read once: what is kept is of one list of examples alone."""

import dataclasses
import types

import numpy as np
import pytest

from tests.data.example_sources import Numbered
from vit_jax.data.sources import label_reading
from vit_jax.data.sources.examples import Example
from vit_jax.data.sources.label_reading import read_labels
from vit_jax.errors import DataError


@dataclasses.dataclass(frozen=True)
class Recorded(Numbered):
    """Labels that each example says; one of them is another than its number's."""

    other: int = -1
    prefix: str = ""

    def __getitem__(self, index):
        label = 7 if index == self.other else index % 2
        return Example(np.zeros((1, 1, 1), np.uint8), label, self.name_of(index))

    def name_of(self, index):
        return f"{self.prefix}{index}"


def expected(size, other=-1):
    return np.where(np.arange(size) == other, 7, np.arange(size) % 2)


def test_labels_of_other_examples_at_the_same_path_are_not_taken(tmp_path):
    """By their names, by their number, or by a few labels that are looked at again."""
    directory = str(tmp_path)
    assert np.array_equal(read_labels(Recorded(100), "x", directory), expected(100))
    found = read_labels(Recorded(100, other=5, prefix="a"), "x", directory)
    assert np.array_equal(found, expected(100, 5))
    assert np.array_equal(read_labels(Recorded(90), "x", directory), expected(90))
    found = read_labels(Recorded(100, other=99), "x", directory)
    assert np.array_equal(found, expected(100, 99))
    found = read_labels(Recorded(100, other=5), "y", directory)
    assert np.array_equal(found, expected(100, 5)), "another location"
    assert len([*tmp_path.iterdir()]) == 4
    kept = read_labels(Recorded(100), "y", directory)
    assert np.array_equal(kept, expected(100, 5)), "what is kept is not read once more"


@pytest.mark.parametrize("size", [1, 63, 64, 65, 1024, 1025, 2100])
def test_every_label_comes_once_and_in_order(size):
    assert np.array_equal(
        read_labels(Recorded(size, other=size - 1), "x", ""), expected(size, size - 1)
    )


def test_an_example_with_several_classes_is_named(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Several(Recorded):
        def __getitem__(self, index):
            return Example(b"", np.ones(2, np.float32), f"no {index}")

    with pytest.raises(DataError, match="no 0 has several"):
        read_labels(Several(3), "x", str(tmp_path))
    assert not [*tmp_path.iterdir()]


def test_progress_is_logged_every_ten_seconds(monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(label_reading, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def labels():
        for label, second in ((3, 110.0), (1, 110.5), (4, 120.5), (1, 121.0)):
            now[0] = second
            yield label

    with caplog.at_level("INFO"):
        assert list(label_reading._with_progress(labels(), 7000)) == [3, 1, 4, 1]
    assert caplog.messages == [
        "Read the classes of 2 of 7,000 examples.",
        "Read the classes of 4 of 7,000 examples.",
    ]


def test_labels_that_cannot_be_kept_are_read_all_the_same(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    for directory in (str(tmp_path / "file"), ""):
        with caplog.at_level("INFO"):
            found = read_labels(Recorded(1009), "x", directory)
        assert np.array_equal(found, expected(1009))
        told = "x: classes stand in the 1,009 examples themselves, which are read for them once."
        assert told in caplog.messages
    (message,) = (record.getMessage() for record in caplog.records if record.levelno >= 30)
    assert message.startswith("config.data.index_dir: ")
    assert message.endswith(": they are read again next time.")
