"""Stopping a run from outside without losing work.

A process on its own stops after the step during which the signal came. Of several, one signal to
any of them, or to all, stops all after the same step: `AHEAD` steps later or, where steps are short,
when they next look for signals, which they do about every `LOOK_SECONDS`.
"""

import itertools
import logging
import os
import signal
import threading
import time
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
LOOK_SECONDS = 0.5  # A look asks process 0 over the network, which may have thousands to answer.

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

    def key_value_delete(self, key: str) -> None:
        """Removes a name."""


class Agreement:
    """The question whether to stop now, which each process asks once after each step.

    All get the same answer at the same step; none waits for another. They look into the store at the
    same steps, at turns that process 0 plans: at each it leaves how many steps lie between the next
    turn and the one after that. These are at least `AHEAD`, so all find at a turn what was left at the
    last. Where they are no more than that, steps are long, and each of them has a look.
    """

    def __init__(
        self,
        stop: threading.Event,
        store: Store,
        process: int,
        run: int,
        now: Callable[[], float] = time.monotonic,
    ):
        """`run` numbers this process's runs, alike in all processes."""
        self._stop, self._store, self._now = stop, store, now
        self._folder = f"vit_jax/stop/{run}/"
        self._process = process
        self._asked = 0
        self._said = False
        self._turns, self._next, self._pause = 0, AHEAD, AHEAD
        self._turned = now()

    def __call__(self) -> bool:
        """Whether this is the last step; to be asked after `StepLog.add`."""
        self._asked += 1
        if self._stop.is_set() and not self._said:
            self._said = True
            self._leave(f"last/{self._process}", self._asked + AHEAD)
        if self._asked < self._next and self._pause > AHEAD:
            return False
        if self._asked == self._next and self._process == 0:
            self._plan()
        names = self._store.key_value_dir_get(self._folder)
        found = {name.removeprefix(self._folder): int(text) for name, text in names}
        if self._asked == self._next:
            self._pause = found.get(f"pause/{self._turns}", AHEAD)  # There is none for the first.
            self._turns += 1
            self._next += self._pause
        return any(step <= self._asked for name, step in found.items() if name.startswith("last/"))

    def _plan(self) -> None:
        """Leaves the steps between the next turn and the one after; removes what all have read."""
        seconds, self._turned = self._now() - self._turned, self._now()
        pause = round(self._pause * LOOK_SECONDS / max(seconds, 1e-6))
        self._leave(f"pause/{self._turns + 1}", min(max(pause, AHEAD), 2 * self._pause))
        if self._turns > 1:
            self._store.key_value_delete(f"{self._folder}pause/{self._turns - 1}")

    def _leave(self, name: str, steps: int) -> None:
        self._store.key_value_set(self._folder + name, str(steps))


def stopping_after(stop: threading.Event) -> Callable[[], bool]:
    """The question whether to stop now, for the loop to ask once after each step."""
    if jax.process_count() == 1:
        return stop.is_set
    return Agreement(stop, global_state.client, jax.process_index(), next(_runs))
