"""Stopping a run from outside without losing work.

A process on its own stops after the step during which the signal came. Of several, one signal to
any of them, or to all, stops all after the same step, at most `AHEAD` steps later.
"""

import itertools
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import jax
from jax._src.distributed import global_state  # Its key-value store has no public name.

from vit_jax.signals import watched
from vit_jax.training.clock import STEPS_IN_FLIGHT

# No process dispatches step s + `AHEAD` before all have dispatched s + 1, whose metrics it reads
# first: so all hear in time of what one of them said after step s.
AHEAD = STEPS_IN_FLIGHT + 1

logger = logging.getLogger(__name__)

_runs = itertools.count()  # Of this process: a sweep has several.


@contextmanager
def stop_signal() -> Iterator[threading.Event]:
    """Turns the first SIGTERM or SIGINT into an event; a second one ends the process at once.

    The second one's exit code is 128 + its number. Only a program's main thread may handle signals;
    elsewhere the event is never set.
    """
    event = threading.Event()

    def react(received: signal.Signals) -> None:
        if event.is_set():
            logger.warning("%s again: ending at once.", received.name)
            logging.shutdown()
            os._exit(128 + received)
        logger.warning("%s: saving, then stopping.", received.name)
        event.set()

    with watched(react):
        yield event


class Store(Protocol):
    """The texts that processes leave for each other, as in `jax.distributed`'s own."""

    def key_value_set(self, key: str, value: str) -> None:
        """Adds one under a new name."""

    def key_value_dir_get(self, key: str) -> list[tuple[str, str]]:
        """The names and texts below a name that ends in a slash."""


class Agreement:
    """The question whether to stop now, which each process asks once after each step.

    All get the same answer at the same step; none waits for another.
    """

    def __init__(self, stop: threading.Event, store: Store, process: int, run: int):
        """`run` numbers this process's runs, alike in all processes."""
        self._stop, self._store = stop, store
        self._folder = f"vit_jax/stop/{run}/"
        self._process = process
        self._asked = 0
        self._said = False

    def __call__(self) -> bool:
        """Whether this is the last step; to be asked after `StepLog.add`."""
        self._asked += 1
        if self._stop.is_set() and not self._said:
            self._said = True
            self._store.key_value_set(f"{self._folder}{self._process}", str(self._asked + AHEAD))
        last = [int(text) for _, text in self._store.key_value_dir_get(self._folder)]
        return bool(last) and self._asked >= min(last)


def stopping_after(stop: threading.Event) -> Callable[[], bool]:
    """The question whether to stop now, for the loop to ask once after each step."""
    if jax.process_count() == 1:
        return stop.is_set
    return Agreement(stop, global_state.client, jax.process_index(), next(_runs))
