"""A model's options, read off its parameters; what tensors do not show comes from the registry."""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from flax import nnx
from flax.traverse_util import flatten_dict

from vit_jax.errors import UserError, WeightsError
from vit_jax.models import registry
from vit_jax.models.base import ModelOptions
from vit_jax.models.hybrid import HybridOptions
from vit_jax.models.layers import DENSE_MLP, SWIGLU
from vit_jax.models.mixer import MixerOptions
from vit_jax.models.positions import (
    EVERY_LAYER,
    EVERY_LAYER_SHARED,
    LEARNED_1D,
    NO_BIAS,
    num_offsets,
)
from vit_jax.models.resnet import ResNetOptions
from vit_jax.models.vit import ATTENTION_POOLING, AVERAGE_POOLING, ViTOptions
from vit_jax.weights.mapping import Reading, Tensors, match_name
from vit_jax.weights.metadata import METADATA, translating

POSITION_EMBEDDING = "position_embedding"
SHARED_BIAS = "relative_position_bias"
BIAS_OF_LAYERS = "blocks/relative_position_bias"
TOKEN_MIXING = "blocks/token_mixing/dense1/kernel"
# Option -> the parameter and the axis whose length it is.
VIT_SIZES = {
    "width": ("embedding/kernel", 3),
    "channels": ("embedding/kernel", 2),
    "depth": ("blocks/norm1/scale", 0),
    "num_heads": ("blocks/attention/query/kernel", 2),
    "mlp_width": ("blocks/mlp/dense1/kernel", 2),
}
HYBRID_SIZES = {**VIT_SIZES, "channels": ("stem/conv_root/kernel", 2)}
MIXER_SIZES = {
    "width": ("embedding/kernel", 3),
    "channels": ("embedding/kernel", 2),
    "depth": ("blocks/norm1/scale", 0),
    "token_mlp_width": (TOKEN_MIXING, 2),
    "mlp_width": ("blocks/channel_mixing/dense1/kernel", 2),
}
RESNET_SIZES = {"channels": ("trunk/conv_root/kernel", 2)}
HEAD = ("head/kernel", 1)  # 0 classes without one
OPTIONAL_SIZES = {  # 0 where there is no such parameter
    "num_classes": HEAD,
    "representation_size": ("pre_logits/kernel", 1),
    "num_registers": ("registers", 1),
}
LAYER_SCALE = 1e-5  # Only its presence matters once the parameters are there.
ROOT_WIDTH = 64  # of a ResNet of width factor 1


def read_sizes(parameters: Tensors, sizes: Mapping[str, tuple[str, int]]) -> dict[str, int]:
    """Options that are the lengths of axes; raises WeightsError if a parameter is missing."""
    for name, _ in sizes.values():
        if name not in parameters:
            raise WeightsError(f"no tensor in it becomes {name}: it is not a whole model.")
    return {option: axis_length(parameters, *axis) for option, axis in sizes.items()}


def axis_length(parameters: Tensors, name: str, axis: int) -> int:
    """The length of a parameter's axis, 0 without the parameter."""
    if name not in parameters:
        return 0
    shape = parameters[name].shape
    if len(shape) <= axis:
        raise WeightsError(f"its {name} has shape {shape}: too few axes.")
    return shape[axis]


def vit_options(parameters: Tensors, sizes: Mapping = VIT_SIZES) -> dict[str, Any]:
    """The options that the parameters of a Vision Transformer show: all but the image's size.

    Nor the pooling where there is a class token, which need not be what is pooled.
    """
    options: dict[str, Any] = read_sizes(parameters, sizes)
    for option, axis in OPTIONAL_SIZES.items():
        options[option] = axis_length(parameters, *axis)
    options["patch_size"] = parameters["embedding/kernel"].shape[:2]
    options["layer_scale"] = LAYER_SCALE if "blocks/layer_scale1" in parameters else 0.0
    options["query_key_norm"] = "blocks/attention/query_norm/scale" in parameters
    options["qkv_bias"] = "blocks/attention/query/bias" in parameters
    options["mlp"] = SWIGLU if "blocks/mlp/gate/kernel" in parameters else DENSE_MLP
    options["attention_norm"] = "blocks/attention/norm/scale" in parameters
    options["mlp_norm"] = "blocks/mlp/norm/scale" in parameters
    options["pre_norm"] = "pre_norm/scale" in parameters
    options["final_norm"] = "norm/scale" in parameters
    if "attention_pooling/probe" in parameters:
        options["pooling"] = ATTENTION_POOLING
    elif "class_token" not in parameters:
        options["pooling"] = AVERAGE_POOLING
    options["distillation_token"] = "distillation_token" in parameters
    if POSITION_EMBEDDING in parameters:
        options["positions"] = LEARNED_1D
    options["relative_position_bias"] = bias_of(
        BIAS_OF_LAYERS in parameters, SHARED_BIAS in parameters
    )
    return options


