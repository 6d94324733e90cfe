"""Whose a workdir is: two runs that write to the same one would destroy each other's files.

The first process of a run writes `claim.json`, and renews it every few seconds for as long as the
run lasts. A claim whose processes are all gone from this machine is taken over at once; one from
elsewhere, or from before a reboot, once nothing has renewed it for a minute. No clock is compared
with another machine's: whoever waits watches whether the claim changes.
"""

import contextlib
import datetime
import json
import logging
import os
import socket
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from vit_jax import storage
from vit_jax.devices import distributed
from vit_jax.errors import CheckpointError, DataError

FILE_NAME = "claim.json"
BEAT_SECONDS = 10.0  # The owner renews its claim so often.
SILENT_SECONDS = 60.0  # An owner elsewhere that has not done so for this long is gone.
LOOK_SECONDS = 1.0  # Between two looks at someone else's claim.
SETTLE_SECONDS = 2.0  # Object stores cannot create exclusively: the last of several writers wins.
LOST_EXIT_CODE = 2
HELD, WAITING, REFUSED = range(3)

logger = logging.getLogger(__name__)


class ClaimedError(CheckpointError):
    """A workdir that another run owns."""


class Process(NamedTuple):
    """A process of a run."""

    machine: int  # crc32 of its host's name, boot and process namespace
    pid: int
    started: int  # clock ticks after the boot, modulo 2**32; 0 where the system does not tell

    def runs(self) -> bool:
        """Whether it still does; only for one of this machine."""
        return _start_of(self.pid) == self.started


class Owner(NamedTuple):
    """The content of a claim; unknown parts of a damaged one are empty."""

    token: str
    host: str = "an unknown host"
    since: str = "an unknown time"
    processes: tuple[Process, ...] = ()

    def __str__(self) -> str:
        pids = [str(process.pid) for process in self.processes]
        shown = ", ".join(pids[:8] + ["..."] * (len(pids) > 8)) or "unknown"
        return f"process {shown} on {self.host}, since {self.since}"


