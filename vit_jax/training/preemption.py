"""Stopping a run from outside without losing work.

A process on its own stops after the step during which the signal came. Of several, one signal to
any of them stops all after the same step: JAX's preemption service, which handles SIGTERM from
`jax.distributed.initialize` on, tells the others and agrees on the step, with no wait in between.
"""

import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jax
from jax.experimental import multihost_utils

logger = logging.getLogger(__name__)

_questions = itertools.count()  # Of this process; grows over the runs of a sweep, unlike steps.


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Turns the first SIGTERM or SIGINT into an event; a second one ends the process at once.

    The second one's exit code is 128 + its number. Only a program's main thread may handle signals;
    elsewhere the event is never set. One of several processes leaves SIGTERM to JAX, and turns
    SIGINT into SIGTERM.
    """
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return
    together = jax.distributed.is_initialized() and jax.process_count() > 1
    signals = (signal.SIGINT,) if together else (signal.SIGTERM, signal.SIGINT)

    def watch() -> None:
        while number := os.read(reader, 1):
            received = signal.Signals(number[0])
            if received not in signals:
                continue
            if event.is_set():
                logger.warning("%s again: ending at once.", received.name)
                logging.shutdown()
                os._exit(128 + received)
            logger.warning("%s: saving, then stopping.", received.name)
            event.set()
            if together:
                os.kill(os.getpid(), signal.SIGTERM)

    # Python runs handlers between its own instructions only, so not during a long compilation: a
    # thread watches the pipe that every signal's number is written to at once.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous_pipe = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    previous = {number: signal.signal(number, lambda *_: None) for number in signals}
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield event
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_pipe)
        os.close(writer)
        watcher.join()
        os.close(reader)


def stopping_after(stop: threading.Event) -> Callable[[], bool]:
    """The question whether to stop now, for the loop to ask once after each step.

    All processes get the same answer at the same step; none waits for the devices.
    """
    if jax.process_count() == 1:
        return stop.is_set
    return lambda: multihost_utils.reached_preemption_sync_point(next(_questions))
