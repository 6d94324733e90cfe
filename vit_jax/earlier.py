"""Configs that earlier versions recorded, in terms of this one."""

from __future__ import annotations

from typing import Any

from vit_jax.config import flatten

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
    """The flat values of a recorded config by their present names, completed by `EARLIER`."""
    return EARLIER | by_present_names(content)


def by_present_names(content: dict) -> dict[str, Any]:
    """The flat values of a recorded config, as it has them, by their present names."""
    return {current_name(key): value for key, value in flatten(content).items()}


def current_name(key: str) -> str:
    """The present name of a key of an earlier version; any other key's own name."""
    for old, new in MOVED.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key
