"""Rules of lists of examples, each where it alone decides."""

import dataclasses

import numpy as np
import pytest

from tests.data.example_sources import Numbered
from vit_jax.data.sources import contents, folder, listing, record_index
from vit_jax.data.sources import splits as splitting
from vit_jax.data.sources.examples import LabelSets, Source, Targets
from vit_jax.data.sources.listing import Listing
from vit_jax.data.sources.names import ImageFiles, Names
from vit_jax.errors import DataError


@dataclasses.dataclass(frozen=True)
class Named(Source):
    """Three examples of two targets, or with labels."""

    class_names: tuple[str, ...] = ("a", "b")
    labels: object = None

    def __len__(self):
        return len(self.labels)

    def name_of(self, index):
        return str(index)


def write(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")


def test_lists_are_kept_where_the_config_says(monkeypatch, tmp_path, data):
    asked, list_classes = [], folder.list_classes

    def listed(root, prefix, index_dir):
        asked.append((prefix, index_dir))
        return list_classes(root, prefix, "")

    monkeypatch.setattr(folder, "list_classes", listed)
    data.index_dir = "INDEX"
    write(tmp_path, "a/1.jpg", "b/1.jpg")
    folder.folder(str(tmp_path), data, None)["train"]()
    assert asked == [("", "INDEX")]
    write(tmp_path, *(f"split/{name}/{label}/1.jpg" for name in ("train", "val") for label in "ab"))
    asked.clear()
    splits = folder.folder(str(tmp_path / "split"), data, None)
    splits["train"]()
    splits["val"]()
    assert asked == [("train/", "INDEX"), ("val/", "INDEX")]


def test_an_evaluation_split_has_the_classes_of_a_good_training_split(tmp_path, data):
    write(tmp_path, "train/b/1.jpg", "val/b/1.jpg")
    with pytest.raises(DataError, match="need at least 2 class folders"):
        folder.folder(str(tmp_path), data, None)["val"]()
    write(tmp_path, "train/a/1.jpg")
    source = folder.folder(str(tmp_path), data, None)["val"]()
    assert (source.class_names, source.labels.tolist()) == (("a", "b"), [1])


def test_a_split_is_one_whatever_else_it_holds(monkeypatch):
    monkeypatch.setattr(folder, "_holds_run", lambda root, name: name != "data")
    assert folder._split_folders("ROOT", ["train", "data", "run1"]) == ["train", "data"]


def test_folders_without_images_are_no_classes(tmp_path):
    write(tmp_path, "a/notes.txt", "b/1.jpg", "c/1.jpg", "c/2.jpg", "d/x.txt")
    found = listing.list_classes(str(tmp_path), "", "")
    assert [*found.class_names] == ["b", "c"]
    assert {
        found.class_names[label] + file[1:]
        for label, file in zip(found.labels, found.files, strict=True)
    } == {
        *("b/1.jpg", "c/1.jpg", "c/2.jpg"),
    }


def test_an_index_is_a_local_folder(monkeypatch, tmp_path):
    write(tmp_path, "a/1.jpg", "b/1.jpg")
    read = []
    monkeypatch.setattr(listing, "_read_index", lambda folder, name: read.append(folder))
    listing.list_classes(str(tmp_path), "", "memory://bucket/index")
    listing.list_classes(str(tmp_path), "", str(tmp_path / "index"))
    assert read == ["", str(tmp_path / "index")]


def test_what_is_not_watched_may_change(tmp_path):
    empty = np.empty(0)
    for modified, current in ((contents.UNWATCHED, True), (1, False)):
        gone = Listing(Names.of([]), empty, empty, [], Names.of(["gone"]), np.array([modified]))
        assert listing._is_current(str(tmp_path), "", gone) == current


def test_complete_names_are_below_no_root(tmp_path):
    (tmp_path / "a.jpg").write_bytes(b"A")
    names = Names.of(["a.jpg", str(tmp_path / "a.jpg"), "memory://bucket/a.jpg"])
    files = ImageFiles(str(tmp_path), names, np.array([0, 1, 1]), ("x", "y"))
    own = str(tmp_path / "a.jpg")
    assert [files._path(name) for name in names] == [own, own, "memory://bucket/a.jpg"]
    assert not files.remote
    found = [*files.fetch([1, 0])]
    assert [(image, label) for image, label, _ in found] == [(b"A", 1), (b"A", 0)]
    assert all(type(example.label) is int for example in found)


def test_sets_of_labels_by_some_of_the_classes():
    labels = LabelSets(np.int32([0, 2, 1, 2, 0]), np.array([2, 2, 3, 5]), 3)
    indices, some = labels.restricted(np.array([2, 0]))
    assert indices.tolist() == [0, 3]
    assert [target.tolist() for target in some] == [[1, 1], [1, 1]]
    indices, some = labels.restricted(np.array([1]))
    assert (indices.tolist(), [target.tolist() for target in some]) == ([2], [[1]])
    indices, some = labels.restricted(np.array([1, 2]))
    assert indices.tolist() == [0, 2, 3]
    assert [target.tolist() for target in some] == [[0, 1], [1, 0], [0, 1]]


def test_what_a_split_was_taken_for():
    numbers = Named(labels=Targets(np.float32([[1, 20], [3, 10], [2, 30]])))
    opened = {"val": lambda: numbers, "extra": lambda: numbers}
    splits = splitting.with_synonyms(opened)
    said = "3 images of a from 1 to 3, b from 10 to 30"
    assert (
        splitting.describe_split(splits, "validation", numbers) == f"split validation (val): {said}"
    )
    assert splitting.describe_split(splits, "val", numbers) == f"split val: {said}"
    assert splitting.describe_split(splits, "", numbers) == f"the evaluation split (val): {said}"
    assert splitting.describe_split(splits, "extra[:1]", numbers) == f"split extra[:1]: {said}"


def test_few_names_are_shown_whole():
    assert splitting.abbreviate(["a", "b", "c"], 3) == "a, b, c"
    assert splitting.abbreviate(["a", "b", "c"], 2) == "a, b, …"


def test_a_cap_keeps_the_order():
    source = Numbered(50)
    names = [source.name_of(index) for index in range(50)]
    capped = splitting.cap(source, 20)
    kept = [capped.name_of(index) for index in range(20)]
    assert kept == sorted(kept, key=names.index)
    assert set(kept) == {*sorted(names, key=splitting.uniform_hash)[:20]}
    assert splitting.cap(source, 50) is source


def test_chosen_classes_are_numbered_in_their_order():
    source = Named(class_names=("a", "b", "c"), labels=np.array([2, 0, 1, 2]))
    chosen = splitting.select_classes(source, ("c", "a"), "x")
    assert chosen.labels.tolist() == [0, 1, 0]
    assert [chosen.name_of(index) for index in range(3)] == ["0", "1", "3"]


def test_an_index_of_a_shard_is_found_from_anywhere(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    here = record_index._index_file("x.tar", "DIR")
    assert here == record_index._index_file(str(tmp_path / "x.tar"), "DIR")
    assert here != record_index._index_file("memory://x.tar", "DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert record_index.open_index([], len, "~/index").directory == str(tmp_path / "index")
