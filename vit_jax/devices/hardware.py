"""Abilities of the accelerators: peak FLOP/s and memory of each kind, as JAX names them."""

import resource
import sys
from dataclasses import dataclass

import jax

GIB = 2**30


@dataclass(frozen=True)
class Chip:
    """One accelerator chip.

    Attributes:
        flops: peak dense matrix FLOP/s with bfloat16 inputs (float16 where a chip has no
            bfloat16); vendors' "with sparsity" figures are halved.
        memory: HBM (or other device memory) in bytes, nominal.
        bandwidth: of that memory, bytes/s; None if unknown.
        interconnect: what one chip can send to others of its slice or host, in one direction,
            bytes/s; None if unknown or if there is none but PCIe.
        float32_flops: peak FLOP/s of float32 without tensor cores; None if unknown.
        between_hosts: what one GPU can send to other hosts, bytes/s; None if unknown.
        cores: TensorCores of a TPU chip. JAX makes one device of a chip (v4, v5p) or one of
            each core (v2, v3, TPU7x); `jax.Device.num_cores` says how many a device has.
    """

    flops: float
    memory: int
    bandwidth: float | None = None
    interconnect: float | None = None
    float32_flops: float | None = None
    between_hosts: float | None = None
    cores: int = 1


# Keyed by the exact `jax.Device.device_kind`: a slice of a GPU ("… MIG 1g.10gb") or an unlisted
# variant has other figures, and an unknown peak is better than a wrong MFU.
CHIPS = {
    # Google, https://cloud.google.com/tpu/docs/{v2,v3,v4,v5e,v5p,v6e,tpu7x}: "Peak compute per
    # chip (bf16)", "HBM capacity", "HBM bandwidth", half of "Bidirectional ICI bandwidth" (v3, v4:
    # "All-reduce bandwidth per Pod" / chips). Kinds, cores: jax/_src/pallas/mosaic/tpu_info.py.
    "TPU v2": Chip(45e12, 16 * GIB, 700e9, cores=2),
    "TPU v3": Chip(123e12, 32 * GIB, 900e9, 340e12 / 1024, cores=2),
    "TPU v4": Chip(275e12, 32 * GIB, 1200e9, 1.1e15 / 4096, cores=2),
    "TPU v5 lite": Chip(197e12, 16 * GIB, 819e9, 200e9),  # v5e
    "TPU v5e": Chip(197e12, 16 * GIB, 819e9, 200e9),
    "TPU v5": Chip(459e12, 95 * GIB, 2765e9, 600e9, cores=2),  # v5p
    "TPU v5p": Chip(459e12, 95 * GIB, 2765e9, 600e9, cores=2),
    "TPU v6 lite": Chip(918e12, 32 * GIB, 1638e9, 400e9),  # v6e
    "TPU v6e": Chip(918e12, 32 * GIB, 1638e9, 400e9),
    "TPU7x": Chip(2307e12, 192 * GIB, 7380e9, 600e9, cores=2),
    # NVIDIA V100 and T4 data sheets: "Deep learning" / "Mixed precision", float16.
    "Tesla V100-PCIE-16GB": Chip(112e12, 16 * GIB, 900e9),
    "Tesla V100-PCIE-32GB": Chip(112e12, 32 * GIB, 900e9),
    "Tesla V100-SXM2-16GB": Chip(125e12, 16 * GIB, 900e9, 150e9),
    "Tesla V100-SXM2-32GB": Chip(125e12, 32 * GIB, 900e9, 150e9),
    "Tesla T4": Chip(65e12, 16 * GIB, 320e9),
    # NVIDIA A100 data sheet: "BFLOAT16 Tensor Core", 312 dense, 624 sparse; half of "NVLink".
    "NVIDIA A100-PCIE-40GB": Chip(312e12, 40 * GIB, 1555e9),
    # "FP32"; a DGX A100 has one HDR InfiniBand port of 200 Gb/s for each, a DGX H100 one of 400.
    "NVIDIA A100-SXM4-40GB": Chip(312e12, 40 * GIB, 1555e9, 300e9, 19.5e12, 25e9),
    "NVIDIA A100-SXM4-80GB": Chip(312e12, 80 * GIB, 2039e9, 300e9, 19.5e12, 25e9),
    "NVIDIA A100 80GB PCIe": Chip(312e12, 80 * GIB, 1935e9),
    # NVIDIA H100 and H200 data sheets: "BFLOAT16 Tensor Core", given with sparsity.
    "NVIDIA H100 80GB HBM3": Chip(1979e12 / 2, 80 * GIB, 3350e9, 450e9, 67e12, 50e9),  # SXM
    "NVIDIA H100 PCIe": Chip(1513e12 / 2, 80 * GIB, 2000e9),
    "NVIDIA H100 NVL": Chip(1671e12 / 2, 94 * GIB, 3900e9, 300e9),
    "NVIDIA H200": Chip(1979e12 / 2, 141 * GIB, 4800e9, 450e9, 67e12, 50e9),  # SXM
    "NVIDIA H200 NVL": Chip(1671e12 / 2, 141 * GIB, 4800e9, 450e9),
    # NVIDIA L4 and L40S data sheets: "BFLOAT16 Tensor Core", given with sparsity.
    "NVIDIA L4": Chip(242e12 / 2, 24 * GIB, 300e9),
    "NVIDIA L40S": Chip(733e12 / 2, 48 * GIB, 864e9),
}


def _device_share(chip: Chip, device: jax.Device) -> float:
    """The part of its chip that a JAX device is: its cores among the chip's."""
    return 1.0 if chip.cores == 1 else getattr(device, "num_cores", 1) / chip.cores


def peak_flops(device: jax.Device) -> float | None:
    """Peak dense bfloat16 FLOP/s of one JAX device; None for a kind not in `CHIPS`, such as a CPU."""
    chip = CHIPS.get(device.device_kind)
    return None if chip is None else chip.flops * _device_share(chip, device)


def memory_capacity_bytes(device: jax.Device) -> int | None:
    """Nominal memory of one JAX device in bytes; None for a kind not in `CHIPS`."""
    chip = CHIPS.get(device.device_kind)
    return None if chip is None else int(chip.memory * _device_share(chip, device))


def peak_host_memory_bytes(who: int = resource.RUSAGE_SELF) -> int:
    """The most memory that this process, or the largest of its ended children, had so far."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(who).ru_maxrss * unit


def device_memory_bytes(device: jax.Device) -> int | None:
    """Peak memory in use so far, in bytes.

    On an accelerator that of the device, from its allocator; None if it keeps no count. On the
    CPU that of the whole process, which all its virtual devices share.
    """
    if device.platform == "cpu":
        return peak_host_memory_bytes()
    return (device.memory_stats() or {}).get("peak_bytes_in_use")
