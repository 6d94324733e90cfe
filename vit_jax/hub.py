"""Files from the Hugging Face Hub, and to it: `hf:USER/NAME[/PATH][@REVISION]`.

The client library keeps the cache, sends the token, resumes and shows progress; it compares sizes
only. Here each file's content is compared with the server's digest before anybody reads it. Nothing
is asked of the network but by a call of `fetch` or `push`, and the library is imported there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from vit_jax import storage
from vit_jax.errors import HubError

SCHEME = "hf:"
DEFAULT_REVISION = "main"
MODEL, DATASET = "model", "dataset"  # Kinds of repositories.
# Python pickles, which can run any program when they are read.
PICKLES = (".bin", ".pth", ".pt", ".ckpt", ".pkl", ".pickle")
RECORDS = "vit_jax"  # Our folder beside `blobs` and `snapshots` in a repository's cache.
REFERENCE = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(?:/(?P<path>[^@]+?))?/?(?:@(?P<revision>[\w./-]+))?"
)
COMMIT = re.compile("[0-9a-f]{40}")
DIGEST = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")
SHA256_LENGTH = 64  # Of its hexadecimal digits; git's SHA-1 has 40.
PASSING = (429, 500, 502, 503, 504)  # HTTP errors that may be gone the next time.
PAUSES = (1.0, 4.0, 10.0)  # Seconds before each further try.

logger = logging.getLogger(__name__)

Choice = Callable[[Sequence[str]], Sequence[str]]  # a repository's files -> those that are wanted


class NotCachedError(HubError):
    """Files are not in the cache, and the network may not be asked."""


@dataclasses.dataclass(frozen=True)
class Reference:
    """A name on the Hub."""

    repository: str  # USER/NAME
    path: str = ""  # of a file or folder in it; "": the whole
    revision: str = DEFAULT_REVISION  # a branch, a tag or a commit

    def __str__(self) -> str:
        path = f"/{self.path}" if self.path else ""
        revision = f"@{self.revision}" if self.revision != DEFAULT_REVISION else ""
        return f"{SCHEME}{self.repository}{path}{revision}"


class File(NamedTuple):
    """A file of a repository, as the server lists it."""

    size: int  # bytes
    digest: str  # SHA-256 of a large file, git's SHA-1 of a small one; hexadecimal


@dataclasses.dataclass(frozen=True)
class Listing:
    """A repository's files at one commit."""

    commit: str
    files: dict[str, File]


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """Files of one commit in the cache."""

    commit: str
    folder: str
    names: tuple[str, ...]  # below the folder


def is_reference(path: str | os.PathLike[str]) -> bool:
    """Whether `path` names files on the Hub rather than on a disk."""
    return os.fspath(path).startswith(SCHEME)


def parse(text: str) -> Reference:
    """The parts of `hf:USER/NAME[/PATH][@REVISION]`; raises HubError if it is not of that form."""
    found = REFERENCE.fullmatch(text.removeprefix(SCHEME).removeprefix("//"))
    if not is_reference(text) or not found or ".." in text:
        raise HubError(f"{text}: write {SCHEME}USER/NAME, {SCHEME}USER/NAME/FILE or ...@REVISION.")
    parts = {name: value for name, value in found.groupdict().items() if value}
    return Reference(**parts)


# ------------------------------------------------------------------------------------- download


def fetch(
    repository: str,
    kind: str,
    revision: str,
    files: Choice | Sequence[str],
    *,
    cached_only: bool = False,
) -> Snapshot:
    """Brings files of a repository to this machine, unless they are there.

    Args:
      repository: USER/NAME.
      kind: MODEL or DATASET.
      revision: a branch, a tag or a commit.
      files: their names, or a function that chooses from all names. They are fetched in this order.
      cached_only: ask nothing of the network; so does the variable HF_HUB_OFFLINE=1.

    Returns:
      Where they are. Each is whole and has the content that the server's digest names.

    Raises:
      HubError: a file cannot be fetched; no part of it is in the cache then. What `files` raises.
      NotCachedError: it would have to be fetched, and may not.
    """
    cache = Cache(repository, kind)
    listing = cache.listing(revision) if cached_only or _is_offline() else None
    if listing is None:
        if cached_only or _is_offline():
            raise NotCachedError(f"{_shown(repository, revision)}: nothing of it is in the cache.")
        listing = _ask_for_listing(cache, revision)
    names = tuple(files(list(listing.files)) if callable(files) else files)
    if unknown := [name for name in names if name not in listing.files]:
        raise HubError(f"{_shown(repository, revision)} has no file {unknown[0]}.")
    missing = [name for name in names if not cache.is_verified(listing, name)]
    if missing and (cached_only or _is_offline()):
        raise NotCachedError(
            f"{_shown(repository, revision)}: not in the cache are {_describe(listing, missing)}."
        )
    for name in missing:
        if name.lower().endswith(PICKLES):
            raise HubError(f"{name} is a Python pickle, which can run any program: not fetched.")
        _download(cache, listing, name)
    return Snapshot(listing.commit, cache.snapshot(listing.commit), names)


