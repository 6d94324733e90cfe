"""What a weight file holds, in this package's terms, whatever its format."""

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models import registry
from vit_jax.models.base import as_pair
from vit_jax.models.positions import LEARNED_1D, SINCOS_2D
from vit_jax.weights import architecture
from vit_jax.weights.mapping import Reading

DEFAULT_IMAGE_SIZE = 224


@dataclasses.dataclass(frozen=True)
class Hints:
    """What the caller knows about a file; used only where the file does not say it."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source_grid: tuple[int, int] | None = None  # of the file's position embeddings


@dataclasses.dataclass(frozen=True)
class Stated:
    """What a file, or a JSON file beside it, states besides its tensors."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    class_names: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class Weights:
    """Parameters read from a file, and all that the file says or implies about their model."""

    path: str
    parameters: dict[str, np.ndarray]  # by our names, "blocks/mlp/dense1/kernel"; blocks stacked
    model_file: ModelFile  # the model that they make up; no class names: the file names none
    file_names: Mapping[str, str] = dataclasses.field(default_factory=dict)  # ours -> the file's
    unknown: tuple[str, ...] = ()  # tensors of the file that have no place in the model
    assumed: tuple[str, ...] = ()  # what neither the file nor the caller said, as `option=value`

    @cached_property
    def options(self) -> Any:
        """The model's options, complete and checked."""
        return registry.model_options(self.model_file.name, **self.model_file.options)


def vit_weights(
    path: str,
    reading: Reading,
    *,
    prefix_rows: int,
    stated: Stated,
    hints: Hints,
    defaults: Mapping[str, Any],
) -> Weights:
    """A Vision Transformer's weights, with its options gathered from all that is known.

    Args:
      path: of the file, for messages.
      reading: its parameters.
      prefix_rows: rows of its position embeddings that come before the patches'.
      stated: its metadata, which the tensors must agree with.
      hints: the caller's.
      defaults: options that the format implies, for what nobody says.

    Raises:
      WeightsError: tensors are missing, or contradict what is stated.
    """
    shown = architecture.vit_options(reading.parameters)
    check_stated(path, stated, shown)
    options = {**shown, **stated.options}
    assumed = {}
    for option, default in defaults.items():
        if option not in options:
            options[option] = hints.options.get(option, default)
            if option not in hints.options:
                assumed[option] = default
    patch_size = options["patch_size"] = as_pair("patch_size", options["patch_size"])
    table = reading.parameters.get("position_embedding")
    if table is not None:
        options.setdefault("positions", LEARNED_1D)
        num_prefix = ("class_token" in reading.parameters) + shown["num_registers"]
        options["prefix_positions"] = prefix_rows == num_prefix
        size = options.get("image_size", hints.options.get("image_size"))
        image_grid = size and grid_of(size, patch_size)
        grid = architecture.find_grid(table.shape[1] - prefix_rows, image_grid, hints.source_grid)
        options["image_size"] = (grid[0] * patch_size[0], grid[1] * patch_size[1])
    else:
        options.setdefault("positions", SINCOS_2D)
        if "image_size" not in options:
            options["image_size"] = hints.options.get("image_size", DEFAULT_IMAGE_SIZE)
            assumed["image_size"] = options["image_size"]
    if stated.preprocessing is None:
        assumed["preprocessing"] = Preprocessing()
    model_file = ModelFile(
        name=architecture.name_of(options),
        options=options,
        preprocessing=stated.preprocessing or Preprocessing(),
        class_names=tuple(stated.class_names),
    )
    return Weights(
        path=path,
        parameters=reading.parameters,
        model_file=model_file,
        file_names=reading.file_names,
        unknown=reading.unknown,
        assumed=tuple(f"{option}={value!r}" for option, value in assumed.items()),
    )


def check_stated(path: str, stated: Stated, shown: Mapping[str, Any]) -> None:
    """Raises WeightsError at the first statement that the tensors contradict."""
    sizes = (*architecture.VIT_SIZES, *architecture.VIT_OPTIONAL_SIZES)
    for option in sizes:
        if stated.options.get(option, shown[option]) != shown[option]:
            raise WeightsError(
                f"{path}: its metadata says {option}={stated.options[option]}, "
                f"but its tensors have {shown[option]}."
            )
    if stated.class_names and len(stated.class_names) != shown["num_classes"]:
        raise WeightsError(
            f"{path}: its metadata names {len(stated.class_names)} classes, "
            f"but its head has {shown['num_classes']}."
        )


def grid_of(image_size: int | tuple[int, int], patch_size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of whole patches in an image."""
    height, width = as_pair("image_size", image_size)
    return height // patch_size[0], width // patch_size[1]
