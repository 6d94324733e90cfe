"""`results.jsonl` of a run: what was measured, on what, by which protocol, and the numbers."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from ml_collections import ConfigDict

from vit_jax import storage
from vit_jax.evaluators.base import Evaluator
from vit_jax.records import append_record, read_records, write_records

FILE_NAME = "results.jsonl"


def describe_result(
    evaluator: Evaluator,
    data: ConfigDict,
    numbers: dict[str, float],
    *,
    step: int | None,
    averaged: bool,
    seconds: float,
) -> dict[str, Any]:
    """A record of `results.jsonl`.

    Args:
      evaluator: what measured.
      data: `config.data`, where the evaluator names no source or split.
      numbers: by name, as in "accuracy".
      step: of the checkpoint; None: the model is of no run.
      averaged: whether the averaged parameters were measured.
      seconds: that it took.
    """
    own = not evaluator.source or evaluator.source == data.source
    return {
        "step": step,
        "name": evaluator.prefix,
        "protocol": type(evaluator).__name__,
        "version": evaluator.VERSION,
        "arguments": dataclasses.asdict(evaluator),
        "source": evaluator.source or data.source,
        "split": evaluator.split or (data.eval_split if own else ""),
        "averaged": averaged,
        "seconds": round(seconds, 3),
        "numbers": numbers,
    }


class ResultsFile:
    """A run's results while it trains: those of updates that are done again are cut."""

    def __init__(self, directory: str | os.PathLike[str], start_step: int):
        """`start_step`: the run goes on after so many updates, or begins at 0."""
        self._path = storage.join(os.fspath(directory), FILE_NAME)
        records = read_records(self._path)
        kept = [record for record in records if (record["step"] or 0) <= start_step]
        if kept != records:
            write_records(self._path, kept)

    def append(self, record: dict[str, Any]) -> None:
        """Adds a record, which is on disk when this returns."""
        append_record(self._path, record)
