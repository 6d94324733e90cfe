import asyncio
import json
import os
import pathlib
import re
import resource
import socket
import subprocess
import sys
import threading
import types
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
    (tmp_path / "loop.jpg").symlink_to("loop.jpg")
    (tmp_path / "folder").mkdir()
    (tmp_path / "other").symlink_to("folder")
    assert sorted(storage.list_folder(str(tmp_path))) == [
        ("broken.jpg", False),
        ("file.jpg", False),
        ("folder", True),
        ("loop.jpg", False),
        ("other", True),
    ]


def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch):
    for path, reason in (
        (f"{tmp_path}/none", "No such file or directory"),
        (__file__, "Not a dir"),
    ):
        with pytest.raises(DataError, match=rf"{path}: this folder cannot be listed \({reason}"):
            list(storage.list_folder(path))
    monkeypatch.setattr(stores, "locate", lambda path: 1 / 0)
    with pytest.raises(DataError, match=r"^memory://a: .* listed \(division by zero\)$"):
        list(storage.list_folder("memory://a"))
    monkeypatch.undo()
    with pytest.raises(DataError, match=r"^other://a: this kind of URL"):
        list(storage.list_folder("other://a"))


@pytest.mark.parametrize("folder", ["bucket/a", "bucket/a/"])
def test_a_stores_own_object_for_a_folder_is_not_in_it(folder, monkeypatch):
    entries = [("bucket/a/", "directory"), ("bucket/a/x.jpg", "file"), ("bucket/a/b/", "directory")]

    class Store:
        def ls(self, path, detail):
            assert (path, detail) == (folder, True)
            return [{"name": name, "type": kind} for name, kind in entries]

    monkeypatch.setattr(stores, "locate", lambda path: (Store(), folder))
    assert list(storage.list_folder("x://a")) == [("x.jpg", False), ("b", True)]


@pytest.mark.parametrize(
    "mark",
    ["etag", "ETag", "md5Hash", "generation", "mtime", "LastModified", "updated", "created", ""],
)
def test_what_tells_versions_of_a_stores_file_apart(mark, monkeypatch):
    """Each store has another mark; one that says nothing is none."""
    store = types.SimpleNamespace(info=lambda path: {"size": 7, "etag": None} | {mark: 5})
    monkeypatch.setattr(stores, "filesystem_of", lambda path: store)
    assert storage.version_of("x://a") == (7, "5" if mark else "")


def test_a_local_files_version(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    os.utime(tmp_path / "a", ns=(3, 1_234_567_891))
    assert storage.version_of(f"{tmp_path}/a") == (5, "1234567891")


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, None, b"0123456789"), (3, 6, b"345"), (8, 99, b"89"), (4, None, b"456789"), (5, 5, b"")],
)
def test_a_part_of_a_file_is_read(folder, start, stop, expected):
    assert storage.read(storage.join(folder, "one", "file"), start, stop) == expected


def test_a_file_may_come_in_pieces(tmp_path, monkeypatch):
    """As from some network file systems."""
    (tmp_path / "a").write_bytes(b"0123456789")
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, count, start: pread(file, min(count, 4), start))
    for start, stop in ((1, 9), (0, 10), (3, 99), (0, 4), (9, 3)):
        assert storage.read(f"{tmp_path}/a", start, stop) == b"0123456789"[start:stop]


