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

    def __init__(self, application, latency=0.0):
        self.application, self.latency, self.script, self.readings = application, latency, [], 0

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
        return self.application(environ, start_response)


def s3(latency=0.0):
    """A server of S3 in threads of this process, and its faults; `shutdown` ends it."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *arguments):
            pass

    faults = Faults(DomainDispatcherApplication(create_backend_app), latency)
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
    flags = parser.parse_args()
    server, _ = {"s3": s3, "gcs": gcs}[flags.kind](flags.latency)
    port = server.port if flags.kind == "s3" else server._api._httpd.server_port
    print(port, flush=True)
    sys.stdin.read()
    os._exit(0)  # Threads of the servers go on else.


if __name__ == "__main__":
    main()
