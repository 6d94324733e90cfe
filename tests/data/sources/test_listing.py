import logging
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
import uuid

import fsspec
import numpy as np
import pytest

from tests.runs import LIMIT_SECONDS, ROOT
from vit_jax.data.sources import listing as module
from vit_jax.data.sources.contents import Walk
from vit_jax.data.sources.listing import list_classes
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import DataError


@pytest.fixture(autouse=True)
def _nothing_in_memory(monkeypatch):
    monkeypatch.setattr(module, "_in_memory", {})


def write_classes(root, count=3):
    for label in ("cat", "dog"):
        for index in range(count):
            path = root / label / "deep" / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    settle(root)
    return str(root)


def settle(root):
    """Lets all folders look as if nothing had changed for an hour."""
    for folder, _, _ in os.walk(root):
        modified = os.stat(folder).st_mtime - 3600
        os.utime(folder, (modified, modified))


@pytest.fixture
def scans(monkeypatch):
    """How many times something was really listed."""
    counted, scan = [], module._scan
    monkeypatch.setattr(module, "_scan", lambda *place: counted.append(place) or scan(*place))
    return counted


@pytest.fixture(params=["memory", "disk"])
def index_dir(request, tmp_path):
    return str(tmp_path / "run" / "index") if request.param == "disk" else ""


def forget(index_dir):
    """As another process sees it."""
    if index_dir:
        module._in_memory.clear()


def test_a_split_has_the_hashes_of_the_same_folder_by_itself(tmp_path):
    root = write_classes(tmp_path / "train")
    below, alone = list_classes(str(tmp_path), "train/", ""), list_classes(root, "", "")
    np.testing.assert_array_equal(np.sort(below.hashes), np.sort(alone.hashes))


def test_an_index_spares_the_listing(tmp_path, scans, index_dir, caplog):
    root = write_classes(tmp_path / "data")
    with caplog.at_level(logging.INFO, "vit_jax"):
        first = list_classes(root, "", index_dir)
    (message,) = caplog.messages
    told = re.fullmatch(rf"{root}/: 6 images in 2 class folders listed in (\d+\.\d) s\.", message)
    assert float(told[1]) < LIMIT_SECONDS
    caplog.clear()
    forget(index_dir)
    with caplog.at_level(logging.INFO, "vit_jax"):
        second = list_classes(root, "", index_dir)
        list_classes(root, "", index_dir)
    assert len(scans) == 1
    told = f"{root}/: 6 images, by the index in {index_dir}."
    assert caplog.messages == ([told] if index_dir else []), "once, and nothing of removing it"
    assert list(second.files) == list(first.files)
    assert list(second.class_names) == ["cat", "dog"]
    np.testing.assert_array_equal(second.labels, [name.startswith("dog") for name in first.files])
    np.testing.assert_array_equal(second.hashes, np.sort(first.hashes))


@pytest.mark.parametrize("change", ["add", "remove", "rename", "deep", "class"])
def test_a_changed_folder_is_listed_again(tmp_path, scans, index_dir, change, caplog):
    root = tmp_path / "data"
    write_classes(root)
    before = list(list_classes(str(root), "", index_dir).files)
    forget(index_dir)
    image = root / "cat" / "deep" / "0.jpg"
    if change == "add":
        (root / "cat" / "3.jpg").touch()
    elif change == "remove":
        image.unlink()
    elif change == "rename":
        image.rename(image.with_name("9.jpg"))
    elif change == "deep":
        (image.parent / "10.jpg").touch()
    else:
        (root / "cow").mkdir()
        (root / "cow" / "1.jpg").touch()
    with caplog.at_level(logging.INFO, "vit_jax"):
        after = list(list_classes(str(root), "", index_dir).files)
    assert len(scans) == 2
    assert sorted(after) != sorted(before)
    assert f"{root}/ has changed since its index was made" in caplog.text
    # Only the newest index is kept, once the folder has settled.
    settle(root)
    list_classes(str(root), "", index_dir)
    if index_dir:
        assert len(os.listdir(index_dir)) == 1


@pytest.mark.parametrize("later", [-1, 1, 1_000, 300_000_000])  # Nanoseconds; kernels tick in 4 ms.
def test_a_change_within_the_second_is_seen(tmp_path, scans, index_dir, later):
    """A folder's times are compared to the nanosecond, whichever of the folders it is."""
    root = tmp_path / "data"
    write_classes(root)
    second = 1_700_000_000 * 10**9 + 500_000_000
    for folder, _, _ in os.walk(root):
        os.utime(folder, ns=(second, second))
    list_classes(str(root), "", index_dir)
    for count, folder in enumerate((root, root / "cat", root / "dog" / "deep"), start=1):
        forget(index_dir)
        (folder / f"new{count}.jpg").touch()
        os.utime(folder, ns=(second, second + later))
        found = list_classes(str(root), "", index_dir)
        assert len(scans) == 1 + count
        assert len(found.files) == 6 + count - 1, "images beside the class folders are of no class"


