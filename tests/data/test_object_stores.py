"""Data in object stores, on stand-ins: moto's S3 through s3fs, and an emulator of Google's through gcsfs.

They are skipped where these packages are not installed: moto[s3,server], s3fs, gcsfs, gcp-storage-emulator.
"""

import contextlib
import subprocess
import sys
import threading

import fsspec
import numpy as np
import pytest

from tests.data.pictures import encode, photograph
from tests.object_store import BUCKET, s3
from vit_jax import storage, stores
from vit_jax.config import default_config
from vit_jax.data.dataset import advise_on_requests
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import DataError
from vit_jax.prepare.__main__ import main as prepare

pytest.importorskip("moto")
s3fs = pytest.importorskip("s3fs")

NUM_IMAGES = 64
PHOTO = encode(photograph(), "JPEG")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Photographs in class folders, and prepared shards of them."""
    root = tmp_path_factory.mktemp("photos")
    for number in range(NUM_IMAGES):
        path = root / "images" / "train" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(PHOTO + bytes([number]))  # What follows the end does not matter.
    whole = "--config.data.held_out_fraction=0"
    flags = [f"--source=folder:{root}/images", f"--output={root}/shards", "--num_workers=1", whole]
    assert prepare(flags) == 0
    return root


@pytest.fixture(scope="module")
def store():
    """S3, and its faults."""
    server, faults = s3()
    yield f"http://127.0.0.1:{server.port}", faults
    server.shutdown()


@pytest.fixture
def bucket(store, folder, monkeypatch):
    """The URL of a bucket with the folder in it; and the store's faults."""
    endpoint, faults = store
    options = {"endpoint_url": endpoint, "key": "key", "secret": "secret"}
    monkeypatch.setitem(fsspec.config.conf, "s3", options)
    monkeypatch.setattr(stores, "RETRY_SECONDS", (0.01, 0.02))
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # botocore and s3fs try again, too, and wait long.
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    stores._shared_filesystem.cache_clear()
    stores._warned.clear()
    files = fsspec.filesystem("s3")
    if not files.exists(BUCKET):
        files.mkdir(BUCKET)
        files.put(str(folder / "images"), f"{BUCKET}/images", recursive=True)
        files.put(str(folder / "shards"), f"{BUCKET}/shards", recursive=True)
    yield f"s3://{BUCKET}", faults
    faults.script.clear()
    stores._shared_filesystem.cache_clear()


def open_all(source, **keys):
    data = default_config().data
    data.update({"source": source, "held_out_fraction": 0.0, **keys})
    return data, open_source(data, "train", image_size=(8, 8), channels=3, num_classes=0)


def test_s3_gives_what_lies_in_the_folder(bucket, folder):
    url, _ = bucket
    for kind, name in (("folder", "images"), ("tar", "shards")):
        _, local = open_all(f"{kind}:{folder}/{name}")
        _, remote = open_all(f"{kind}:{url}/{name}")
        assert remote.remote
        assert not local.remote
        indices = np.random.default_rng(0).permutation(NUM_IMAGES)[:20].tolist()
        assert list(remote.fetch(indices)) == list(local.fetch(indices))


def test_images_of_a_chunk_are_asked_for_together(bucket):
    url, faults = bucket
    _, source = open_all(f"folder:{url}/images")
    together = threading.Barrier(16, timeout=30)

    class Meeting:
        def pop(self, _):
            together.wait()  # Breaks, and fails the reading, unless 16 meet.
            return ""

        def __bool__(self):
            return True

        def clear(self):
            pass

    faults.script, script = Meeting(), faults.script
    try:
        assert len([*source.fetch(range(16))]) == 16
        assert not together.broken
    finally:
        faults.script = script


def test_neighbours_in_a_shard_are_one_request(bucket):
    url, faults = bucket
    _, source = open_all(f"tar:{url}/shards")
    before = faults.readings
    assert len([*source.fetch(range(8, 40))]) == 32
    assert faults.readings == before + 1


@pytest.mark.parametrize("fault", [503, "reset"])
def test_what_may_pass_is_tried_again(bucket, caplog, fault):
    url, faults = bucket
    path = f"{url}/images/train/a/0.jpg"
    expected = storage.read(path)
    faults.script[:] = [fault] * 2
    assert storage.read(path) == expected


def test_what_does_not_answer_is_asked_again(bucket, caplog, monkeypatch):
    url, faults = bucket
    monkeypatch.setattr(stores, "READ_SECONDS", 1.0)
    faults.script[:] = ["slow"]
    assert storage.read(f"{url}/images/train/a/0.jpg").startswith(b"\xff\xd8")
    assert "Reading from s3:// fails, and is tried again" in caplog.text


@pytest.mark.parametrize(
    ("fault", "message"), [(403, "so it is|Forbidden|denied"), (404, "exist|so it is|No such")]
)
def test_what_will_not_pass_is_one_message(bucket, caplog, fault, message):
    url, faults = bucket
    _, source = open_all(f"folder:{url}/images")
    faults.script[:] = [fault]
    (found,) = source.fetch([3])
    assert isinstance(found, DataError)
    assert f"{source.name_of(3)} cannot be read" in str(found)
    assert "tried again" not in caplog.text
    assert not faults.script  # It was asked once.


def test_an_outage_is_named_after_some_tries(bucket, caplog):
    url, faults = bucket
    faults.script[:] = [503] * 100
    with pytest.raises((OSError, DataError)):
        storage.read(f"{url}/images/train/a/0.jpg")
    assert caplog.text.count("tried again") == 1


def test_the_start_says_what_to_do(bucket, caplog):
    url, _ = bucket
    advise_on_requests(*open_all(f"folder:{url}/images"))
    assert "Pack them into shards once, with python -m vit_jax.prepare" in caplog.text
    caplog.clear()
    advise_on_requests(*open_all(f"tar:{url}/shards"))
    assert "with --config.data.shuffle=blocks 32 neighbours are one" in caplog.text
    caplog.clear()
    advise_on_requests(*open_all(f"tar:{url}/shards", shuffle="blocks"))
    assert "requests" not in caplog.text
    assert "request to" not in caplog.text


def test_googles_store_gives_what_lies_in_the_folder(folder, monkeypatch):
    monkeypatch.setenv(
        "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false"
    )  # Asks Google what a bucket is.
    pytest.importorskip("gcsfs")
    pytest.importorskip("gcp_storage_emulator")
    command, pipe = [sys.executable, "-m", "tests.object_store", "gcs"], subprocess.PIPE
    with (
        subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server,
        contextlib.closing(server.stdin),
    ):
        endpoint = f"http://127.0.0.1:{int(server.stdout.readline())}"
        options = {"endpoint_url": endpoint, "token": "anon", "project": "p"}
        monkeypatch.setitem(fsspec.config.conf, "gs", options)
        stores._shared_filesystem.cache_clear()
        files = fsspec.filesystem("gs")
        for path in (folder / "shards").glob("*.*"):
            files.pipe_file(f"{BUCKET}/shards/{path.name}", path.read_bytes())
        _, remote = open_all(f"tar:gs://{BUCKET}/shards")
        _, local = open_all(f"tar:{folder}/shards")
        assert list(remote.fetch([5, 1, 40])) == list(local.fetch([5, 1, 40]))
    stores._shared_filesystem.cache_clear()
