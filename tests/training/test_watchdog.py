import sys
import threading
import time
import types

import pytest

from tests.runs import LIMIT_SECONDS, start
from vit_jax.training import watchdog
from vit_jax.training.clock import Clock, Kind

HANGING = """
import logging, threading
from vit_jax.training import watchdog
from vit_jax.training.clock import Clock

def waits_for_a_dead_server():
    threading.Event().wait()

logging.basicConfig(format="%(message)s")
watchdog.PARTING_SECONDS = 0
with watchdog.watching(0.002, Clock()):
    waits_for_a_dead_server()
"""


def test_a_process_that_hangs_shows_where_and_ends_with_75():
    process = start(sys.executable, "-c", HANGING)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 75
    assert output.startswith(
        "No step, evaluation or save ended within config.watchdog_minutes=0.002"
    )
    assert "in waits_for_a_dead_server" in output


@pytest.mark.parametrize("minutes", [0, 1])
def test_signs_of_life_and_0_keep_it_still(minutes, monkeypatch):
    ended, now = [], [0.0]  # A time of the test's own, so that no busy machine can hold a sign up.
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(watchdog, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    clock = Clock(lambda: now[0])
    with watchdog.watching(minutes, clock, end=ended.append):
        for _ in range(12):
            time.sleep(0.01)
            now[0] += 30  # Of the 60 s that are allowed.
            clock.begin(Kind.STEPS)
    assert not ended


class Seen:
    """A clock whose last sign of life came at a time, and the codes with which its watchdog ends."""

    def __init__(self, changed):
        self._changed, self._looked = changed, threading.Semaphore(0)
        self.ended, self.has_ended = [], threading.Event()

    @property
    def changed(self):
        self._looked.release()
        return self._changed

    def end(self, code):
        self.ended.append(code)
        self.has_ended.set()
        self._looked.release(9)  # There are no more looks.

    def wait_for_looks(self, count):
        """Of which the last but one has been judged."""
        for _ in range(count):
            assert self._looked.acquire(timeout=LIMIT_SECONDS)


def test_it_barks_once_after_more_than_the_minutes(monkeypatch):
    barked, now, seen = [], [0.0], Seen(changed=10.0)
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.001)
    monkeypatch.setattr(watchdog, "time", types.SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(watchdog, "bark", barked.append)
    with watchdog.watching(1, seen, end=seen.end):
        now[0] = 70.0
        seen.wait_for_looks(3)
        assert not seen.ended
        now[0] = 70.5
        assert seen.has_ended.wait(LIMIT_SECONDS)
        time.sleep(0.02)  # In which it could bark again.
    assert (barked, seen.ended) == ([1], [75])


def test_what_it_says_before_it_ends(monkeypatch, caplog):
    done = []
    monkeypatch.setattr(watchdog.logging, "shutdown", lambda: done.append("shut down"))
    monkeypatch.setattr(watchdog, "time", types.SimpleNamespace(sleep=done.append))
    monkeypatch.setattr(
        watchdog.faulthandler, "dump_traceback", lambda file, all_threads: done.append(all_threads)
    )
    watchdog.bark(2.5)
    assert done == [True, "shut down", 5]
    (message,) = caplog.messages
    assert "config.watchdog_minutes=2.5: " in message
    assert "It ends with exit code 75; the same command goes on from the last checkpoint" in message


def test_a_clock_that_stood_before_does_not_count(monkeypatch):
    seen = Seen(changed=-1e6)
    monkeypatch.setattr(watchdog, "LOOK_SECONDS", 0.001)
    with watchdog.watching(10, seen, end=seen.end):
        seen.wait_for_looks(2)
    assert not seen.ended
