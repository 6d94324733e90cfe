"""Which failures of a store are asked again, and how far ahead it is read."""

import itertools
import threading
import types
import zipfile

import fsspec
import pytest

from tests.runs import LIMIT_SECONDS
from vit_jax import storage, stores
from vit_jax.errors import DataError


class HttpError(Exception):
    def __init__(self, code):
        super().__init__(f"HTTP {code}")
        self.code = code


class NoCredentialsError(Exception):
    """As botocore's, which is no OSError."""


class HTTPClientError(Exception):
    """The base of botocore's errors of a connection."""


class ReadTimeoutError(HTTPClientError):
    pass


LASTING = [NoCredentialsError("Unable to locate credentials"), HttpError(403), HttpError("404")]
LASTING += [PermissionError("no"), FileNotFoundError("none"), ValueError("a bad endpoint")]
PASSING = [HttpError(503), HttpError("429"), ReadTimeoutError(), TimeoutError(), OSError(5, "EIO")]


@pytest.mark.parametrize(("error", "passes"), [(e, 0) for e in LASTING] + [(e, 1) for e in PASSING])
def test_only_what_may_pass_is_asked_again(monkeypatch, error, passes):
    asked, waits = [], []

    def fail(self, path, **options):
        asked.append(path)
        raise error

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "cat_file", fail)
    monkeypatch.setattr(stores.time, "sleep", waits.append)
    with pytest.raises((DataError, OSError)):
        storage.read("memory://bucket/file")
    assert waits == [1.0, 4.0, 16.0] * passes
    assert len(asked) == 1 + len(waits)


def test_a_store_is_read_a_bounded_way_ahead(monkeypatch):
    monkeypatch.setattr(stores, "MAX_REQUESTS", 4)
    begun, fourth = itertools.count(), threading.Event()

    def read(item):
        if next(begun) == 3:
            fourth.set()
        return item

    asked = iter(range(100))
    found = stores.side_by_side(read, asked)
    assert next(found) == 0
    assert fourth.wait(LIMIT_SECONDS)  # They are on their way before they are wanted.
    assert next(asked) == 5  # The fifth is at hand, and no more.
    assert list(found) == [1, 2, 3, 4, *range(6, 100)]


def test_a_listing_asks_the_shared_file_system(monkeypatch):
    shared = fsspec.filesystem("memory")
    shared.pipe_file("/listed/a/file", b"1")
    monkeypatch.setattr(stores, "filesystem_of", lambda path: shared)
    monkeypatch.setattr(fsspec.core, "url_to_fs", None)
    assert list(storage.list_folder("memory://listed/a")) == [("file", False)]


