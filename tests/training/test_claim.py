"""A workdir has one owner: who comes second is told whose it is; a dead owner blocks nobody."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest

from tests.runs import LIMIT_SECONDS
from vit_jax import storage
from vit_jax.errors import CheckpointError
from vit_jax.training import claim
from vit_jax.training.claim import Claim, Process, held

HERE = Process(
    claim.zlib.crc32(claim.machine().encode()), os.getpid(), claim._start_of(os.getpid())
)
ELSEWHERE = Process(HERE.machine ^ 1, 17, 3)


class Time:
    """Seconds that pass when somebody sleeps; `then` happens after each."""

    def __init__(self, then=lambda: None):
        self.seconds, self.then = 0.0, then

    def now(self):
        return self.seconds

    def sleep(self, seconds):
        self.seconds += seconds
        self.then()


def write(directory, *processes, beats=0):
    content = {
        "token": "t",
        "host": "other",
        "since": "yesterday",
        "processes": [list(process) for process in processes],
        "beats": beats,
    }
    storage.write(storage.join(str(directory), "claim.json"), json.dumps(content).encode())


@pytest.fixture(params=["local", "object store"])
def directory(request, tmp_path):
    return str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}"


def wait_until(happened):
    deadline = time.monotonic() + LIMIT_SECONDS
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def claimed_after(directory, clock):
    mine = Claim(directory, now=clock.now, sleep=clock.sleep)
    mine.take()
    mine.release()
    return clock.seconds


def test_the_second_is_told_whose_it_is(directory):
    clock = Time()
    first = Claim(directory, now=clock.now, sleep=clock.sleep)
    first.take()
    with pytest.raises(CheckpointError) as error:
        Claim(directory, now=clock.now, sleep=clock.sleep).take()
    message = str(error.value)
    assert f"--workdir={directory} is in use by another run: process {os.getpid()} on" in message
    assert f", since {time.strftime('%Y-%m-%d')}" in message
    first.release()
    assert not storage.exists(storage.join(directory, "claim.json"))
    claimed_after(directory, clock)


def test_an_error_gives_it_up(tmp_path):
    def fail():
        assert (tmp_path / "claim.json").exists()
        raise RuntimeError

    with pytest.raises(RuntimeError), held(tmp_path):
        fail()
    assert not list(tmp_path.iterdir())


def gone():
    process = subprocess.Popen([sys.executable, "-c", ""])
    started = claim._start_of(process.pid)
    process.wait()
    return Process(HERE.machine, process.pid, started)


@pytest.mark.parametrize(
    "owner",
    [gone, lambda: HERE._replace(started=HERE.started - 1)],
    ids=["its process is gone", "its number is another process's now"],
)
def test_a_dead_owner_on_this_machine_does_not_block(directory, owner):
    write(directory, owner())
    assert claimed_after(directory, Time()) < 10


def test_children_of_a_dead_owner_still_own(directory):
    write(directory, gone(), HERE)
    with pytest.raises(CheckpointError, match=f"process [0-9]+, {os.getpid()} on other"):
        claimed_after(directory, Time())


@pytest.mark.parametrize("owner", [ELSEWHERE, None], ids=["another host", "damaged"])
def test_an_owner_elsewhere_that_is_silent_is_gone(directory, owner):
    if owner:
        write(directory, owner)
    else:
        storage.write(storage.join(directory, "claim.json"), b"{")
    settling = 2 if directory.startswith("memory:") else 0
    assert claimed_after(directory, Time()) == 60 + settling


def test_one_whose_processes_are_gone_here_may_live_on_another_host(directory):
    write(directory, gone(), ELSEWHERE)
    assert claimed_after(directory, Time()) >= 60


def test_a_run_that_ends_while_another_looks_leaves_the_workdir_free(directory, monkeypatch):
    write(directory, ELSEWHERE)
    path, look = storage.join(directory, "claim.json"), storage.version_of

    def ends_first(path):
        if storage.exists(path):
            storage.remove(path)
        return look(path)

    monkeypatch.setattr(storage, "version_of", ends_first)
    assert claimed_after(directory, Time()) < 10
    assert not storage.exists(path)


def test_who_finds_a_dead_claim_gone_takes_the_workdir(directory, monkeypatch):
    """Another one removed it first, and was ended before it wrote its own."""
    write(directory, gone())
    discard = Claim._discard

    def second(claim, owner):
        storage.remove(storage.join(directory, "claim.json"))
        discard(claim, owner)

    monkeypatch.setattr(Claim, "_discard", second)
    assert claimed_after(directory, Time()) < 10


def test_who_was_slower_to_take_over_leaves_the_others_claim(directory, monkeypatch):
    write(directory, gone())
    mine = Claim(directory, sleep=lambda seconds: None)
    mine._processes = (HERE,)
    monkeypatch.setattr(mine, "_discard", lambda owner: write(directory, ELSEWHERE, beats=3))
    assert mine._try() == claim.WAITING
    assert json.loads(storage.read(storage.join(directory, "claim.json")))["beats"] == 3


def test_each_sets_a_dead_claim_aside_under_a_name_of_its_own(tmp_path, monkeypatch):
    names = []

    def rename(path, aside):
        names.append((path, aside))
        raise FileNotFoundError

    monkeypatch.setattr(claim.os, "rename", rename)
    for _ in range(2):
        Claim(str(tmp_path))._discard(claim.Owner("t"))
    assert len({aside for _, aside in names}) == 2
    assert {path for path, _ in names} == {f"{tmp_path}/claim.json"}


def test_an_owner_elsewhere_that_renews_its_claim_lives(directory):
    beats = iter(range(1, 100))

    def beat():
        if clock.seconds % 10 == 0:
            write(directory, ELSEWHERE, beats=next(beats))

    clock = Time(then=beat)
    write(directory, ELSEWHERE)
    with pytest.raises(CheckpointError, match="process 17 on other, since yesterday"):
        claimed_after(directory, clock)
    assert clock.seconds <= 10


def test_of_two_that_take_over_one_wins(tmp_path):
    write(tmp_path, gone())
    claims = [Claim(str(tmp_path)) for _ in range(2)]
    slow, quick = claims
    read = slow._read()
    quick.take()
    slow._discard(read)  # It had read the dead one.
    assert json.loads((tmp_path / "claim.json").read_text())["token"] == quick._token
    with pytest.raises(CheckpointError):
        slow.take()
    quick.release()
    assert not list(tmp_path.iterdir())


def test_of_two_that_find_no_owner_one_wins(tmp_path, monkeypatch):
    """Both look before either writes."""
    first, second = (Claim(str(tmp_path)) for _ in range(2))
    first.take()
    before = (tmp_path / "claim.json").read_bytes()
    second._processes = (HERE,)
    monkeypatch.setattr(second, "_read", lambda: None)
    assert second._try() == claim.WAITING
    assert (tmp_path / "claim.json").read_bytes() == before
    first.release()


def test_of_two_that_write_to_an_object_store_the_last_wins(tmp_path):
    """The other one writes while the first waits for its own to be there."""
    directory = f"memory://{tmp_path.name}"
    clock = Time(then=lambda: write(directory, ELSEWHERE, beats=int(clock.seconds)))
    with pytest.raises(CheckpointError, match="process 17 on other"):
        Claim(directory, now=clock.now, sleep=clock.sleep).take()
    assert 2 <= clock.seconds <= 5


@pytest.mark.parametrize("process", [0, 1])
def test_every_process_of_a_run_is_refused_and_process_0_says_why(tmp_path, monkeypatch, process):
    write(tmp_path, HERE)
    monkeypatch.setattr(claim.jax, "process_index", lambda: process)
    states = []  # That this process told the others.

    def gather(value):
        if isinstance(value, np.generic):  # A fact; the other process's is the next number.
            return np.array([value, value + 1])
        states.append(value)
        return np.array([claim.REFUSED, claim.WAITING])

    monkeypatch.setattr(claim.distributed, "gather", gather)
    mine = Claim(str(tmp_path))
    with pytest.raises(claim.ClaimedError) as error:
        mine.take()
    assert states == [claim.WAITING if process else claim.REFUSED]
    message = "Process 0 says why the workdir is refused."
    assert (str(error.value) == message) == bool(process)


@pytest.mark.parametrize("process", [0, 1])
def test_process_0_alone_renews_and_gives_up_the_claim_of_all(tmp_path, monkeypatch, process):
    monkeypatch.setattr(claim.jax, "process_index", lambda: process)
    states = iter([claim.WAITING, claim.HELD])  # Of process 0.

    def gather(value):
        if isinstance(value, np.generic):
            return np.array([value, value + 1])
        return np.array([next(states), claim.WAITING])

    monkeypatch.setattr(claim.distributed, "gather", gather)
    clock = Time()
    mine = Claim(str(tmp_path), now=clock.now, sleep=clock.sleep)
    mine.take()
    assert clock.seconds == claim.LOOK_SECONDS
    assert (mine._thread is not None) == (process == 0)
    assert (tmp_path / "claim.json").exists() == (process == 0)
    if process == 0:
        owners = json.loads((tmp_path / "claim.json").read_bytes())["processes"]
        assert owners == [list(HERE), [part + 1 for part in HERE]]
    mine.release()
    assert not list(tmp_path.iterdir())


def test_a_claim_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").touch()
    path = tmp_path / "file" / "run"
    with pytest.raises(CheckpointError) as error:
        Claim(str(path)).take()
    assert str(error.value).startswith(f"{path}/claim.json cannot be written: ")


def test_who_waits_for_an_owner_elsewhere_says_it_once(tmp_path, caplog):
    write(tmp_path, ELSEWHERE)
    claimed_after(str(tmp_path), Time())
    owner = "process 17 on other, since yesterday"
    assert caplog.messages == [
        f"{tmp_path} may be in use by another run, {owner}: waiting up to 60 s for a sign of life.",
        f"The run of {owner} is gone: its workdir is taken over.",
    ]


def test_an_owner_is_named_by_its_first_eight_processes():
    processes = tuple(Process(1, pid, 2) for pid in range(11, 20))
    assert str(claim.Owner("t", "h", "s", processes[:2])) == "process 11, 12 on h, since s"
    named = "process 11, 12, 13, 14, 15, 16, 17, 18"
    assert str(claim.Owner("t", "h", "s", processes[:8])).startswith(f"{named} on h")
    assert str(claim.Owner("t", "h", "s", processes)).startswith(f"{named}, ... on h")
    assert str(claim.Owner("")) == "process unknown on an unknown host, since an unknown time"


def test_a_claim_that_is_gone_is_written_again(directory):
    clock = Time()
    mine = Claim(directory, now=clock.now, sleep=clock.sleep)
    mine.take()
    path = storage.join(directory, "claim.json")
    for _ in range(2):
        storage.remove(path)
        mine._beat()
        assert json.loads(storage.read(path))["token"] == mine._token
    mine.release()
    mine.release()  # Nothing more.
    assert not storage.exists(path)


def test_what_keeps_a_claim_from_being_renewed_is_said_once(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(claim, "BEAT_SECONDS", 0.001)
    mine, beats = Claim(str(tmp_path)), []

    def beat():
        beats.append(mine._beats)
        raise OSError("no space")

    monkeypatch.setattr(mine, "_beat", beat)
    mine.take()
    wait_until(lambda: len(beats) >= 3)
    mine.release()
    assert beats[:3] == [1, 2, 3]
    assert caplog.messages == [f"{tmp_path}/claim.json cannot be renewed: no space."]


def test_a_process_that_lost_its_workdir_ends_at_once(monkeypatch, caplog):
    codes = []
    monkeypatch.setattr(claim.os, "_exit", codes.append)
    monkeypatch.setattr(claim.logging, "shutdown", lambda: None)
    claim._end("gone")
    assert codes == [2]
    assert caplog.messages == ["gone"]


@pytest.mark.parametrize(
    ("state", "expected"), [("S", 4_242), ("Z", -1), ("X", -1)], ids=["runs", "zombie", "dead"]
)
def test_when_a_process_started(monkeypatch, state, expected):
    """The 22nd field of its status, of 32 bits; its name may hold anything."""
    fields = [state, *map(str, range(4, 22)), str(2**32 + 4_242), "99"]
    status = f"17 (a) (b c)) {' '.join(fields)}"
    monkeypatch.setattr(claim, "Path", lambda path: SimpleNamespace(read_text=lambda: status))
    assert claim._start_of(17) == expected


@pytest.mark.parametrize(
    ("error", "expected"), [(None, 0), (PermissionError, 0), (ProcessLookupError, -1)]
)
def test_a_system_that_does_not_tell_when_processes_start(monkeypatch, error, expected):
    def missing(path):
        raise FileNotFoundError

    def kill(pid, number):
        assert (pid, number) == (17, 0)
        if error:
            raise error

    monkeypatch.setattr(claim, "Path", missing)
    monkeypatch.setattr(claim.os.path, "exists", lambda path: False)
    monkeypatch.setattr(claim.os, "kill", kill)
    assert claim._start_of(17) == expected


def test_a_machine_is_its_host_its_boot_and_its_container(monkeypatch):
    monkeypatch.setattr(claim.socket, "gethostname", lambda: "my host")
    monkeypatch.setattr(
        claim, "Path", lambda path: SimpleNamespace(read_text=lambda: f"<{path}>\n")
    )
    monkeypatch.setattr(claim.os, "readlink", lambda path: f"[{path}]")
    assert claim.machine() == "my host </proc/sys/kernel/random/boot_id> [/proc/self/ns/pid]"

    def missing(path):
        raise FileNotFoundError

    monkeypatch.setattr(claim.os, "readlink", missing)
    assert claim.machine() == "my host </proc/sys/kernel/random/boot_id>"
    monkeypatch.setattr(claim, "Path", missing)
    assert claim.machine() == "my host"


def test_the_token_of_a_damaged_claim_is_empty(tmp_path):
    path = tmp_path / "claim.json"
    for content, expected in (('{"token": "t"}', "t"), ("{", ""), ("{}", ""), ("[1]", "")):
        path.write_text(content)
        assert claim.json_token(str(path)) == expected


def test_an_owner_renews_its_claim_and_sees_when_it_lost_it(directory, monkeypatch):
    monkeypatch.setattr(claim, "BEAT_SECONDS", 0.01)
    lost, clock = [], Time()
    mine = Claim(directory, lost=lost.append, sleep=clock.sleep)
    mine.take()
    path = storage.join(directory, "claim.json")
    before = storage.read(path), storage.version_of(path)
    wait_until(lambda: (storage.read(path), storage.version_of(path)) != before)
    write(directory, ELSEWHERE)
    wait_until(lambda: lost)
    assert "was taken over by another run (process 17 on other, since yesterday)" in lost[0]
    mine.release()
    assert storage.exists(path)  # It is the other one's.
