"""Resuming: which values a run goes on with, and whether these are still of the same run.

A key that is set on the command line has that value; where it would make another run, it is refused.
Any other key has the value that the workdir recorded, whatever a preset or a default says by now.
Keys of the machine and of the screen alone (`OF_THIS_START`) have the config's.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from collections.abc import Collection
from typing import Any

from etils import epath
from ml_collections import ConfigDict
from orbax.checkpoint.utils import checkpoint_steps

from vit_jax import objectives
from vit_jax.choices import chosen_options
from vit_jax.config import (
    declare_options,
    default_config,
    flatten,
    model_options,
    validate,
)
from vit_jax.config_file import PATH_KEYS
from vit_jax.earlier import EARLIER, recorded_values, said_values
from vit_jax.errors import CheckpointError
from vit_jax.optimizer import OPTIMIZERS
from vit_jax.optimizer.schedules import SCHEDULES

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
    "data.sampling",
    "data.exclude",
    "data.max_train_examples",
)
# Same mathematics.
IDENTITY_EXCEPTIONS = (
    "model.attention",
    "model.dtype",
    "model.matmul_precision",
    "model.remat",
    "model.scan_unroll",
)
# Of the identity, what says where the data is, not what it is.
WHEREABOUTS = ("data.source", "data.data_dir", "data.exclude")
# What to do instead of changing a key.
INSTEAD = {
    "batch_size": "split a batch that does not fit with --config.optimizer.accumulation_steps",
} | dict.fromkeys(
    WHEREABOUTS,
    "the data there has other names or labels, or the run was recorded before they were compared; "
    "to go on with it all the same, add --config.data.allow_changes=True",
)
# Never taken from the record: how this machine works, what is shown, and what is allowed but once.
OF_THIS_START = (
    "note",
    "log_every_steps",
    "watchdog_minutes",
    "profile.",
    "data.allow_changes",
    "data.index_dir",
    "data.num_threads",
    "data.num_workers",
    "data.cache_gib",
)
AUTO = "auto"  # Leaves the choice to the program.


def has_checkpoints(directory: str | os.PathLike[str]) -> bool:
    """Whether a run has saved its state there, so that starting it again resumes it."""
    path = epath.Path(directory) / "checkpoints"
    return path.exists() and bool(checkpoint_steps(path))


def as_recorded(
    config: ConfigDict, directory: str | os.PathLike[str], chosen: Collection[str] | None = None
) -> ConfigDict:
    """The config that the run in a workdir goes on with; one line lists what is not the config's.

    Args:
      config: as its file and the command line have it.
      directory: the workdir; where it has no checkpoint, nothing goes on and the config stays.
      chosen: the keys that the command line sets; None: all were set on purpose that have a value
        other than None, but for those that the run is too old to know.

    Raises:
      CheckpointError: what the workdir recorded is damaged, or is of other data than the config's,
        which the command line does not name.
      ConfigError: what is set does not go with what was recorded.
    """
    if not has_checkpoints(directory):
        return config
    path = epath.Path(directory) / "config.json"
    if not path.exists():
        logger.warning("%s is missing: the run goes on with the config as it is now.", path)
        return config
    before = recorded_config(path)
    recorded, now = flatten(as_json(before)), flatten(as_json(config))
    if chosen is None:
        known = said_values(read_record(path)["config"])
        given = {key for key, value in flatten(config).items() if value is not None}
        chosen = given - (EARLIER.keys() - known.keys())
    names = (key for key in chosen if key.endswith(".name") and recorded[key] != now[key])
    # Options belong to the choice that they were set for: another schedule takes none of them.
    left = (*OF_THIS_START, *(name.removesuffix("name") for name in names))
    taken = {k for k in recorded.keys() - set(chosen) if not k.startswith(left)}
    differing = sorted(
        k for k in taken if recorded[k] != now.get(k) and now.get(k) not in (AUTO, None)
    )
    if "data.source" in differing and now["data.source"]:
        raise CheckpointError(
            f"{directory} is a run on config.data.source={recorded['data.source']!r}, and this config has "
            f"{now['data.source']!r}: name another --workdir. To go on with this run, set "
            "--config.data.source: to the same, or to where its data lies now."
        )
    if differing:
        logger.warning(
            "The run goes on as %s has it, with %s: set what shall change on the command line.",
            path,
            ", ".join(f"config.{k}={recorded[k]!r} (not {now.get(k)!r})" for k in differing),
        )
    declare_options(before, config.objective.name)
    before.update_from_flattened_dict({k: v for k, v in flatten(config).items() if k not in taken})
    validate(before)
    return before


def as_tuples(value: Any) -> Any:
    """JSON's lists, however deep, as the tuples that they are in a config."""
    return tuple(map(as_tuples, value)) if isinstance(value, list | tuple) else value


