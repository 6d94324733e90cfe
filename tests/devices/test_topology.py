"""Devices by their names: what is asked of the compilers, and what stands in for them."""

import contextlib
import dataclasses
import math
import os
import types

import pytest

from vit_jax.devices import gpu_compiler, topology
from vit_jax.devices.hardware import CHIPS, Chip
from vit_jax.devices.topology import Topology, open_topology
from vit_jax.errors import ConfigError

# Of each generation JAX's name and its devices to a chip: each TensorCore of v2, v3 and 7x is one,
# the two of a v4 and a v5p work as one, v5e and v6e have a single one.
GENERATIONS = {
    "v2": ("TPU v2", 2),
    "v3": ("TPU v3", 2),
    "v4": ("TPU v4", 1),
    "v5e": ("TPU v5e", 1),
    "v5p": ("TPU v5p", 1),
    "v6e": ("TPU v6e", 1),
    "tpu7x": ("TPU7x", 2),
}
GPUS = {
    "gpu": "NVIDIA H100 80GB HBM3",
    "h100": "NVIDIA H100 80GB HBM3",
    "h200": "NVIDIA H200",
    "a100": "NVIDIA A100-SXM4-80GB",
}


@pytest.fixture
def without_compilers(monkeypatch):
    """No compiler is installed; CPU devices are numbers."""
    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(gpu_compiler, "is_installed", lambda: False)
    monkeypatch.setattr(topology.jax.config, "update", lambda *arguments: None)
    monkeypatch.setattr(topology.jax, "devices", lambda platform: [*range(100)])


@pytest.mark.parametrize("family", topology.TPU_KINDS)
def test_slices_of_tpus(family, without_compilers):
    kind, devices_per_chip = GENERATIONS[family]
    opened = open_topology(f"{family.upper()}:2x3x4")
    count = devices_per_chip * math.prod((2, 3, 4))
    assert (opened.kind, opened.devices) == (kind, [*range(count)])
    assert (opened.devices_per_chip, opened.hosts) == (devices_per_chip, 1)
    assert (opened.platform, opened.compiler, opened.compiler_options) == ("tpu", "stand-in", {})
    assert opened.name == f"{family.upper()}:2x3x4"
    assert "pip install 'jax[tpu]'" in opened.stand_in
    chip = CHIPS[kind]
    assert opened.peak_flops == chip.flops / devices_per_chip
    assert opened.memory == chip.memory / devices_per_chip
    assert opened.bandwidth == chip.bandwidth / devices_per_chip


@pytest.mark.parametrize("family", topology.GPU_KINDS)
def test_hosts_of_gpus(family, without_compilers):
    opened = open_topology(f"{family}:3x4")
    assert (opened.kind, opened.devices, opened.hosts) == (GPUS[family], [*range(12)], 3)
    assert (opened.platform, opened.devices_per_chip) == ("gpu", 1)
    said = "h100:4 is compiled by NVIDIA's" if family == "gpu" else "pip install 'vit_jax[plan-gpu]"
    assert said in opened.stand_in
    assert (f"{family}:3x4 is for trying things out" in opened.stand_in) == (family == "gpu")
    assert open_topology(f"{family}:5").hosts == 1


def test_installed_gpu_compilers_are_asked_for_hosts_and_gpus(monkeypatch):
    asked = []

    def describe(*arguments):
        asked.append(arguments)
        return ["a device"]

    monkeypatch.setattr(gpu_compiler, "is_installed", lambda: True)
    monkeypatch.setattr(gpu_compiler, "describe_devices", describe)
    opened = open_topology("a100:3x8")
    assert asked == [("NVIDIA A100-SXM4-80GB", 3, 8)]
    assert (opened.compiler, opened.hosts, opened.devices) == ("cuda", 3, ["a device"])
    assert (opened.stand_in, opened.compiler_options) == ("", gpu_compiler.COMPILER_OPTIONS)


