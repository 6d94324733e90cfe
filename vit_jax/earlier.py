"""Configs that earlier versions recorded, in terms of this one."""

from __future__ import annotations

import dataclasses
from typing import Any

from vit_jax.config import DEFAULT_MODEL, flatten
from vit_jax.errors import ConfigError
from vit_jax.models import registry

# Keys and sections of earlier versions -> what they are called now.
MOVED = {
    "loss": "objective.loss",
    "label_smoothing": "objective.label_smoothing",
    "mixing": "objective.mixing",
}

# Keys whose default is not what versions before them did -> what those did.
EARLIER = {
    "data.holding_out": "hash",
    "ema_warmup": True,
    "model.attention": "xla",
    "model.dropout_bits": 32,
    "model.matmul_precision": "default",
    "model.remat": "none",
    "model.scan_unroll": 1,
    "optimizer.gradient_dtype": "model",
    "optimizer.sharpness.shares": 1,
}


def recorded_values(content: dict) -> dict[str, Any]:
    """The flat values of a recorded config by their present names, completed by `EARLIER`.

    None, a default that was not recorded, stood for what `EARLIER` has. Of the model's options, only
    those of the recorded architecture count.
    """
    recorded, said = by_present_names(content), said_values(content)
    own = model_keys(said.get("model.name", DEFAULT_MODEL))
    known = {k: v for k, v in EARLIER.items() if k in own or not k.startswith("model.")}
    return {**recorded, **known, **said}


def said_values(content: dict) -> dict[str, Any]:
    """Those values of a recorded config that are not None, by their present names."""
    return {key: value for key, value in by_present_names(content).items() if value is not None}


def model_keys(name: Any) -> set[str]:
    """The keys of an architecture's options; none of one that is unknown, which others tell."""
    try:
        options = registry.find_architecture(name).options_class
    except (ConfigError, TypeError, AttributeError):
        return set()
    return {f"model.{field.name}" for field in dataclasses.fields(options)}


def by_present_names(content: dict) -> dict[str, Any]:
    """The flat values of a recorded config, as it has them, by their present names."""
    return {current_name(key): value for key, value in flatten(content).items()}


def current_name(key: str) -> str:
    """The present name of a key of an earlier version; any other key's own name."""
    for old, new in MOVED.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key
