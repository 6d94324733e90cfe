"""From what a user names to paths: folders, globs, lists; and reading them ahead in order."""

import os
import threading

import pytest

from tests.runs import LIMIT_SECONDS
from vit_jax.data.picture_files import find_files, read_ahead, walk
from vit_jax.errors import DataError


def make(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def find(root, *inputs, listing=()):
    """The paths found, relative to `root`."""
    found = find_files([os.path.join(root, name) for name in inputs], listing)
    return [os.path.relpath(path, root) for path in found]


def test_a_folder_in_natural_order_to_the_bottom(tmp_path):
    make(
        tmp_path, "10.jpg", "9.PNG", "b/2.webp", "b/10.bmp", "Äpfel 1.jpeg", "élève/1.tif", "a.gif"
    )
    make(tmp_path, "notes.txt", ".hidden.jpg", ".thumbnails/1.jpg", "b/README")
    assert find(tmp_path, ".") == [
        *("9.PNG", "10.jpg", "a.gif", "b/2.webp", "b/10.bmp", "Äpfel 1.jpeg", "élève/1.tif")
    ]


def test_globs_files_and_folders_one_after_another(tmp_path):
    make(tmp_path, "x/2.jpg", "x/10.jpg", "y/1.png", "y/notes.txt", "[1].jpg")
    assert find(tmp_path, "x/*.jpg") == ["x/2.jpg", "x/10.jpg"]
    assert find(tmp_path, "[xy]") == ["x/2.jpg", "x/10.jpg", "y/1.png"]
    assert find(tmp_path, "**/*.jpg") == ["[1].jpg", "x/2.jpg", "x/10.jpg"]
    assert find(tmp_path, "y/**") == ["y/1.png", "y/notes.txt"], "a glob means what it matches"
    assert find(tmp_path, "[1].jpg", "y", "x/2.jpg") == ["[1].jpg", "y/1.png", "x/2.jpg"]


def test_names_on_standard_input(tmp_path):
    listing = iter([b"a.jpg\n", b"\r\n", "élève 1.jpg\r\n".encode(), b"\xff.jpg\n", b" b.jpg"])
    found = list(find_files(["-"], listing))
    assert found == ["a.jpg", "élève 1.jpg", os.fsdecode(b"\xff.jpg"), " b.jpg"]


def test_names_are_read_as_they_are_needed():
    def endless():
        yield b"1.jpg\n"
        yield b"2.jpg\n"
        raise AssertionError("a third was not asked for")

    found = find_files(["-"], endless())
    assert [next(found), next(found)] == ["1.jpg", "2.jpg"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("empty", "empty: this folder holds no image files"),
        ("missing.jpg", "there is no such file or folder"),
        ("*.jpg", r"\*.jpg': there is no such file.*as a glob it matches none"),
        ("", "there is no such file"),
    ],
)
def test_what_stands_for_nothing_is_an_error_at_once(tmp_path, monkeypatch, name, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    make(tmp_path, "1.png")
    with pytest.raises(DataError, match=message):
        find_files(["1.png", name], ())
    with pytest.raises(DataError, match="Standard input names no files"):
        find_files(["-"], iter([b"\n"]))


def test_links_are_followed_but_never_in_circles(tmp_path):
    make(tmp_path, "real/1.jpg")
    (tmp_path / "tree/sub").mkdir(parents=True)
    (tmp_path / "tree/linked").symlink_to(tmp_path / "real")
    (tmp_path / "tree/sub/loop").symlink_to(tmp_path / "tree")
    (tmp_path / "tree/broken.jpg").symlink_to(tmp_path / "nothing")
    (tmp_path / "tree/itself").symlink_to(tmp_path / "tree/itself")
    assert find(tmp_path, "tree") == ["tree/broken.jpg", "tree/linked/1.jpg"]


def test_a_folder_that_cannot_be_listed_stands_for_itself(tmp_path, monkeypatch):
    make(tmp_path, "a/1.jpg", "b/2.jpg", "c/3.jpg")
    scandir = os.scandir

    def refuse(path):
        if path.endswith("b"):
            raise PermissionError("no")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    found = [os.path.relpath(path, tmp_path) for path in walk(str(tmp_path))]
    assert found == ["a/1.jpg", "b", "c/3.jpg"]


def test_reading_ahead_keeps_order_and_stops_at_its_limit():
    taken, release = [], threading.Event()

    def items():
        for item in range(1000):
            taken.append(item)
            yield item

    def slowly(item):
        if item == 0:
            release.wait(LIMIT_SECONDS)
        release.set()
        return item * item

    values = read_ahead(slowly, items(), 5)
    assert [next(values) for _ in range(100)] == [n * n for n in range(100)]
    assert len(taken) == 105
    values.close()
    assert list(read_ahead(str, range(3), 5)) == ["0", "1", "2"]
    assert list(read_ahead(str, (), 5)) == []


def test_arrays_beside_pictures_are_something_else(tmp_path):
    make(tmp_path, "a/1.npy", "a/2.npy", "b/1.npy", "b/2.jpg")
    assert find(tmp_path, ".") == ["a/1.npy", "a/2.npy", "b/2.jpg"]