def test_the_tpu_compiler_is_asked_for_a_slice(monkeypatch):
    asked = []

    def describe(*given, **options):
        asked.append((*given, options))
        if "3x5" in given[0]:
            raise topology.jax.errors.JaxRuntimeError("INVALID: no such shape\nmore")
        return types.SimpleNamespace(devices=("a", "b"))

    monkeypatch.setattr(topology.importlib.util, "find_spec", lambda name: name == "libtpu")
    monkeypatch.setattr(topology.topologies, "get_topology_desc", describe)
    opened = open_topology("v3:2x4")
    assert (opened.compiler, opened.stand_in, opened.devices) == ("tpu", "", ["a", "b"])
    assert (opened.devices_per_chip, opened.chip) == (2, CHIPS["TPU v3"])
    open_topology("V4:2x2x4")
    megacore = {"chip_config_name": "megacore"}  # A v4's two cores are one device.
    assert asked == [("v3:2x4", "tpu", {}), ("v4:2x2x4", "tpu", megacore)]
    with pytest.raises(ConfigError, match=r"--topology=v5e:3x5: INVALID: no such shape$"):
        open_topology("v5e:3x5")


@pytest.mark.parametrize(
    "name",
    [
        *("v5e", "v5e:", "v5e:4", "v5e:0x4", "v5e:4x", "v5e:2x2x2x2", "v9:2x2", "h100", "h100:"),
        *("h100:0", "h100:0x8", "h100:2x2x2", "l4:8", "gpu:-1"),
    ],
)
def test_what_is_no_name(name, without_compilers):
    with pytest.raises(ConfigError, match=f"--topology={name}: expected a TPU slice"):
        open_topology(name)


def test_more_virtual_devices_than_there_are(without_compilers):
    with pytest.raises(ConfigError, match="gpu:101: 100 of 101 virtual devices exist"):
        open_topology("gpu:101")


@pytest.mark.parametrize(
    ("link", "ports", "hosts", "expected"),
    [
        (300.0, 50.0, 1, 300.0),
        (300.0, 50.0, 2, 200.0),  # Of the four ports of a host's four GPUs.
        (150.0, 50.0, 2, 150.0),
        (300.0, None, 2, 300.0),
        (None, 50.0, 2, None),
    ],
)
def test_what_a_chip_can_send(link, ports, hosts, expected):
    chip = Chip(1.0, 8, None, link, between_hosts=ports)
    made = Topology("x", "x", [*range(8)], chip, 1, "", hosts=hosts)
    assert (made.interconnect, made.bandwidth) == (expected, None)


