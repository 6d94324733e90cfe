"""BiT ResNets (arXiv 1912.11370) in both forms: bottlenecks of standardised convolutions, GroupNorm.

Post-activation ("BiT-v1-R50x1", and the stem of the hybrids): each convolution is followed by
its norm and ReLU. Pre-activation ("BiT-R50x1", the form of the BiT paper and its released files):
norm and ReLU precede each convolution, and one more pair follows the last unit.

Parameters, and what they are called in published files (`a`, `b`, `c` stand for `1`, `2`, `3`;
prefix `resnet/` in BiT's own files; hybrids have `stem/` for our `trunk/`, and no final norm):

    ours                                 hybrids, Big Vision v1    Big Vision v2               BiT's own files
    trunk/conv_root/kernel               conv_root/kernel          root_block/conv_root/kernel root_block/standardized_conv2d/kernel
    trunk/norm_root/{scale,bias}         gn_root/{scale,bias}      -                           -
    trunk/stage1/unit01/                 block1/unit1/             block1/unit01/              block1/unit01/
      conv1/kernel                         conv1/kernel              conv1/kernel                a/standardized_conv2d/kernel
      norm1/{scale,bias}                   gn1/{scale,bias}          gn1/{scale,bias}            a/group_norm/{gamma,beta}
      projection/kernel                    conv_proj/kernel          conv_proj/kernel            a/proj/standardized_conv2d/kernel
      norm_projection/{scale,bias}         gn_proj/{scale,bias}      -                           -
    norm/{scale,bias}                    -                         norm-pre-head/{scale,bias}  group_norm/{gamma,beta}
    head/{kernel,bias}                   head/{kernel,bias}        head/{kernel,bias}          head/conv2d/{kernel (1,1,D,K),bias}

Scales and biases are (C); old files store them as (1, 1, 1, C).
"""

import dataclasses
import itertools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from einops import rearrange
from flax import nnx

from vit_jax.errors import ConfigError
from vit_jax.models.base import (
    ATTENTION_WEIGHTS,
    BLOCK_OUTPUTS,
    PATCH_EMBEDDINGS,
    Constrain,
    ImageClassifier,
    ModelOptions,
    mean_pool,
    require_not_negative,
    require_one_of,
)
from vit_jax.models.layers import lecun_normal
from vit_jax.models.remat import call_block

NUM_GROUPS = 32
GROUP_NORM_EPSILONS = {True: 1e-5, False: 1e-6}  # of the references, by `preactivation`
MOST_UNITS = 1000  # of a stage
POOL_PADDINGS = {"zeros": 0.0, "infinity": -jnp.inf}


