"""Files from the Hub: the right file or one sentence, by the real client against a stand-in."""

import logging
import os
import pathlib
import types

import pytest
from huggingface_hub import errors
from huggingface_hub.errors import HfHubHTTPError

from tests.hub_server import Fault, git_digest, sha256
from vit_jax import hub
from vit_jax.errors import HubError

NAME = "somebody/model"
WEIGHTS = bytes(range(256)) * 40
FILES = {"config.json": b'{"a": 1}', "model.safetensors": WEIGHTS, "pytorch_model.bin": b"\x80"}
BOTH = ("config.json", "model.safetensors")


def fetch(files=BOTH, revision="main", name=NAME, **options):
    return hub.fetch(name, hub.MODEL, revision, files, **options)


def contents(snapshot):
    folder = pathlib.Path(snapshot.folder)
    return {name: (folder / name).read_bytes() for name in snapshot.names}


def http_error(code):
    """The client library's error of an answer; of none, where `code` is None."""
    response = types.SimpleNamespace(status_code=code, headers={}, request=None)
    error = HfHubHTTPError("x", response=response)
    error.response = None if code is None else response
    return error


def cached_bytes():
    """The contents in the cache of whole and half files, whatever their names."""
    from huggingface_hub import constants

    blobs = pathlib.Path(constants.HF_HUB_CACHE).glob("*/blobs/*")
    return sorted(path.read_bytes() for path in blobs)


@pytest.mark.parametrize(
    ("text", "reference"),
    [
        ("hf:a/b", ("a/b", "", "main")),
        ("hf:a/b.c-d_e@v1.0", ("a/b.c-d_e", "", "v1.0")),
        ("hf:a/b/x/y.npz", ("a/b", "x/y.npz", "main")),
        ("hf:a/b/x/@refs/pr/1", ("a/b", "x", "refs/pr/1")),
    ],
)
def test_a_reference_is_taken_apart_and_put_together(text, reference):
    found = hub.parse(text)
    assert (found.repository, found.path, found.revision) == reference
    assert hub.parse(str(found)) == found


@pytest.mark.parametrize("text", ["hf:", "hf:a", "hf:/b", "hf:a b/c", "hf:a/b@", "hf:a/b/../c"])
def test_what_is_no_reference_is_refused(text):
    with pytest.raises(HubError, match="write hf:USER/NAME"):
        hub.parse(text)


def test_files_are_fetched_once_and_only_those_that_are_wanted(hub_server):
    commit = hub_server.add(NAME, FILES)
    snapshot = fetch()
    assert snapshot.commit == commit
    assert contents(snapshot) == {name: FILES[name] for name in BOTH}
    assert not any("pytorch_model" in path for path in hub_server.asked())
    hub_server.requests.clear()
    assert fetch() == snapshot
    assert hub_server.asked() == [f"/api/models/{NAME}/revision/main"]
    hub_server.requests.clear()
    assert fetch(cached_only=True) == snapshot
    assert hub_server.requests == []


def test_another_commit_is_noticed_and_the_old_one_stays(hub_server):
    old = hub_server.add(NAME, FILES)
    fetch()
    hub_server.add(NAME, {**FILES, "config.json": b'{"a": 2}'})
    assert contents(fetch())["config.json"] == b'{"a": 2}'
    assert contents(fetch(revision=old))["config.json"] == b'{"a": 1}'
    assert contents(fetch(revision=old, cached_only=True))["config.json"] == b'{"a": 1}'
    refs = pathlib.Path(hub.Cache(NAME, hub.MODEL).folder) / "refs"
    assert [path.name for path in refs.iterdir()] == ["main"], "a commit needs no name"
    (refs / "main").write_text(f"{old}\n")  # As git's own files end.
    assert fetch(cached_only=True).commit == old


def test_a_choice_sees_all_names_of_a_dataset(hub_server):
    files = {f"data/{n}.parquet": bytes([n]) * 9 for n in range(3)} | {"README.md": b"#"}
    hub_server.add(NAME, files, kind="dataset", revision="v2")
    seen = []

    def choose(names):
        seen.extend(names)
        return [name for name in names if name.endswith("1.parquet")]

    snapshot = hub.fetch(NAME, hub.DATASET, "v2", choose)
    assert seen == list(files)
    assert contents(snapshot) == {"data/1.parquet": b"\1" * 9}


