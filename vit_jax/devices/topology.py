"""Devices that are not here, for compiling what they would run.

    v5e:16x16, v4:2x2x4, tpu7x:4x4x4   a TPU slice; libtpu describes and compiles for it
    gpu:8, h100:8, h200:8, a100:8      one host's GPUs; the CPU's compiler stands in for theirs

A name must be opened before JAX has looked at this machine's devices.
"""

import contextlib
import dataclasses
import importlib.util
import math
import os
import re

import jax
from jax.experimental import topologies

from vit_jax.devices.hardware import CHIPS, Chip
from vit_jax.errors import ConfigError

# Generation -> JAX's name of the device, how many devices a chip is.
TPU_KINDS = {
    "v2": ("TPU v2", 2),
    "v3": ("TPU v3", 2),
    "v4": ("TPU v4", 1),  # Its two cores work as one device ("megacore"), as they do on Cloud TPU.
    "v5e": ("TPU v5e", 1),
    "v5p": ("TPU v5p", 1),
    "v6e": ("TPU v6e", 1),
    "tpu7x": ("TPU7x", 2),
}
GPU_KINDS = {
    "gpu": "NVIDIA H100 80GB HBM3",
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
    "a100": "NVIDIA A100-SXM4-80GB",
}
LIBTPU_OPTIONS = {"v4": {"chip_config_name": "megacore"}}
INSTALL_LIBTPU = "pip install 'jax[tpu]'"


@dataclasses.dataclass(frozen=True)
class Topology:
    """Devices to compile for.

    Attributes:
      name: as it was asked for.
      kind: of the accelerator, as JAX calls it.
      devices: JAX's, or virtual CPU devices instead.
      chip: what one of the chips can do.
      devices_per_chip: 2 where each core of a chip is a device of its own.
      stand_in: why the devices are virtual ones, or "" if the compiler is the real one.
    """

    name: str
    kind: str
    devices: list[jax.Device]
    chip: Chip
    devices_per_chip: int
    stand_in: str

    @property
    def peak_flops(self) -> float:
        """Of one device, dense bfloat16, FLOP/s."""
        return self.chip.flops / self.devices_per_chip

    @property
    def memory(self) -> float:
        """Of one device, nominal, bytes."""
        return self.chip.memory / self.devices_per_chip

    @property
    def bandwidth(self) -> float | None:
        """Of one device's memory, bytes/s."""
        bandwidth = self.chip.bandwidth
        return bandwidth and bandwidth / self.devices_per_chip


def open_topology(name: str) -> Topology:
    """The devices of `name`; see the module's text.

    Raises ConfigError for a name that is none, or a shape that does not exist.
    """
    family, _, shape = name.lower().partition(":")
    if family in GPU_KINDS and re.fullmatch("[1-9][0-9]*", shape):
        reason = "NVIDIA's compiler needs a GPU: memory is the CPU compiler's figure"
        return _virtual(name, GPU_KINDS[family], int(shape), 1, reason)
    if family not in TPU_KINDS or not re.fullmatch("[1-9][0-9]*(x[1-9][0-9]*){1,2}", shape):
        raise ConfigError(
            f"--topology={name}: expected a TPU slice such as v5e:16x16 or v4:2x2x4 "
            f"({', '.join(TPU_KINDS)}), or GPUs such as gpu:8 ({', '.join(GPU_KINDS)})."
        )
    kind, devices_per_chip = TPU_KINDS[family]
    if not importlib.util.find_spec("libtpu"):
        count = devices_per_chip * math.prod(map(int, shape.split("x")))
        reason = (
            f"the TPU compiler is not installed ({INSTALL_LIBTPU}): memory is the CPU compiler's"
        )
        return _virtual(name, kind, count, devices_per_chip, reason)
    try:
        with _quiet():
            options = LIBTPU_OPTIONS.get(family, {})
            described = topologies.get_topology_desc(f"{family}:{shape}", "tpu", **options)
    except jax.errors.JaxRuntimeError as error:
        raise ConfigError(f"--topology={name}: {str(error).splitlines()[0]}") from None
    return Topology(name, kind, list(described.devices), CHIPS[kind], devices_per_chip, "")


def _virtual(name: str, kind: str, count: int, devices_per_chip: int, reason: str) -> Topology:
    """As many virtual CPU devices."""
    with contextlib.suppress(RuntimeError):  # There are devices already: there may be enough.
        jax.config.update("jax_num_cpu_devices", count)
    devices = jax.devices("cpu")
    if len(devices) < count:
        raise ConfigError(f"--topology={name}: {len(devices)} of {count} virtual devices exist.")
    return Topology(name, kind, devices[:count], CHIPS[kind], devices_per_chip, reason)


@contextlib.contextmanager
def _quiet():
    """Keeps libtpu's remarks about the missing TPU off the screen."""
    screen, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(screen, 2)
        os.close(screen)
        os.close(nowhere)
