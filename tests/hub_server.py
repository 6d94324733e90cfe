"""A stand-in for the Hugging Face Hub: real HTTP on the loopback address, with its faults on demand.

    with HubServer() as server:
        commit = server.add("user/name", {"config.json": b"{}", "model.safetensors": content})
        server.faults.append(Fault("model.safetensors", status=503))
        # HF_ENDPOINT=server.url

It serves what `huggingface_hub` asks for: listings, small files by themselves with git's digest as
their ETag, large files (by their endings) by a redirect to a store that knows ranges, repositories
that want a token, and commits. Both kinds of repositories are served, "model" and "dataset".
"""

import base64
import dataclasses
import hashlib
import http.server
import json
import re
import threading
import urllib.parse

LARGE = (".safetensors", ".npz", ".bin", ".parquet", ".tar")  # Endings of what Git LFS keeps.
LISTING = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/revision/(.+))?")
FILE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
COMMIT = re.compile(r"/api/models/([^/]+/[^/]+)/(preupload|commit)/(.+)")
STORE = "/store/"


def git_digest(content):
    """Git's name of a file with that content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def sha256(content):
    """Git LFS's name of a file with that content."""
    return hashlib.sha256(content).hexdigest()


@dataclasses.dataclass
class Fault:
    """What goes wrong with the next `times` GETs (or HEADs) of paths that end in `name`."""

    name: str
    status: int = 0  # of the answer
    length: int | None = None  # bytes after which the connection is cut
    corrupt: bool = False  # one bit of the content is another
    times: int = 1
    method: str = "GET"


