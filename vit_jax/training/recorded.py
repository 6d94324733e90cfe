"""A run's objective, from what its workdir recorded, for evaluators outside the run."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator

import jax

from vit_jax import objectives, storage
from vit_jax.checkpoint import Checkpoints
from vit_jax.config import declare_options, default_config
from vit_jax.devices import sharding
from vit_jax.earlier import recorded_values
from vit_jax.errors import ConfigError
from vit_jax.evaluators.base import Setting
from vit_jax.network import Network
from vit_jax.objectives.base import Labels, Objective
from vit_jax.objectives.regression import REGRESSION_LOSSES
from vit_jax.parameters import OBJECTIVE

SECTION = "objective."


def with_objective(
    setting: Setting, params: dict, workdir: str, step: int, *, ema: bool
) -> tuple[Setting, dict, dict]:
    """An evaluator's setting, parameters and frozen arrays as they are in the run's own loop.

    Args:
      setting: without an objective.
      params: the model's.
      workdir: the run's.
      step: of the checkpoint that `params` are of.
      ema: whether they are the averaged ones.
    """
    labels = Labels(
        setting.data.class_names,
        setting.data.num_classes,
        numeric=setting.loss in REGRESSION_LOSSES,
    )
    objective = recorded_objective(workdir, setting.network, labels)
    frozen = objective.frozen()
    own: dict = {}
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        if jax.eval_shape(objective.init, jax.random.key(0)):
            saved = checkpoints.restore_item(step, "ema" if ema else "params")
            own = {OBJECTIVE: saved[OBJECTIVE]}
        if jax.eval_shape(objective.state, params | own):
            frozen |= checkpoints.restore_item(step, "objective")
    everywhere = sharding.replicated(setting.network.mesh)
    own, frozen = jax.device_put((own, frozen), everywhere)
    return dataclasses.replace(setting, objective=objective), params | own, frozen


def recorded_objective(workdir: str, network: Network, labels: Labels) -> Objective:
    """The objective that the run in `workdir` had; raises ConfigError if that cannot be told."""
    with _reading(workdir) as recorded:
        config = default_config()
        declare_options(config, recorded.get(f"{SECTION}name", config.objective.name))
        known = [key for key in recorded if key.startswith(SECTION) or key == "init_teacher"]
        config.update_from_flattened_dict({key: recorded[key] for key in known})
    return objectives.make_objective(config.objective, network, labels, config.init_teacher)


def recorded_name(workdir: str) -> str:
    """The name of the objective that the run in `workdir` had; raises as `recorded_objective`."""
    with _reading(workdir) as recorded:
        return recorded[f"{SECTION}name"]


@contextlib.contextmanager
def _reading(workdir: str) -> Iterator[dict]:
    file = storage.join(workdir, "config.json")
    try:
        yield recorded_values(json.loads(storage.read(file))["config"])
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ConfigError(f"{file}: the run's objective cannot be read ({error!r}).") from error
