"""Objectives: what is minimised, one file each.

`config.objective.name` chooses one of `OBJECTIVES`, or imports one as `module:Class`; the section's
other keys are the options of all, None until set. To add one, write a subclass of `base.Objective`
and list it here.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from typing import Any

from ml_collections import ConfigDict

from vit_jax.errors import ConfigError
from vit_jax.network import Network
from vit_jax.objectives.base import Labels, Objective
from vit_jax.objectives.classification import Classification
from vit_jax.objectives.distillation import Distillation
from vit_jax.objectives.losses import LOSSES
from vit_jax.objectives.masked_autoencoder import MaskedAutoencoder
from vit_jax.objectives.masked_patches import MaskedPatches
from vit_jax.objectives.regression import REGRESSION_LOSSES, Regression
from vit_jax.objectives.self_distillation import SelfDistillation

OBJECTIVES: dict[str, type[Objective]] = {
    "classification": Classification,
    "distillation": Distillation,
    "masked_autoencoder": MaskedAutoencoder,
    "masked_patches": MaskedPatches,
    "regression": Regression,
    "self_distillation": SelfDistillation,
}


LOSS_NAMES = (*LOSSES, *REGRESSION_LOSSES)  # That `model.json` may name.


def evaluators_of(loss: str) -> str:
    """The evaluators that a model is measured by where none are named, by the loss of its training."""
    return (Regression if loss in REGRESSION_LOSSES else Classification).EVALUATORS


def register(name: str, objective: type[Objective]) -> None:
    """Makes an objective known by a name, before `default_config()` is called."""
    OBJECTIVES[name] = objective


def find_objective(name: str) -> type[Objective]:
    """The objective of that name, or the class that `module:Class` names.

    Raises ConfigError if there is none.
    """
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    module, colon, attribute = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, OBJECTIVES, n=1, cutoff=0)[0]
        raise ConfigError(
            f"config.objective.name={name!r}: must be one of {', '.join(OBJECTIVES)}, or "
            f"module:Class; the nearest: {near}."
        )
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (Exception, SystemExit) as error:  # Whatever the module does when it is imported.
        raise ConfigError(f"config.objective.name={name!r}: {error!r}.") from error
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise ConfigError(
            f"config.objective.name={name!r} is no vit_jax.objectives.base.Objective."
        )
    return found


def chosen_options(section: ConfigDict) -> Any:
    """The options of `section.name`, an instance of its `Options`: as set, else their defaults.

    Raises ConfigError if they do not fit each other.
    """
    return _with_values(find_objective(section.name).Options, section)


def resolved(section: ConfigDict) -> dict[str, Any]:
    """`config.objective` with the chosen one's defaults instead of None; other keys as they are."""
    return {**section.to_dict(), **dataclasses.asdict(chosen_options(section))}


def make_objective(
    section: ConfigDict, network: Network, labels: Labels, teacher: str = ""
) -> Objective:
    """The objective that `config.objective` asks for; raises ConfigError if it does not fit."""
    return find_objective(section.name)(chosen_options(section), network, labels, teacher)


def unused_options(section: ConfigDict) -> list[str]:
    """Options that are set but are another objective's, dotted."""
    own = dataclasses.fields(find_objective(section.name).Options)
    names = {field.name for field in own} | {"name"}
    return [key for key, value in section.items() if key not in names and _is_set(value)]


def _is_set(value: Any) -> bool:
    return any(map(_is_set, value.values())) if isinstance(value, ConfigDict) else value is not None


def _with_values(options: type, section: ConfigDict) -> Any:
    values = {}
    for field in dataclasses.fields(options):
        value = section.get(field.name)
        if isinstance(value, ConfigDict):
            values[field.name] = _with_values(type(field.default), value)
        elif value is not None:
            values[field.name] = value
    return options(**values)
