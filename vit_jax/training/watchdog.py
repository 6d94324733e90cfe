"""The end of a run that hangs: a dead file server, a lost network, a deadlock in a library."""

import contextlib
import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

from vit_jax.errors import PreemptedError
from vit_jax.training.clock import Clock

LOOK_SECONDS = 10.0
PARTING_SECONDS = 5.0  # Other processes hang with this one, and have stacks to show before it ends.

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def watching(
    minutes: float, clock: Clock, *, end: Callable[[int], object] = os._exit
) -> Iterator[None]:
    """Ends the process when the clock's kind of time has not changed for so long inside.

    It changes twice a step, so a step that never ends is seen, and so is an evaluation or a save.
    The Python stacks of all threads go to standard error first. Each process watches itself.

    Args:
      minutes: `config.watchdog_minutes`; 0: does nothing.
      clock: of the run.
      end: ends the process with an exit code.
    """
    if not minutes:
        yield
        return
    done = threading.Event()
    begin = time.monotonic()

    def watch() -> None:
        seconds = 60 * minutes
        while not done.wait(min(LOOK_SECONDS, seconds / 4)):
            if time.monotonic() - max(begin, clock.changed) > seconds:
                bark(minutes)
                end(PreemptedError.exit_code)
                return

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def bark(minutes: float) -> None:
    """Says that the run hangs, and where."""
    logger.error(
        "No step, evaluation or save ended within config.watchdog_minutes=%g: the run hangs where the "
        "stacks below say. It ends with exit code %d; the same command goes on from the last "
        "checkpoint.",
        minutes,
        PreemptedError.exit_code,
    )
    faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
    logging.shutdown()
    time.sleep(PARTING_SECONDS)
