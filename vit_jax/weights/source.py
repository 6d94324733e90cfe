"""What a weight file holds, in this package's terms, whatever its format."""

import dataclasses
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models import registry
from vit_jax.models.positions import LEARNED_1D
from vit_jax.models.vit import CLASS_TOKEN_POOLING
from vit_jax.weights import architecture
from vit_jax.weights.architecture import Family, find_grid, grid_of
from vit_jax.weights.mapping import Reading, Tensors

DEFAULT_IMAGE_SIZE = 224
POSITION_EMBEDDING = "position_embedding"
NARROWED = ("pooling", "layer_scale")  # Tensors only narrow down what these are.
DIVISIBLE = 1024  # By every stem's stride, which is a power of two.


@dataclasses.dataclass(frozen=True)
class Hints:
    """What the caller knows about a file; used only where the file does not say it."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source_grid: tuple[int, int] | None = None  # of the file's position embeddings


@dataclasses.dataclass(frozen=True)
class Stated:
    """What a file, or one beside it, says besides its tensors."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    class_names: tuple[str, ...] = ()
    assumed: tuple[str, ...] = ()  # what had to be assumed to read it
    remarks: tuple[str, ...] = ()  # what this package computes in another way

    @classmethod
    def by(cls, model_file: ModelFile) -> "Stated":
        """The statements of a description that this package wrote."""
        return cls(model_file.options, model_file.preprocessing, model_file.class_names)


@dataclasses.dataclass(frozen=True)
class Weights:
    """Parameters read from a file, and all that the file says or implies about their model."""

    path: str
    parameters: dict[str, np.ndarray]  # by our names, "blocks/mlp/dense1/kernel"; blocks stacked
    model_file: ModelFile  # the model that they make up; no class names: the file names none
    file_names: Mapping[str, str] = dataclasses.field(default_factory=dict)  # ours -> the file's
    unknown: tuple[str, ...] = ()  # tensors of the file that have no place in the model
    assumed: tuple[str, ...] = ()  # what neither the file nor the caller said
    remarks: tuple[str, ...] = ()  # what this package computes in another way

    @cached_property
    def options(self) -> Any:
        """The model's options, complete and checked."""
        return registry.model_options(self.model_file.name, **self.model_file.options)


def make_weights(
    path: str,
    reading: Reading,
    *,
    prefix_choices: tuple[int, ...],
    stated: Stated,
    hints: Hints,
    defaults: Mapping[str, Any],
) -> Weights:
    """Weights with their model's options gathered from all that is known.

    Args:
      path: of the file, for messages.
      reading: its parameters.
      prefix_choices: how many rows of its position embeddings may come before the patches'.
      stated: its metadata, which the tensors must agree with.
      hints: the caller's.
      defaults: options that the format implies, for what nobody says.

    Raises:
      WeightsError: tensors are missing, or contradict what is stated.
    """
    parameters = reading.parameters
    family = architecture.find_family(reading)
    shown = family.options(parameters)
    check_stated(stated, shown)
    exact = {option: value for option, value in shown.items() if option not in NARROWED}
    options = {**shown, **stated.options, **exact}
    if "class_token" in parameters and options["pooling"] != CLASS_TOKEN_POOLING:
        options["class_token"] = True
    if family.places and family.places[0] in parameters:
        options.update(input_options(family, parameters, options, prefix_choices, hints))
    else:
        defaults = {**defaults, "image_size": DEFAULT_IMAGE_SIZE}
    assumed = list(stated.assumed)
    known = {field.name for field in dataclasses.fields(family.options_class)}
    for option in (defaults.keys() & known) - options.keys():
        options[option] = hints.options.get(option, defaults[option])
        if option not in hints.options:
            assumed.append(f"{option}={options[option]!r}")
    if stated.preprocessing is None:
        assumed.append("pixels are normalised to [-1, 1]")
    complete = family.options_class(**options)
    model_file = ModelFile(
        name=architecture.name_of(complete),
        options=dataclasses.asdict(complete),
        preprocessing=stated.preprocessing or Preprocessing(),
        class_names=stated.class_names,
    )
    return Weights(
        path=path,
        parameters=parameters,
        model_file=model_file,
        file_names=reading.file_names,
        unknown=reading.unknown,
        assumed=tuple(assumed),
        remarks=stated.remarks,
    )


def check_stated(stated: Stated, shown: Mapping[str, Any]) -> None:
    """Raises WeightsError at the first statement that the tensors contradict."""
    for option in (shown.keys() & stated.options.keys()) - set(NARROWED):
        claim, value = stated.options[option], shown[option]
        if claim != value and (claim, claim) != value:  # a pair may be stated as one number
            raise WeightsError(f"its metadata says {option}={claim}, but its tensors have {value}.")
    if stated.class_names and len(stated.class_names) != shown["num_classes"]:
        raise WeightsError(
            f"its metadata names {len(stated.class_names)} classes, but its head has "
            f"{shown['num_classes']}."
        )


def input_options(
    family: Family,
    parameters: Tensors,
    options: Mapping[str, Any],
    prefix_choices: tuple[int, ...],
    hints: Hints,
) -> dict[str, Any]:
    """What a parameter with an entry for each patch implies: the image's size, and its layout."""
    name, axis = family.places
    hinted = {**options, "image_size": hints.options.get("image_size")}
    prefix, grid = find_grid(
        parameters[name].shape[axis],
        prefix_choices,
        source_grid=hints.source_grid,
        stated=grid_of(family.options_class, options),
        hinted=grid_of(family.options_class, hinted),
    )
    size = size_of(family.options_class, grid, options, hinted)
    if name != POSITION_EMBEDDING:
        return {"image_size": size}
    num_prefix = ("class_token" in parameters) + options["num_registers"]
    return {
        "image_size": size,
        "positions": LEARNED_1D,
        "prefix_positions": prefix == num_prefix,
    }


def size_of(
    options_class: type, grid: tuple[int, int], *known: Mapping[str, Any]
) -> tuple[int, int]:
    """The image size that has the grid: one of the known options', else the grid's own pixels."""
    for options in known:
        if grid_of(options_class, options) == grid:
            return options["image_size"]
    any_size = tuple(side * DIVISIBLE for side in known[0]["patch_size"])
    any_grid = grid_of(options_class, {**known[0], "image_size": any_size})
    rows, columns = (size // parts for size, parts in zip(any_size, any_grid, strict=True))
    return grid[0] * rows, grid[1] * columns
