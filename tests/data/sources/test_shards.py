import uuid

import fsspec
import pytest

from vit_jax import storage
from vit_jax.data.sources import shards
from vit_jax.data.sources.shards import expand_braces, find_shards
from vit_jax.errors import DataError


@pytest.fixture(params=["local", "remote"])
def place(request, tmp_path):
    """Makes empty files; the folder's path or URL."""
    root = str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"

    def make(*names):
        for name in names:
            filesystem, path = fsspec.core.url_to_fs(storage.join(root, name))
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            filesystem.pipe_file(path, b"")
        return root

    return make


def found(pattern):
    root, splits = find_shards(pattern)
    return {
        split: [path.removeprefix(root).lstrip("/") for path in paths]
        for split, paths in splits.items()
    }


def test_a_folder(place):
    root = place("10.tar", "9.tar", "9.idx", ".hidden.tar")
    assert found(root) == {"train": ["9.tar", "10.tar"]}
    assert found(root + "/") == {"train": ["9.tar", "10.tar"]}


def test_splits_by_folder(place):
    root = place("train/0.tar", "val/0.tar", "val/1.TAR", "train/deeper/2.tar", "classes.txt")
    assert found(root) == {"train": ["train/0.tar"], "val": ["val/0.tar", "val/1.TAR"]}


def test_splits_by_name(place):
    root = place("imagenet-train-0.tar", "imagenet1k-validation-0.tar", "trainable.tar")
    expected = {"train": ["imagenet-train-0.tar"], "validation": ["imagenet1k-validation-0.tar"]}
    assert found(root) == expected
    assert found(storage.join(root, "imagenet*-*.tar")) == expected
    assert found(storage.join(root, "{imagenet-train,imagenet1k-validation}-0.tar")) == expected


def test_shards_without_a_split_are_named(place, caplog):
    root = place("train-0.tar", "extra.tar", "more.tar")
    assert found(root) == {"train": ["train-0.tar"]}
    assert "2 shards are left out" in caplog.text
    assert f"the first is {root}/extra.tar." in caplog.text


def test_words_in_the_path_above_do_not_count(place):
    root = place("test/my val/0.tar", "test/my val/1.tar")
    assert found(storage.join(root, "test/my val/*.tar")) == {"train": ["0.tar", "1.tar"]}


def test_numbers_need_not_exist_here(place):
    root = place()
    assert found(storage.join(root, "x-{08..10}.tar")) == {
        "train": ["x-08.tar", "x-09.tar", "x-10.tar"]
    }


def test_one_file(place):
    root = place("data.tar", "[1].tar", "1.tar")
    assert found(storage.join(root, "data.tar")) == {"train": ["data.tar"]}
    assert found(storage.join(root, "[1].tar")) == {
        "train": ["[1].tar"]
    }  # As it is, if it is there.


def test_compressed_files_are_found_to_be_named(place):
    root = place("0.tar.gz", "1.tgz")
    assert found(root) == {"train": ["0.tar.gz", "1.tgz"]}
    place("0.tar")
    assert found(root) == {"train": ["0.tar"]}


def test_relative_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.tar").touch()
    assert find_shards("a.tar") == ("", {"train": ["a.tar"]})
    assert find_shards("*.tar") == ("", {"train": ["a.tar"]})


@pytest.mark.parametrize("pattern", ["", "none*.tar", "/nowhere/*/x.tar"])
def test_nothing(pattern):
    with pytest.raises(DataError, match=r"config\.data\.source: .* stands for no file"):
        find_shards(pattern)


def test_an_empty_folder(place):
    root = place("readme.txt")
    for suffix in (".tar", ".parquet"):
        message = (
            rf"{root!r} stands for no file; expected a folder with \*{suffix} .*146}}{suffix}\."
        )
        with pytest.raises(DataError, match=message):
            find_shards(root, suffix)


def test_braces():
    assert expand_braces("x") == ["x"]
    assert expand_braces("{a,b}-{0..2}") == ["a-0", "a-1", "a-2", "b-0", "b-1", "b-2"]
    assert expand_braces("{08..11}") == ["08", "09", "10", "11"]
    assert expand_braces("{8..11}") == ["8", "9", "10", "11"]
    assert expand_braces("{x-{0..1},y}") == ["x-0", "y", "x-1", "y"]


@pytest.mark.parametrize("pattern", ["{2..1}", "{0..99999999}"])
def test_ranges_that_are_none(pattern):
    with pytest.raises(DataError, match="is no range from low to high"):
        expand_braces(pattern)


def test_how_many_numbers_a_range_may_have(monkeypatch):
    monkeypatch.setattr(shards, "_MAX_PATHS", 3)
    assert expand_braces("{7..9}") == ["7", "8", "9"]
    with pytest.raises(DataError, match=r"'x-\{7..10\}': 7..10 is no range"):
        expand_braces("x-{7..10}")
