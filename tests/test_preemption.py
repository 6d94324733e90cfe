"""Real signals, sent to this process."""

import os
import signal
import threading

import pytest

from vit_jax.preemption import EXIT_CODE, stop_signal


def test_launchers_know_the_exit_code():
    assert EXIT_CODE == os.EX_TEMPFAIL == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_sets_the_event_and_the_second_is_not_held_back(number, caplog):
    second = []
    before = signal.signal(number, lambda *_: second.append(number))
    try:
        with stop_signal() as stop:
            assert not stop.is_set()
            os.kill(os.getpid(), number)
            assert stop.wait(5)
            assert not second
            assert f"{signal.Signals(number).name}: saving, then stopping." in caplog.text
            os.kill(os.getpid(), number)
            assert second == [number]
        os.kill(os.getpid(), number)
        assert second == [number] * 2
    finally:
        signal.signal(number, before)


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


def test_ctrl_c_twice_is_a_keyboard_interrupt():
    with pytest.raises(KeyboardInterrupt), stop_signal() as stop:  # noqa: PT012
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(5)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(5)


def test_other_threads_leave_signals_alone():
    before, found = signal.getsignal(signal.SIGTERM), []

    def run():
        with stop_signal() as stop:
            found.append((signal.getsignal(signal.SIGTERM), stop.is_set()))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [(before, False)]
