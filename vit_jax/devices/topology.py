"""Devices that are not here, for compiling what they would run.

    v5e:16x16, v4:2x2x4, tpu7x:4x4x4   a TPU slice; libtpu describes and compiles for it
    h100:8, h200:8, a100:8, h100:4x8   a host's GPUs, or hosts x GPUs of each; XLA's plug-in for
                                       NVIDIA compiles for them
    gpu:8                              H100s, for which the CPU's compiler stands in

Where the compiler is not installed, the CPU's stands in for it too.

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

from vit_jax.devices import gpu_compiler
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
GENERIC_GPU = "gpu"
GPU_KINDS = {
    GENERIC_GPU: "NVIDIA H100 80GB HBM3",
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
    "a100": "NVIDIA A100-SXM4-80GB",
}
LIBTPU_OPTIONS = {"v4": {"chip_config_name": "megacore"}}
TPU, CUDA, STAND_IN = "tpu", "cuda", "stand-in"  # The compilers.
INSTALL_LIBTPU = "pip install 'jax[tpu]'"
# That stand in for others, or GPUs. JAX takes 7 s for 4,096, 50 s for 8,960: as the square grows.
MOST_DEVICES = 10_000


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
      compiler: "tpu", "cuda" or "stand-in".
      hosts: over which GPUs are spread; a TPU slice counts as one.
    """

    name: str
    kind: str
    devices: list[jax.Device]
    chip: Chip
    devices_per_chip: int
    stand_in: str
    compiler: str = STAND_IN
    hosts: int = 1

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

    @property
    def interconnect(self) -> float | None:
        """What one chip can send to others, bytes/s; all of a host's ports carry its traffic."""
        link, ports = self.chip.interconnect, self.chip.between_hosts
        if self.hosts == 1 or not (link and ports):
            return link
        return min(link, ports * len(self.devices) / self.hosts)

    @property
    def platform(self) -> str:
        """JAX's name of the platform that is compiled for, whatever compiles."""
        return "gpu" if self.kind in GPU_KINDS.values() else "tpu"

    @property
    def compiler_options(self) -> dict[str, str]:
        """For `jax.stages.Lowered.compile`."""
        return gpu_compiler.COMPILER_OPTIONS if self.compiler == CUDA else {}

    def compiling(self) -> contextlib.AbstractContextManager:
        """The context in which programs are lowered for these devices."""
        if self.compiler != CUDA:
            return contextlib.nullcontext()
        return gpu_compiler.answering_for(self.kind)


def open_topology(name: str) -> Topology:
    """The devices of `name`; see the module's text.

    Raises ConfigError for a name that is none, or a shape that does not exist.
    """
    family, _, shape = name.lower().partition(":")
    if family in GPU_KINDS and re.fullmatch("([1-9][0-9]{0,5}x)?[1-9][0-9]{0,5}", shape):
        return _open_gpus(name, family, *_hosts_and_gpus(shape))
    if family not in TPU_KINDS or not re.fullmatch("[1-9][0-9]{0,5}(x[1-9][0-9]{0,5}){1,2}", shape):
        raise ConfigError(
            f"--topology={name}: expected a TPU slice such as v5e:16x16 or v4:2x2x4 "
            f"({', '.join(TPU_KINDS)}), or GPUs such as h100:8 or h100:4x8 ({', '.join(GPU_KINDS)})."
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
    devices = list(described.devices)
    return Topology(name, kind, devices, CHIPS[kind], devices_per_chip, "", TPU)


def _hosts_and_gpus(shape: str) -> tuple[int, int]:
    """The hosts, and the GPUs of each: "4x8", or "8" of one host."""
    hosts, _, per_host = shape.rpartition("x")
    return int(hosts or 1), int(per_host)


def _open_gpus(name: str, family: str, hosts: int, per_host: int) -> Topology:
    kind = GPU_KINDS[family]
    _check_count(name, hosts * per_host)
    if family != GENERIC_GPU and gpu_compiler.is_installed():
        with _quiet():
            devices = gpu_compiler.describe_devices(kind, hosts, per_host)
        return Topology(name, kind, devices, CHIPS[kind], 1, "", CUDA, hosts)
    reason = (
        f"{name} is for trying things out: memory is the CPU compiler's figure; h100:{per_host} is "
        "compiled by NVIDIA's"
        if family == GENERIC_GPU
        else f"the GPU compiler is not installed ({gpu_compiler.INSTALL_PLUGIN}): memory is the CPU "
        "compiler's figure"
    )
    virtual = _virtual(name, kind, hosts * per_host, 1, reason)
    return dataclasses.replace(virtual, hosts=hosts)


def _check_count(name: str, count: int) -> None:
    """Raises ConfigError for more devices than JAX describes in a minute; TPUs' compiler is faster."""
    if count > MOST_DEVICES:
        raise ConfigError(
            f"--topology={name}: {count:,} devices are more than can be described here: at most "
            f"{MOST_DEVICES:,}."
        )


def _virtual(name: str, kind: str, count: int, devices_per_chip: int, reason: str) -> Topology:
    """As many virtual CPU devices."""
    _check_count(name, count)
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
