import logging
import os
import pickle
import threading
import types
import uuid

import fsspec
import numpy as np
import pytest

from tests.runs import LIMIT_SECONDS
from vit_jax import storage
from vit_jax.data.sources import record_index
from vit_jax.data.sources.record_index import Forward, extents, open_index
from vit_jax.data.sources.records import Records
from vit_jax.errors import DataError

SCANNED = []


def scan(file):
    """Records of ten bytes."""
    SCANNED.append(file.path)
    starts = range(0, file.size, 10)
    for start in starts:
        file.require(start, start + 10, "the record")
        assert len(file.read(start, start + 10)) == 10
    name_end = np.arange(len(starts))
    name = np.zeros(len(starts), np.uint8)
    arrays = extents(starts, [start + 10 for start in starts], file.path)
    return {**arrays, "name": name, "name_end": name_end, "more": np.array(starts, np.float64)}


def nameless(file):
    """The same, of a kind without names."""
    return {key: array for key, array in scan(file).items() if "name" not in key}


def write(path, *values):
    content = b"".join(f"{value:10}".encode() for value in values)
    filesystem, path = fsspec.core.url_to_fs(path)
    filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
    filesystem.pipe_file(path, content)


@pytest.fixture(params=["local", "remote"])
def shards(request, tmp_path):
    """Three shards with the records 0-3, none, 4 and 5; and a folder for the index."""
    SCANNED.clear()
    root = str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    paths = [storage.join(root, f"{number}.shard") for number in range(3)]
    for path, values in zip(paths, ([0, 1, 2, 3], [], [4, 5]), strict=True):
        write(path, *values)
    return paths, storage.join(root, "index")


def read_all(index):
    found = Records(index.paths, index.shards, int)
    assert len(found) == 6
    return list(found.fetch(range(len(found))))


def index_files(directory):
    return [storage.join(directory, entry.name) for entry in storage.list_folder(directory)]


def test_an_index_is_made_once(shards):
    paths, directory = shards
    assert read_all(open_index(paths, scan, directory)) == [0, 1, 2, 3, 4, 5]
    assert sorted(SCANNED) == paths
    assert read_all(open_index(paths, scan, directory)) == [0, 1, 2, 3, 4, 5]
    assert len(SCANNED) == 3
    assert len(list(storage.list_folder(directory))) == 3  # Nothing is left of writing them.


def test_an_interrupted_index_is_completed(shards):
    paths, directory = shards
    write(paths[1], 0)
    storage.write(paths[1], b"cut")
    with pytest.raises(DataError, match=r"1.shard is cut short"):
        open_index(paths, scan, directory)
    finished = len(list(storage.list_folder(directory)))
    SCANNED.clear()
    storage.write(paths[1], b"")
    assert read_all(open_index(paths, scan, directory)) == [0, 1, 2, 3, 4, 5]
    assert len(SCANNED) == 3 - finished


def test_a_changed_shard_is_noticed(shards, caplog):
    paths, directory = shards
    open_index(paths, scan, directory)
    SCANNED.clear()
    write(paths[0], 7, 8, 9)
    write(paths[1], 10)
    with caplog.at_level(logging.INFO):
        assert read_all(open_index(paths, scan, directory)) == [7, 8, 9, 10, 4, 5]
    assert sorted(SCANNED) == paths[:2]
    assert f"{paths[0]} has changed since it was indexed" in caplog.text
    assert paths[2] not in caplog.text


@pytest.mark.parametrize("later", [-1, 1, 300_000_000])  # Nanoseconds.
def test_a_shard_replaced_by_one_as_large_within_the_second_is_noticed(tmp_path, later):
    path, second = str(tmp_path / "0.shard"), 1_700_000_000 * 10**9 + 500_000_000
    write(path, 0, 1)
    os.utime(path, ns=(second, second))
    open_index([path], scan, str(tmp_path / "index"))
    SCANNED.clear()
    write(path, 2, 3)
    os.utime(path, ns=(second, second + later))
    open_index([path], scan, str(tmp_path / "index"))
    assert [path] == SCANNED


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-30],
        lambda content: b"",
        lambda content: b"text" * 100,
        lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    ],
)
def test_a_damaged_index_file_is_made_anew(shards, caplog, damage):
    paths, directory = shards
    open_index(paths, scan, directory)
    file = index_files(directory)[0]
    storage.write(file, damage(storage.read(file)))
    SCANNED.clear()
    assert read_all(open_index(paths, scan, directory)) == [0, 1, 2, 3, 4, 5]
    assert len(SCANNED) == 1
    assert f"{file} is damaged" in caplog.text
    assert SCANNED[0] in caplog.text


def test_an_index_of_another_version_is_made_anew(shards, monkeypatch):
    paths, directory = shards
    monkeypatch.setattr(record_index, "_FORMAT", record_index._FORMAT + 1)
    open_index(paths, scan, directory)
    monkeypatch.undo()
    SCANNED.clear()
    assert read_all(open_index(paths, scan, directory)) == [0, 1, 2, 3, 4, 5]
    assert sorted(SCANNED) == paths


