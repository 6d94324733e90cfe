import dataclasses
import os
import pickle

import numpy as np
import pytest

from vit_jax.data.sources.names import ImageFiles, Names
from vit_jax.errors import DataError

NAMES = ["a.jpg", "", "élève 1.jpg", "new\nline", os.fsdecode(b"\xff\xfe.jpg"), "猫/1.png"]


def test_names_are_a_sequence_of_strings():
    names = Names.of(iter(NAMES))
    assert list(names) == NAMES
    assert len(names) == 6
    assert names[-1] == NAMES[-1]
    assert NAMES[3] in names
    with pytest.raises(IndexError):
        names[6]
    assert list(Names.of([])) == []


def test_parts_are_joined_and_taken():
    names = Names.joined([Names.of(NAMES[:2]), Names.of([]), Names.of(NAMES[2:])])
    assert list(names) == NAMES
    order = np.array([5, 0, 1, 1, 4])
    assert list(names.take(order)) == [NAMES[index] for index in order]
    assert list(names.take(np.empty(0, np.int64))) == []
    assert list(Names.joined([])) == []


def test_many_names_are_taken_in_chunks():
    order = np.random.default_rng(0).permutation(150_000)
    names = Names.of(str(number) for number in range(150_000)).take(order)
    assert list(names) == [str(number) for number in order]


def test_saved_names_are_pickled_as_their_place(tmp_path):
    names = Names.of(NAMES * 100)
    assert list(pickle.loads(pickle.dumps(names))) == list(names)
    names.save(str(tmp_path / "names"))
    opened = Names.open(str(tmp_path / "names"))
    assert list(opened) == list(names)
    assert len(pickle.dumps(opened)) < 300
    assert list(pickle.loads(pickle.dumps(opened))) == list(names)


def test_files_that_do_not_fit_are_refused(tmp_path):
    for name, size in (("names", 3), ("others", 4)):
        Names.of(["x"] * size).save(str(tmp_path / name))
    os.replace(tmp_path / "others.npy", tmp_path / "names.npy")
    with pytest.raises(ValueError, match="do not fit"):
        Names.open(str(tmp_path / "names"))
    for suffix, dtype in (("", np.int8), ("_offsets", np.int32)):
        Names.of(["x"] * 3).save(str(tmp_path / "names"))
        path = tmp_path / f"names{suffix}.npy"
        np.save(path, np.load(path).astype(dtype))
        with pytest.raises(ValueError, match="do not fit"):
            Names.open(str(tmp_path / "names"))


def test_a_missing_image_is_named(tmp_path):
    complete = str(tmp_path / "other.jpg")
    source = ImageFiles("/root", Names.of(["cat/1.jpg", complete]), np.zeros(2, np.int32), ("cat",))
    for root in ("/root", "memory://root"):  # A store's error has the path alone.
        message = rf"{root}/cat/1\.jpg cannot be read \(No such file"
        with pytest.raises(DataError, match=message):
            dataclasses.replace(source, root=root)[0]
    (tmp_path / "other.jpg").write_bytes(b"image")
    assert source[1] == (b"image", 0, complete)
