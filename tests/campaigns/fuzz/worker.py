"""The process that does trials, and may die of one."""

import faulthandler
import logging
import os
import pathlib
import random
import shutil
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Protocol

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
CHANGES = (
    *("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.link", "os.symlink"),
    *("os.chmod", "shutil.rmtree"),
)
STDERR = "stderr"  # In the worker's folder.
STARTS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect")


class Target(Protocol):
    """What reads: a trial returns "same" or "other" values, or raises."""

    max_growth_mib: int

    def trial(self, rng: random.Random, folder: pathlib.Path) -> str: ...


def make_target(name: str, folder: pathlib.Path) -> Target:
    """A target, with the files that it mutates in `folder`; imports what only this one needs."""
    if name == "pictures":
        from tests.campaigns.fuzz.pictures import Pictures

        return Pictures(folder)
    if name == "configs":
        from tests.campaigns.fuzz.configs import ConfigOverrides

        return ConfigOverrides(folder)
    if name == "lists":
        from tests.campaigns.fuzz.lists import Lists

        return Lists(folder)
    from tests.campaigns.fuzz import weights

    return {"weights": weights.WeightFiles, "checkpoints": weights.CheckpointFiles}[name](folder)


class Watch:
    """Notes what this process changes outside a folder, and what it starts."""

    def __init__(self) -> None:
        self.allowed: tuple[str, ...] = ()
        self.found: list[str] = []
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: tuple) -> None:
        if not self.allowed:
            return
        if event in STARTS:
            self.found.append(f"{event} {arguments[:2]}"[:200])
        elif event in CHANGES or (event == "open" and arguments[2] & WRITING):
            path = arguments[0]
            if isinstance(path, str | bytes | os.PathLike):
                path = os.path.realpath(os.fsdecode(path))
                if not path.startswith(self.allowed):
                    self.found.append(f"{event} {path}"[:200])


def memory(field: str) -> float:
    """MiB of this process: VmRSS, what it has, or VmHWM, the most since `reset_peak`."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    return 0.0


def reset_peak() -> None:
    pathlib.Path("/proc/self/clear_refs").write_text("5")


def attempt(target: Target, rng: random.Random, folder: pathlib.Path, watch: Watch) -> tuple:
    """(outcome, message) of one trial; the outcome "failed" where it is neither values nor an error."""
    from vit_jax.errors import UserError

    reset_peak()
    before = memory("VmRSS")
    compiled = os.environ.get("JAX_COMPILATION_CACHE_DIR", os.devnull)
    watch.allowed, watch.found = (os.path.realpath(folder), os.devnull, compiled), []
    try:
        outcome, message = target.trial(rng, folder), ""
    except UserError as error:
        message = str(error)
        outcome = "refused" if message.strip() else "failed"
    except BaseException:
        outcome, message = "failed", traceback.format_exc(limit=-6)
    changed, watch.allowed = watch.found, ()
    if changed:
        return "failed", f"outside its folder: {changed}"
    if (growth := memory("VmHWM") - before) > target.max_growth_mib:
        return "failed", f"{growth:.0f} MiB ({outcome}: {message[:300]})"
    return outcome, message


def work(name: str, seed: int, folder: str, connection: Connection) -> None:
    """Answers numbers of trials with their outcomes, until the other end is closed."""
    import tests.conftest  # noqa: F401  Quick compilation, on the CPU.

    logging.disable(logging.CRITICAL)
    root = pathlib.Path(folder)
    with open(root / STDERR, "w") as file:  # Libraries complain there of each damaged file.
        os.dup2(file.fileno(), sys.stderr.fileno())
    faulthandler.enable()
    (files := root / "files").mkdir()
    target, watch = make_target(name, files), Watch()
    connection.send(("ready", ""))
    while True:
        try:
            number = connection.recv()
        except EOFError:
            return
        own = root / "trial"
        own.mkdir()
        rng = random.Random(f"{seed}/{name}/{number}")
        connection.send(attempt(target, rng, own, watch))
        shutil.rmtree(own, ignore_errors=True)