class Cache:
    """The part of the client library's cache that belongs to one repository.

    Its layout is documented: `blobs/DIGEST`, `snapshots/COMMIT/NAME` that link there, `refs/BRANCH`.
    In `vit_jax/` lie the listings of commits, and an empty file for each digest that was compared.
    """

    def __init__(self, repository: str, kind: str):
        from huggingface_hub import constants
        from huggingface_hub.file_download import repo_folder_name

        self.repository, self.kind = repository, kind
        name = repo_folder_name(repo_id=repository, repo_type=kind)
        self.folder = os.path.join(constants.HF_HUB_CACHE, name)

    def snapshot(self, commit: str) -> str:
        """The folder of a commit's files."""
        return os.path.join(self.folder, "snapshots", commit)

    def commit_of(self, revision: str) -> str | None:
        """The commit that a branch or tag was last seen at; None if it never was."""
        if COMMIT.fullmatch(revision):
            return revision
        try:
            return storage.read(os.path.join(self.folder, "refs", revision)).decode().strip()
        except OSError:
            return None

    def listing(self, revision: str) -> Listing | None:
        """The files of a revision, as far as the cache knows them; None for nothing."""
        commit = self.commit_of(revision)
        if commit is None:
            return None
        with contextlib.suppress(OSError, ValueError, TypeError):
            content = json.loads(storage.read(self._record(f"{commit}.json")))
            return Listing(commit, {name: File(*file) for name, file in content.items()})
        # Fetched by another program: the files themselves.
        files = dict(_files_below(self.snapshot(commit)))
        return Listing(commit, files) if files else None

    def remember(self, revision: str, listing: Listing) -> None:
        """Keeps a listing for when the network is not there; not in a cache that is read only."""
        with contextlib.suppress(OSError):
            storage.write_json(self._record(f"{listing.commit}.json"), listing.files)
            if not COMMIT.fullmatch(revision):
                path = os.path.join(self.folder, "refs", revision)
                storage.write(path, listing.commit.encode())

    def is_verified(self, listing: Listing, name: str) -> bool:
        """Whether a file is there with the listed content; one of other content is removed."""
        path = os.path.join(self.snapshot(listing.commit), name)
        file = listing.files[name]
        if not os.path.exists(path):
            return False
        if os.path.getsize(path) == file.size and os.path.exists(self._record(file.digest)):
            return True
        if digest_of(path, file.digest) != file.digest:
            self.remove(listing.commit, name)
            return False
        with contextlib.suppress(OSError):
            storage.write(self._record(file.digest), b"")
        return True

    def remove(self, commit: str, name: str) -> None:
        """Removes a file's content, and the name that links to it."""
        path = os.path.join(self.snapshot(commit), name)
        for each in (os.path.realpath(path), path):
            with contextlib.suppress(FileNotFoundError):
                os.remove(each)

    def _record(self, name: str) -> str:
        return os.path.join(self.folder, RECORDS, name)


def digest_of(path: str, like: str) -> str:
    """A file's digest, hexadecimal: SHA-256, or git's SHA-1 where `like` has that one's length."""
    digest = hashlib.sha256()
    if len(like) != SHA256_LENGTH:  # git's name of a file: with a header.
        digest = hashlib.sha1(f"blob {os.path.getsize(path)}\0".encode(), usedforsecurity=False)
    with open(path, "rb") as file:
        while part := file.read(2**20):
            digest.update(part)
    return digest.hexdigest()


