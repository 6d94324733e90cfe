"""A stand-in for object stores: moto's S3, or an emulator of Google's, with latency and faults.

    python -m tests.object_store s3 --latency=0.2

prints the port that it listens at, and serves until its input ends. Before each object is read it waits.
`Faults.script` lists what happens to the next readings: an HTTP status, "reset" or "slow".
"""

import argparse
import os
import sys
import threading
import time

BUCKET = "shop"


class Faults:
    """WSGI middleware: readings of objects wait, or go wrong as `script` says, one after another."""

    def __init__(self, application, latency=0.0, folder=""):
        self.application, self.latency, self.folder = application, latency, folder
        self.script, self.readings = [], 0

    def __call__(self, environ, start_response):
        """Answers a request."""
        is_reading = environ["REQUEST_METHOD"] == "GET" and "." in environ["PATH_INFO"]
        if not is_reading:
            return self.application(environ, start_response)
        self.readings += 1
        fault = self.script.pop(0) if self.script else ""
        time.sleep(self.latency)
        if fault == "slow":
            time.sleep(3)
        elif fault == "reset":
            environ["werkzeug.socket"].close()
            return []
        elif fault:
            codes = {403: b"AccessDenied", 404: b"NoSuchKey", 503: b"SlowDown"}
            body = b"<Error><Code>%s</Code><Message>so it is</Message></Error>" % codes[fault]
            start_response(f"{fault} Fault", [("Content-Type", "application/xml")])
            return [body]
        path = self.folder and self.folder + environ["PATH_INFO"].removeprefix(f"/{BUCKET}")
        if path and os.path.isfile(path):
            return self._answer(path, environ.get("HTTP_RANGE"), start_response)
        return self.application(environ, start_response)

    def _answer(self, path, asked, start_response):
        """The bytes of a file: moto copies an object whole for each part of it."""
        size = os.path.getsize(path)
        first, last = 0, size - 1
        if asked:
            first, last = (int(text) for text in asked.removeprefix("bytes=").split("-"))
            last = min(last, size - 1)
        headers = [
            ("Content-Type", "application/octet-stream"),
            ("Content-Length", str(last + 1 - first)),
            ("Content-Range", f"bytes {first}-{last}/{size}"),
            ("Last-Modified", "Sun, 29 Nov 2026 00:00:00 GMT"),
            ("ETag", '"1"'),
        ]
        start_response("206 Partial Content" if asked else "200 OK", headers)
        with open(path, "rb") as file:
            file.seek(first)
            return [file.read(last + 1 - first)]


def s3(latency=0.0, folder=""):
    """A server of S3 in threads of this process, and its faults; `shutdown` ends it.

    What lies in `folder` as in the bucket is read from there.
    """
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *arguments):
            pass

    faults = Faults(DomainDispatcherApplication(create_backend_app), latency, folder)
    server = make_server("127.0.0.1", 0, faults, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, faults


def gcs(latency=0.0):
    """The same of Google's store; without faults."""
    from gcp_storage_emulator import server as emulator

    def waiting(get):
        def do_get(self):
            if "alt=media" in self.path:
                time.sleep(latency)
            return get(self)

        return do_get

    emulator.RequestHandler.do_GET = waiting(emulator.RequestHandler.do_GET)
    server = emulator.create_server("127.0.0.1", 0, in_memory=True, default_bucket=BUCKET)
    server.start()
    return server, None


def main():
    """Serves until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=["s3", "gcs"])
    parser.add_argument("--latency", type=float, default=0.0, help="seconds to the first byte")
    parser.add_argument("--folder", default="", help="that objects of S3 are read from")
    flags = parser.parse_args()
    server, _ = s3(flags.latency, flags.folder) if flags.kind == "s3" else gcs(flags.latency)
    port = server.port if flags.kind == "s3" else server._api._httpd.server_port
    print(port, flush=True)
    sys.stdin.read()
    os._exit(0)  # Threads of the servers go on else.


if __name__ == "__main__":
    main()
