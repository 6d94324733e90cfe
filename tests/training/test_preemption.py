"""Real signals, sent to this process."""

import os
import signal
import sys
import threading

import pytest

from tests.runs import LIMIT_SECONDS, start
from vit_jax.errors import PreemptedError
from vit_jax.training.preemption import stop_signal


def test_launchers_know_the_exit_code():
    assert PreemptedError.exit_code == os.EX_TEMPFAIL == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_sets_the_event(number, caplog):
    with stop_signal() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGCHLD)
        os.kill(os.getpid(), number)
        assert stop.wait(LIMIT_SECONDS)
    assert caplog.messages == [f"{signal.Signals(number).name}: saving, then stopping."]


# The main thread is in C for minutes, as it is while XLA compiles: no handler in Python can run.
COMPILING = """
import hashlib, time
from vit_jax.training.preemption import stop_signal
with stop_signal() as stop:
    print("compiling", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_second_signal_ends_the_process_even_while_it_compiles(number):
    process = start(sys.executable, "-c", COMPILING)
    assert process.stdout.readline() == "compiling\n"
    process.send_signal(number)
    name = signal.Signals(number).name
    assert process.stdout.readline() == f"{name}: saving, then stopping.\n"
    assert process.poll() is None
    process.send_signal(number)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert output == f"{name} again: ending at once.\n"
    assert process.returncode == 128 + number


def test_handlers_are_put_back_when_nothing_came():
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with stop_signal() as stop:
        during = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
        assert all(a is not b for a, b in zip(before, during, strict=True))
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    assert not stop.is_set()


def test_handlers_are_put_back_after_an_error():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="inside"), stop_signal():
        raise RuntimeError("inside")
    assert signal.getsignal(signal.SIGTERM) is before


def test_other_threads_leave_signals_alone():
    before, found = signal.getsignal(signal.SIGTERM), []

    def run():
        with stop_signal() as stop:
            found.append((signal.getsignal(signal.SIGTERM), stop.is_set()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(before, False)]