@pytest.mark.parametrize("name", BOTH)
def test_other_content_than_the_digest_names_is_an_error_and_leaves_nothing(hub_server, name):
    commit = hub_server.add(NAME, FILES)
    hub_server.faults.append(Fault(name, corrupt=True))
    said = (
        f"hf:{NAME}@{commit[:12]}: {name} arrived damaged.* was removed from the cache; try again"
    )
    with pytest.raises(HubError, match=said):
        fetch([name])
    assert cached_bytes() == []
    assert contents(fetch([name])) == {name: FILES[name]}


def test_a_file_that_another_program_left_damaged_is_fetched_anew(hub_server):
    """As a client leaves it that compares sizes only."""
    from huggingface_hub import hf_hub_download

    hub_server.add(NAME, FILES)
    hub_server.faults.append(Fault("model.safetensors", corrupt=True))
    path = hf_hub_download(NAME, "model.safetensors")
    assert pathlib.Path(path).read_bytes() != WEIGHTS
    with pytest.raises(hub.NotCachedError):
        fetch(["model.safetensors"], cached_only=True)
    assert contents(fetch(["model.safetensors"])) == {"model.safetensors": WEIGHTS}


def test_files_of_another_program_serve_without_the_network(hub_server):
    from huggingface_hub import hf_hub_download

    hub_server.add(NAME, FILES)
    for name in BOTH:
        hf_hub_download(NAME, name)
    hub_server.requests.clear()
    assert contents(fetch(cached_only=True)) == {name: FILES[name] for name in BOTH}
    assert hub_server.requests == []


def test_a_body_that_breaks_off_is_continued(hub_server, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 100)  # What is kept of a broken body.
    hub_server.add(NAME, FILES)
    hub_server.faults.append(Fault("model.safetensors", length=1000))
    assert contents(fetch())["model.safetensors"] == WEIGHTS
    assert "bytes=1000-" in [request.range for request in hub_server.requests]


def test_a_body_that_always_breaks_off_leaves_no_half_file(hub_server):
    hub_server.add(NAME, FILES)
    hub_server.faults.append(Fault("model.safetensors", length=0, times=99))
    with pytest.raises(HubError, match="the Hub does not answer"):
        fetch()
    assert cached_bytes() == [FILES["config.json"]]
    hub_server.faults.clear()
    assert contents(fetch())["model.safetensors"] == WEIGHTS


@pytest.mark.parametrize(
    ("path", "method"),
    [("revision/main", "GET"), ("config.json", "HEAD"), ("model.safetensors", "HEAD")],
)
def test_a_server_that_is_busy_is_asked_again(hub_server, path, method):
    hub_server.add(NAME, FILES)
    hub_server.faults.append(Fault(path, status=503, method=method, times=2))
    assert contents(fetch())["model.safetensors"] == WEIGHTS


def test_a_server_that_stays_busy_is_told_and_the_cache_serves(hub_server, caplog):
    hub_server.add(NAME, FILES)
    hub_server.faults.append(Fault("revision/main", status=503, times=99))
    with pytest.raises(HubError, match=r"hf:somebody/model.*does not answer \(HTTP 503\)"):
        fetch()
    hub_server.faults.clear()
    before = fetch()
    hub_server.faults.append(Fault("revision/main", status=503, times=99))
    with caplog.at_level(logging.WARNING, "vit_jax"):
        assert fetch() == before
    assert (
        f"HTTP 503): check the network, and try again. Taking the commit {before.commit[:12]}"
        in (caplog.text)
    )


def test_a_server_that_is_not_there(hub_server, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match=r"does not answer \(ConnectError\): check the network"):
        fetch()


@pytest.mark.parametrize(
    ("repository", "revision", "files", "message"),
    [
        ({}, "main", ["absent.json"], "has no file absent.json"),
        ({}, "v9", BOTH, "hf:somebody/model@v9: the repository has no such branch, tag or commit"),
        ({"token": "t"}, "main", BOTH, "no such repository, or it is private.*HF_TOKEN"),
        (
            {"token": "t", "gated": True},
            "main",
            BOTH,
            "its owner asks for an agreement: accept it on the repository's page",
        ),
        (
            {},
            "main",
            ["pytorch_model.bin"],
            "^pytorch_model.bin is a Python pickle, which can run any program: not fetched",
        ),
    ],
)
def test_what_cannot_be_had_is_one_sentence(hub_server, repository, revision, files, message):
    hub_server.add(NAME, FILES, **repository)
    with pytest.raises(HubError, match=message) as caught:
        fetch(files, revision)
    assert "\n" not in str(caught.value)


