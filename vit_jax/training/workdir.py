"""A run's directory: whether it can be written, and whether what it holds is the same run."""

import logging
import os
import uuid
from collections.abc import Mapping
from importlib import metadata
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict

import vit_jax
from vit_jax.devices import distributed
from vit_jax.errors import CheckpointError
from vit_jax.storage import is_remote, write_json
from vit_jax.training.resuming import AUTO, as_json, check_same_run, read_record

logger = logging.getLogger(__name__)

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def open_directory(directory: str | os.PathLike[str]) -> epath.Path:
    """Creates the directory if needed.

    Raises CheckpointError if it cannot be written, or if processes see different ones.
    """
    path = epath.Path(directory)
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".write_test_{uuid.uuid4().hex}"  # Of this process, whatever its host.
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise CheckpointError(
            f"--workdir={directory} cannot be written ({error.strerror or error}): name another."
        ) from error
    if jax.process_count() > 1:
        check_shared(path)
    return path


def check_shared(path: epath.Path) -> None:
    """Raises CheckpointError, in every process, unless all see what process 0 writes to `path`."""
    tokens = distributed.gather(np.random.SeedSequence().generate_state(1)[0])
    probe = path / f".shared_test_{tokens[0]}"
    if jax.process_index() == 0:
        probe.write_text("")
    distributed.gather(0)  # It is written.
    seen = distributed.gather(probe.exists())
    if jax.process_index() == 0:
        probe.unlink()
    if not all(seen):
        raise CheckpointError(
            f"--workdir={path} is another directory on process {seen.tolist().index(False)} than on "
            "process 0: name one on a file system that all hosts share."
        )


def check_apart_from_weights(directory: str | os.PathLike[str], init: str) -> None:
    """Raises CheckpointError if a run in `directory` would write over weights.

    Args:
      directory: the workdir, which need not exist.
      init: `config.init`.
    """
    path = epath.Path(directory)
    if init and path.exists() and path.resolve() == epath.Path(init).resolve():
        raise CheckpointError(f"--config.init={init} is --workdir itself: name another workdir.")
    # Exports of this package and of others have a model.json or config.json of their own.
    weights = [] if (path / "checkpoints").exists() else sorted(path.glob("*.safetensors"))
    if weights:
        raise CheckpointError(
            f"--workdir={directory} holds {weights[0].name}, a model whose description this run "
            "would write over: name another."
        )


def index_directory(directory: str | os.PathLike[str]) -> str:
    """The default directory of the data's indices; "", none, for a URL."""
    path = os.fspath(directory)
    return "" if is_remote(path) else os.path.join(path, "index")


def enable_compilation_cache(directory: epath.Path) -> None:
    """Keeps compiled programs in the workdir, unless JAX is told another directory."""
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", str(directory / "compilation_cache"))


class Inputs(NamedTuple):
    """What goes into a run besides its config.

    Attributes:
      num_train_examples: of the data.
      data_digest: of its list, see `vit_jax.data.sources.examples.digest_of`.
      objective_digest: of what the objective read, such as a teacher's weights; "": nothing.
      execution: how the model is computed on the devices at hand.
    """

    num_train_examples: int
    data_digest: str
    objective_digest: str = ""
    execution: Mapping[str, str | int] = MappingProxyType({})


def record_config(
    directory: epath.Path,
    config: ConfigDict,
    inputs: Inputs,
    best_metric: str,
    *,
    resuming: bool,
) -> None:
    """Writes `config.json`: the resolved config, what goes into the run, packages' versions.

    `best_metric` is the one that the config's stands for.

    When a run is resumed, differences from the config and the data it had are logged; raises
    CheckpointError for one that would make it another run. The same data may lie elsewhere.
    """
    size_now, digest_now = inputs.num_train_examples, inputs.data_digest
    path = directory / "config.json"
    current = as_json(config) | {"best_metric": best_metric}
    if resuming and path.exists():
        record = read_record(path)
        size, digest = record.get("num_train_examples"), record.get("data_digest")
        moved = digest == digest_now or config.data.allow_changes
        check_same_run(path, current, moved=moved)
        _check_objective(path, record.get("objective_digest"), inputs.objective_digest)
        _tell_choices(record.get("execution", {}), inputs.execution, current["model"])
        if size not in (None, size_now):
            logger.warning(
                "The data had %s training examples before this resume and has %s now: from here on "
                "their order is another one.",
                f"{size:,}",
                f"{size_now:,}",
            )
        elif digest not in (None, digest_now):
            logger.warning(
                "The names or labels of the training examples are others than before this resume."
            )
    distributed.gather(0)  # All have read the file before it changes.
    if jax.process_index() == 0:
        record = {"config": current, **inputs._asdict(), "versions": package_versions()}
        record["execution"] = dict(inputs.execution)
        write_json(path, record)


def _check_objective(path: epath.Path, before: str | None, now: str) -> None:
    if before not in (None, now):
        raise CheckpointError(
            f"{path} was recorded with another teacher than --config.init_teacher is now: name the "
            "one that the run began with, or begin another run in a new --workdir, with "
            "--config.init."
        )


def _tell_choices(before: Mapping[str, Any], now: Mapping[str, Any], model: Mapping) -> None:
    """Logs what was chosen in another way for these devices, or by an earlier version."""
    for name, value in now.items():
        if model.get(name) == AUTO and before.get(name, value) != value:
            logger.warning(
                "config.model.%s=auto was %r before this resume and is %r now: results differ by "
                "rounding. Set it to go on as before.",
                *(name, before[name], value),
            )


def package_versions() -> dict[str, str]:
    """Versions of what the numbers depend on, and the kind of device."""
    versions = {package: metadata.version(package) for package in PACKAGES}
    return {"vit_jax": vit_jax.__version__, **versions, "device": jax.devices()[0].device_kind}