def bias_of(each_layer: bool, shared: bool) -> str:
    """`relative_position_bias` for a bias of each layer's own, and one that all of them share."""
    return EVERY_LAYER if each_layer else EVERY_LAYER_SHARED if shared else NO_BIAS


def hybrid_options(parameters: Tensors) -> dict[str, Any]:
    """The options that the parameters of a hybrid show: all but the image's size."""
    return {
        **vit_options(parameters, HYBRID_SIZES),
        "stem_depths": stage_depths(parameters, "stem"),
        "stem_width_factor": parameters["stem/conv_root/kernel"].shape[-1] / ROOT_WIDTH,
    }


def resnet_options(parameters: Tensors) -> dict[str, Any]:
    """The options that the parameters of a BiT ResNet show: all but the image's size."""
    return {
        **read_sizes(parameters, RESNET_SIZES),
        "num_classes": axis_length(parameters, *HEAD),
        "stage_depths": stage_depths(parameters, "trunk"),
        "width_factor": parameters["trunk/conv_root/kernel"].shape[-1] / ROOT_WIDTH,
        "preactivation": "trunk/norm_root/scale" not in parameters,
    }


def mixer_options(parameters: Tensors) -> dict[str, Any]:
    """The options that the parameters of an MLP-Mixer show: all but the image's size."""
    return {
        **read_sizes(parameters, MIXER_SIZES),
        "num_classes": axis_length(parameters, *HEAD),
        "patch_size": parameters["embedding/kernel"].shape[:2],
    }


def stage_depths(parameters: Tensors, trunk: str) -> tuple[int, ...]:
    """The number of units in each stage of a ResNet's trunk."""
    template = f"{trunk}/stage{{stage}}/unit{{unit:02}}/conv1/kernel"
    units = [found for name in parameters if (found := match_name(template, name))]
    stages = range(1, 1 + max((unit["stage"] for unit in units), default=0))
    return tuple(sum(unit["stage"] == stage for unit in units) for stage in stages)


class PatchAxis(NamedTuple):
    """An axis of a parameter whose length shows the grid of patches.

    Attributes:
      name, axis: the parameter's, and which axis.
      entries: rows and columns of a grid -> its entries, without those of other tokens.
    """

    name: str
    axis: int
    entries: Callable[[tuple[int, int]], int] = math.prod


@dataclasses.dataclass(frozen=True)
class Family:
    """How the models of one options class are told from their parameters."""

    options_class: type
    signature: str  # a parameter that the families after it in FAMILIES do not have
    options: Callable[[Tensors], dict[str, Any]]  # those that the parameters show
    patch_axes: tuple[PatchAxis, ...] = ()  # the first that is there shows the grid

    @property
    def name(self) -> str:
        """The kind of model, for messages."""
        return family_name(self.options_class)

    def patch_axis(self, parameters: Tensors) -> PatchAxis | None:
        """The axis that shows the grid; None if no parameter does."""
        return next((axis for axis in self.patch_axes if axis.name in parameters), None)

    @cached_property
    def option_names(self) -> frozenset[str]:
        """The names of all options."""
        return frozenset(field.name for field in dataclasses.fields(self.options_class))


def family_name(options_class: type) -> str:
    """The kind of model that an options class is of, for messages."""
    return options_class.__name__.removesuffix("Options")


POSITIONS = (
    PatchAxis(POSITION_EMBEDDING, 1),
    PatchAxis(BIAS_OF_LAYERS, 1, num_offsets),
    PatchAxis(SHARED_BIAS, 0, num_offsets),
)
FAMILIES = (
    Family(HybridOptions, "stem/conv_root/kernel", hybrid_options, POSITIONS),
    Family(ResNetOptions, "trunk/conv_root/kernel", resnet_options),
    Family(MixerOptions, TOKEN_MIXING, mixer_options, (PatchAxis(TOKEN_MIXING, 1),)),
    Family(ViTOptions, "embedding/kernel", vit_options, POSITIONS),
)