def test_without_a_directory_the_index_stays_in_memory(shards, caplog):
    paths, _ = shards
    index = open_index(paths, scan, "")
    assert read_all(pickle.loads(pickle.dumps(index))) == [0, 1, 2, 3, 4, 5]
    assert len(SCANNED) == 3
    assert not caplog.text


def test_a_directory_that_cannot_be_written(shards, tmp_path, caplog):
    paths, _ = shards
    (tmp_path / "file").write_text("no folder")
    index = open_index(paths, scan, str(tmp_path / "file" / "index"))
    assert read_all(index) == [0, 1, 2, 3, 4, 5]
    (message,) = caplog.messages
    assert message.startswith(f"config.data.index_dir: {tmp_path}/file/index cannot be written; ")
    assert "the index of 3 shards stays in memory" in message


def test_a_worker_process_reads_the_index_files(shards):
    paths, directory = shards
    index = open_index(paths, scan, directory)
    pickled = pickle.dumps(index)
    assert len(pickled) < 1000
    SCANNED.clear()
    assert read_all(pickle.loads(pickled)) == [0, 1, 2, 3, 4, 5]
    assert SCANNED == []


def test_what_is_seldom_asked_for_is_not_in_memory(shards):
    paths, directory = shards
    kept, unkept = open_index(paths, scan, directory), open_index(paths, scan, "")
    assert kept.shards[0].keys() == {"start", "length", "more"}
    assert kept.reduced("start").shards[0].keys() == {"start"}
    for index in (kept, unkept, kept.reduced("start"), unkept.reduced("start")):
        for copy in (index, pickle.loads(pickle.dumps(index))):
            assert copy.all_of(0)["name_end"].tolist() == [0, 1, 2, 3]
            assert copy.all_of(0)["more"].tolist() == [0, 10, 20, 30]


def test_an_index_in_memory_is_pickled_whole(shards):
    paths, _ = shards
    index = open_index(paths, nameless, "")
    SCANNED.clear()
    assert read_all(pickle.loads(pickle.dumps(index))) == [0, 1, 2, 3, 4, 5]
    assert SCANNED == []


def test_two_processes_share_the_work(shards, monkeypatch):
    paths, directory = shards
    together = threading.Barrier(2, timeout=LIMIT_SECONDS)

    def slow_scan(file):
        return scan(file)

    def open_at_once(results):
        together.wait()
        results.append(open_index(paths, slow_scan, directory))

    results = []
    threads = [threading.Thread(target=open_at_once, args=(results,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [read_all(index) for index in results] == [[0, 1, 2, 3, 4, 5]] * 2
    assert len(index_files(directory)) == 3


def test_a_missing_shard_is_named(shards):
    paths, directory = shards
    missing = paths[0].replace("0.shard", "9.shard")
    with pytest.raises(DataError, match=r"9\.shard: this shard cannot be read"):
        open_index([*paths, missing], scan, directory)


def test_a_record_of_more_than_four_gigabytes():
    assert extents([8], [7 + (1 << 32)], "x")["length"].tolist() == [(1 << 32) - 1]
    with pytest.raises(DataError, match=r"x: the record at byte 8 is longer than 4 GiB"):
        extents([0, 8], [8, 9 + (1 << 32)], "x")


def test_a_file_is_read_in_blocks(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(20_000))
    requests = []
    monkeypatch.setattr(
        record_index.storage, "read", lambda path, *at: requests.append(at) or bytes(at[1] - at[0])
    )
    file = Forward(str(path), 20_000)
    for start in (0, 100, 4090, 4100, 19_990):
        assert len(file.read(start, start + 10)) == 10
    assert requests == [(0, 4096), (4090, 8186), (19_990, 20_000)]
    assert len(file.read(100, 9000)) == 8900
    assert requests[-1] == (100, 9000), "more than a block at once"
    with pytest.raises(DataError, match="cut short"):
        file.read(19_995, 20_005)


def test_progress_is_logged(shards, monkeypatch, caplog):
    monkeypatch.setattr(record_index, "_LOG_SECONDS", -1)
    with caplog.at_level(logging.INFO):
        open_index(shards[0], scan, "")
    assert "Indexed 3 of 3 shards." in caplog.messages


def test_progress_is_logged_every_ten_seconds(monkeypatch, caplog):
    now = [100.0]
    monkeypatch.setattr(record_index, "time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def shards():
        for shard, second in (("a", 110.0), ("b", 110.5), ("c", 120.5), ("d", 121.0)):
            now[0] = second
            yield shard

    with caplog.at_level(logging.INFO):
        assert list(record_index._with_progress(shards(), 7)) == [*"abcd"]
    assert caplog.messages == ["Indexed 2 of 7 shards.", "Indexed 4 of 7 shards."]


def test_a_file_that_becomes_shorter_while_it_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    with pytest.raises(DataError, match=f"{path} became shorter while it was read: start again"):
        Forward(str(path), 20).read(5, 12)