def test_no_file_is_left_open(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(b"0123456789")
    open_file, close, left = os.open, os.close, []

    def opening(*given, **options):
        left.append(open_file(*given, **options))
        return left[-1]

    def closing(file):
        if file in left:
            left.remove(file)
        close(file)

    monkeypatch.setattr(os, "open", opening)
    monkeypatch.setattr(os, "close", closing)
    storage.read(f"{tmp_path}/a", 1, 9)
    with storage.replacing(tmp_path / "b") as temporary:
        pathlib.Path(temporary).touch()
    assert left == []


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
    with pytest.raises(TimeoutError, match=r"no answer within 0 s: 'slow://x'$"):
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


@pytest.mark.parametrize(
    ("error", "named"),
    [
        (OSError(28, "full"), "[Errno 28] full: 'PATH'"),
        (OSError(28, "full", "OTHER"), "[Errno 28] full: 'OTHER'"),
        (OSError("our own words"), "our own words"),
    ],
)
def test_an_error_names_its_file_unless_it_does(error, named):
    with pytest.raises(OSError, match=f"^{re.escape(named)}$"), storage.naming("PATH"):
        raise error


def test_what_cannot_be_written_is_an_os_error():
    with pytest.raises(OSError, match=r"other://bucket/file cannot be written"):
        storage.write("other://bucket/file", b"content")


def test_a_look_at_whether_a_file_can_be_written_changes_none(folder):
    path = storage.join(folder, "file")
    storage.check_writable(path)
    assert storage.read(path) == b"0123456789"
    new = storage.join(folder, "new", "file")
    storage.check_writable(new)
    begun = [entry.name for entry in storage.list_folder(new.rpartition("/")[0])]
    assert begun == (["file"] if storage.is_remote(folder) else [])


def test_what_could_not_be_written_is_found_before(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(IsADirectoryError):
        storage.check_writable(str(tmp_path))
    for write in (storage.check_writable, lambda path: storage.write(path, b"")):
        with pytest.raises(NotADirectoryError, match=f"{tmp_path}/file'$"):
            write(str(tmp_path / "file" / "below"))
    for write in (storage.check_writable, lambda path: storage.write(path, b"")):
        with pytest.raises(OSError, match="name too long"):
            write(str(tmp_path / "new" / ("x" * 300)))
    os.mkfifo(tmp_path / "pipe")
    storage.check_writable(str(tmp_path / "pipe"))  # Does not wait for its reader.


def test_standard_output_keeps_what_is_printed_around(tmp_path):
    """Also where it is a file, which was replaced."""
    program = (
        "from vit_jax import storage; print('before'); storage.check_writable('/dev/stdout'); "
        "storage.write('/dev/stdout', b'written\\n'); print('after')"
    )
    with open(tmp_path / "out", "w") as out:
        subprocess.run([sys.executable, "-c", program], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "before\nwritten\nafter\n"


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


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (FileNotFoundError(2, "No such thing", "a"), "No such thing"),
        (FileNotFoundError("gs://bucket/a"), "No such file"),  # As stores raise it.
        (PermissionError("gs://bucket/a"), "gs://bucket/a"),
    ],
)
def test_a_reason_without_the_files_name(error, reason):
    assert storage.reason_of(error) == reason


def test_a_list_that_cannot_be_read(tmp_path, monkeypatch):
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(ValueError, match=r"^KEY: no such file\.$"):
            storage.read_lines(str(path), "KEY", "names", ValueError)
    (tmp_path / "a").touch()

    def read(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(storage, "read", read)
    with pytest.raises(ValueError, match=r"^KEY cannot be read \(Permission denied\)\.$"):
        storage.read_lines(f"{tmp_path}/a", "KEY", "names", ValueError)


def test_paths_as_users_write_them(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("RUN", "one")
    for path, expanded in (
        ("~/$RUN", "/home/me/one"),
        ("gs://~/${RUN}", "gs://~/one"),
        ("~x~", "~x~"),
    ):
        assert storage.expand(path) == expanded
    assert storage.expand_source("folder:~/a:b") == "folder:/home/me/a:b"
    assert storage.expand_source("digits") == "digits"


def test_parts_of_urls():
    assert storage.join("gs://a/b/", "c", "d") == "gs://a/b/c/d"
    assert storage.join("/a/b/", "c", "d") == "/a/b/c/d"
    urls = ["/a", "GS://a", "zip://x/*::HTTPS://a/b.zip"]
    assert [storage.protocol_of(url) for url in urls] == ["", "gs", "zip::https"]


def test_several_files_are_read_in_order_and_what_cannot_be_stands_for_itself(folder):
    names = ("file", "none", "one/file")
    parts = [storage.Part(storage.join(folder, name), 2, 5) for name in names]
    first, error, third = storage.read_many(parts)
    assert (first, third, type(error)) == (b"234", b"234", FileNotFoundError)
    assert list(storage.read_many([])) == []
    (unknown,) = storage.read_many([storage.Part("other://a")])
    assert isinstance(unknown, DataError)


def test_a_folder_named_like_a_pattern_is_none(tmp_path):
    """Only from where there is no such folder a name is a pattern."""
    for name in ("runs [v1]/a/x.jpg", "runs [v1]/b/c/x.jpg", "runs v/a/x.jpg"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    found = storage.glob(f"{tmp_path}/runs [v1]/*/x.jpg")
    assert found == [f"{tmp_path}/runs [v1]/a/x.jpg"]
    assert len(storage.glob(f"{tmp_path}/runs [v1]/**/x.jpg")) == 2
    assert storage.glob(f"{tmp_path}/runs [uv]/a/x.jpg") == [f"{tmp_path}/runs v/a/x.jpg"]


def test_a_half_made_folder_goes(tmp_path):
    def make(path):
        with storage.replacing(path) as temporary:
            os.mkdir(temporary)
            (pathlib.Path(temporary) / "a").touch()
            raise KeyError

    with pytest.raises(KeyError):
        make(tmp_path / "new" / "folder")
    assert os.listdir(tmp_path / "new") == []


def test_json_is_in_one_order(tmp_path):
    storage.write_json(tmp_path / "a", {"b": (1, 2), "a": {"d": 0, "c": None}})
    text = (tmp_path / "a").read_text()
    assert " ".join(text.split()) == '{ "a": { "c": null, "d": 0 }, "b": [ 1, 2 ] }'
    assert text.endswith("}\n")


def test_a_file_is_removed(folder):
    storage.remove(storage.join(folder, "file"))
    assert not storage.exists(storage.join(folder, "file"))
    with pytest.raises(FileNotFoundError):
        storage.remove(storage.join(folder, "file"))
