"""When a run is not worth its remaining updates: evaluations in a row that bring nothing better."""

import logging
import math
import os
from collections.abc import Mapping

from vit_jax import storage
from vit_jax.training.metrics_files import read_records

logger = logging.getLogger(__name__)


class Patience:
    """Counts the evaluations since the one with the best metric; the records tell those before.

    So a run that is resumed stops where it would have stopped anyway.
    """

    def __init__(self, metric: str, stop_after: int):
        """Starts with no evaluation.

        Args:
          metric: as `Evaluation.best_metric`.
          stop_after: `config.stop_after`, in evaluations; 0: never.
        """
        self._name = metric.removeprefix("-")
        self._sign = -1 if metric.startswith("-") else 1
        self._stop_after = stop_after
        self._best, self._best_step, self._since = -math.inf, 0, 0

    def see(self, step: int, numbers: Mapping[str, float | None]) -> None:
        """Takes the results after update `step`; those without the metric do not count."""
        if self._name not in numbers:
            return
        value = numbers[self._name]
        score = -math.inf if value is None else self._sign * value  # None: it was not finite.
        self._since += 1
        if score > self._best:
            self._best, self._best_step, self._since = score, step, 0
        if self.over:
            logger.info(
                "%s has not been better since update %s: the run ends after update %s, for "
                "config.stop_after=%d.",
                self._name,
                *(f"{self._best_step:,}", f"{step:,}", self._stop_after),
            )

    @property
    def over(self) -> bool:
        """Whether to end the run."""
        return 0 < self._stop_after <= self._since


def open_patience(
    directory: str | os.PathLike[str], metric: str, stop_after: int, start_step: int
) -> Patience:
    """That of the run in a workdir, after `start_step` updates."""
    patience = Patience(metric, stop_after)
    if stop_after and start_step:
        path = storage.join(os.fspath(directory), "metrics.jsonl")
        for _, record in read_records(path):
            if record["step"] <= start_step:
                patience.see(record["step"], record)
    return patience
