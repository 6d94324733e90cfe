import asyncio
import json
import os
import pathlib
import resource
import socket
import threading
import uuid

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem

from tests.runs import LIMIT_SECONDS
from vit_jax import storage, stores
from vit_jax.errors import DataError


@pytest.fixture(params=["local", "remote"])
def folder(request, tmp_path):
    """A folder with `file` (ten digits), `one/file` and `one/two/file`."""
    root = str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    filesystem, path = fsspec.core.url_to_fs(root)
    for name in ("file", "one/file", "one/two/file"):
        filesystem.makedirs(f"{path}/{name}".rpartition("/")[0], exist_ok=True)
        filesystem.pipe_file(f"{path}/{name}", b"0123456789")
    return root


def test_a_folder_is_listed(folder):
    assert sorted(storage.list_folder(folder)) == [("file", False), ("one", True)]
    assert sorted(storage.list_folder(storage.join(folder, "one"))) == [
        ("file", False),
        ("two", True),
    ]


def test_pipes_are_not_listed(tmp_path):
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "file.jpg").touch()
    (tmp_path / "broken.jpg").symlink_to("nothing")
    (tmp_path / "folder").mkdir()
    assert sorted(storage.list_folder(str(tmp_path))) == [
        ("broken.jpg", False),
        ("file.jpg", False),
        ("folder", True),
    ]


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, None, b"0123456789"), (3, 6, b"345"), (8, 99, b"89"), (4, None, b"456789"), (5, 5, b"")],
)
def test_a_part_of_a_file_is_read(folder, start, stop, expected):
    assert storage.read(storage.join(folder, "one", "file"), start, stop) == expected


@pytest.mark.parametrize("stop", [None, 10])
def test_what_may_never_end_is_not_read(tmp_path, stop):
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        for path in (f"{tmp_path}/pipe", f"{tmp_path}/socket", "/dev/zero", "/dev/tty"):
            with pytest.raises(OSError, match=r"pipe|device"):
                storage.read(path, 0, stop)
    (tmp_path / "link").symlink_to("/dev/zero")
    with pytest.raises(OSError, match="it is a pipe, a socket or a device"):
        storage.read(f"{tmp_path}/link", 0, stop)


def test_a_store_that_never_ends_its_answer(monkeypatch):
    class Slow(AsyncFileSystem):
        async def _cat_file(self, path, start=None, end=None, **options):
            await asyncio.sleep(60)

    monkeypatch.setattr(stores, "READ_SECONDS", 0.05)
    monkeypatch.setattr(stores, "RETRY_SECONDS", (0.0,))
    monkeypatch.setattr(stores, "filesystem_of", lambda path: Slow())
    with pytest.raises(OSError, match="no answer within 0 s"):
        storage.read("slow://x")


def test_what_is_there(folder):
    assert storage.probe(folder, "config.data.source")
    assert storage.exists(storage.join(folder, "file"))
    assert not storage.exists(storage.join(folder, "none"))
    assert storage.is_folder(folder)
    assert not storage.is_folder(storage.join(folder, "file"))
    with pytest.raises(FileNotFoundError):
        storage.read(storage.join(folder, "none"), 0, 5)


def test_a_version_changes_with_the_file(folder):
    path = storage.join(folder, "file")
    before = storage.version_of(path)
    assert before == storage.version_of(path)
    assert before.size == 10
    filesystem, name = fsspec.core.url_to_fs(path)
    filesystem.pipe_file(name, b"another content")
    assert storage.version_of(path) != before


def test_a_server_that_never_answers_is_named(monkeypatch):
    released = threading.Event()
    monkeypatch.setattr(storage, "exists", lambda path: released.wait(LIMIT_SECONDS))
    with pytest.raises(DataError, match=r"config.data.source: /mnt/dead does not answer within 0"):
        storage.probe("/mnt/dead", "config.data.source", seconds=0.05)
    released.set()


def test_an_unknown_kind_of_url_is_named():
    with pytest.raises(DataError, match=r"config\.data\.source: other://bucket: this kind of URL"):
        storage.probe("other://bucket", "config.data.source")


def test_a_failing_server_is_named(monkeypatch):
    def exists(path):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(storage, "exists", exists)
    with pytest.raises(DataError, match=r"s3://bucket cannot be reached \(no route to host\)"):
        storage.probe("s3://bucket", "config.data.source")