def test_an_unknown_repository(hub_server):
    with pytest.raises(HubError, match="hf:no/where: the Hub has no such repository"):
        fetch(name="no/where")


def test_a_token_opens_what_is_private_and_is_in_no_log_or_file(
    hub_server, monkeypatch, caplog, tmp_path
):
    hub_server.add(NAME, FILES, token="hf_secret")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    with caplog.at_level(logging.DEBUG):
        fetch()
    sent = {request.token for request in hub_server.requests if "/store/" in request.path}
    assert sent == {""}  # Another host.
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError) as caught:
        fetch()
    assert "hf_" not in str(caught.value)
    assert "hf_secret" not in caplog.text
    written = [path for path in (tmp_path / "hub").rglob("*") if path.is_file()]
    assert len(written) > 5
    assert not any(b"hf_secret" in path.read_bytes() for path in written)


def test_without_the_network_it_says_what_it_would_fetch(hub_server):
    hub_server.add(NAME, FILES)
    with pytest.raises(
        hub.NotCachedError, match="hf:somebody/model: nothing of it is in the cache"
    ):
        fetch(cached_only=True)
    assert hub_server.requests == []
    refs = pathlib.Path(hub.Cache(NAME, hub.MODEL).folder) / "refs"
    refs.mkdir(parents=True)
    (refs / "main").write_text("c" * 40)  # And not one file of it.
    with pytest.raises(hub.NotCachedError, match="nothing of it is in the cache"):
        fetch(cached_only=True)
    fetch(["config.json"])
    hub_server.requests.clear()
    with pytest.raises(hub.NotCachedError, match=r"are model.safetensors \(0.0 MB\)"):
        fetch(cached_only=True)
    assert hub_server.requests == []


def test_offline_by_the_librarys_own_variable(hub_server, monkeypatch):
    from huggingface_hub import constants

    hub_server.add(NAME, FILES)
    before = fetch()
    hub_server.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert fetch() == before
    with pytest.raises(hub.NotCachedError, match=r"not in the cache are pytorch_model\.bin"):
        fetch(["pytorch_model.bin"])
    with pytest.raises(hub.NotCachedError):
        fetch(name="other/model")
    assert hub_server.requests == []


def test_a_cache_that_cannot_be_written_is_read(hub_server, monkeypatch):
    hub_server.add(NAME, FILES)
    before = fetch()

    def refuse(*arguments):
        raise PermissionError("read-only")

    monkeypatch.setattr(hub.storage, "write", refuse)
    assert fetch() == before


def test_digests_are_the_servers(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(WEIGHTS)
    assert hub.digest_of(file, git_digest(WEIGHTS)) == git_digest(WEIGHTS)
    assert hub.digest_of(file, sha256(WEIGHTS)) == sha256(WEIGHTS)
    # `git hash-object` of an empty file.
    file.write_bytes(b"")
    assert hub.digest_of(file, "0" * 40) == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    file.write_bytes(large := bytes(2**20) + b"more than is read at a time")
    assert hub.digest_of(file, sha256(large)) == sha256(large)


def test_a_folder_is_pushed(hub_server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", hub_server.token)
    folder = tmp_path / "export"
    folder.mkdir()
    for name, content in {"README.md": b"# card", "model.json": b"{}"}.items():
        (folder / name).write_bytes(content)
    page = hub.push(os.fspath(folder), "me/mine", message="A model")
    assert page == f"{hub_server.url}/me/mine"
    assert contents(fetch(["model.json", "README.md"], name="me/mine")) == {
        "model.json": b"{}",
        "README.md": b"# card",
    }


def test_a_push_without_the_right_is_one_sentence(hub_server, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError, match=r"hf:me/mine: the Hub refuses the token \(HTTP 401\)"):
        hub.push(os.fspath(tmp_path), "me/mine", message="A model")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        *((code, "refuses") for code in (401, 403)),
        *((code, "answers") for code in (400, 404, 408, 501)),
        *((code, "does not answer") for code in (429, 500, 502, 503, 504)),
    ],
)
def test_a_code_of_the_server_is_said(code, message, monkeypatch, caplog):
    """And those that may be gone the next time are asked again, with pauses."""
    error = http_error(code)
    said = rf"hf:a/b: the Hub {message}.*HTTP {code}"
    with pytest.raises(HubError, match=said), hub._translated("hf:a/b"):
        raise error
    asked, pauses = [], []
    monkeypatch.setattr(hub.time, "sleep", pauses.append)

    def request():
        asked.append(1)
        raise error

    with pytest.raises(HfHubHTTPError):
        hub._persistently(request)
    passes = message == "does not answer"
    assert pauses == [1.0, 4.0, 10.0] * passes
    assert len(asked) == 1 + len(pauses)
    assert caplog.messages == [f"The Hub answers {code}: trying again."] * 3 * passes


