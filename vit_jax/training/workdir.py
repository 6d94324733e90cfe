"""A run's directory: whether it can be written, and whether what it holds is the same run."""

import json
import logging
import os
import uuid
from importlib import metadata

import jax
import numpy as np
from etils import epath
from ml_collections import ConfigDict
from orbax.checkpoint.utils import checkpoint_steps

import vit_jax
from vit_jax import objectives
from vit_jax.config import EARLIER, default_config, flatten, lookup, recorded_values
from vit_jax.devices import distributed
from vit_jax.errors import CheckpointError
from vit_jax.model_file import as_tuple
from vit_jax.storage import expand, expand_source, is_remote, write_json

logger = logging.getLogger(__name__)

# A run is what these keys say; with another value it cannot be the one that was interrupted.
IDENTITY = (
    "model.",
    "batch_size",
    "seed",
    "optimizer.name",
    "optimizer.freeze",
    "objective.name",
    "data.source",
    "data.data_dir",
    "data.train_split",
    "data.classes",
    "data.label",
    "data.columns",
    "data.held_out_fraction",
    "data.holding_out",
    "data.fold",
    "data.shuffle",
    "data.exclude",
    "data.max_train_examples",
)
# Of these, those that say where the data is, not what it is.
WHEREABOUTS = ("data.source", "data.data_dir", "data.exclude")
# What to do instead of changing a key.
INSTEAD = {
    "batch_size": "split a batch that does not fit with --config.optimizer.accumulation_steps",
} | dict.fromkeys(
    WHEREABOUTS,
    "the data there has other names or labels, or the run was recorded before they were compared; "
    "to go on with it all the same, add --config.data.allow_changes=True",
)
PATH_KEYS = {
    "init": expand,
    "data.source": expand_source,
    "data.data_dir": expand,
    "data.index_dir": expand,
    "data.exclude": expand,
}
IDENTITY_EXCEPTIONS = ("model.dtype", "model.remat", "model.scan_unroll")  # Same mathematics.
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


def expand_paths(config: ConfigDict) -> ConfigDict:
    """The config with `~` and environment variables replaced in every key that is a path."""
    config = config.copy_and_resolve_references()
    for key, expanded in PATH_KEYS.items():
        *parents, last = key.split(".")
        section = lookup(config, ".".join(parents)) if parents else config
        section[last] = expanded(section[last])
    return config


def as_recorded(config: ConfigDict, directory: str | os.PathLike[str]) -> ConfigDict:
    """The config, with what a run of an earlier version in the directory did and keys now choose.

    And with the run's model, where the config does not name one.
    """
    path = epath.Path(directory) / "config.json"
    try:
        recorded = flatten(json.loads(path.read_text())["config"]) if path.exists() else EARLIER
    except (ValueError, KeyError, TypeError, AttributeError, OSError):  # Told by `record_config`.
        return config
    missing = {key: value for key, value in EARLIER.items() if key not in recorded}
    config = config.copy_and_resolve_references()
    config.update_from_flattened_dict(missing)
    if config.model.name is None:  # Of the weights that it started from, which may be gone.
        unset = [key for key, value in config.model.items() if value is None]
        config.model.update({key: as_tuple(recorded.get(f"model.{key}")) for key in unset})
    for key, value in missing.items():
        logger.info("config.%s=%r, as in the version that %s was started with.", key, value, path)
    return config


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


def has_checkpoints(directory: str | os.PathLike[str]) -> bool:
    """Whether a run has saved its state there, so that starting it again resumes it."""
    path = epath.Path(directory) / "checkpoints"
    return path.exists() and bool(checkpoint_steps(path))


def index_directory(directory: str | os.PathLike[str]) -> str:
    """The default directory of the data's indices; "", none, for a URL."""
    path = os.fspath(directory)
    return "" if is_remote(path) else os.path.join(path, "index")


def enable_compilation_cache(directory: epath.Path) -> None:
    """Keeps compiled programs in the workdir, unless JAX is told another directory."""
    if not jax.config.jax_compilation_cache_dir:  # type: ignore[attr-defined]
        jax.config.update("jax_compilation_cache_dir", str(directory / "compilation_cache"))


def read_record(path: epath.Path) -> dict:
    """The content of a run's `config.json`; raises CheckpointError if it is damaged."""
    try:
        record = json.loads(path.read_text())
        return {**record, "config": dict(record["config"])}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error!r}): rename it to resume without comparing configs."
        ) from error


def record_config(
    directory: epath.Path,
    config: ConfigDict,
    num_train_examples: int,
    data_digest: str,
    *,
    resuming: bool,
) -> None:
    """Writes `config.json`: the resolved config, the data's size and digest, packages' versions.

    When a run is resumed, differences from the config and the data it had are logged; raises
    CheckpointError for one that would make it another run. The same data may lie elsewhere.
    """
    path = directory / "config.json"
    current = as_json(config)
    if resuming and path.exists():
        record = read_record(path)
        size, digest = record.get("num_train_examples"), record.get("data_digest")
        moved = digest == data_digest or config.data.allow_changes
        check_same_run(directory, record["config"], current, moved=moved)
        if size not in (None, num_train_examples):
            logger.warning(
                "The data had %s training examples before this resume and has %s now: from here on "
                "their order is another one.",
                f"{size:,}",
                f"{num_train_examples:,}",
            )
        elif digest not in (None, data_digest):
            logger.warning(
                "The names or labels of the training examples are others than before this resume."
            )
    distributed.gather(0)  # All have read the file before it changes.
    if jax.process_index() == 0:
        record = {"config": current, "num_train_examples": num_train_examples}
        record |= {"data_digest": data_digest, "versions": package_versions()}
        write_json(path, record)


def as_json(config: ConfigDict) -> dict:
    """The config through JSON and back, so that pairs equal the lists they are stored as.

    What is None of the objective's options is their default.
    """
    content = json.loads(config.to_json_best_effort())
    return {**content, "objective": objectives.resolved(config.objective)}


def check_same_run(directory: epath.Path, previous: dict, current: dict, *, moved: bool) -> None:
    """Compares two configs as `record_config` describes; `moved`: the data may lie elsewhere."""
    # A key that an older version did not know had what is now its default.
    recorded = recorded_values(previous)
    for key in PATH_KEYS.keys() & recorded.keys():  # As they were given, in earlier versions.
        recorded[key] = PATH_KEYS[key](recorded[key])
    before = flatten(as_json(default_config())) | recorded
    after = flatten(current)
    refused = {}
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old == new:
            continue
        allowed = key in IDENTITY_EXCEPTIONS or (moved and key in WHEREABOUTS)
        if key.startswith(IDENTITY) and not allowed:
            refused[key] = f"config.{key}={old!r}, not {new!r}"
        else:
            logger.warning("config.%s was %r before this resume and is %r now.", key, old, new)
    if refused:
        ways = [
            "resume it with the config it was started with",
            *dict.fromkeys(INSTEAD[key] for key in refused if key in INSTEAD),
            f"or start from its weights in a new --workdir with --config.init={directory}",
        ]
        raise CheckpointError(
            f"{directory} holds a run with {'; '.join(refused.values())}: {'; '.join(ways)}."
        )


def package_versions() -> dict[str, str]:
    """Versions of what the numbers depend on, and the kind of device."""
    versions = {package: metadata.version(package) for package in PACKAGES}
    return {"vit_jax": vit_jax.__version__, **versions, "device": jax.devices()[0].device_kind}