def test_what_xla_is_told_of_gpus(monkeypatch):
    """As `nvidia-smi` and `deviceQuery` show them."""
    h100, h200, a100 = (gpu_compiler.DEVICES[GPUS[name]] for name in ("h100", "h200", "a100"))
    figures = ("core_count", "fpus_per_core", "memory_bandwidth", "clock_rate_ghz")
    assert [h100[1][name] for name in figures] == [132, 128, 3352320000000, 1.98]
    assert [h200[1][name] for name in figures] == [132, 128, 4800000000000, 1.98]
    assert [a100[1][name] for name in figures] == [108, 64, 2039000000000, 1.41]
    assert [each[0] for each in (h100, h200, a100)] == [9, 9, 8]
    for (_, told), kind in ((h100, "h100"), (h200, "h200"), (a100, "a100")):
        assert told["memory_bandwidth"] == pytest.approx(CHIPS[GPUS[kind]].bandwidth, rel=0.001)
    cache = [each[1]["l2_cache_size"] / 2**20 for each in (h100, h200, a100)]
    assert cache == [50, 50, 40]
    shared = [each[1]["shared_memory_per_core"] / 2**10 for each in (h100, h200, a100)]
    assert shared == [228, 228, 164]
    per_block = [each[1]["shared_memory_per_block_optin"] / 2**10 for each in (h100, h200, a100)]
    assert per_block == [227, 227, 163]
    for _, told in (h100, h200, a100):  # The same of both generations, in CUDA's table of them.
        of_a_core = ("threads_per_core_limit", "registers_per_core_limit")
        assert [told[name] for name in of_a_core] == [2048, 2**16]
        of_a_block = ("threads_per_block_limit", "registers_per_block_limit", "threads_per_warp")
        assert [told[name] for name in of_a_block] == [1024, 2**16, 32]
        assert told["shared_memory_per_block"] == 48 * 2**10
    for (_, told), kind in ((h100, "h100"), (h200, "h200"), (a100, "a100")):
        memory = CHIPS[GPUS[kind]].memory
        assert told["device_memory_size"] == pytest.approx(memory, rel=0.02), "nominal"
    text = gpu_compiler.target(GPUS["a100"])
    assert text.startswith('platform_name: "CUDA" device_description_str: "NVIDIA A100-SXM4-80GB"')
    dimensions = {"x": 2**31 - 1, "y": 2**16 - 1, "z": 2**16 - 1}
    for axis, most in dimensions.items():
        assert f"block_dim_limit_{axis}: {most}" in text
    assert "cuda_compute_capability {major: 8 minor: 0}" in text
    assert "dnn_version_info {major: 9 minor: 10 patch: 0}" in text
    assert "runtime_version {major: 12 minor: 9 patch: 0}" in text
    options = {"xla_gpu_autotune_level": "0", "xla_gpu_enable_triton_gemm": "False"}
    assert options == gpu_compiler.COMPILER_OPTIONS
    asked = {}

    def describe(**given):
        asked.update(given)
        return types.SimpleNamespace(devices=(1,))

    monkeypatch.setattr(gpu_compiler.topologies, "get_topology_desc", describe)
    assert gpu_compiler.describe_devices(GPUS["h200"], 3, 8) == [1]
    assert (asked["platform"], asked["topology"]) == ("cuda", "1x3x8")
    assert asked["target_config"] == gpu_compiler.target(GPUS["h200"])


def test_what_jax_asks_of_a_gpu_is_answered():
    from jax._src.cudnn import fused_attention_stablehlo as cudnn

    before = cudnn.check_cudnn_version
    with gpu_compiler.answering_for(GPUS["a100"]):
        assert cudnn.check_cudnn_version() == 91000
        at_least = [cudnn.check_compute_capability(text) for text in ("7.5", "8.0", "8.1", "9.0")]
        assert at_least == [True, True, False, False]
        equal = [cudnn.is_cuda_compute_capability_equal(text) for text in ("8.0", "9.0")]
        assert equal == [True, False]
    assert cudnn.check_cudnn_version is before
    made = Topology("x", GPUS["a100"], [], CHIPS[GPUS["a100"]], 1, "", "cuda")
    with made.compiling():
        assert cudnn.check_compute_capability("8.0")
        assert not cudnn.check_compute_capability("9.0")
    with dataclasses.replace(made, compiler="stand-in").compiling():
        assert cudnn.check_cudnn_version is before


def test_remarks_of_compilers_stay_off_the_screen(capfd):
    with topology._quiet():
        os.write(2, b"no TPU")
    os.write(2, b"seen")
    with contextlib.suppress(ValueError), topology._quiet():
        raise ValueError
    os.write(2, b" again")
    assert capfd.readouterr().err == "seen again"


def test_without_any_plug_in_there_is_no_compiler(monkeypatch):
    def find_spec(name):
        raise ModuleNotFoundError(name)  # Of the package around it.

    monkeypatch.setattr(gpu_compiler.importlib.util, "find_spec", find_spec)
    assert not gpu_compiler.is_installed()


@pytest.mark.parametrize("number", ["12", "13", "14"])
def test_either_plug_in_is_the_compiler(number, monkeypatch):
    name = f"jax_plugins.xla_cuda{number}"
    monkeypatch.setattr(gpu_compiler.importlib.util, "find_spec", lambda wanted: wanted == name)
    assert gpu_compiler.is_installed() == (number != "14")