def of_module(module):
    return type("ReadTimeout", (Exception,), {"__module__": module})("x")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (errors.HFValidationError("x"), ": this is no name of a repository, USER/NAME."),
        (errors.EntryNotFoundError("x"), ": the repository has no such file."),
        (errors.LocalEntryNotFoundError("x"), ": the Hub does not answer: check the network, and"),
        (OSError(28, "No space left on device"), " cannot be fetched: No space left on device."),
        (OSError("first line.\nsecond"), " cannot be fetched: first line."),
        *(
            (of_module(module), r": the Hub does not answer (ReadTimeout): check the network, and")
            for module in ("httpx", "httpx2._exceptions", "httpcore", "httpcore2.x")
        ),
    ],
)
def test_the_client_librarys_other_errors(error, message):
    with pytest.raises(HubError) as caught, hub._translated("hf:a/b"):
        raise error
    assert str(caught.value).removesuffix(" try again.") == f"hf:a/b{message}"


def test_errors_of_nobody_we_know_stay():
    with pytest.raises(RuntimeError), hub._translated("hf:a/b"):
        raise RuntimeError


def test_files_that_another_program_fetched(tmp_path):
    """Their names are links to digests; what is no link to one is none of the repository's."""
    digest = sha256(b"12345")
    (tmp_path / digest).write_bytes(b"12345")
    (tmp_path / "snapshot/sub").mkdir(parents=True)
    (tmp_path / "snapshot/sub/w.npz").symlink_to(tmp_path / digest)
    (tmp_path / "snapshot/notes.txt").write_text("mine")
    found = dict(hub._files_below(str(tmp_path / "snapshot")))
    assert found == {"sub/w.npz": hub.File(5, digest)}


def test_sizes_are_told_in_megabytes():
    listing = hub.Listing("c", {"a": hub.File(1_234_560_000, ""), "b": hub.File(40_000, "")})
    assert hub._describe(listing, ["b", "a"]) == "b (0.0 MB), a (1,234.6 MB)"


def test_what_is_uploaded_is_private(monkeypatch):
    import huggingface_hub

    asked = []

    class Api:
        def create_repo(self, name, **options):
            asked.append((name, options))

        def upload_folder(self, **options):
            asked.append(options)

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    assert hub.push("folder", "me/mine", message="why").endswith("/me/mine")
    assert asked == [
        ("me/mine", {"repo_type": "model", "private": True, "exist_ok": True}),
        {"repo_id": "me/mine", "folder_path": "folder", "commit_message": "why"},
    ]


def test_an_error_without_an_answer_is_none_and_is_not_asked_again():
    error, asked = http_error(None), []

    def request():
        asked.append(1)
        raise error

    with (
        pytest.raises(HubError, match=r"^hf:a/b: the Hub does not answer: check the network"),
        hub._translated("hf:a/b"),
    ):
        hub._persistently(request)
    assert len(asked) == 1


def test_a_name_whose_content_has_gone_is_removed_too(tmp_path):
    cache = hub.Cache.__new__(hub.Cache)
    cache.folder = str(tmp_path)
    (tmp_path / "snapshots/c").mkdir(parents=True)
    for name in ("broken", "whole"):
        (tmp_path / name).write_text("x")
        (tmp_path / "snapshots/c" / name).symlink_to(tmp_path / name)
    (tmp_path / "broken").unlink()
    for name in ("broken", "whole", "none"):
        cache.remove("c", name)
    assert os.listdir(tmp_path / "snapshots/c") == []
    assert os.listdir(tmp_path) == ["snapshots"]
