"""The content of a weight file, in this package's terms, whatever its format."""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from vit_jax.errors import ConfigError, WeightsError
from vit_jax.model_file import AREA, DEFAULT_LOSS, ModelFile, Preprocessing
from vit_jax.models import registry
from vit_jax.models.base import ModelOptions
from vit_jax.models.positions import (
    LEARNED_1D,
    LEARNED_TABLES,
    PREFIX_PAIRS,
    num_offsets,
)
from vit_jax.models.vit import AVERAGE_POOLING, CLASS_TOKEN_POOLING
from vit_jax.weights import architecture
from vit_jax.weights.architecture import (
    BIAS_OF_LAYERS,
    POSITION_EMBEDDING,
    SHARED_BIAS,
    Family,
    find_grid,
    grid_of,
)
from vit_jax.weights.mapping import Reading, Tensors
from vit_jax.weights.metadata import METADATA, translating
from vit_jax.weights.resampling import BILINEAR_CORNER, GEOMETRIC, is_grid

DEFAULT_IMAGE_SIZE = 224
ROTATED = re.compile(r"blocks/attention/(query|key)(_norm)?/")  # what rotary positions turn
DEFAULT_PIXELS = Preprocessing()
AVERAGED = "the pixels' mean and deviation are averages over the file's channels"
NARROWED = ("layer_scale",)  # Tensors only show whether there is one.
LEFT_OPEN = {"pooling": (CLASS_TOKEN_POOLING, AVERAGE_POOLING)}  # by tensors; others they show
DIVISIBLE = 1024  # By every stem's stride, which is a power of two.


