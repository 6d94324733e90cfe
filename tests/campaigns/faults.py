"""Faults of the file system: a kill before the n-th change, and a disk of a few kilobytes.

python -m tests.campaigns.faults --kill_before=7 --below=DIR FLAGS   # runs vit_jax.main with FLAGS
"""

import contextlib
import functools
import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator

# Audit events of Python that change what lies at their first argument.
CHANGES = (
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.truncate",
    "os.link",
    "shutil.rmtree",
)
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


def kill_before(number: int, folder: str) -> None:
    """Has this process killed before it changes the files in `folder` for the n-th time.

    Changes are files that are made, opened for writing, renamed or removed by Python; what C++ writes is not seen.
    """
    left, folder = number, os.path.realpath(folder)

    def hear(event: str, arguments: tuple) -> None:
        nonlocal left
        if event not in CHANGES and not (event == "open" and arguments[2] & WRITING):
            return
        path = arguments[0]
        if not isinstance(path, str | bytes | os.PathLike):
            return
        if os.path.abspath(os.fsdecode(path)).startswith(folder):
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)


@contextlib.contextmanager
def disk(folder: str | os.PathLike[str], kib: int) -> Iterator[None]:
    """A file system of so many KiB at `folder`."""
    path = os.fspath(folder)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={kib}k", "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def resize(folder: str | os.PathLike[str], kib: int) -> None:
    """Makes the file system at `folder` as large as that."""
    subprocess.run(["mount", "-o", f"remount,size={kib}k", os.fspath(folder)], check=True)


@functools.cache
def may_mount() -> bool:
    """Whether this user may make a `disk`."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with disk(folder, 64):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


if __name__ == "__main__":
    kill_before(int(sys.argv[1].partition("=")[2]), sys.argv[2].partition("=")[2])
    del sys.argv[1:3]
    runpy.run_module("vit_jax.main", run_name="__main__", alter_sys=True)
