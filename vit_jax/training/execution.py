"""How a model is computed on the devices at hand: what its options leave to be chosen.

None of it changes what is computed beyond rounding. `model.json` keeps `auto`; what was chosen is
printed, and recorded in the run's `config.json`.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax.devices import sharding
from vit_jax.devices.hardware import memory_capacity_bytes
from vit_jax.errors import ConfigError
from vit_jax.models.attention import CUDNN, JOINT, XLA, cudnn_obstacle
from vit_jax.models.base import ModelOptions
from vit_jax.models.positions import NO_BIAS, RELATIVE
from vit_jax.models.remat import AUTO, DOTS, NONE

CPU, GPU, TPU = "cpu", "gpu", "tpu"  # JAX's names of platforms.
OLDEST_FOR_CUDNN = (8, 0)  # The compute capability that its fused attention needs: A100.
# A program without loops holds more at once: 9.9 GB instead of 5.9 for ViT-B/16 on an H100.
UNROLLED_SHARE = 1.7
LARGEST_SHARE = 0.5  # Of the memory; the rest is for the state and for exchanges.


@dataclasses.dataclass(frozen=True)
class Choice:
    """The value of an option, and why; "" if the config has it."""

    value: str | int
    reason: str = ""


@dataclasses.dataclass(frozen=True)
class Devices:
    """What a choice depends on besides the model.

    Attributes:
      platform: that is planned for: "cpu", "gpu", "tpu".
      stand_in: whether other devices compile.
      capability: of a GPU, such as (9, 0).
      memory: of one device, bytes; None if unknown.
      rows: images of a micro-batch on one device.
      splits_heads: whether attention heads lie on several devices.
    """

    platform: str
    stand_in: bool
    capability: tuple[int, ...]
    memory: int | None
    rows: int
    splits_heads: bool = False


def devices_of(config: ConfigDict, mesh: Mesh, platform: str | None = None) -> Devices:
    """Those of a mesh; `platform` is what they stand in for."""
    device = mesh.devices.flat[0]
    parts = math.prod(mesh.shape[axis] for axis in sharding.BATCH_AXES)
    platform = platform or device.platform
    capability = getattr(device, "compute_capability", None) or "0"
    return Devices(
        platform,
        platform != device.platform,
        tuple(map(int, str(capability).split("."))),
        memory_capacity_bytes(device),
        max(1, config.batch_size // config.optimizer.accumulation_steps // parts),
        mesh.shape["tensor"] > 1,
    )


def choose_execution(options: ModelOptions, devices: Devices) -> dict[str, Choice]:
    """Each option of the execution that the model has, as it is or as it suits the devices.

    Raises:
      ConfigError: a kernel is asked for that these devices, or this model, cannot have.
    """
    choices = {}
    for name, choose in CHOOSERS.items():
        if hasattr(options, name):
            asked = getattr(options, name)
            choices[name] = choose(options, devices) if asked == AUTO else Choice(asked)
    attention = choices.get("attention", Choice(XLA))
    obstacle = cudnn_is_not_for(options, devices) if attention.value == CUDNN else ""
    if obstacle and not devices.stand_in:
        raise ConfigError(
            f"config.model.attention={CUDNN!r}: {obstacle}. Set it to {AUTO!r} or {XLA!r}."
        )
    return choices


def with_choices(options: ModelOptions, choices: dict[str, Choice]) -> ModelOptions:
    """The options with what was chosen."""
    values: dict[str, Any] = {name: one.value for name, one in choices.items()}
    return dataclasses.replace(options, **values)


def choose_attention(options: ModelOptions, devices: Devices) -> Choice:
    """One product for queries, keys and values on CPUs; else NVIDIA's kernel wherever it exists.

    That takes a third off a step on an H100.
    """
    if devices.platform == CPU and not devices.splits_heads:
        return Choice(JOINT, "one wide product is quicker on a CPU")
    obstacle = cudnn_is_not_for(options, devices)
    return Choice(XLA, obstacle) if obstacle else Choice(CUDNN, "fused, on an NVIDIA GPU")


def cudnn_is_not_for(options: ModelOptions, devices: Devices) -> str:
    """Why NVIDIA's fused attention cannot be had, or ""."""
    if devices.platform != GPU or devices.stand_in:
        return "there is no fused kernel for these devices"
    if devices.splits_heads:
        return "heads are split over devices"
    if devices.capability < OLDEST_FOR_CUDNN:
        return "the GPU is older than its fused kernels"
    if getattr(options, "positions", None) == RELATIVE:
        return "relative positions are added to the logits"
    if getattr(options, "relative_position_bias", NO_BIAS) != NO_BIAS:
        return "a relative position bias is added to the logits"
    if getattr(options, "attention_dropout_rate", 0):
        return "attention weights are dropped out"
    return cudnn_obstacle(options.width // options.num_heads, options.dtype)  # type: ignore[attr-defined]


def choose_remat(options: ModelOptions, devices: Devices) -> Choice:
    """Products are kept on accelerators, where writing the rest takes longer than its computation."""
    if devices.platform == CPU:
        return Choice(NONE, "a CPU has the memory")
    return Choice(DOTS, "faster and smaller than keeping everything")


def choose_scan_unroll(options: ModelOptions, devices: Devices) -> Choice:
    """All blocks where nothing is gained by a loop; on a TPU the loop is as fast.

    Without a loop the compilers for CPUs and GPUs find what is computed again to be what was computed before,
    and keep it.
    """
    depth: int = options.depth  # type: ignore[attr-defined]
    if devices.platform == TPU:
        return Choice(1, "a TPU's loop is as fast, and compiles sooner")
    if options.remat not in (AUTO, NONE, choose_remat(options, devices).value):
        return Choice(1, f"without a loop what remat {options.remat} recomputes would be kept")
    if devices.platform == CPU:
        return Choice(depth, "no copies into the loop's stack")
    needed = UNROLLED_SHARE * devices.rows * kept_bytes(options)
    if devices.memory is None or needed > LARGEST_SHARE * devices.memory:
        return Choice(1, "the memory may not hold the activations of an unrolled program")
    return Choice(depth, "fewer kernels, and no copies into the loop's stack")


def choose_matmul_precision(options: ModelOptions, devices: Devices) -> Choice:
    """The type that the model computes in, on all devices alike."""
    del devices
    return Choice(options.chosen_precision, f"of {options.dtype}")


def kept_bytes(options: ModelOptions) -> int:
    """What the blocks keep of one image for the backward pass under "dots", roughly.

    Of a block: the residual and its norms, queries, keys, values, attention's output and its
    projection, eight arrays as wide as the model, and the MLP's hidden one.
    """
    tokens = options.num_tokens or getattr(options, "num_patches", 0)
    widths = 8 * options.width + options.mlp_width  # type: ignore[attr-defined]
    return options.depth * tokens * widths * jax.numpy.dtype(options.dtype).itemsize  # type: ignore[attr-defined]


CHOOSERS = {
    "attention": choose_attention,
    "remat": choose_remat,
    "scan_unroll": choose_scan_unroll,
    "matmul_precision": choose_matmul_precision,
}


def describe(choices: dict[str, Choice]) -> str:
    """The choices in words."""
    return ", ".join(
        f"{name} {one.value}" + (f" ({one.reason})" if one.reason else "")
        for name, one in choices.items()
    )


def as_json(choices: dict[str, Choice]) -> dict[str, str | int]:
    """The values alone."""
    return {name: one.value for name, one in choices.items()}
