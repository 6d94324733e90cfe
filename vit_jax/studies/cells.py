"""Running a study's cells: each has its workdir, and a file that says what came of it."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
from typing import Any, NamedTuple

import jax

from vit_jax import storage, train
from vit_jax.config_file import load_config
from vit_jax.errors import CommandError, ConfigError, PreemptedError
from vit_jax.records import read_records
from vit_jax.studies.definition import Cell, Study, as_file_name
from vit_jax.training.architecture import OF_THE_RUN
from vit_jax.training.claim import ClaimedError

FILE_NAME = "cell.json"  # In a cell's workdir, once it is over.
METRICS = "metrics.jsonl"
DONE, FAILED, MISSING = "done", "failed", "missing"

logger = logging.getLogger("vit_jax")


class Outcome(NamedTuple):
    """What came of a cell.

    Attributes:
      status: "done", "failed", or "missing": it has not come to its end.
      numbers: of a done one: its run's last record, and those of its tasks.
      reason: of a failed one.
      records: all of a done one's run.
    """

    status: str
    numbers: dict[str, float] = {}  # noqa: RUF012  Nobody adds to it.
    reason: str = ""
    records: tuple[dict[str, float], ...] = ()


def outcome_of(cell: Cell, directory: str) -> Outcome:
    """What came of a cell so far; raises ConfigError if a result is of another definition."""
    folder = storage.join(directory, cell.folder)
    path = storage.join(folder, FILE_NAME)
    if not storage.exists(path):
        return Outcome(MISSING)
    try:
        record = json.loads(storage.read(path))
        before = {*record["overrides"], *config_of(record.get("config", cell.config))}
        records = tuple(read_records(storage.join(folder, METRICS)))
        outcome = Outcome(record["status"], record["numbers"], record["reason"], records)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error!r}): move it away to run the cell.") from None
    changed = sorted(before ^ {*cell.overrides, *config_of(cell.config)})
    if changed and outcome.status == FAILED:
        return Outcome(MISSING)  # There is nothing to lose.
    if changed:
        raise ConfigError(
            f"{path} is of another definition of the study ({', '.join(changed)} differ): name "
            "another --workdir."
        )
    return outcome


def config_of(path: str) -> tuple[str]:
    """FILE[:ARGUMENTS] as a part of a cell's definition, wherever the file lies."""
    return (f"config={os.path.basename(path)}",)


def run_cell(study: Study, cell: Cell, directory: str, stop: threading.Event | None) -> None:
    """Runs a cell, or goes on with it, and writes what came of it.

    A cell that another process is training is left to that one. Raises PreemptedError.
    """
    folder = storage.join(directory, cell.folder)
    try:
        config = load_config(cell.config, cell.overrides)
        numbers = study.run(config, folder, stop)
        for task in study.finetune:
            numbers |= finetuned(study, task, cell, folder, stop)
        for metric in study.all_metrics.values():
            value = numbers.get(metric)  # None: it was no number when the run ended.
            if value is None or not math.isfinite(value):
                raise ConfigError(
                    f"{metric} is no number in the last record, which has {', '.join(numbers)}: name "
                    "one of these as the study's metric."
                )
        outcome = Outcome(DONE, numbers)
    except PreemptedError:
        raise
    except ClaimedError as error:
        logger.info("%s", error)
        return
    except (CommandError, jax.errors.JaxRuntimeError) as error:  # Diverged, out of memory, ...
        logger.error("%s failed: %s", cell.folder, error)
        outcome = Outcome(FAILED, reason=str(error))
    content: dict[str, Any] = {"config": cell.config, "overrides": cell.overrides}
    content |= {"status": outcome.status, "numbers": outcome.numbers, "reason": outcome.reason}
    storage.write_json(storage.join(folder, FILE_NAME), content)
    jax.clear_caches()  # The next cell has other shapes: programs of all would fill the memory.


def finetuned(
    study: Study, task: str, cell: Cell, folder: str, stop: threading.Event | None
) -> dict[str, float]:
    """Fine-tunes a trained cell's model on a task; its last record, each name behind the task's."""
    recipe, *overrides = study.finetune[task]
    config = load_config(recipe, (*overrides, f"init={folder}", f"seed={cell.seed}"))
    for option in {*config.model} - {"image_size", *OF_THE_RUN}:
        config.model[option] = None  # The architecture is the trained model's.
    record = train.run(config, storage.join(folder, as_file_name(task)), stop=stop)
    return {f"{task}/{name}": value for name, value in record.items()}
