"""A workdir has one owner: who comes second is told whose it is; a dead owner blocks nobody."""

import json
import os
import subprocess
import sys
import time

import pytest

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
    assert 60 <= claimed_after(directory, Time()) <= 65


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


def test_an_owner_renews_its_claim_and_sees_when_it_lost_it(directory, monkeypatch):
    monkeypatch.setattr(claim, "BEAT_SECONDS", 0.01)
    lost, clock = [], Time()
    mine = Claim(directory, lost=lost.append, sleep=clock.sleep)
    mine.take()
    path = storage.join(directory, "claim.json")
    before = storage.read(path), storage.version_of(path)
    while (storage.read(path), storage.version_of(path)) == before:
        time.sleep(0.01)
    write(directory, ELSEWHERE)
    while not lost:
        time.sleep(0.01)
    assert "was taken over by another run (process 17 on other, since yesterday)" in lost[0]
    mine.release()
    assert storage.exists(path)  # It is the other one's.