def test_a_chain_of_urls_is_located(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("a/file", b"1")
    assert list(storage.list_folder(f"zip://a::file://{tmp_path}/x.zip")) == [("file", False)]


@pytest.mark.parametrize("code", [408, 429, 500, 502, 503, 504, 400, 401, 403, 404, 410])
def test_answers_of_a_server_that_may_pass(code):
    assert stores.may_pass(HttpError(code)) == (code in (408, 429, 500, 502, 503, 504))


@pytest.mark.parametrize(("is_async", "limit"), [(True, {"timeout": 60.0}), (False, {})])
def test_a_store_is_asked_for_a_part_and_not_for_ever(monkeypatch, is_async, limit):
    asked = []

    class Store:
        async_impl = is_async

        def cat_file(self, *given, **options):
            asked.append((given, options))
            return b"content"

    monkeypatch.setattr(stores, "filesystem_of", lambda path: Store())
    assert storage.read("x://y", 3, 9) == b"content"
    storage.read("x://y")
    assert asked == [
        (("x://y",), {"start": 3, "end": 9, **limit}),
        (("x://y",), {"start": None, "end": None, **limit}),
    ]


def test_the_users_own_options_of_a_store_stay(monkeypatch):
    made = []
    monkeypatch.setattr(stores.fsspec.core, "url_to_fs", lambda *a, **k: made.append((a, k)) or "F")
    pool = {"config_kwargs": {"max_pool_connections": 64}}
    for own, options in (({}, pool), ({"config_kwargs": {"proxies": {}}}, {}), ({"anon": 1}, pool)):
        monkeypatch.setattr(stores.fsspec.config, "conf", {"s3": own})
        assert stores._shared_filesystem.__wrapped__(1, "s3://bucket") == "F"
        assert made.pop() == (("s3://bucket/",), options)


def test_a_process_of_its_own_has_connections_of_its_own(monkeypatch):
    """A fork would read answers that its parent waits for."""
    monkeypatch.setattr(stores, "_shared_filesystem", lambda process, root: (process, root))
    kind = types.SimpleNamespace(async_impl=True)
    monkeypatch.setattr(stores.fsspec, "get_filesystem_class", lambda protocol: kind)
    found = []
    for process in (1, 2):
        monkeypatch.setattr(stores.os, "getpid", lambda process=process: process)
        found.append(stores.filesystem_of("gs://bucket/a/b"))
    assert found == [(1, "gs://bucket"), (2, "gs://bucket")]


@pytest.mark.parametrize("name", ["code", "status", "status_code"])
def test_a_code_by_any_name(name):
    for code, passes in ((503, True), (404, False)):
        error = ValueError()
        setattr(error, name, code)
        assert stores.may_pass(error) == passes


@pytest.mark.parametrize(
    "kind",
    [
        *("ClientConnectionError", "ClientPayloadError", "ConnectionError", "HTTPClientError"),
        *("ServiceRequestError", "ServiceResponseError", "TransportError", "IncompleteRead"),
    ],
)
def test_errors_of_a_connection_by_their_names(kind):
    base = type(kind, (Exception,), {})
    assert stores.may_pass(type("Other", (base,), {})())
    assert not stores.may_pass(type(f"{kind}s", (Exception,), {})())


def test_errors_of_ours_pass_as_what_they_are_of():
    assert not stores.may_pass(DataError("no package"))
    for cause, passes in ((HttpError(503), True), (KeyError(), False)):
        error = DataError("x")
        error.__cause__ = cause
        assert stores.may_pass(error) == passes
    for kind in (IsADirectoryError, NotADirectoryError, PermissionError, FileNotFoundError):
        assert not stores.may_pass(kind())


def test_that_reading_fails_is_said_once_for_each_kind_of_store(monkeypatch, caplog):
    class Failing:
        async_impl = False

        def cat_file(self, path, start, end):
            raise HttpError(503)

    monkeypatch.setattr(stores, "_warned", set())  # Of other tests.
    monkeypatch.setattr(stores, "RETRY_SECONDS", (0.0, 0.0))
    monkeypatch.setattr(stores, "filesystem_of", lambda path: Failing())
    for path in ("GS://a", "gs://b", "s3://c"):
        with pytest.raises(DataError, match="HTTP 503"):
            storage.read(path)
    assert [text.partition("://")[0] for text in caplog.messages] == [
        "Reading from gs",
        "Reading from s3",
    ]
    assert "HTTP 503" in caplog.text


def test_what_nobody_waits_for_any_more_is_not_read(monkeypatch):
    class Future:
        cancelled = False

        def result(self):
            return 1

        def cancel(self):
            self.cancelled = True

    class Readers(list):
        def submit(self, function, item):
            self.append(Future())
            return self[-1]

    readers = Readers()
    monkeypatch.setattr(stores, "readers", lambda: readers)
    monkeypatch.setattr(stores, "MAX_REQUESTS", 3)
    found = stores.side_by_side(None, range(9))
    next(found)
    found.close()
    assert [future.cancelled for future in readers] == [False, True, True]


def test_protocols_and_chains(monkeypatch):
    asked = []
    kind = types.SimpleNamespace(async_impl=True)
    monkeypatch.setattr(
        stores.fsspec, "get_filesystem_class", lambda protocol: asked.append(protocol) or kind
    )
    monkeypatch.setattr(stores, "_shared_filesystem", lambda process, root: root)
    monkeypatch.setattr(stores.fsspec.core, "url_to_fs", lambda url: (url, "place"))
    assert stores.filesystem_of("S3://bucket/a/b") == "S3://bucket"
    assert asked == ["s3"]
    chain = "zip://a::gs://bucket/x.zip"
    assert stores.filesystem_of(chain) == chain
    assert stores.locate(chain) == (chain, "place")
    kind.async_impl = False
    assert stores.filesystem_of("memory://a/b") == "memory://a/b"
