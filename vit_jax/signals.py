"""SIGTERM and Ctrl-C, also while the main thread is in C: importing, compiling, waiting for peers."""

import atexit
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from vit_jax.errors import PreemptedError

STOPPING = (signal.SIGTERM, signal.SIGINT)

_until_the_end = ExitStack()


@contextmanager
def watched(react: Callable[[signal.Signals], object]) -> Iterator[None]:
    """Has a thread call `react` for each of `STOPPING` that comes.

    Only a program's main thread may handle signals; elsewhere this does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def watch() -> None:
        while number := os.read(reader, 1):
            if (received := signal.Signals(number[0])) in STOPPING:
                react(received)

    # Python runs handlers between its own instructions only, so not during a long compilation: a
    # thread watches the pipe that every signal's number is written to at once.
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    previous_pipe = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    previous = {number: signal.signal(number, lambda *_: None) for number in STOPPING}
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_pipe)
        os.close(writer)
        watcher.join()
        os.close(reader)


def nothing_to_save() -> None:
    """From here on a signal ends the process with exit code 75; inside `watched`, as that says.

    For the first line of a command that can be started again, before imports that take seconds.
    """

    def end(received: signal.Signals) -> None:
        os.write(2, f"{received.name}: there was nothing to save.\n".encode())
        logging.shutdown()
        os._exit(PreemptedError.exit_code)

    _until_the_end.enter_context(watched(end))
    # Python's own end stops the thread first, and from 3.13 on would wait for it without end.
    atexit.register(_until_the_end.close)