def _files_below(folder: str) -> Iterator[tuple[str, File]]:
    """The files of a snapshot; the name of what each links to is its digest."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)
            digest = os.path.basename(os.path.realpath(path))
            if DIGEST.fullmatch(digest):
                yield os.path.relpath(path, folder), File(os.path.getsize(path), digest)


def _ask_for_listing(cache: Cache, revision: str) -> Listing:
    """The server's listing; the cache's, with a warning, if the server does not answer."""
    from huggingface_hub import HfApi

    api = HfApi()
    shown = _shown(cache.repository, revision)
    try:
        with _translated(shown):
            info = _persistently(
                lambda: api.repo_info(
                    cache.repository, revision=revision, repo_type=cache.kind, files_metadata=True
                )
            )
            digests = (file.lfs.sha256 if file.lfs else file.blob_id for file in info.siblings)
            files = zip(info.siblings, digests, strict=True)
            listing = Listing(
                info.sha, {file.rfilename: File(file.size, digest) for file, digest in files}
            )
    except _UnreachableError as error:
        cached = cache.listing(revision)
        if cached is None:
            raise
        logger.warning("%s Taking the commit %s from the cache.", error, cached.commit[:12])
        return cached
    cache.remember(revision, listing)
    return listing


def _download(cache: Cache, listing: Listing, name: str) -> None:
    """Downloads one file and compares its content; a file of other content is removed."""
    from huggingface_hub import hf_hub_download

    shown = f"{_shown(cache.repository, listing.commit[:12])}: {name}"
    with _translated(shown):
        hf_hub_download(cache.repository, name, repo_type=cache.kind, revision=listing.commit)
    if not cache.is_verified(listing, name):
        raise HubError(
            f"{shown} arrived damaged: its content is not what the server's digest names. It was "
            "removed from the cache; try again."
        )


# --------------------------------------------------------------------------------------- upload


def push(folder: str, repository: str, *, message: str) -> str:
    """Uploads a folder's files to a model repository, which is made (private) if there is none.

    Args:
      folder: of files alone.
      repository: USER/NAME.
      message: of the commit.

    Returns:
      The page's address.

    Raises:
      HubError: it may not, or the server does not answer.
    """
    from huggingface_hub import HfApi, constants

    api = HfApi()
    with _translated(f"{SCHEME}{repository}"):
        api.create_repo(repository, repo_type=MODEL, private=True, exist_ok=True)
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message=message)
    return f"{constants.ENDPOINT}/{repository}"


# --------------------------------------------------------------------------------------- errors


class _UnreachableError(HubError):
    """The server does not answer, or not now."""


def _persistently(request: Callable[[], Any]) -> Any:
    """The answer to a request, tried again after errors that may pass."""
    from huggingface_hub.errors import HfHubHTTPError

    for pause in PAUSES:
        try:
            return request()
        except HfHubHTTPError as error:
            if error.response is None or error.response.status_code not in PASSING:
                raise
            logger.warning("The Hub answers %d: trying again.", error.response.status_code)
            time.sleep(pause)
    return request()


@contextlib.contextmanager
def _translated(name: str) -> Iterator[None]:
    """Makes one sentence of the client library's errors; addresses, which may be signed, stay out."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as error:
        raise HubError(
            f"{name}: its owner asks for an agreement: accept it on the repository's page, then set "
            "HF_TOKEN, or run `hf auth login`."
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{name}: the repository has no such branch, tag or commit.") from error
    except errors.EntryNotFoundError as error:
        if isinstance(error, errors.LocalEntryNotFoundError):  # Also where the server fails.
            raise _UnreachableError(_unreachable(name)) from error
        raise HubError(f"{name}: the repository has no such file.") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"{name}: the Hub has no such repository, or it is private: check the name; for a private "
            "one set HF_TOKEN, or run `hf auth login`."
        ) from error
    except errors.HfHubHTTPError as error:
        if error.response is None:
            raise _UnreachableError(_unreachable(name)) from error
        code = error.response.status_code
        if code in (401, 403):
            raise HubError(
                f"{name}: the Hub refuses the token (HTTP {code}): set HF_TOKEN to a valid one that "
                "has the right to it, or run `hf auth login`."
            ) from error
        if code in PASSING:
            raise _UnreachableError(_unreachable(name, f"HTTP {code}")) from error
        raise HubError(f"{name}: the Hub answers HTTP {code}.") from error
    except errors.HFValidationError as error:
        raise HubError(f"{name}: this is no name of a repository, USER/NAME.") from error
    except OSError as error:  # A full disk, or a body of another length than announced.
        raise HubError(f"{name} cannot be fetched: {_first_line(error)}") from error
    except Exception as error:  # The HTTP library's own.
        if type(error).__module__.split(".")[0] not in ("httpx", "httpx2", "httpcore", "httpcore2"):
            raise
        raise _UnreachableError(_unreachable(name, type(error).__name__)) from error


def _unreachable(name: str, reason: str = "") -> str:
    because = f" ({reason})" if reason else ""
    return f"{name}: the Hub does not answer{because}: check the network, and try again."


def _first_line(error: OSError) -> str:
    text = (error.strerror or str(error)).splitlines()[0]
    return f"{text.rstrip('.')}."


def _is_offline() -> bool:
    from huggingface_hub import constants

    return constants.HF_HUB_OFFLINE


def _shown(repository: str, revision: str) -> str:
    return str(Reference(repository, revision=revision))


def _describe(listing: Listing, names: Sequence[str]) -> str:
    """Names with the megabytes of each."""
    return ", ".join(f"{name} ({listing.files[name].size / 1e6:,.1f} MB)" for name in names)
