"""Real signals, sent to this process."""

import contextlib
import os
import random
import signal
import socket
import sys
import threading
import time

import pytest

from tests.runs import LIMIT_SECONDS, connected, start, start_command
from vit_jax.errors import PreemptedError
from vit_jax.training import preemption
from vit_jax.training.clock import STEPS_IN_FLIGHT
from vit_jax.training.preemption import AHEAD, LOOK_SECONDS, Agreement, stop_signal


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


# As if an import took so long.
IMPORTING = """
import hashlib
from vit_jax.signals import nothing_to_save
nothing_to_save()
print("importing", flush=True)
hashlib.pbkdf2_hmac("sha256", b"", b"", (1 << 31) - 1)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_imports_is_no_failure(number):
    process = start(sys.executable, "-c", IMPORTING)
    assert process.stdout.readline() == "importing\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert output == f"{signal.Signals(number).name}: there was nothing to save.\n"
    assert process.returncode == 75


def test_so_is_one_while_others_are_waited_for(tmp_path):
    flags = connected(2)[0]
    process = start_command("--config=tests/tiny.py", f"--workdir={tmp_path}", *flags)
    port = int(flags[0].rpartition(":")[2])
    while process.poll() is None:  # Until process 0 listens.
        with contextlib.suppress(OSError), socket.create_connection(("localhost", port)):
            break
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 75, output
    assert output.endswith("SIGTERM: there was nothing to save.\n")


# Exit functions are called in reverse order: the first sees what the others have left.
ENDING = """
import atexit, signal, threading
def look():
    print(threading.active_count(), signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
atexit.register(look)
from vit_jax.signals import nothing_to_save
nothing_to_save()
"""


def test_nobody_watches_for_signals_when_python_ends():
    process = start(sys.executable, "-c", ENDING)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert (output, process.returncode) == ("1 True\n", 0)


class Shared(dict):
    """The store that processes share."""

    def key_value_set(self, key, value):
        assert key not in self
        self[key] = value

    def key_value_dir_get(self, key):
        self.looks += 1
        return [item for item in self.items() if item[0].startswith(key)]

    def key_value_delete(self, key):
        del self[key]

    looks = 0


def step_through(seed, seconds):
    """Processes in a random order that the loop allows: metrics of STEPS_IN_FLIGHT steps ago are there.

    A step takes about `seconds`. Returns after which steps signals came, and which each stopped after.
    """
    rng = random.Random(seed)
    count, store, time = rng.randint(2, 5), Shared(), [0.0]
    events = [threading.Event() for _ in range(count)]
    asks = [Agreement(event, store, i, 0, lambda: time[0]) for i, event in enumerate(events)]
    signalled = {i: rng.randint(1, 99) for i in rng.sample(range(count), rng.randint(1, count))}
    steps, stopped = [0] * count, {}
    while len(stopped) < count:
        i = rng.choice([i for i in range(count) if i not in stopped])
        dispatched = [step + 1 for j, step in enumerate(steps) if j not in stopped]
        if steps[i] + 1 - STEPS_IN_FLIGHT > min(dispatched, default=1000):
            continue  # Its metrics are not there: another has not begun that step.
        steps[i] += 1
        time[0] += rng.uniform(0.5, 1.5) * seconds / count
        if steps[i] == signalled.get(i):
            events[i].set()
        if asks[i]():
            stopped[i] = steps[i]
    assert len(store) <= count + 3  # Nothing piles up.
    return min(signalled.values()), list(stopped.values()), store.looks / count


@pytest.mark.parametrize("seed", range(20))
def test_all_stop_after_the_same_step_soon_after_any_signals(seed):
    signalled, stopped, _ = step_through(seed, seconds=1.0)
    assert len(set(stopped)) == 1
    assert stopped[0] <= signalled + AHEAD


@pytest.mark.parametrize("seed", range(20))
def test_of_short_steps_few_look_for_signals(seed):
    signalled, stopped, looks = step_through(seed, seconds=0.02)
    assert len(set(stopped)) == 1
    assert stopped[0] < signalled + AHEAD + 2 * LOOK_SECONDS / 0.02
    assert looks <= 10 + stopped[0] * 0.02 / LOOK_SECONDS * 2  # The first ones come sooner.


def test_a_process_that_is_slower_than_before_looks_as_often():
    event, store, time = threading.Event(), Shared(), [0.0]
    ask = Agreement(event, store, 0, 0, lambda: time[0])
    for seconds, steps in ((0.001, 2000), (0.1, 900)):
        for _ in range(steps):
            time[0] += seconds
            assert not ask()
    looks = store.looks
    for _ in range(100):
        time[0] += 0.1
        ask()
    assert store.looks - looks == 20  # In ten seconds.


def test_another_run_of_the_same_process_is_not_stopped_by_the_last_one():
    event, store = threading.Event(), Shared()
    event.set()
    ask = Agreement(event, store, 0, run=0)
    assert [ask() for _ in range(AHEAD + 1)] == [False] * AHEAD + [True]
    other = Agreement(threading.Event(), store, 0, run=1)
    assert not any(other() for _ in range(2 * AHEAD))


def test_one_process_asks_itself_and_several_agree(monkeypatch):
    stop, made = threading.Event(), []
    assert not preemption.stopping_after(stop)()
    stop.set()
    assert preemption.stopping_after(stop)()
    monkeypatch.setattr(preemption.jax, "process_count", lambda: 2)
    monkeypatch.setattr(preemption.jax, "process_index", lambda: 1)
    monkeypatch.setattr(preemption.global_state, "client", "the store")
    monkeypatch.setattr(preemption, "Agreement", lambda *given: made.append(given))
    for _ in range(2):
        preemption.stopping_after(stop)
    (*first, number), (*second, next_number) = made
    assert first == second == [stop, "the store", 1]
    assert next_number == number + 1, "another run"


@pytest.mark.parametrize("process", [0, 1])
def test_what_processes_leave_for_each_other(process):
    """Steps of 0.1 s, with a signal after the sixth: process 0 plans a look at every fifth."""
    event, store, now = threading.Event(), Shared(), [0.0]
    ask = Agreement(event, store, process, 7, lambda: now[0])
    left, most_plans = {}, 0  # All that was ever there, removed or not.
    for step in range(1, 5 * AHEAD):
        now[0] += 0.1
        ask()
        left |= store
        most_plans = max(most_plans, sum("pause" in name for name in store))
        if step == 6:
            event.set()
    lasts = [text for name, text in left.items() if f"/7/last/{process}" in name]
    assert lasts == [str(7 + AHEAD)], "told once"
    plans = [text for name, text in left.items() if "pause" in name]
    assert len(left) == len(lasts) + len(plans)
    if process:
        assert not plans
    else:
        assert len(plans) > 2
        assert {*plans} == {str(round(LOOK_SECONDS / 0.1))}
        assert most_plans == 2, "what all have read is removed"


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
