"""Stopping a run from outside without losing work."""

import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

EXIT_CODE = 75  # sysexits.h's EX_TEMPFAIL: launchers start the same command again.


class PreemptedError(Exception):
    """A signal asked the run to stop; its state is saved, the same command goes on from there."""


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Turns the first SIGTERM or SIGINT into an event; a second one ends the process at once.

    Only a program's main thread may handle signals; elsewhere the event is never set.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def handle(number: int, _frame: object) -> None:
        event.set()
        restore()
        logger.warning("%s: saving, then stopping.", signal.Signals(number).name)

    signals = (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, handle) for number in signals}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    try:
        yield event
    finally:
        restore()
