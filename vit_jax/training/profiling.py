"""A trace of some steps, for TensorBoard's profiler."""

import os
from collections.abc import Callable

import jax
from ml_collections import ConfigDict


class Profiler:
    """Traces the steps that `config.profile` names.

    Files go below `directory/tensorboard/plugins/profile`, where TensorBoard's Profile tab (package
    tensorboard-plugin-profile) finds them.
    """

    def __init__(self, config: ConfigDict, directory: str | os.PathLike[str]):
        self._first = max(config.start_step, 1)
        self._end = self._first + config.num_steps  # The step after the last.
        self._directory = os.path.join(directory, "tensorboard")
        self._running = False

    def before(self, step: int) -> None:
        """Starts the trace if `step` is in it."""
        if self._first <= step < self._end and not self._running:
            jax.profiler.start_trace(self._directory)
            self._running = True

    def after(self, step: int, block: Callable[[], object]) -> None:
        """Ends the trace if `step` was the last in it; `block` waits for the devices."""
        if self._running and step + 1 >= self._end:
            block()
            self.close()

    def close(self) -> None:
        """Ends a trace that the run's end cuts short."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