@pytest.mark.parametrize(("seconds", "count"), [(0.5, 2), (1.5, 2), (3, 1)])
def test_an_index_waits_until_the_folder_has_settled(tmp_path, scans, index_dir, seconds, count):
    """File systems whose clocks tick in seconds, even two (FAT), would hide a change."""
    root = write_classes(tmp_path / "data")
    modified = time.time() - seconds
    os.utime(tmp_path / "data" / "dog", (modified, modified))
    list_classes(root, "", index_dir)
    forget(index_dir)
    list_classes(root, "", index_dir)
    assert len(scans) == count


def test_a_folder_that_may_still_change_gets_no_index(tmp_path, scans, index_dir):
    root = write_classes(tmp_path / "data")
    os.utime(tmp_path / "data" / "dog")
    for _ in range(2):
        list_classes(root, "", index_dir)
    assert len(scans) == 2


@pytest.mark.parametrize(
    "damage", ["cut", "empty", "missing", "pickle", "other", "short", "no class", "times"]
)
def test_a_damaged_index_is_made_anew(tmp_path, scans, damage, caplog):
    root, index_dir = write_classes(tmp_path / "data"), tmp_path / "index"
    before = list(list_classes(root, "", str(index_dir)).files)
    module._in_memory.clear()
    (index,) = index_dir.iterdir()
    file = index / "files.npy"
    if damage == "missing":
        file.unlink()
    elif damage == "pickle":
        np.save(file, np.array([{}], object), allow_pickle=True)
    elif damage == "other":
        np.save(file, np.zeros(7))
    elif damage == "short":
        np.save(index / "labels.npy", np.zeros(2, np.int32))
    elif damage == "times":
        np.save(index / "modified.npy", np.load(index / "modified.npy")[:-1])
    elif damage == "no class":
        np.save(index / "labels.npy", np.full(6, 2, np.int32))
    else:
        file.write_bytes(b"" if damage == "empty" else file.read_bytes()[:-5])
    assert list(list_classes(root, "", str(index_dir)).files) == before
    assert len(scans) == 2
    assert f"{index} is damaged" in caplog.text
    module._in_memory.clear()
    list_classes(root, "", str(index_dir))
    assert len(scans) == 2


@pytest.mark.parametrize("place", ["file", "x" * 300])
def test_an_index_that_cannot_be_written_stays_in_memory(tmp_path, scans, caplog, place):
    root = write_classes(tmp_path / "data")
    (tmp_path / "file").touch()
    for _ in range(2):
        assert len(list_classes(root, "", str(tmp_path / place)).files) == 6
    assert "No index can be written to" in caplog.text
    assert len(scans) == 1


def test_processes_that_write_at_the_same_time_share_one_index(tmp_path):
    root, index_dir = write_classes(tmp_path / "data"), str(tmp_path / "index")
    mine = list_classes(root, "", index_dir)
    scanned = module._scan(root, "")
    (name,) = os.listdir(index_dir)
    theirs = module._write_index(index_dir, name.rpartition("-")[0], scanned)
    assert list(theirs.files) == list(mine.files)
    assert os.listdir(index_dir) == [name]


def test_worker_processes_are_sent_no_names(tmp_path, data):
    root = write_classes(tmp_path / "data", count=2000)
    data.source, data.index_dir = f"folder:{root}", str(tmp_path / "index")
    source = open_source(data, "train", image_size=(1, 1), channels=3, num_classes=0)
    pickled = pickle.dumps(source)
    assert len(pickled) < 16 * len(source)  # Labels and indices.
    copy = pickle.loads(pickled)
    assert copy[7] == source[7]
    assert len(copy) == len(source)


MEASURE = """
import resource, sys
from vit_jax.config import default_config
from vit_jax.data.sources.registry import open_source

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

data = default_config().data
data.source, data.index_dir = f"folder:{sys.argv[1]}", sys.argv[2]
before = peak()
sources = [
    open_source(data, split, image_size=(1, 1), channels=3, num_classes=0)
    for split in ("train", "validation")
]
print(peak() - before, sum(map(len, sources)))
"""


