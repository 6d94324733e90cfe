"""Nested dicts of arrays: the form of any tree in a checkpoint, under names instead of classes."""

from typing import Any

import jax

from vit_jax.errors import CheckpointError
from vit_jax.parameters import path_name


def to_nested(tree: Any) -> dict:
    """Any tree of arrays as nested dicts, by the names of its fields and indices."""
    nested: dict = {}
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        *parents, last = path_name(path).split("/")
        branch = nested
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[last] = leaf
    return nested


def from_nested(nested: dict, like: Any) -> Any:
    """The inverse of `to_nested`: the arrays in a tree shaped as `like`."""
    leaves = {path_name(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(nested)}
    return jax.tree_util.tree_map_with_path(lambda path, _: leaves[path_name(path)], like)


def check_same(path: str, saved: Any, wanted: dict) -> None:
    """Raises CheckpointError at the first name or shape that differs."""
    saved_shapes, wanted_shapes = (
        {path_name(p): tuple(leaf.shape) for p, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (saved, wanted)
    )
    for name in sorted(saved_shapes.keys() | wanted_shapes.keys()):
        there, here = saved_shapes.get(name, "absent"), wanted_shapes.get(name, "absent")
        if there != here:
            raise CheckpointError(
                f"{path}: {name} is {there} in the checkpoint and {here} in this run. Use the "
                "config that the run was started with, or start in another workdir and take the "
                "weights over with --config.init=WORKDIR."
            )
