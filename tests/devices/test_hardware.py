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


# (peak TFLOP/s, GiB, GB/s of memory, GB/s to others in one direction, cores), by the vendors' pages.
FIGURES = {
    "TPU v2": (45, 16, 700, None, 2),
    "TPU v3": (123, 32, 900, 340e3 / 1024, 2),
    "TPU v4": (275, 32, 1200, 1.1e6 / 4096, 2),
    **dict.fromkeys(("TPU v5 lite", "TPU v5e"), (197, 16, 819, 200, 1)),
    **dict.fromkeys(("TPU v5", "TPU v5p"), (459, 95, 2765, 600, 2)),
    **dict.fromkeys(("TPU v6 lite", "TPU v6e"), (918, 32, 1638, 400, 1)),
    "TPU7x": (2307, 192, 7380, 600, 2),
    "Tesla V100-PCIE-16GB": (112, 16, 900, None, 1),
    "Tesla V100-PCIE-32GB": (112, 32, 900, None, 1),
    "Tesla V100-SXM2-16GB": (125, 16, 900, 150, 1),
    "Tesla V100-SXM2-32GB": (125, 32, 900, 150, 1),
    "Tesla T4": (65, 16, 320, None, 1),
    "NVIDIA A100-PCIE-40GB": (312, 40, 1555, None, 1),
    "NVIDIA A100-SXM4-40GB": (312, 40, 1555, 300, 1),
    "NVIDIA A100-SXM4-80GB": (312, 80, 2039, 300, 1),
    "NVIDIA A100 80GB PCIe": (312, 80, 1935, None, 1),
    "NVIDIA H100 80GB HBM3": (989.5, 80, 3350, 450, 1),
    "NVIDIA H100 PCIe": (756.5, 80, 2000, None, 1),
    "NVIDIA H100 NVL": (835.5, 94, 3900, 300, 1),
    "NVIDIA H200": (989.5, 141, 4800, 450, 1),
    "NVIDIA H200 NVL": (835.5, 141, 4800, 450, 1),
    "NVIDIA L4": (121, 24, 300, None, 1),
    "NVIDIA L40S": (366.5, 48, 864, None, 1),
}


@pytest.mark.parametrize("kind", hardware.CHIPS)
def test_the_figures_of_each_chip(kind):
    chip, (flops, memory, bandwidth, link, cores) = hardware.CHIPS[kind], FIGURES[kind]
    assert chip.flops == pytest.approx(flops * 1e12)
    assert (chip.memory, chip.bandwidth, chip.cores) == (memory * 2**30, bandwidth * 1e9, cores)
    assert chip.interconnect == (None if link is None else pytest.approx(link * 1e9))
    without_word = fake_device(kind)  # JAX says of GPUs alone that they have no cores of TPUs.
    assert hardware.peak_flops(without_word) == pytest.approx(flops * 1e12 / cores)


def test_what_gpus_have_besides():
    """Of float32 without tensor cores, and to other hosts: NVIDIA's data sheets, DGX A100 and H100."""
    found = {
        kind: (chip.float32_flops, chip.between_hosts)
        for kind, chip in hardware.CHIPS.items()
        if chip.float32_flops or chip.between_hosts
    }
    ampere, hopper = (19.5e12, 25e9), (67e12, 50e9)
    assert found == {
        **dict.fromkeys(("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB"), ampere),
        **dict.fromkeys(("NVIDIA H100 80GB HBM3", "NVIDIA H200"), hopper),
    }


@pytest.mark.parametrize(("platform", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_memory_of_a_host_is_counted_in_its_systems_unit(platform, unit, monkeypatch):
    sizes = {0: 7, -1: 11}
    monkeypatch.setattr(hardware.sys, "platform", platform)
    usage = hardware.resource
    monkeypatch.setattr(usage, "getrusage", lambda who: SimpleNamespace(ru_maxrss=sizes[who]))
    assert hardware.peak_host_memory_bytes(0) == 7 * unit
    assert hardware.peak_host_memory_bytes(-1) == 11 * unit  # Of ended children.