@pytest.mark.slow
def test_many_files_are_listed_in_bounded_memory(tmp_path):
    """Hard links stand for ImageNet's 1.2 million files."""
    folders, files = 1000, 1200
    root = tmp_path / "data"
    for label in range(folders):
        folder = root / f"n{label:08d}"
        folder.mkdir(parents=True)
        (folder / "0.JPEG").touch()
        for index in range(1, files):
            os.link(folder / "0.JPEG", folder / f"n{label:08d}_{index}.JPEG")
    settle(root)
    command = [sys.executable, "-c", MEASURE, root, tmp_path / "index"]
    for most_memory in (400, 100):  # MiB, without an index and with one.
        output = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
        memory, count = map(float, output.stdout.split())
        assert count == folders * files
        assert memory < most_memory
        print(f"{memory:.0f} MiB")
    shutil.rmtree(tmp_path)


# ---------------------------------------------------------------------------- folders


def test_links_that_lead_back_are_not_followed(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "1.jpg").touch()
    (tmp_path / "a" / "self").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "other").symlink_to(tmp_path / "b")
    (tmp_path / "b" / "back").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "loop").symlink_to(tmp_path / "a" / "loop")
    assert sorted(Walk(str(tmp_path)).images_below("a")) == ["a/1.jpg", "a/other/1.jpg"]


def test_odd_names_are_listed_as_they_are(tmp_path, data):
    names = ['quo"te.jpg', "tab\t.jpg", "new\nline.jpg", os.fsdecode(b"\xff.jpg")]
    for label in ("cat", "dog\n"):
        (tmp_path / label).mkdir()
        for name in names:
            (tmp_path / label / name).write_bytes(os.fsencode(name))
    data.source, data.held_out_fraction = f"folder:{tmp_path}", 0.0
    source = open_source(data, "train", image_size=(1, 1), channels=3, num_classes=0)
    found = {source[index].name: source[index].image for index in range(len(source))}
    assert found == {
        f"{label}/{name}": os.fsencode(name) for label in ("cat", "dog\n") for name in names
    }


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    root = write_classes(tmp_path / "data")
    scandir = os.scandir

    def refuse(path):
        if os.fspath(path).endswith("dog"):
            raise PermissionError(13, "Permission denied")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(DataError, match=r"data/dog: this folder cannot be listed \(Permission"):
        list_classes(root, "", "")
    with pytest.raises(DataError, match=r"missing/: this folder cannot be listed \(No such file"):
        list_classes(root, "missing/", "")


# ---------------------------------------------------------------------------- remote


@pytest.fixture
def remote():
    root = f"memory://{uuid.uuid4().hex}"
    filesystem, path = fsspec.core.url_to_fs(root)
    for name in ("train/cat/1.jpg", "train/dog/deep/1.jpg", "train/dog/.2.jpg", "val/dog/1.png"):
        filesystem.pipe_file(f"{path}/{name}", name.encode())
    return root


def test_a_remote_folder(remote, data):
    data.source = f"folder:{remote}"
    train, val = (
        open_source(data, split, image_size=(1, 1), channels=3, num_classes=0)
        for split in ("train", "")
    )
    assert {train[index] for index in range(len(train))} == {
        (b"train/cat/1.jpg", 0, "train/cat/1.jpg"),
        (b"train/dog/deep/1.jpg", 1, "train/dog/deep/1.jpg"),
    }
    assert val[0] == (b"val/dog/1.png", 1, "val/dog/1.png")


def test_a_remote_index_is_current_while_the_classes_are_the_same(remote, scans, tmp_path, caplog):
    index_dir = str(tmp_path / "index")
    list_classes(remote, "train/", index_dir)
    filesystem, path = fsspec.core.url_to_fs(remote)
    filesystem.pipe_file(f"{path}/train/cat/2.jpg", b"")
    module._in_memory.clear()
    with caplog.at_level(logging.INFO, "vit_jax"):
        assert len(list_classes(remote, "train/", index_dir).files) == 2
    assert f"2 images, by the index in {index_dir}" in caplog.text
    assert "Remove that folder after adding images to a class" in caplog.text
    filesystem.pipe_file(f"{path}/train/cow/1.jpg", b"")
    assert len(list_classes(remote, "train/", index_dir).files) == 4
    assert len(scans) == 2


def test_a_remote_file_that_is_gone_is_named(remote, data):
    data.source = f"folder:{remote}"
    train = open_source(data, "train", image_size=(1, 1), channels=3, num_classes=0)
    filesystem, path = fsspec.core.url_to_fs(remote)
    filesystem.rm(f"{path}/train", recursive=True)
    with pytest.raises(DataError, match=rf"{remote}/train/.*jpg cannot be read"):
        train[0]


def test_no_such_remote_folder(data):
    data.source = "folder:memory://nothing"
    with pytest.raises(DataError, match=r"folder:memory://nothing: no such folder; expected DIR"):
        open_source(data, "train", image_size=(1, 1), channels=3, num_classes=0)