@dataclasses.dataclass(frozen=True)
class Hints:
    """The caller's knowledge about a file; used only where the file does not say it."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    source_grid: tuple[int, int] | None = None  # of the file's position embeddings

    def __post_init__(self) -> None:
        grid = self.source_grid
        if grid is not None and not is_grid(grid):
            raise ConfigError(
                f"source_grid={grid!r}: must be (rows, columns), two positive integers."
            )


@dataclasses.dataclass(frozen=True)
class HeadOrder:
    """How a file orders the features of a head that rotary positions turn in pairs.

    Ours are the rows' first halves of pairs, the columns', and then the second halves alike.
    """

    interleaved: bool  # The halves of a pair are neighbours.
    column_first: bool  # before the rows'

    def indices(self, width: int) -> np.ndarray:
        """For each of our features its index in the file's heads of that width."""
        pairs = np.arange(width // 2)  # in the file's order
        if self.column_first:
            pairs = np.roll(pairs, width // 4)
        halves = (2 * pairs, 2 * pairs + 1) if self.interleaved else (pairs, pairs + width // 2)
        return np.concatenate(halves)

    def apply(self, parameters: Tensors) -> dict[str, np.ndarray]:
        """The parameters with queries and keys in our order."""
        return reordered(parameters, self.indices)

    def invert(self, parameters: Tensors) -> dict[str, np.ndarray]:
        """The parameters with queries and keys in the file's order."""
        return reordered(parameters, lambda width: np.argsort(self.indices(width)))


def reordered(parameters: Tensors, indices: Callable[[int], np.ndarray]) -> dict[str, np.ndarray]:
    """The parameters with the features of queries and keys in another order."""
    return {
        name: array[..., indices(array.shape[-1])] if ROTATED.match(name) else array
        for name, array in parameters.items()
    }


@dataclasses.dataclass(frozen=True)
class Stated:
    """Statements of a file, or of one beside it, besides its tensors."""

    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    preprocessing: Preprocessing | None = None
    class_names: tuple[str, ...] = ()
    name: str = ""  # of the architecture
    loss: str = DEFAULT_LOSS  # it was trained with
    position_resize: str = BILINEAR_CORNER  # the way of the library that the file is of
    bias_resize: str = GEOMETRIC  # the same for a relative position bias
    head_order: HeadOrder | None = None  # of rotary positions
    assumed: tuple[str, ...] = ()  # what had to be assumed to read it
    remarks: tuple[str, ...] = ()  # what this package computes in another way

    @classmethod
    def by(cls, model_file: ModelFile) -> "Stated":
        """The statements of a description that this package wrote."""
        return cls(
            options=model_file.options,
            preprocessing=model_file.preprocessing,
            class_names=model_file.class_names,
            name=model_file.name,
            loss=model_file.loss,
        )


@dataclasses.dataclass(frozen=True)
class Weights:
    """Parameters read from a file, and all that the file says or implies about their model."""

    path: str
    parameters: dict[str, np.ndarray]  # by our names, "blocks/mlp/dense1/kernel"; blocks stacked
    model_file: ModelFile  # the model that they make up; no class names: the file names none
    file_names: Mapping[str, str] = dataclasses.field(default_factory=dict)  # ours -> the file's
    unknown: tuple[str, ...] = ()  # tensors of the file that the model has no parameter for
    assumed: tuple[str, ...] = ()  # what neither the file nor the caller said
    remarks: tuple[str, ...] = ()  # what this package computes in another way
    position_resize: str = BILINEAR_CORNER  # how the library that the file is of would do it
    bias_resize: str = GEOMETRIC  # the same for a relative position bias

    @cached_property
    def options(self) -> ModelOptions:
        """The model's options, complete and checked."""
        with translating(METADATA):
            return registry.model_options(self.model_file.name, **self.model_file.options)

    def check_shapes(self) -> None:
        """Raises WeightsError at the first parameter that has another shape than its model's."""
        with translating(METADATA):  # Sizes may be too large for any array.
            _, shapes = architecture.abstract_parameters(self.model_file.name, self.options)
        for name, array in self.parameters.items():
            if array.shape != (shape := shapes.get(name, array.shape)):
                theirs = self.file_names.get(name, name)
                raise WeightsError(f"{theirs} has shape {array.shape} instead of {shape}.")

    def check_finite(self) -> None:
        """Raises WeightsError at the first parameter with a value that is none in float32."""
        for name, array in self.parameters.items():
            finite = np.isfinite(array)
            if count := array.size - np.count_nonzero(finite):
                first = tuple(map(int, np.unravel_index(np.argmin(finite), array.shape)))
                raise WeightsError(
                    f"{self.file_names.get(name, name)} has {count:,} of {array.size:,} values that "
                    f"are not finite in float32 (the first {array[first]} at {list(first)}): the "
                    "file is damaged, or its training had diverged; take an earlier one."
                )


def make_weights(
    path: str,
    reading: Reading,
    *,
    prefix_choices: tuple[int, ...],
    stated: Stated,
    hints: Hints,
    defaults: Mapping[str, Any],
    pixels: Preprocessing = DEFAULT_PIXELS,
) -> Weights:
    """Weights with their model's options gathered from all that is known.

    Args:
      path: of the file, for messages.
      reading: its parameters.
      prefix_choices: how many rows of its position embeddings may come before the patches'.
      stated: its metadata, which the tensors must agree with.
      hints: the caller's.
      defaults: options that the format implies, for what nobody says.
      pixels: the same of the preprocessing, for images of 224 pixels.

    Raises:
      WeightsError: tensors are missing, or contradict what is stated.
    """
    parameters = with_one_bias(in_our_order(reading.parameters, stated.head_order))
    family = architecture.find_family(reading)
    shown = shown_options(stated, family, parameters)
    exact = {option: value for option, value in shown.items() if option not in NARROWED}
    known = {**shown, **stated.options, **exact}
    if family.patch_axis(parameters) is None:
        defaults = {**defaults, "image_size": DEFAULT_IMAGE_SIZE}
    options, assumed = with_defaults(family, known, defaults, hints)
    if "class_token" in parameters and options["pooling"] != CLASS_TOKEN_POOLING:
        options["class_token"] = True
    options.update(input_options(family, parameters, options, prefix_choices, hints))
    with translating(METADATA):
        complete = family.options_class(**options)
    preprocessing = stated.preprocessing
    if preprocessing is None:
        preprocessing = pixels.at_side(min(complete.image_size))
        assumed.append(describe_pixels(preprocessing))
    own = preprocessing.for_channels(complete.channels)
    model_file = ModelFile(
        name=stated.name or architecture.name_of(complete),
        options=dataclasses.asdict(complete),
        preprocessing=own,
        class_names=stated.class_names,
        loss=stated.loss,
    )
    return Weights(
        path=path,
        parameters=parameters,
        model_file=model_file,
        file_names=reading.file_names,
        unknown=reading.unknown,
        assumed=(*stated.assumed, *assumed),
        remarks=(*stated.remarks, *[AVERAGED] * (own != preprocessing)),
        position_resize=stated.position_resize,
        bias_resize=stated.bias_resize,
    )


def in_our_order(parameters: dict[str, Any], order: HeadOrder | None) -> dict[str, Any]:
    """The parameters with queries' and keys' features as rotary positions take them here."""
    return order.apply(parameters) if order else parameters


def with_one_bias(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters with a relative position bias that all layers share added to each one's own."""
    if not {BIAS_OF_LAYERS, SHARED_BIAS} <= parameters.keys():
        return parameters
    others = {name: array for name, array in parameters.items() if name != SHARED_BIAS}
    return {**others, BIAS_OF_LAYERS: parameters[BIAS_OF_LAYERS] + parameters[SHARED_BIAS]}


def shown_options(stated: Stated, family: Family, parameters: Tensors) -> dict[str, Any]:
    """The options that tensors show, with rotary positions if they are stated: no tensor is theirs.

    Raises WeightsError at the first statement that the tensors contradict.
    """
    shown, claim = family.options(parameters), stated.options.get("positions")
    if shown.get("positions") == LEARNED_1D and claim in LEARNED_TABLES:
        shown["positions"] = claim
    check_stated(stated, family, shown)
    return shown


def describe_pixels(pixels: Preprocessing) -> str:
    """How pictures are brought to the model's size and range, in words."""
    by = pixels.interpolation + (
        "" if pixels.antialias or pixels.interpolation == AREA else ", not antialiased"
    )
    whole = f"whole pictures resized ({by})"
    centre = f"the centres of pictures resized to {pixels.resize} ({by})"
    halves = (pixels.mean, pixels.std) == (DEFAULT_PIXELS.mean, DEFAULT_PIXELS.std)
    moments = "[-1, 1]" if halves else f"mean {pixels.mean} and std {pixels.std}"
    return f"pixels are normalised to {moments}, of {whole if pixels.crop == 'resize' else centre}"


def with_defaults(
    family: Family, options: Mapping[str, Any], defaults: Mapping[str, Any], hints: Hints
) -> tuple[dict[str, Any], list[str]]:
    """The options with those that nobody stated, and what was assumed for want of a hint."""
    complete, assumed = dict(options), []
    for option, default in defaults.items():
        if option in options or option not in family.option_names:
            continue
        hint = hints.options.get(option)
        usable = option in hints.options and hint in LEFT_OPEN.get(option, (hint,))
        complete[option] = hint if usable else default
        if not usable:
            assumed.append(f"{option}={default!r}")
    return complete, assumed


def check_stated(stated: Stated, family: Family, shown: Mapping[str, Any]) -> None:
    """Raises WeightsError at the first statement that the tensors contradict."""
    if stated.name and (
        registry.find_architecture(stated.name).options_class is not family.options_class
    ):
        raise WeightsError(
            f"its metadata describes a {stated.name}, but its tensors are a {family.name}'s."
        )
    for option, claim in stated.options.items():
        if option not in family.option_names:
            raise WeightsError(
                f"its metadata says {option}={claim!r}, which a {family.name} does not have."
            )
        value = shown.get(option, claim)
        if option in NARROWED or claim == value or (claim, claim) == value:
            continue  # A pair may be stated as one number.
        raise WeightsError(f"its metadata says {option}={claim!r}, but its tensors have {value!r}.")
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
    """The options that a parameter's length implies: the image's size, and the table's layout.

    None where no parameter depends on the size.
    """
    if (axis := family.patch_axis(parameters)) is None:
        return {}
    hinted = {**options, "image_size": hints.options.get("image_size")}
    tokens = ("class_token", "distillation_token", "registers")
    has_prefix = any(token in parameters for token in tokens)
    prefix, grid = find_grid(
        architecture.axis_length(parameters, axis.name, axis.axis),
        (PREFIX_PAIRS * has_prefix,) if axis.entries is num_offsets else prefix_choices,
        source_grid=hints.source_grid,
        stated=grid_of(family.options_class, options),
        hinted=grid_of(family.options_class, hinted),
        entries=axis.entries,
    )
    size = size_of(family.options_class, grid, options, hinted)
    if axis.name != POSITION_EMBEDDING:
        return {"image_size": size}
    num_prefix = sum(architecture.axis_length(parameters, token, 1) for token in tokens)
    stated_rows = options.get("prefix_positions", True)  # of no tokens: says nothing
    return {
        "image_size": size,
        "prefix_positions": prefix == num_prefix if num_prefix else stated_rows,
    }


def size_of(
    options_class: type, grid: tuple[int, int], *known: Mapping[str, Any]
) -> tuple[int, int]:
    """The image size that has the grid: one of the known options', else the grid's own pixels."""
    for options in known:
        if grid_of(options_class, options) == grid:
            return options["image_size"]
    any_size = tuple(side * DIVISIBLE for side in known[0]["patch_size"])
    with translating(METADATA):
        any_grid = options_class(**{**known[0], "image_size": any_size}).grid
    rows, columns = (size // parts for size, parts in zip(any_size, any_grid, strict=True))
    return grid[0] * rows, grid[1] * columns


def without(tensors: Tensors, unused: re.Pattern) -> tuple[dict[str, np.ndarray], list[str]]:
    """The tensors that inference uses, and the names of the others."""
    kept = {name: array for name, array in tensors.items() if not unused.fullmatch(name)}
    return kept, [name for name in tensors if name not in kept]


def unused_remarks(names: Sequence[str]) -> tuple[str, ...]:
    """The line that says which tensors of a file are left aside."""
    if not names:
        return ()
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return (f"{', '.join(names[:3])}{more} skipped: inference does not use them",)


def fold_class_position(tensors: dict[str, np.ndarray], token: str, positions: str) -> None:
    """Adds the class token's row of positions to the token, where registers have no such rows."""
    tensors[token] = tensors[token] + tensors[positions][:, :1]
    tensors[positions] = tensors[positions][:, 1:]
