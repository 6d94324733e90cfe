"""Stopping a run from outside without losing work.

A process on its own stops after the step during which the signal came. Of several, one signal to
any of them stops all after the same step: JAX's preemption service, which handles SIGTERM from
`jax.distributed.initialize` on, tells the others and agrees on the step, with no wait in between.
"""

import itertools
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
from jax.experimental import multihost_utils

logger = logging.getLogger(__name__)

EXIT_CODE = 75  # sysexits.h's EX_TEMPFAIL: launchers start the same command again.

_questions = itertools.count()  # Of this process; grows over the runs of a sweep, unlike steps.


class PreemptedError(Exception):
    """A signal asked the run to stop; its state is saved, the same command goes on from there."""


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Turns the first SIGTERM or SIGINT into an event; a second one ends the process at once.

    Only a program's main thread may handle signals; elsewhere the event is never set. Neither is it
    for one of several processes: there SIGTERM stays with JAX, and SIGINT becomes SIGTERM.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    together = jax.distributed.is_initialized() and jax.process_count() > 1

    def handle(number: int, _frame: object) -> None:
        restore()
        if together:
            signal.raise_signal(signal.SIGTERM)
        else:
            event.set()
        logger.warning("%s: saving, then stopping.", signal.Signals(number).name)

    signals = (signal.SIGINT,) if together else (signal.SIGTERM, signal.SIGINT)
    previous = {number: signal.signal(number, handle) for number in signals}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    try:
        yield event
    finally:
        restore()


def stopping_after(stop: threading.Event) -> Callable[[], bool]:
    """The question whether to stop now, for the loop to ask once after each step.

    All processes get the same answer at the same step; none waits for the devices.
    """
    if jax.process_count() == 1:
        return stop.is_set
    return lambda: multihost_utils.reached_preemption_sync_point(next(_questions))
