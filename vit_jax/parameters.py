"""Parameters by name, and which of them are trained.

Block parameters are stacked with a leading layer axis. Regular expressions see them one layer at a
time, under names such as `blocks/07/mlp/dense1/kernel`, and match as `re.search` does: anywhere in
the name, unless they start with `^`.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

LAYERS = "blocks/"  # Of the model: parameters under it have a leading layer axis.
OBJECTIVE = "objective"  # The subtree of the parameters that an objective brings of its own.
HEAD_NORM = "head_norm"  # The subtree of running statistics, which no gradient moves.
STACKED = re.compile(rf"(?:{OBJECTIVE}/)?{LAYERS}")  # An objective's blocks, as a decoder's, too.


def path_name(path: tuple) -> str:
    """A parameter's name from its path in the tree: "blocks/mlp/dense1/kernel"."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def named_leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    """Every leaf of a tree with its name."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield path_name(path), leaf


def is_stacked(name: str) -> bool:
    """Whether a parameter has a leading layer axis, by its name."""
    return STACKED.match(name) is not None


def layer_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """A parameter's names for regular expressions: one for each layer of a stacked one."""
    if not is_stacked(name):
        return [name]
    return [name.replace(LAYERS, f"{LAYERS}{layer:02}/", 1) for layer in range(shape[0])]


@dataclasses.dataclass(frozen=True)
class TrainablePart:
    """The trained part of the parameters: whole arrays, and some layers of stacked ones.

    Gradients are taken of this part only, and the optimiser knows no other.
    """

    layers: dict[str, np.ndarray | None]  # Name -> indices of the trained layers; None: all of it.

    def prune(self, tree: dict) -> dict:
        """A tree shaped as the parameters, without the arrays that are frozen whole."""
        flat = flatten_dict(tree, sep="/")
        return unflatten_dict({name: flat[name] for name in self.layers}, sep="/")

    def select(self, params: dict) -> dict:
        """The trained part; of a stacked array with frozen layers, the layers that are trained."""
        flat = flatten_dict(params, sep="/")
        for name, layers in self.layers.items():
            if layers is not None:
                flat[name] = flat[name][layers]
        return self.prune(unflatten_dict(flat, sep="/"))

    def insert(self, part: dict, params: dict) -> dict:
        """The parameters with `part`, shaped as by `select`, put back."""
        flat = flatten_dict(params, sep="/")
        for name, array in flatten_dict(part, sep="/").items():
            layers = self.layers[name]
            flat[name] = array if layers is None else flat[name].at[layers].set(array)
        return unflatten_dict(flat, sep="/")
