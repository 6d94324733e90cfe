"""Stand-ins for the programs of clouds and clusters, first on PATH; they record how they are called."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from tests.runs import LIMIT_SECONDS, ROOT

STUB = """\
#!{python}
import json, os, sys, time
name, arguments = {name!r}, sys.argv[1:]
with open(os.path.join({place!r}, "calls"), "a") as file:
    file.write(json.dumps([name, *arguments]) + "\\n")
def count():
    "How often this was called so far, with this call."
    with open(os.path.join({place!r}, "calls")) as file:
        return sum(json.loads(line) == [name, *arguments] for line in file)
{body}
"""


class Stubs:
    """Programs in a folder of their own, and what was asked of them."""

    def __init__(self, place):
        self._place = place
        place.mkdir()

    def add(self, name, body=""):
        """A program that runs `body`, Python that knows `arguments` and `count()`."""
        path = self._place / name
        body = textwrap.dedent(body)
        path.write_text(
            STUB.format(python=sys.executable, name=name, place=str(self._place), body=body)
        )
        path.chmod(0o755)

    @property
    def calls(self):
        """Every call so far: the program's name and its arguments."""
        lines = (self._place / "calls").read_text().splitlines() if self.called else []
        return [json.loads(line) for line in lines]

    @property
    def called(self):
        return (self._place / "calls").exists()

    def start(self, *command, **environment):
        """Starts a command of this checkout that finds the programs."""
        path = f"{self._place}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, "PATH": path, "SECONDS_BETWEEN_LOOKS": "0", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command, **environment):
        """The exit code, standard output and standard error of a command."""
        process = self.start(*command, **environment)
        output, errors = process.communicate(timeout=LIMIT_SECONDS)
        return process.returncode, output, errors


@pytest.fixture(autouse=True)
def _interruptible():
    """A shell script cannot trap what it is started to ignore, as tests in the background are."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def stubs(tmp_path):
    return Stubs(tmp_path / "stubs")