@dataclasses.dataclass
class Request:
    """A request that the server had."""

    method: str
    path: str
    token: str  # that came with it; "" for none
    range: str


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers one request after another on a connection."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def do_POST(self):
        self.answer()

    def log_message(self, *arguments):
        pass

    def answer(self):
        """Looks at the faults, then at what is asked for."""
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        hub = self.server.hub
        hub.requests.append(Request(self.command, path, token, self.headers.get("Range", "")))
        body = self.read_body()
        fault = hub.next_fault(self.command, path)
        if fault and fault.status:
            return self.send(fault.status)
        if path.startswith(STORE):
            return self.send_stored(path.removeprefix(STORE).partition("/")[0], fault)
        if path == "/api/repos/create":
            wanted = json.loads(body)
            name = f"{wanted['organization']}/{wanted['name']}"
            if token != hub.token:
                return self.send(401)
            hub.add(name, {}, token=hub.token if wanted.get("private") else "")
            return self.send_json({"url": f"{hub.url}/{name}"})
        if path == "/api/validate-yaml":
            return self.send_json({"errors": [], "warnings": []})
        if found := COMMIT.fullmatch(path):
            return self.send_commit(found[1], found[2], body, token)
        if found := LISTING.fullmatch(path):
            return self.send_listing(
                found[1].removesuffix("s"), found[2], found[3] or "main", token
            )
        if found := FILE.fullmatch(path):
            kind = "dataset" if found[1] else "model"
            return self.send_file(kind, *found.group(2, 3, 4), token, fault)
        return self.send(404)

    def read_body(self):
        """The request's content, in one piece or in chunks."""
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def find(self, kind, name, revision, token):
        """The commit and its files; None, after an error's answer."""
        repository = self.server.hub.repositories.get((kind, name))
        if repository is None or repository.token not in ("", token):
            code = "GatedRepo" if repository and repository.gated else "RepoNotFound"
            self.send(403 if repository and token else 401, {"X-Error-Code": code})
            return None
        commit = repository.revisions.get(revision, revision)
        if commit not in repository.commits:
            self.send(404, {"X-Error-Code": "RevisionNotFound"})
            return None
        return commit, repository.commits[commit]

    def send_listing(self, kind, name, revision, token):
        if found := self.find(kind, name, revision, token):
            commit, files = found
            siblings = []
            for path, content in files.items():
                entry = {"rfilename": path, "size": len(content), "blobId": git_digest(content)}
                if path.endswith(LARGE):
                    digest = sha256(content)
                    entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
                siblings.append(entry)
            self.send_json({"id": name, "modelId": name, "sha": commit, "siblings": siblings})

    def send_file(self, kind, name, revision, path, token, fault):
        if not (found := self.find(kind, name, revision, token)):
            return None
        commit, files = found
        if path not in files:
            return self.send(404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit})
        content = files[path]
        headers = {"X-Repo-Commit": commit, "ETag": f'"{git_digest(content)}"'}
        if not path.endswith(LARGE):
            return self.send(200, headers, content, fault)
        digest = sha256(content)
        self.server.hub.store[digest] = content
        headers |= {
            "X-Linked-Etag": f'"{digest}"',
            "X-Linked-Size": str(len(content)),
            "Location": f"{self.server.hub.store_url}{STORE}{digest}/{path}?signature=secret",
        }
        return self.send(302, headers)

    def send_stored(self, digest, fault):
        content = self.server.hub.store[digest]
        start = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0]
        if int(start):
            end = len(content) - 1
            headers = {"Content-Range": f"bytes {start}-{end}/{len(content)}"}
            return self.send(206, headers, content[int(start) :], fault)
        return self.send(200, {"ETag": f'"{digest}"'}, content, fault)

    def send_commit(self, name, step, body, token):
        repository = self.server.hub.repositories.get(("model", name))
        if repository is None or token != self.server.hub.token:
            return self.send(401)
        if step == "preupload":
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            return self.send_json({"files": files})
        lines = [json.loads(line) for line in body.splitlines()]
        new = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"])
            for line in lines
            if line["key"] == "file"
        }
        old = repository.commits[repository.revisions["main"]]
        commit = self.server.hub.add(name, {**old, **new}, token=repository.token)
        return self.send_json(
            {"commitUrl": f"{self.server.hub.url}/{name}/commit/{commit}", "commitOid": commit}
        )

    def send_json(self, content):
        self.send(200, {"Content-Type": "application/json"}, json.dumps(content).encode())

    def send(self, status, headers=None, content=b"", fault=None):
        """Sends an answer, spoilt as the fault says."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "HEAD":
            return
        if fault and fault.corrupt:
            content = bytes([content[0] ^ 1]) + content[1:]
        if fault and fault.length is not None:
            content, self.close_connection = content[: fault.length], True
        self.wfile.write(content)


@dataclasses.dataclass
class Repository:
    """A repository's commits, and who may read it."""

    token: str = ""  # that it takes to read it; "": none
    gated: bool = False
    revisions: dict = dataclasses.field(default_factory=dict)  # branch or tag -> commit
    commits: dict = dataclasses.field(default_factory=dict)  # commit -> name -> content


class HubServer:
    """The server, in a thread; a context manager.

    Attributes:
      url: of the server, for HF_ENDPOINT.
      faults: that are still to happen.
      requests: that it had, in order.
      token: the one that may write.
    """

    token = "hf_write_stand_in"

    def __init__(self):
        self.repositories, self.store = {}, {}
        self.faults, self.requests = [], []
        self._lock = threading.Lock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self.store_url = self.url.replace(
            "127.0.0.1", "localhost"
        )  # Another host, as the real one.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.01,), daemon=True
        )

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._server.shutdown()
        self._server.server_close()

    def add(self, name, files, *, kind="model", revision="main", token="", gated=False):
        """Makes a commit of these files alone, which the revision then names; returns its name."""
        repository = self.repositories.setdefault((kind, name), Repository())
        repository.token, repository.gated = token, gated
        commit = hashlib.sha1(repr((name, sorted(files.items()))).encode()).hexdigest()
        repository.commits[commit] = dict(files)
        repository.revisions[revision] = commit
        return commit

    def next_fault(self, method, path):
        """The fault of a request, used up."""
        with self._lock:
            for fault in self.faults:
                if fault.times and fault.method == method and path.endswith(fault.name):
                    fault.times -= 1
                    return fault
        return None

    def asked(self, method="GET"):
        """The paths that were asked for."""
        return [request.path for request in self.requests if request.method == method]
