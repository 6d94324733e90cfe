"""A model's options, read off its parameters; what tensors do not show comes from the registry."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from vit_jax.errors import WeightsError
from vit_jax.models import registry
from vit_jax.models.base import as_pair
from vit_jax.models.vit import (
    ATTENTION_POOLING,
    AVERAGE_POOLING,
    CLASS_TOKEN_POOLING,
    ViTOptions,
)
from vit_jax.weights.mapping import Tensors

# Option -> the parameter and the axis whose length it is.
VIT_SIZES = {
    "width": ("embedding/kernel", 3),
    "channels": ("embedding/kernel", 2),
    "depth": ("blocks/norm1/scale", 0),
    "num_heads": ("blocks/attention/query/kernel", 2),
    "mlp_width": ("blocks/mlp/dense1/kernel", 2),
}
VIT_OPTIONAL_SIZES = {  # 0 where there is no such parameter
    "num_classes": ("head/kernel", 1),
    "representation_size": ("pre_logits/kernel", 1),
    "num_registers": ("registers", 1),
}
LAYER_SCALE = 1e-5  # Only its presence matters once the parameters are there.


def vit_options(parameters: Tensors) -> dict[str, Any]:
    """The options of a Vision Transformer that its parameters show, all but the image's size.

    Raises WeightsError if a parameter that every Vision Transformer has is missing.
    """
    options = {}
    for option, (name, axis) in VIT_SIZES.items():
        if name not in parameters:
            raise WeightsError(f"no tensor becomes {name}: not a whole Vision Transformer.")
        options[option] = parameters[name].shape[axis]
    for option, (name, axis) in VIT_OPTIONAL_SIZES.items():
        options[option] = parameters[name].shape[axis] if name in parameters else 0
    options["patch_size"] = parameters["embedding/kernel"].shape[:2]
    options["layer_scale"] = LAYER_SCALE if "blocks/layer_scale1" in parameters else 0.0
    options["query_key_norm"] = "blocks/attention/query_norm/scale" in parameters
    if "attention_pooling/probe" in parameters:
        options["pooling"] = ATTENTION_POOLING
    else:
        has_class_token = "class_token" in parameters
        options["pooling"] = CLASS_TOKEN_POOLING if has_class_token else AVERAGE_POOLING
    return options


def num_heads_of_width(width: int) -> int:
    """The head count of the registered Vision Transformer of that width, else WeightsError."""
    for size in registry.VIT_SIZES.values():
        if size["width"] == width:
            return size["num_heads"]
    raise WeightsError(
        f"nothing says how many attention heads a model of width {width} has: give num_heads=."
    )


def find_grid(
    positions: int, image_grid: tuple[int, int] | None, source_grid: tuple[int, int] | None
) -> tuple[int, int]:
    """The grid of a table of `positions` patches: `source_grid`, else a square, else the image's.

    Raises WeightsError if none of them has so many patches.
    """
    side = round(positions**0.5)
    for grid in (source_grid, (side, side), image_grid):
        if grid is not None and grid[0] * grid[1] == positions:
            return grid
    raise WeightsError(
        f"{positions} position embeddings are neither a square nor the image's grid "
        f"{image_grid}: give source_grid=(rows, columns)."
    )


def name_of(options: Mapping[str, Any]) -> str:
    """The registered name with these options, else one of the same family.

    The options are complete: they override all that the name stands for.
    """
    patch_size = as_pair("patch_size", options["patch_size"])[0]
    names = [f"ViT-{size}/{patch_size}" for size in registry.VIT_SIZES]
    complete = ViTOptions(**options)
    for name in names:
        defaults = registry.find_architecture(name).defaults
        if dataclasses.replace(complete, **defaults) == complete:
            return name
    return names[0]