@contextlib.contextmanager
def held(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Owns the workdir, which exists, while the body runs; every process of a run calls this.

    Raises CheckpointError, in all of them, if another run owns it.
    """
    claim = Claim(os.fspath(directory))
    claim.take()
    try:
        yield
    finally:
        claim.release()


class Claim:
    """A run's claim to a workdir."""

    def __init__(
        self,
        directory: str,
        *,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        lost: Callable[[str], None] | None = None,
    ):
        """Claims nothing yet; `lost` is called with a message if another run takes it away."""
        self._directory, self._path = directory, storage.join(directory, FILE_NAME)
        self._now, self._sleep, self._lost = now, sleep, lost or _end
        self._token = uuid.uuid4().hex
        self._watched: tuple[Any, float] | None = None  # Someone else's claim, first seen when.
        self._refusal = ""
        self._done = threading.Event()
        self._thread: threading.Thread | None = None
        self._beats = 0
        self._said: set[str] = set()

    def take(self) -> None:
        """Returns once the claim is this run's; raises CheckpointError if it is another's."""
        own = [zlib.crc32(machine().encode()), os.getpid(), _start_of(os.getpid())]
        parts = [np.atleast_1d(distributed.gather(np.uint32(part))).tolist() for part in own]
        self._processes = tuple(map(Process, *parts))
        state = WAITING
        while state == WAITING:
            first = jax.process_index() == 0
            state = int(np.atleast_1d(distributed.gather(self._try() if first else WAITING))[0])
            if state == WAITING:
                self._sleep(LOOK_SECONDS)
        if state == REFUSED:
            raise ClaimedError(self._refusal or "Process 0 says why the workdir is refused.")
        if jax.process_index() == 0:
            self._thread = threading.Thread(target=self._keep, daemon=True)
            self._thread.start()

    def release(self) -> None:
        """Gives it up; does nothing where it is not held."""
        if self._thread is None:
            return
        self._done.set()
        self._thread.join()
        self._thread = None
        with contextlib.suppress(OSError, DataError):
            if (owner := self._read()) and owner.token == self._token:
                storage.remove(self._path)

    def _try(self) -> int:
        """Takes a claim that is nobody's, and says how it stands."""
        try:
            owner = self._read()
            if owner is None:
                return HELD if self._create() else WAITING
            here = [p for p in owner.processes if p.machine == self._processes[0].machine]
            try:
                lives = any(process.runs() for process in here) or self._has_changed()
            except FileNotFoundError:  # Its run ended just now.
                return WAITING
            if lives:
                owner = self._read() or owner
                self._refusal = (
                    f"--workdir={self._directory} is in use by another run: {owner}. Wait for its "
                    "end, stop it, or choose another --workdir."
                )
                return REFUSED
            elsewhere = not here or len(here) < len(owner.processes)
            if elsewhere and self._now() - self._watched[1] < SILENT_SECONDS:
                self._say_once(
                    f"{self._directory} may be in use by another run, {owner}: waiting up to "
                    f"{SILENT_SECONDS:.0f} s for a sign of life."
                )
                return WAITING
            logger.warning("The run of %s is gone: its workdir is taken over.", owner)
            self._discard(owner)
            return WAITING if self._read() or not self._create() else HELD
        except (OSError, DataError) as error:
            self._refusal = f"{self._path} cannot be written: {error}."
            return REFUSED

    def _has_changed(self) -> bool:
        """Whether someone else's claim was renewed since this was first asked."""
        version = storage.version_of(self._path)
        if self._watched is None:
            self._watched = version, self._now()
        return version != self._watched[0]

    def _read(self) -> Owner | None:
        """The owner; None if there is none."""
        try:
            content = json.loads(storage.read(self._path))
            processes = tuple(Process(*process) for process in content["processes"])
            return Owner(content["token"], content["host"], content["since"], processes)
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            return Owner("")  # Being written just now, or damaged.

    def _content(self) -> bytes:
        since = datetime.datetime.now().astimezone().isoformat(" ", "seconds")
        owner = Owner(self._token, socket.gethostname(), since, self._processes)
        return json.dumps({**owner._asdict(), "beats": self._beats}).encode()

    def _create(self) -> bool:
        """Whether this run's claim is the one that is there now; there was none."""
        if storage.is_remote(self._path):
            storage.write(self._path, self._content())
            self._sleep(SETTLE_SECONDS)
            owner = self._read()
            return owner is not None and owner.token == self._token
        try:
            with open(self._path, "xb") as file:
                file.write(self._content())
            return True
        except FileExistsError:
            return False

    def _discard(self, owner: Owner) -> None:
        """Removes a claim that is dead, and only that: another run may be taking it over too."""
        if storage.is_remote(self._path):
            with contextlib.suppress(FileNotFoundError):  # The other one was faster.
                storage.remove(self._path)
            return
        aside = f"{self._path}.{self._token}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self._path, aside)
            if json_token(aside) != owner.token:  # The other one was faster: its claim is back.
                with contextlib.suppress(FileExistsError):
                    os.link(aside, self._path)
            os.remove(aside)

    def _keep(self) -> None:
        """Renews the claim until `release`, and sees whether it is still this run's."""
        while not self._done.wait(BEAT_SECONDS):
            self._beats += 1
            try:
                self._beat()
            except (OSError, DataError) as error:
                self._say_once(f"{self._path} cannot be renewed: {error}.")

    def _say_once(self, message: str) -> None:
        if message not in self._said:
            self._said.add(message)
            logger.warning("%s", message)

    def _beat(self) -> None:
        owner = self._read()
        if owner is None:
            self._create()
        elif owner.token != self._token:
            self._lost(
                f"{self._directory} was taken over by another run ({owner}), for this one did not "
                f"renew its claim for {SILENT_SECONDS:.0f} s: ending without saving."
            )
        elif storage.is_remote(self._path):
            storage.write(self._path, self._content())
        else:
            os.utime(self._path)  # Needs no space: disks may be full.


def json_token(path: str) -> str:
    """The token in a local claim; "" if it is damaged."""
    try:
        return json.loads(Path(path).read_bytes())["token"]
    except (ValueError, KeyError, TypeError):
        return ""


def machine() -> str:
    """An identifier of this machine, its boot, and the container on it."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def _start_of(pid: int) -> int:
    """When a process started, as in `Process`; -1 if it is not there, or has ended."""
    try:
        # "pid (name) state ...": the name may hold anything; the start is the 22nd field.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return -1 if fields[0] in "ZX" else int(fields[19]) % 2**32
    except (FileNotFoundError, ProcessLookupError):
        if os.path.exists("/proc/self/stat"):
            return -1
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return -1
    except PermissionError:  # Another user's.
        pass
    return 0


def _end(message: str) -> None:
    """Ends the process at once: what it would still write is another run's."""
    logger.error("%s", message)
    logging.shutdown()
    os._exit(LOST_EXIT_CODE)