class UnitShape(NamedTuple):
    """The shapes that define a bottleneck unit."""

    name: str  # "stage1/unit01"
    size: tuple[int, int]  # height and width of the input
    channels: int  # of the input
    width: int  # of the bottleneck; the output has four times as many channels
    stride: int

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        return -(-self.size[0] // self.stride), -(-self.size[1] // self.stride)

    @property
    def out_channels(self) -> int:
        """Channels of the output."""
        return 4 * self.width

    @property
    def projects(self) -> bool:
        """Whether the shortcut is a 1×1 convolution, because the shape changes."""
        return self.stride > 1 or self.channels != self.out_channels


@dataclasses.dataclass(frozen=True, kw_only=True)
class ResNetOptions(ModelOptions):
    """Everything that defines a BiT ResNet; each field is a keyword of `create_model`."""

    stage_depths: tuple[int, ...]  # units of each stage
    width_factor: float = 1.0  # times 64, 128, 256, 512, the widths of the stages
    preactivation: bool = True  # the BiT paper's form; else post-activation, as in the hybrids
    pool_padding: str = "zeros"  # of the pre-activation root; Big Vision's is "infinity" (minus)
    group_norm_epsilon: float = 0.0  # 0: the form's own, 1e-5 with preactivation, else 1e-6
    kernel_epsilon: float = 0.0  # added to kernels' variance; 0: the form's own standardisation

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "stage_depths", tuple(self.stage_depths))
        check_stages(self, "stage_depths", "width_factor")
        require_one_of(self, pool_padding=POOL_PADDINGS)
        require_not_negative(self, "group_norm_epsilon", "kernel_epsilon")

    @property
    def root_width(self) -> int:
        """Channels of the root, and of the first stage's bottlenecks."""
        return int(64 * self.width_factor)

    @property
    def units(self) -> list[UnitShape]:
        """All units, in order; the first of each stage but stage 1 halves the map."""
        units: list[UnitShape] = []
        size, channels = (-(-self.image_size[0] // 4), -(-self.image_size[1] // 4)), self.root_width
        for stage, depth in enumerate(self.stage_depths, 1):
            for index in range(1, depth + 1):
                stride = 2 if stage > 1 and index == 1 else 1
                width = self.root_width * 2 ** (stage - 1)
                name = f"stage{stage}/unit{index:02d}"
                units.append(UnitShape(name, size, channels, width, stride))
                size, channels = units[-1].out_size, units[-1].out_channels
        return units

    @property
    def feature_channels(self) -> int:
        """Channels of the last feature map."""
        return self.units[-1].out_channels if self.units else self.root_width

    def macs(self) -> int:
        """Multiply-accumulates of one image's forward pass; convolutions and head only."""
        return self.trunk_macs() + self.feature_channels * self.num_classes

    def trunk_macs(self) -> int:
        """Multiply-accumulates of the convolutions."""
        height, width = -(-self.image_size[0] // 2), -(-self.image_size[1] // 2)
        root = height * width * 7 * 7 * self.channels * self.root_width
        return root + sum(self.unit_macs(unit) for unit in self.units)

    def unit_macs(self, unit: UnitShape) -> int:
        """Multiply-accumulates of one unit."""
        before, after = unit.size[0] * unit.size[1], unit.out_size[0] * unit.out_size[1]
        projection = unit.channels * unit.out_channels if unit.projects else 0
        per_output = 9 * unit.width**2 + unit.width * unit.out_channels + projection
        return before * unit.channels * unit.width + after * per_output


def check_stages(options: ModelOptions, depths_field: str, factor_field: str) -> None:
    """Raises ConfigError unless stages of these depths and this width can be built."""
    depths, factor = getattr(options, depths_field), getattr(options, factor_field)
    if not all(isinstance(depth, int) and 0 < depth <= MOST_UNITS for depth in depths):
        raise ConfigError(
            f"model.{depths_field}={depths}: must be positive integers up to {MOST_UNITS}, one a stage."
        )
    if not isinstance(factor, int | float) or factor <= 0 or 64 * factor % NUM_GROUPS:
        raise ConfigError(
            f"model.{factor_field}={factor!r}: 64 times it must be a multiple of {NUM_GROUPS}, "
            "the groups of the norms."
        )


class GroupNorm(nnx.Module):
    """Normalises each of 32 groups of channels over an image; statistics in float32.

    Each form computes the variance as its reference does: that of the published BiT files is the
    mean square deviation, Flax's the difference of mean squares.
    """

    def __init__(self, channels: int, options: ResNetOptions, scale: float = 1.0):
        self.scale = nnx.Param(jnp.full(channels, scale))
        self.bias = nnx.Param(jnp.zeros(channels))
        self.preactivation, self.dtype = options.preactivation, options.dtype
        self.epsilon = options.group_norm_epsilon or GROUP_NORM_EPSILONS[options.preactivation]

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, ..., C] -> [B, ..., C]."""
        x = x.astype(jnp.float32)
        groups = rearrange(x, "b ... (g c) -> b g (... c)", g=NUM_GROUPS)
        mean = groups.mean(axis=-1, keepdims=True)
        if self.preactivation:
            variance = jnp.square(groups - mean).mean(axis=-1, keepdims=True)
        else:
            mean_square = jnp.square(groups).mean(axis=-1, keepdims=True)
            variance = jnp.maximum(mean_square - jnp.square(mean), 0)
        variance = variance + self.epsilon

        def per_channel(statistic: jax.Array) -> jax.Array:  # [B, G, 1] -> [B, 1, ..., C]
            repeated = jnp.repeat(statistic[..., 0], x.shape[-1] // NUM_GROUPS, axis=-1)
            return jnp.expand_dims(repeated, range(1, x.ndim - 1))

        # In Flax's order: a ReLU near zero makes gradients sensitive to the last bit.
        scale = per_channel(jax.lax.rsqrt(variance)) * self.scale[...]
        return ((x - per_channel(mean)) * scale + self.bias[...]).astype(self.dtype)


class StandardizedConv(nnx.Module):
    """A convolution without bias whose kernel is standardised at each call (arXiv 1903.10520)."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        options: ResNetOptions,
        rngs: nnx.Rngs,
        stride: int = 1,
    ):
        self.kernel = nnx.Param(lecun_normal(rngs.params(), shape))
        self.stride, self.dtype = stride, options.dtype
        self.preactivation, self.epsilon = options.preactivation, options.kernel_epsilon

    def __call__(self, x: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, ⌈H / stride⌉, ⌈W / stride⌉, D]."""
        kernel = self.kernel[...]
        same = [((size - 1) // 2, (size - 1) // 2) for size in kernel.shape[:2]]
        return jax.lax.conv_general_dilated(
            x.astype(self.dtype),
            standardize(kernel, self.preactivation, self.epsilon).astype(self.dtype),
            window_strides=(self.stride, self.stride),
            padding=same if self.preactivation else "SAME",  # They differ when strided.
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
        )


def standardize(kernel: jax.Array, preactivation: bool, epsilon: float = 0.0) -> jax.Array:
    """A kernel [H, W, C, D] with mean 0 and deviation 1 over H, W and C.

    `epsilon` is added to the variance; 0 stands for what each form's reference adds, which is
    1e-10 with `preactivation`, else 1e-5 to the deviation.
    """
    centred = kernel - kernel.mean(axis=(0, 1, 2), keepdims=True)
    variance = jnp.square(centred).mean(axis=(0, 1, 2), keepdims=True)
    if preactivation or epsilon:
        return centred / jnp.sqrt(variance + (epsilon or 1e-10))
    return centred / (jnp.sqrt(variance) + 1e-5)


class PostActivationUnit(nnx.Module):
    """Convolution, norm and ReLU, three times; the last ReLU comes after the sum."""

    def __init__(self, shape: UnitShape, options: ResNetOptions, rngs: nnx.Rngs):
        width, out = shape.width, shape.out_channels
        self.conv1 = StandardizedConv((1, 1, shape.channels, width), options, rngs)
        self.norm1 = GroupNorm(width, options)
        self.init_middle(shape, options, rngs)
        self.conv3 = StandardizedConv((1, 1, width, out), options, rngs)
        self.norm3 = GroupNorm(out, options, scale=0.0)  # Each unit starts as its shortcut.
        self.projects = shape.projects
        if shape.projects:
            kernel = (1, 1, shape.channels, out)
            self.projection = StandardizedConv(kernel, options, rngs, shape.stride)
            self.norm_projection = GroupNorm(out, options)

    def init_middle(self, shape: UnitShape, options: ResNetOptions, rngs: nnx.Rngs) -> None:
        """Makes the layer that mixes positions, between the two 1×1 convolutions."""
        kernel = (3, 3, shape.width, shape.width)
        self.conv2 = StandardizedConv(kernel, options, rngs, shape.stride)
        self.norm2 = GroupNorm(shape.width, options)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        """[B, H, W, C] -> [B, H', W', 4 · width], and no attention weights."""
        shortcut = self.norm_projection(self.projection(x)) if self.projects else x
        y = jax.nn.relu(self.norm1(self.conv1(x)))
        y = jax.nn.relu(self.norm2(self.conv2(y)))
        return jax.nn.relu(shortcut + self.norm3(self.conv3(y))), None


class PreActivationUnit(nnx.Module):
    """Norm, ReLU and convolution, three times; the projection takes the first ReLU's output."""

    def __init__(self, shape: UnitShape, options: ResNetOptions, rngs: nnx.Rngs):
        width, out = shape.width, shape.out_channels
        self.norm1 = GroupNorm(shape.channels, options)
        self.conv1 = StandardizedConv((1, 1, shape.channels, width), options, rngs)
        self.norm2 = GroupNorm(width, options)
        self.conv2 = StandardizedConv((3, 3, width, width), options, rngs, shape.stride)
        self.norm3 = GroupNorm(width, options)
        self.conv3 = StandardizedConv((1, 1, width, out), options, rngs)
        self.projects = shape.projects
        if shape.projects:
            kernel = (1, 1, shape.channels, out)
            self.projection = StandardizedConv(kernel, options, rngs, shape.stride)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, None]:
        """[B, H, W, C] -> [B, H', W', 4 · width], and no attention weights."""
        y = jax.nn.relu(self.norm1(x))
        shortcut = self.projection(y) if self.projects else x
        y = jax.nn.relu(self.norm2(self.conv1(y)))
        y = jax.nn.relu(self.norm3(self.conv2(y)))
        return shortcut + self.conv3(y), None