@pytest.mark.parametrize(
    ("function", "method"),
    [("exists", "exists"), ("is_folder", "isdir"), ("glob", "glob"), ("version_of", "info")],
)
def test_a_stores_own_errors_are_data_errors(monkeypatch, function, method):
    class HttpError(Exception):
        pass

    def refuse(*args):
        raise HttpError("403: forbidden")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), method, refuse)
    with pytest.raises(DataError, match=r"memory://bucket/\* cannot be read \(403: forbidden\)"):
        getattr(storage, function)("memory://bucket/*")


def test_a_file_is_written_whole_or_not_at_all(folder):
    path = storage.join(folder, "new", "folder", "file")
    storage.write(path, b"first")
    storage.write(path, b"second")
    assert storage.read(path) == b"second"
    assert [entry.name for entry in storage.list_folder(path.rpartition("/")[0])] == ["file"]


# All bytes that a file system allows, in names as long as it allows.
NAMES = [bytes(range(1, 256)).replace(b"/", b""), b"*?[v1]{a,b}.json", b" ~$HOME 'a' \"b\"\n", b"-"]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_can_be_written(tmp_path, name):
    folder = tmp_path / os.fsdecode(name)
    path = folder / os.fsdecode(name)
    storage.write(path, b"first")
    storage.write_json(path, {"b": 1, "a": ["ä"]})
    assert json.loads(storage.read(str(path))) == {"a": ["ä"], "b": 1}
    assert os.listdir(os.fsencode(folder)) == [name]
    assert storage.glob(f"{folder}/*") == [str(path)]


def test_a_name_without_a_folder_is_in_the_current_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    storage.write("file", b"content")
    assert (tmp_path / "file").read_bytes() == b"content"


def test_a_link_stays_one(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk" / "file")
    storage.write(tmp_path / "link", b"content")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "file").read_bytes() == b"content"


def test_a_pipe_is_written_to_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    storage.write(tmp_path / "pipe", b"content")
    assert os.read(reader, 100) == b"content"
    os.close(reader)
    assert (tmp_path / "pipe").is_fifo()
    with pytest.raises(IsADirectoryError):
        storage.write(tmp_path, b"content")


def test_a_folder_appears_when_it_is_whole_and_on_the_disk(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync

    def spy(file):
        synced.append(os.fstat(file))
        assert not (tmp_path / "folder").exists(), "a machine that fails here shows nothing in part"
        fsync(file)

    monkeypatch.setattr(os, "fsync", spy)
    with storage.replacing(tmp_path / "folder") as temporary:
        os.mkdir(temporary)
        for name in ("one", "two"):
            (pathlib.Path(temporary) / name).write_text(name)
        assert not (tmp_path / "folder").exists()
    assert sorted(os.listdir(tmp_path / "folder")) == ["one", "two"]
    found = {(tmp_path / "folder" / name).stat().st_ino for name in ("one", "two")}
    assert {status.st_ino for status in synced} == found
    with pytest.raises(OSError, match="not empty"), storage.replacing(tmp_path / "folder") as other:
        os.mkdir(other)
    assert os.listdir(tmp_path) == ["folder"]


def test_what_cannot_be_written_leaves_nothing(tmp_path, monkeypatch):
    def replace(old, new):
        raise OSError("full")

    monkeypatch.setattr(storage.os, "replace", replace)
    with pytest.raises(OSError, match="full"):
        storage.write(str(tmp_path / "file"), b"content")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_told_with_the_file(tmp_path):
    """A limit on the size of files stands for it: writing an open file names none."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(OSError, match=r"'.*/file'$"):
            storage.write(tmp_path / "file", bytes(1000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_is_an_os_error():
    with pytest.raises(OSError, match=r"other://bucket/file cannot be written"):
        storage.write("other://bucket/file", b"content")


def test_who_waits_says_how_long(monkeypatch):
    waited = []

    class Never:
        def __init__(self, target, daemon):
            assert daemon

        def start(self):
            pass

        def join(self, seconds):
            waited.append(seconds)

    monkeypatch.setattr(storage.threading, "Thread", Never)
    for seconds in (7.0, storage.PROBE_SECONDS):
        with pytest.raises(DataError, match=rf"KEY: PATH does not answer within {seconds:.0f} s"):
            storage.probe("PATH", "KEY", *[seconds] * (seconds == 7))
    assert waited == [7.0, 30.0]


def test_lines_are_as_editors_on_any_system_write_them(tmp_path):
    path = tmp_path / "list"
    path.write_bytes(b"\xef\xbb\xbfa\r\n\xff b\n")
    assert storage.read_lines(str(path), "KEY", "names", DataError) == ["a", "\udcff b", ""]
    path.write_bytes(b"a\0b")
    with pytest.raises(DataError, match=r"KEY is no text file; expected names\."):
        storage.read_lines(str(path), "KEY", "names", DataError)
