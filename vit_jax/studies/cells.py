"""Running a study's cells: each has its workdir, and a file that says what came of it."""

from __future__ import annotations

import json
import logging
import math
import threading
from typing import Any, NamedTuple

import jax

from vit_jax import storage, train
from vit_jax.config_file import load_config
from vit_jax.errors import CommandError, ConfigError, PreemptedError
from vit_jax.studies.definition import Cell, Study
from vit_jax.training.claim import ClaimedError

FILE_NAME = "cell.json"  # In a cell's workdir, once it is over.
DONE, FAILED, MISSING = "done", "failed", "missing"

logger = logging.getLogger("vit_jax")


class Outcome(NamedTuple):
    """What came of a cell.

    Attributes:
      status: "done", "failed", or "missing": it has not come to its end.
      numbers: the last record of a done one.
      reason: of a failed one.
    """

    status: str
    numbers: dict[str, float] = {}  # noqa: RUF012  Nobody adds to it.
    reason: str = ""


def outcome_of(cell: Cell, directory: str) -> Outcome:
    """What came of a cell so far; raises ConfigError if what lies there is of another definition."""
    path = storage.join(directory, cell.folder, FILE_NAME)
    if not storage.exists(path):
        return Outcome(MISSING)
    try:
        record = json.loads(storage.read(path))
        before = tuple(record["overrides"])
        outcome = Outcome(record["status"], record["numbers"], record["reason"])
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is damaged ({error!r}): move it away to run the cell.") from None
    if before != cell.overrides:
        changed = sorted({*before} ^ {*cell.overrides})
        raise ConfigError(
            f"{path} is of another definition of the study ({', '.join(changed)} differ): name "
            "another --workdir."
        )
    return outcome


def run_cell(study: Study, cell: Cell, directory: str, stop: threading.Event | None) -> None:
    """Trains a cell, or goes on with it, and writes what came of it.

    A cell that another process is training is left to that one. Raises PreemptedError.
    """
    folder = storage.join(directory, cell.folder)
    try:
        config = load_config(study.config, cell.overrides)
        record = train.run(config, folder, stop=stop)
        if not math.isfinite(record.get(study.metric, math.nan)):
            raise ConfigError(
                f"{study.metric} is no number in the last record, which has {', '.join(record)}: name "
                "one of these as the study's metric."
            )
        outcome = Outcome(DONE, record)
    except PreemptedError:
        raise
    except ClaimedError as error:
        logger.info("%s", error)
        return
    except (CommandError, jax.errors.JaxRuntimeError) as error:  # Diverged, out of memory, ...
        logger.error("%s failed: %s", cell.folder, error)
        outcome = Outcome(FAILED, reason=str(error))
    content: dict[str, Any] = {"overrides": cell.overrides, **outcome._asdict()}
    storage.write_json(storage.join(folder, FILE_NAME), content)
    jax.clear_caches()  # The next cell has other shapes: programs of all would fill the memory.