def find_family(reading: Reading) -> Family:
    """The family that the parameters belong to; raises WeightsError if there is none."""
    for family in FAMILIES:
        if family.signature in reading.parameters:
            return family
    raise WeightsError(
        f"of its {len(reading.parameters) + len(reading.unknown)} tensors none is a patch embedding "
        f"or a ResNet's root, by a name that this package knows"
        + (f"; the first unknown name: {reading.unknown[0]!r}." if reading.unknown else ".")
    )


def check_heads(num_heads: Any, width: int) -> None:
    """Raises WeightsError unless a model of that width can have so many attention heads."""
    if type(num_heads) is not int or num_heads < 1 or width % num_heads:
        raise WeightsError(f"its width {width} is no multiple of num_heads={num_heads!r}.")


def num_heads_of_width(width: int) -> int:
    """The head count of the registered Vision Transformer of that width, else WeightsError."""
    for size in registry.VIT_SIZES.values():
        if size["width"] == width:
            return size["num_heads"]
    raise WeightsError(
        f"nothing says how many attention heads a model of width {width} has: give num_heads=."
    )


def registered_name(options: ModelOptions) -> str | None:
    """The name that stands for complete options, but for the input's size and the like."""
    names = family_names(type(options))
    if type(options) is ViTOptions:
        names += [f"ViT-{size}/{options.patch_size[0]}" for size in registry.VIT_SIZES]
    for name in names:
        defaults = registry.find_architecture(name).defaults
        if all(getattr(options, key) in (value, (value, value)) for key, value in defaults.items()):
            return name
    return None


def name_of(options: ModelOptions) -> str:
    """A name to build complete options under; any of their family, if no one has them all."""
    return registered_name(options) or family_names(type(options))[0]


def family_names(options_class: type) -> list[str]:
    """The registered names of one family."""
    return [
        name
        for name in registry.list_models()
        if registry.find_architecture(name).options_class is options_class
    ]


def find_grid(
    length: int,
    prefix_choices: Sequence[int],
    *,
    source_grid: tuple[int, int] | None,
    stated: tuple[int, int] | None,
    hinted: tuple[int, int] | None,
    entries: Callable[[tuple[int, int]], int] = math.prod,
) -> tuple[int, tuple[int, int]]:
    """How a table of positions is laid out.

    Args:
      length: its number of rows.
      prefix_choices: how many of them may come before the patches'.
      source_grid: its (rows, columns), from the caller.
      stated: the same, from the file's metadata.
      hinted: those of the image size that the caller wants, which may be another.
      entries: as of a `PatchAxis`.

    Returns:
      The rows before the patches', those that leave a known grid, else a square; and the grid,
      `source_grid`, else the stated one, else a square, else the hinted one.

    Raises:
      WeightsError: none of these fits, or two do.
    """
    known = [source_grid] if source_grid else [grid for grid in (stated, hinted) if grid]
    fitting = [
        prefix for grid in known for prefix in prefix_choices if entries(grid) == length - prefix
    ][:1]
    if not fitting and not source_grid:
        fitting = [prefix for prefix in prefix_choices if square(length - prefix, entries)]
    if len(fitting) == 1:
        count = length - fitting[0]
        for grid in (source_grid, stated, square(count, entries), hinted):
            if grid and entries(grid) == count:
                return fitting[0], (grid[0], grid[1])
    rows = "position embeddings" if entries is math.prod else "rows of relative positions"
    raise WeightsError(
        f"the grid of its {length} {rows} is not known: give "
        f"source_grid=(rows, columns){f'; {source_grid} does not fit' if source_grid else ''}."
    )


def square(
    count: int, entries: Callable[[tuple[int, int]], int] = math.prod
) -> tuple[int, int] | None:
    """The square grid of so many entries; None if there is none."""
    sides = range(1, math.isqrt(max(count, 0)) + 1)
    return next(((side, side) for side in sides if entries((side, side)) == count), None)


def grid_of(options_class: type, options: Mapping[str, Any]) -> tuple[int, int] | None:
    """Rows and columns of patches; None if the image size is not known, or not divisible."""
    if options.get("image_size") is None:
        return None
    try:
        with translating(METADATA):
            return options_class(**options).grid
    except UserError:
        return None


def abstract_parameters(
    name: str, options: ModelOptions
) -> tuple[nnx.GraphDef, dict[str, tuple[int, ...]]]:
    """A model's structure and the shapes of its parameters by name; nothing is computed."""
    graphdef, nested = registry.abstract_parts(name, options)
    flat = flatten_dict(nested, sep="/")
    return graphdef, {name: tuple(leaf.shape) for name, leaf in flat.items()}