def equal_runs(units: list[UnitShape]) -> list[list[UnitShape]]:
    """Consecutive units that differ in name only, together."""
    runs = itertools.groupby(units, key=lambda unit: unit._replace(name=""))
    return [list(run) for _, run in runs]


def init_units(
    shape: UnitShape,
    num: int,
    options: ResNetOptions,
    unit: Callable[..., nnx.Module],
    rngs: nnx.Rngs,
) -> list[nnx.Module]:
    """Units of one shape, drawn together: that compiles faster than one by one."""
    init = nnx.vmap(lambda rngs: unit(shape, options, rngs), axis_size=num)
    graphdef, stacked = nnx.split(init(rngs.split(num)))
    return [
        nnx.merge(graphdef, jax.tree.map(operator.itemgetter(index), stacked))
        for index in range(num)
    ]


class Trunk(nnx.Module):
    """The root (a 7×7 convolution and a max-pool, 4 pixels to 1) and the stages of units."""

    def __init__(self, options: ResNetOptions, unit: Callable[..., nnx.Module], rngs: nnx.Rngs):
        self.options = options
        kernel = (7, 7, options.channels, options.root_width)
        self.conv_root = StandardizedConv(kernel, options, rngs, stride=2)
        if not options.preactivation:
            self.norm_root = GroupNorm(options.root_width, options)
        for stage in range(1, len(options.stage_depths) + 1):
            setattr(self, f"stage{stage}", nnx.Dict())
        for shapes in equal_runs(options.units):
            modules = init_units(shapes[0], len(shapes), options, unit, rngs)
            for shape, module in zip(shapes, modules, strict=True):
                stage_name, name = shape.name.split("/")
                getattr(self, stage_name)[name] = module

    def __call__(self, images: jax.Array, constrain: Constrain) -> tuple[jax.Array, dict[str, Any]]:
        """[B, H, W, C] -> the last feature map, and all intermediates by name."""
        x = root = constrain(self.root(images))
        outputs, weights = [], []
        for shape in self.options.units:
            stage, name = shape.name.split("/")
            x, unit_weights = call_block(getattr(self, stage)[name], x, self.options.remat)
            x = constrain(x)
            outputs.append(x)
            weights.append(unit_weights)
        return x, {PATCH_EMBEDDINGS: root, BLOCK_OUTPUTS: outputs, ATTENTION_WEIGHTS: weights}

    def root(self, images: jax.Array) -> jax.Array:
        """[B, H, W, C] -> [B, ⌈H / 4⌉, ⌈W / 4⌉, root_width]."""
        x = self.conv_root(images)
        if not self.options.preactivation:
            x = jax.nn.relu(self.norm_root(x))
            return nnx.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
        padding = ((0, 0), (1, 1), (1, 1), (0, 0))
        x = jnp.pad(x, padding, constant_values=POOL_PADDINGS[self.options.pool_padding])
        return nnx.max_pool(x, (3, 3), strides=(2, 2), padding="VALID")


class ResNet(ImageClassifier):
    """Images [B, H, W, C] (normalised, float32) -> logits [B, K] float32."""

    options: ResNetOptions

    def __init__(self, options: ResNetOptions, rngs: nnx.Rngs):
        super().__init__(options, options.feature_channels, rngs)
        self.trunk = Trunk(options, self.unit(options), rngs)
        if options.preactivation:
            self.norm = GroupNorm(options.feature_channels, options)

    @staticmethod
    def unit(options: ResNetOptions) -> type[nnx.Module]:
        """The module of a unit."""
        return PreActivationUnit if options.preactivation else PostActivationUnit

    def features(
        self,
        images: jax.Array,
        key: jax.Array | None,
        constrain: Constrain,
        capture: tuple[str, ...],
    ) -> tuple[jax.Array, dict[str, Any]]:
        """See `ImageClassifier.features`; there is nothing random, so `key` is not used."""
        x, captured = self.trunk(images, constrain)
        return mean_pool(self.normalize_tokens(x)), captured

    def normalize_tokens(self, tokens: jax.Array) -> jax.Array:
        """See `ImageClassifier.normalize_tokens`."""
        return jax.nn.relu(self.norm(tokens)) if self.options.preactivation else tokens
