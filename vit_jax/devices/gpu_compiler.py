"""NVIDIA GPUs that are not here, as XLA's compiler for them wants them described.

Its plug-in (`pip install 'vit_jax[plan-gpu]'`) compiles without a GPU. Figures of the devices are
those that CUDA reports of them (`cudaGetDeviceProperties`) and the data sheets'.
"""

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.experimental import topologies

PLUGINS = ("jax_plugins.xla_cuda12", "jax_plugins.xla_cuda13")
INSTALL_PLUGIN = "pip install 'vit_jax[plan-gpu]'"

# Without a device kernels cannot be timed to choose among them, and Triton's products need that.
COMPILER_OPTIONS = {"xla_gpu_autotune_level": "0", "xla_gpu_enable_triton_gemm": "False"}

CUDNN_VERSION = (9, 10, 0)  # Assumed there; encoded as major * 10000 + minor * 100 + patch.
CUDA_VERSION = (12, 9, 0)

BLOCK_LIMITS = "block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535"
HOPPER = {
    "threads_per_block_limit": 1024,
    "threads_per_warp": 32,
    "threads_per_core_limit": 2048,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_core": 233472,
    "core_count": 132,
    "fpus_per_core": 128,
    "memory_bandwidth": 3352320000000,
    "l2_cache_size": 52428800,
    "clock_rate_ghz": 1.98,
    "device_memory_size": 84929347584,
    "registers_per_core_limit": 65536,
    "registers_per_block_limit": 65536,
}

# JAX's name of a device -> the major number of its compute capability, and its figures.
DEVICES: dict[str, tuple[int, Mapping[str, float]]] = {
    "NVIDIA H100 80GB HBM3": (9, HOPPER),
    "NVIDIA H200": (
        9,
        {**HOPPER, "memory_bandwidth": 4800000000000, "device_memory_size": 151397597184},
    ),
    "NVIDIA A100-SXM4-80GB": (
        8,
        {
            **HOPPER,
            "shared_memory_per_block_optin": 166912,
            "shared_memory_per_core": 167936,
            "core_count": 108,
            "fpus_per_core": 64,
            "memory_bandwidth": 2039000000000,
            "l2_cache_size": 41943040,
            "clock_rate_ghz": 1.41,
        },
    ),
}


def is_installed() -> bool:
    """Whether XLA's plug-in for NVIDIA GPUs is there."""
    with contextlib.suppress(ModuleNotFoundError):  # Without any plug-in, their package is missing.
        return any(importlib.util.find_spec(name) for name in PLUGINS)
    return False


def describe_devices(kind: str, hosts: int, per_host: int) -> list[jax.Device]:
    """So many devices of one kind; the compiler of the plug-in compiles for them."""
    described = topologies.get_topology_desc(
        platform="cuda", target_config=target(kind), topology=f"1x{hosts}x{per_host}"
    )
    return list(described.devices)


def version_text(version: tuple[int, int, int]) -> str:
    """The fields of a version, in text form."""
    major, minor, patch = version
    return f"major: {major} minor: {minor} patch: {patch}"


def target(kind: str) -> str:
    """The text form of a `GpuTargetConfigProto`."""
    major, figures = DEVICES[kind]
    fields = " ".join(f"{name}: {value}" for name, value in figures.items())
    dnn, cuda = map(version_text, (CUDNN_VERSION, CUDA_VERSION))
    return (
        f'platform_name: "CUDA" device_description_str: "{kind}" '
        f"dnn_version_info {{{dnn}}} runtime_version {{{cuda}}} gpu_device_info {{{fields} "
        f"{BLOCK_LIMITS} cuda_compute_capability {{major: {major} minor: 0}}}}"
    )


@contextlib.contextmanager
def answering_for(kind: str) -> Iterator[None]:
    """JAX's questions about cuDNN and the device, which it asks of one that is here, answered."""
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    capability = (DEVICES[kind][0], 0)

    def at_least(wanted: str) -> bool:
        return capability >= tuple(map(int, wanted.split(".")))

    def equal(wanted: str) -> bool:
        return capability == tuple(map(int, wanted.split(".")))

    major, minor, patch = CUDNN_VERSION
    answers: dict[str, Any] = {
        "check_cudnn_version": lambda: major * 10000 + minor * 100 + patch,
        "check_compute_capability": at_least,
        "is_cuda_compute_capability_equal": equal,
    }
    asked = {name: getattr(cudnn, name) for name in answers}
    for name, answer in answers.items():
        setattr(cudnn, name, answer)
    try:
        yield
    finally:
        for name, function in asked.items():
            setattr(cudnn, name, function)
