"""Experiment trackers that get a run's metrics and pictures too, beside its own files.

Each is asked for by its name in `config.log.writers`, and needs its package. Where it sends things,
and with which account, is its own business: `WANDB_MODE`, `WANDB_API_KEY`, `MLFLOW_TRACKING_URI`, ...
"""

import contextlib
import importlib
import json
import logging
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from vit_jax import storage
from vit_jax.errors import ConfigError

RUNS_FILE = "writers.json"  # In the workdir: the run's identifier with each tracker.
STEP = "step"  # Of the run, among its metrics.

logger = logging.getLogger(__name__)


class Run(NamedTuple):
    """A run as trackers know it."""

    workdir: str
    project: str  # Called experiment by MLflow.
    name: str
    config: dict[str, Any]  # Flat: {"optimizer.name": "adamw", ...}
    identifier: str  # With this tracker; empty: it is new there.


class Writer(Protocol):
    """A tracker, open for one run."""

    identifier: str  # By which the run goes on there after a restart.

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Takes the metrics of a step."""

    def image(self, step: int, name: str, image: np.ndarray) -> None:
        """Takes a picture, uint8 [H, W, C]."""

    def close(self) -> None:
        """Ends when everything has been handed over."""


class Wandb:
    """Weights & Biases.

    After a restart its curves have the steps since the last checkpoint twice: it cannot cut them.
    """

    def __init__(self, run: Run):
        self._wandb = _package("wandb")
        self.identifier = run.identifier or uuid.uuid4().hex
        self._run = self._wandb.init(
            project=run.project,
            name=run.name,
            id=self.identifier,
            resume="allow",
            dir=None if storage.is_remote(run.workdir) else run.workdir,
            config=run.config,
        )
        # Of its own steps it takes rising ones alone.
        self._run.define_metric("*", step_metric=STEP)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """See `Writer`."""
        self._run.log({**values, STEP: step})

    def image(self, step: int, name: str, image: np.ndarray) -> None:
        """See `Writer`."""
        self._run.log({name: self._wandb.Image(image), STEP: step})

    def close(self) -> None:
        """See `Writer`."""
        self._run.finish()


class Mlflow:
    """MLflow: at `MLFLOW_TRACKING_URI`, by default in the workdir's `mlflow.db`."""

    def __init__(self, run: Run):
        self._mlflow = _package("mlflow")
        local = not storage.is_remote(run.workdir) and "MLFLOW_TRACKING_URI" not in os.environ
        folder = os.path.abspath(run.workdir)
        uri = f"sqlite:///{folder}/mlflow.db" if local else None
        self._client = client = self._mlflow.MlflowClient(uri)
        found = client.get_experiment_by_name(run.project)
        artifacts = f"{folder}/mlflow" if local else None
        experiment = (
            found.experiment_id if found else client.create_experiment(run.project, artifacts)
        )
        self.identifier = run.identifier
        if not self.identifier:
            self.identifier = client.create_run(experiment, run_name=run.name).info.run_id
            for key, value in run.config.items():
                client.log_param(self.identifier, key, value)
        client.update_run(self.identifier, status="RUNNING")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """See `Writer`."""
        now = int(time.time() * 1000)
        metrics = [self._mlflow.entities.Metric(n, v, now, step) for n, v in values.items()]
        self._client.log_batch(self.identifier, metrics=metrics)

    def image(self, step: int, name: str, image: np.ndarray) -> None:
        """See `Writer`."""
        self._client.log_image(self.identifier, image, key=name.replace("/", "."), step=step)

    def close(self) -> None:
        """See `Writer`."""
        self._client.set_terminated(self.identifier)


WRITERS: dict[str, type[Wandb] | type[Mlflow]] = {"wandb": Wandb, "mlflow": Mlflow}


def open_writers(
    names: Sequence[str], workdir: str | os.PathLike[str], project: str, config: dict[str, Any]
) -> "Writers":
    """Opens the trackers of a run, in the process that writes; the workdir remembers it there.

    Raises ConfigError if one cannot be opened.
    """
    workdir = os.fspath(workdir)
    file = storage.join(workdir, RUNS_FILE)
    known = json.loads(storage.read(file)) if names and storage.exists(file) else {}
    writers: dict[str, Writer] = {}
    for name in dict.fromkeys(names):
        title = os.path.basename(workdir.rstrip("/"))
        run = Run(workdir, project, title, config, known.get(name, ""))
        try:
            writers[name] = WRITERS[name](run)
        except ConfigError:
            raise
        except Exception as error:  # Each has its own.
            reason = (str(error) or repr(error)).splitlines()[0]
            raise ConfigError(f"config.log.writers: {name} cannot be opened ({reason}).") from error
    if writers:
        known |= {name: writer.identifier for name, writer in writers.items()}
        storage.write_json(file, known)
    return Writers(writers)


class Writers:
    """Several trackers as one, of which none can stop the run."""

    def __init__(self, writers: Mapping[str, Writer]):
        self._writers = writers
        self._failed: set[str] = set()

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Hands the metrics of a step to all."""
        for name, writer in self._writers.items():
            with self._told(name):
                writer.scalars(step, values)

    def image(self, step: int, name: str, image: np.ndarray) -> None:
        """Hands a picture, uint8 [H, W, C], to all."""
        for tracker, writer in self._writers.items():
            with self._told(tracker):
                writer.image(step, name, image)

    def close(self) -> None:
        """Closes all."""
        for name, writer in self._writers.items():
            with self._told(name):
                writer.close()

    @contextlib.contextmanager
    def _told(self, name: str) -> Iterator[None]:
        """Warns once of a tracker that takes no more: the run has its own files."""
        try:
            yield
        except Exception as error:  # Each has its own.
            if name not in self._failed:
                self._failed.add(name)
                reason = (str(error) or repr(error)).splitlines()[0]
                logger.warning(
                    "%s misses metrics of this run (%s); its own files do not.", name, reason
                )


def _package(name: str) -> Any:
    """A tracker's package; raises ConfigError if it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"config.log.writers: {name} is not installed ({error}): pip install 'vit_jax[{name}]'."
        ) from error
