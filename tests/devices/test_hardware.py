from types import SimpleNamespace

import jax
import pytest
from jax.experimental.pallas import tpu as pltpu

from vit_jax.devices import hardware

# (device kind, TensorCores of one JAX device, Pallas' name of the chip)
TPU_DEVICES = [
    ("TPU v2", 1, "v2"),
    ("TPU v3", 1, "v3"),
    ("TPU v4", 2, "v4"),
    ("TPU v4", 1, "v4"),
    ("TPU v5 lite", 1, "v5e"),
    ("TPU v5", 2, "v5p"),
    ("TPU v5p", 2, "v5p"),
    ("TPU v6 lite", 1, "v6e"),
    ("TPU7x", 1, "7x"),
]


def fake_device(kind, **attributes):
    return SimpleNamespace(device_kind=kind, platform="tpu", **attributes)


@pytest.mark.parametrize(("kind", "cores", "chip"), TPU_DEVICES)
def test_tpus_agree_with_the_table_in_pallas(kind, cores, chip):
    """Pallas counts per core, with other roundings: 140 TFLOP/s for v3 where Google's docs say 123."""
    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion(chip), cores)
    device = fake_device(kind, num_cores=cores)
    assert hardware.peak_flops(device) == pytest.approx(cores * info.bf16_ops_per_second, rel=0.13)
    capacity = hardware.memory_capacity_bytes(device)
    assert capacity == pytest.approx(cores * info.hbm_capacity_bytes, rel=0.08)


@pytest.mark.parametrize(
    ("kind", "teraflops", "gib"),
    [
        ("Tesla V100-SXM2-32GB", 125, 32),
        ("NVIDIA A100-SXM4-80GB", 312, 80),
        ("NVIDIA H100 80GB HBM3", 989.5, 80),
        ("NVIDIA H100 PCIe", 756.5, 80),
        ("NVIDIA H200", 989.5, 141),
        ("NVIDIA L4", 121, 24),
    ],
)
def test_gpus_have_their_dense_figures(kind, teraflops, gib):
    device = fake_device(kind, core_count=132)
    assert hardware.peak_flops(device) == teraflops * 1e12
    assert hardware.memory_capacity_bytes(device) == gib * 2**30


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "TPU v9"])
def test_unknown_kinds_have_no_peak(kind):
    assert hardware.peak_flops(fake_device(kind)) is None
    assert hardware.memory_capacity_bytes(fake_device(kind)) is None


def test_memory_in_use_on_an_accelerator_is_its_peak():
    stats = {"bytes_in_use": 5, "peak_bytes_in_use": 7}
    assert hardware.device_memory_bytes(fake_device("TPU v4", memory_stats=lambda: stats)) == 7
    assert hardware.device_memory_bytes(fake_device("TPU v4", memory_stats=lambda: None)) is None


def test_memory_in_use_on_the_cpu_is_the_process():
    memory = hardware.device_memory_bytes(jax.devices()[0])
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    assert memory == pytest.approx(int(status["VmHWM"].split()[0]) * 1024, rel=0.02)