def read_record(path: epath.Path) -> dict:
    """The content of a run's `config.json`; raises CheckpointError if it is damaged."""
    try:
        record = json.loads(path.read_text())
        return {**record, "config": dict(record["config"])}
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{path} is damaged ({error!r}): rename it to resume without comparing configs."
        ) from error


def recorded_config(path: epath.Path) -> ConfigDict:
    """The config that `config.json` at `path` holds, in terms of this version.

    A key that it lacks has what versions before that key did. Keys that this version lacks are left
    out. Raises CheckpointError if it is damaged, or has a value of another type.
    """
    values = recorded_values(read_record(path)["config"])
    config = default_config()
    declare_options(config, values.get("objective.name", config.objective.name))
    for key in values.keys() & flatten(config).keys():
        try:
            value = PATH_KEYS.get(key, as_tuples)(values[key])  # Paths were kept as given, once.
            config.update_from_flattened_dict({key: value})
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise CheckpointError(
                f"{path} is damaged: {key} cannot be {values[key]!r} ({error}). Rename it to "
                "resume without comparing configs."
            ) from error
    return config


def as_json(config: ConfigDict) -> dict:
    """The config through JSON and back, so that pairs equal the lists they are stored as.

    Options that are None have what they stand for: the default of the objective, the optimiser, the
    schedule, the architecture, and of the objective its evaluators.
    """
    content = json.loads(config.to_json_best_effort())
    model = dataclasses.asdict(model_options(config, config.model.num_classes))
    content["model"] |= {k: v for k, v in model.items() if content["model"][k] is None}
    content["optimizer"] |= chosen_options(config.optimizer, OPTIMIZERS)
    content["schedule"] |= chosen_options(config.schedule, SCHEDULES)
    content["objective"] = objectives.resolved(config.objective)
    objective = objectives.find_objective(config.objective.name)
    content["evaluators"] = config.evaluators or objective.EVALUATORS
    return json.loads(json.dumps(content))


def check_same_run(path: epath.Path, current: dict, *, moved: bool) -> None:
    """Logs how a config differs from the recorded one; the run's identity may not.

    Args:
      path: of the run's `config.json`.
      current: `as_json` of the present config.
      moved: whether the data may lie elsewhere.

    Raises CheckpointError, with all differences, if it is another run.
    """
    before, after = flatten(as_json(recorded_config(path))), flatten(current)
    before = recorded_values(read_record(path)["config"]) | before  # Keys of other versions too.
    refused = {}
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old in (new, AUTO):
            continue
        allowed = key in IDENTITY_EXCEPTIONS or (moved and key in WHEREABOUTS)
        if key.startswith(IDENTITY) and not allowed:
            refused[key] = f"config.{key}={old!r}, not {new!r}"
        else:
            logger.warning("config.%s was %r before this resume and is %r now.", key, old, new)
    if "model.name" in refused:  # All else follows from it.
        refused = {k: v for k, v in refused.items() if k == "model.name" or k[:6] != "model."}
    if refused:
        ways = [
            "resume it with the config it was started with",
            *dict.fromkeys(INSTEAD[key] for key in refused if key in INSTEAD),
            f"or start from its weights in a new --workdir with --config.init={path.parent}",
        ]
        raise CheckpointError(
            f"{path.parent} holds a run with {'; '.join(refused.values())}: {'; '.join(ways)}."
        )
