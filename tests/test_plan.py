"""Plans: on stand-ins of this machine's CPU, and with the TPU's compiler where it is installed."""

import dataclasses
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter

import jax
import numpy as np
import pytest

from tests import tiny
from tests.runs import ROOT
from vit_jax.data.dataset import open_dataset
from vit_jax.data.supply import Costs, Supply
from vit_jax.devices import gpu_compiler
from vit_jax.devices.collectives import Collective
from vit_jax.devices.hardware import CHIPS, GIB
from vit_jax.devices.topology import GPU_KINDS, TPU_KINDS, Topology, open_topology
from vit_jax.errors import ConfigError
from vit_jax.models import count_parameters, model_options
from vit_jax.plan import (
    as_json,
    describe,
    describe_estimate,
    describe_input,
    input_json,
    main,
    suggestions,
    verdict,
)
from vit_jax.training import experiment, planning
from vit_jax.training.execution import Choice
from vit_jax.training.planning import (
    Bound,
    Memory,
    Plan,
    lower_bound,
    make_plan,
    measure_supply,
    needed_bytes,
)

OPTIONS = {  # Of the tiny model.
    **{"width": 32, "depth": 2, "num_heads": 2, "mlp_width": 64},
    **{"channels": 1, "image_size": 8, "num_classes": 10},
}
CONFIG = f"--config={ROOT / 'tests' / 'tiny.py'}"


@pytest.fixture(scope="module")
def topology():
    return open_topology("gpu:8")


@pytest.fixture(scope="module")
def planned(topology):
    config = tiny.get_config()
    config.ema_decay = 0.9
    return make_plan(config, topology)


def test_the_memory_is_what_the_arrays_are(planned):
    parameters = count_parameters("ViT-Ti/2", **OPTIONS)
    assert planned.memory.parameters == 4 * parameters
    assert planned.memory.average == 4 * parameters
    assert 8 * parameters <= planned.memory.optimizer <= 8 * parameters + 64  # And counters.
    assert planned.memory.batch == 32 // 8 * (8 * 8 + 4 + 4 + 1)
    assert planned.memory.temporaries > 0
    assert planned.memory.total == sum(planned.memory)


def test_the_arithmetic_is_three_forward_passes(planned):
    assert planned.flops == 6 * model_options("ViT-Ti/2", **OPTIONS).macs() * 32


def test_the_bound_is_the_largest_of_three(planned, topology):
    chip = CHIPS["NVIDIA H100 80GB HBM3"]
    assert planned.bound.compute == planned.flops / (8 * chip.flops)
    held = planned.memory
    assert held.state == held.parameters + held.optimizer + held.average
    assert planned.bound.memory == (2 * held.state + held.batch) / chip.bandwidth
    sent = sum(e.size * n * 2 * 7 / 8 for e, n in planned.exchanges.items())  # All all-reduces.
    np.testing.assert_allclose(planned.bound.network, sent / chip.interconnect)
    assert planned.bound.seconds == max(planned.bound)


def test_an_unknown_figure_bounds_nothing(topology):
    slow = type(topology)("x", "x", topology.devices, CHIPS["Tesla T4"], 1, "")
    bound = lower_bound(slow, 1e15, Memory(1, 1, 1, 1, 1, 1, 1), {})
    assert bound.network is None
    assert bound.seconds == bound.compute == 1e15 / 8 / 65e12


@pytest.mark.parametrize(
    ("words", "size"),
    [
        ("Ran out of memory in memory space hbm. Used 17.25G of 15.75G hbm.", 17.25 * GIB),
        ("the total memory required for HLO temporaries (52.45G) exceeds", 52.45 * GIB),
        ("Used 512.00M of 100.00M hbm", 512 * 2**20),
        ("Used 3.50K of 1.00K hbm", 3.5 * 2**10),
        ("Used 1.50T of 1.00G hbm", 1.5 * 2**40),
        ("no figure at all", 0),
    ],
)
def test_what_the_compiler_says_is_needed(words, size):
    assert needed_bytes(words) == int(size)


def test_suggestions_save_memory_at_growing_cost(topology, planned):
    config = tiny.get_config()
    keeping = dataclasses.replace(planned, execution={"remat": Choice("none")})
    tried = list(suggestions(config, topology, keeping))
    assert tried == [
        ("model.remat=dots",),
        ("model.remat=query+key+value+out",),
        ("model.remat=full",),
        ("mesh.fsdp=8", "mesh.data=1"),
        ("mesh.fsdp=8", "mesh.data=1", "model.remat=dots"),
        ("mesh.fsdp=8", "mesh.data=1", "model.remat=query+key+value+out"),
        ("mesh.fsdp=8", "mesh.data=1", "model.remat=full"),
        ("mesh.fsdp=8", "mesh.data=1", "model.remat=full", "optimizer.accumulation_steps=2"),
        ("mesh.fsdp=8", "mesh.data=1", "model.remat=full", "optimizer.accumulation_steps=4"),
    ]


def test_suggestions_start_from_what_the_config_does_already(topology, planned):
    config = tiny.get_config()
    config.mesh.update({"data": 4, "tensor": -1})
    given = {"remat": Choice("query+out")}  # One of no ladder: nothing but all of it is left.
    split = dataclasses.replace(planned, mesh={"data": 4, "fsdp": 1, "tensor": 2}, execution=given)
    tried = list(suggestions(config, topology, split))
    assert tried[:3] == [
        ("model.remat=full",),
        ("mesh.fsdp=4", "mesh.data=1"),
        ("mesh.fsdp=4", "mesh.data=1", "model.remat=full"),
    ]
    # Of the 8 images of a device: those along `tensor` have the same ones.
    micro = [changes[-1].partition("=")[2] for changes in tried[3:]]
    assert micro == ["2", "4", "8"]
    split = dataclasses.replace(planned, mesh={"data": 1, "fsdp": 8, "tensor": 1})
    config.mesh.update({"data": 1, "fsdp": -1, "tensor": 1})
    assert not any(len(changes) == 2 for changes in suggestions(config, topology, split))
    config.optimizer.accumulation_steps = 2
    *_, last = suggestions(config, topology, split)
    micro = [changes[-1] for changes in suggestions(config, topology, split) if len(changes) > 1]
    assert micro == [last[-1]] == ["optimizer.accumulation_steps=4"]


def test_a_state_that_is_too_large_needs_more_than_recomputation(topology, planned):
    small = dataclasses.replace(planned, capacity=1000)
    first = next(iter(suggestions(tiny.get_config(), topology, small)))
    assert first == ("mesh.fsdp=8", "mesh.data=1")


@pytest.fixture
def without_libtpu(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "libtpu" else find(name)
    )


def test_the_command_prints_what_can_be_worked_out_by_hand(capsys, without_libtpu):
    """On four chips of two devices each, for so many steps that the hours have digits."""
    width, mlp_width, tokens, classes = 32, 64, 17, 10  # 4 x 4 patches of 2 x 2 pixels, and one.
    layer = 4 * (width * width + width) + 2 * width * mlp_width + mlp_width + width + 4 * width
    parameters = 2 * layer + (4 + 1) * width + width + tokens * width + 2 * width
    parameters += width * classes + classes
    products = 4 * tokens * width**2 + 2 * tokens**2 * width + 2 * tokens * width * mlp_width
    macs = 2 * products + (tokens - 1) * 4 * width + width * classes
    flops = 6 * macs * 64
    state, batch = 4 * 4 * parameters, 64 // 8 * (8 * 8 + 4 + 4 + 1)  # Adam's two moments, EMA.
    # Cloud TPU's figures of a v3 chip: 123 TFLOP/s, 900 GB/s; 340 TB/s among 1,024 chips.
    milliseconds = {
        "compute": flops / (4 * 123e12) * 1e3,
        "memory": (2 * state + batch) / (900e9 / 2) * 1e3,
        "network": 2 * 7 / 8 * 4 * parameters / (340e12 / 1024) * 1e3,
    }
    arguments = ["--config.batch_size=64", "--config.total_steps=2_000_000_000"]
    assert main([CONFIG, "--topology=v3:2x2", "--config.ema_decay=0.9", *arguments]) == 0
    text = capsys.readouterr().out

    def number(pattern):
        return float(re.search(pattern, text)[1].replace(",", ""))

    assert text.startswith("v3:2x2: 4 x TPU v3, 8 devices (two devices make a chip): data=8 x ")
    assert "\nNOTE: the TPU compiler is not installed" in text
    assert number(r"\nof +([\d.]+)\n") == 32 / 2, "GiB of one device"
    assert "\nFITS: 0% of the memory." in text
    # Of the gradients, and a few scalars.
    assert 0 <= number(r"all-reduce +\d+ x +([\d,]+) bytes") - 4 * parameters < 64
    assert number(r"per step: (\S+) \(forward and backward") == pytest.approx(flops, rel=1e-3)
    for name, value in milliseconds.items():
        assert number(rf"{name} ([\d.e-]+) ms") == pytest.approx(value, rel=5e-3), name
    step = max(milliseconds.values())
    assert number(r"at least ([\d.e-]+) ms") == pytest.approx(step, rel=5e-3)
    assert number(r"at most ([\d,]+) images/s") == pytest.approx(64 / step * 1e3, rel=1e-3)
    seconds = 2e9 * step / 1e3
    assert f"steps at least {seconds // 60:.0f}m{seconds % 60:02.0f}s, " in text
    assert number(r", ([\d.]+) chip-hours") == pytest.approx(4 * seconds / 3600, abs=0.05)


def test_the_command_suggests_what_fits(capsys, monkeypatch, planned):
    """On a chip with less memory than the plain step needs and more than the recomputing one."""
    small = planned.memory.total * 0.97
    kind = GPU_KINDS["gpu"]
    chip = CHIPS[kind]
    monkeypatch.setitem(CHIPS, kind, type(chip)(chip.flops, small, chip.bandwidth))
    arguments = [CONFIG, "--topology=gpu:8", "--config.ema_decay=0.9", "--suggest", "--json"]
    arguments.append("--config.model.remat=none")
    opened = []
    monkeypatch.setattr(
        planning, "open_dataset", lambda *a, **k: opened.append(1) or open_dataset(*a, **k)
    )
    code = main(arguments)
    assert len(opened) == 1, "the data is the same for all"
    plans = json.loads(capsys.readouterr().out)
    assert not plans[0]["fits"]
    assert plans[0]["changes"] == []
    assert code == (0 if plans[-1]["fits"] else 1)
    assert plans[1]["changes"] == ["model.remat=dots"]
    for made in plans:
        assert made["fits"] == (made["memory"]["total"] <= made["memory"]["capacity"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--topology=v9:4x4"], "expected a TPU slice"),
        (["--topology=v5e:2x4", "--price_per_hour=-1"], "'-1' is not a number above 0"),
        (["--topology=v5e:2x4", "--price_per_hour=nan"], "'nan' is not a number above 0"),
        (["--topology=v5e"], "expected a TPU slice"),
        (["--topology=v5e:0x4"], "expected a TPU slice"),
        (["--topology=gpu:0"], "expected a TPU slice"),
        ([f"--topology=gpu:{'9' * 5000}"], "expected a TPU slice"),
        (["--topology=gpu:100000"], "at most 10,000"),
        (["--topology=h100:1000x1000"], "at most 10,000"),
        (["--topology=gpu:8", "--config.mesh.fsdp=3"], "does not multiply"),
        (["--topology=gpu:8", "--config.batch_size=12"], "not divisible"),
        (["--topology=gpu:8", "--config.nothing"], "KEY=VALUE"),
        (["--topology=gpu:8", "--nothing"], "nothing"),
    ],
)
def test_mistakes_are_named(arguments, words, capsys):
    assert main([CONFIG, *arguments]) == 2
    assert words in capsys.readouterr().err


def test_every_kind_is_in_the_table_of_chips():
    for kind, devices_per_chip in TPU_KINDS.values():
        assert CHIPS[kind].cores in (devices_per_chip, 2)
        assert CHIPS[kind].bandwidth
    for kind in GPU_KINDS.values():
        assert CHIPS[kind].bandwidth
        assert CHIPS[kind].interconnect


def test_without_the_tpu_compiler_the_cpu_stands_in(without_libtpu):
    topology = open_topology("v3:2x2")
    assert len(topology.devices) == 8
    assert topology.devices_per_chip == 2
    assert topology.memory == 16 * GIB
    assert "pip install 'jax[tpu]'" in topology.stand_in


def test_other_compiler_errors_are_not_hidden(monkeypatch, topology):
    class Step:
        def lower(self, *arguments):
            raise jax.errors.JaxRuntimeError("INTERNAL: something else")

    monkeypatch.setattr(experiment, "make_train_step", lambda *arguments: Step())
    with pytest.raises(jax.errors.JaxRuntimeError, match="something else"):
        make_plan(tiny.get_config(), topology)


PLAN = Plan(
    changes=("mesh.fsdp=2",),
    mesh={"data": 4, "fsdp": 2, "tensor": 1},
    memory=Memory(2 * GIB, 4 * GIB, 0, 0, GIB // 8, GIB // 2, 0),
    capacity=53 * GIB // 2,
    refusal="",
    flops=3e12,
    exchanges=Counter(
        {
            Collective("all-reduce", 1000, 0): 2,
            Collective("all-gather", 2000, 0): 1,
            Collective("all-reduce", 500, 4): 3,
        }
    ),
    bound=Bound(0.002, 0.004, None),
    estimate=None,
    kernels=None,
    batch_size=64,
    peak_flops=1.5e15,
    execution={"attention": Choice("xla"), "remat": Choice("full", "why")},
    steps=90_000,
    compile_seconds=12.6,
)
FOUR_CHIPS = Topology("a:2x2", "an A", [*range(8)], CHIPS["TPU v3"], 2, "because", hosts=3)


def test_a_plan_in_full():
    assert describe(PLAN, FOUR_CHIPS, 2.5).splitlines() == [
        "a:2x2: 4 x an A, 8 devices (two devices make a chip): data=4 x fsdp=2 x tensor=1",
        "NOTE: because.",
        "with --config.mesh.fsdp=2",
        "attention xla, remat full (why)",
        "compiled in 13 s",
        "",
        "on each device  GiB",
        "parameters      2.000",
        "optimizer       4.000",
        "batch           0.125",
        "temporaries     0.500",
        "total           6.625",
        "of              26.5",
        "",
        "FITS: 25% of the memory.",
        "",
        "exchanged per device and step:",
        "  all-gather  1 x  2,000 bytes",
        "  all-reduce  5 x  3,500 bytes",
        "",
        "model FLOPs per step: 3e+12 (forward and backward, nothing recomputed)",
        "a step takes at least 4 ms (compute 2 ms, memory 4 ms): at most 16,000 images/s; "
        "90,000 steps at least 6m00s, 0.4 chip-hours",
        "cost: at least 1.00 at 2.5 an hour of a chip",
    ]
    plain = dataclasses.replace(FOUR_CHIPS, devices_per_chip=1, stand_in="", compiler="cuda")
    alone = dataclasses.replace(PLAN, changes=(), exchanges=Counter(), estimate=0.5, steps=7200)
    lines = describe(alone, plain, None).splitlines()
    assert lines[0] == "a:2x2: 8 x an A, 8 devices: data=4 x fsdp=2 x tensor=1"
    assert lines[1] == "attention xla, remat full (why)"
    assert "  nothing known" in lines
    assert lines[-2:] == [
        "a step takes about 500 ms: 128 images/s, 0.4% MFU; 7,200 steps about 1h00m, 8.0 chip-hours",
        "  (not known without a GPU: which product kernels tuning chooses, and cuDNN's workspaces)",
    ]


def test_whether_a_plan_fits():
    assert verdict(dataclasses.replace(PLAN, capacity=PLAN.memory.total)) == (
        "FITS: 100% of the memory."
    )
    assert verdict(dataclasses.replace(PLAN, capacity=PLAN.memory.total - 1)) == "DOES NOT FIT."
    refused = dataclasses.replace(PLAN, refusal="too large")
    assert verdict(refused) == "DOES NOT FIT. The compiler: too large"
    assert not refused.fits


def test_a_plan_as_json():
    memory = {"parameters": 2 * GIB, "optimizer": 4 * GIB, "average": 0, "objective": 0}
    memory |= {"batch": GIB // 8, "temporaries": GIB // 2, "program": 0}
    assert as_json(PLAN, FOUR_CHIPS, 2.5) == {
        **{"topology": "a:2x2", "kind": "an A", "devices": 8, "devices_per_chip": 2, "hosts": 3},
        **{"compiler": "stand-in", "stand_in": "because", "changes": ("mesh.fsdp=2",)},
        **{"mesh": {"data": 4, "fsdp": 2, "tensor": 1}, "fits": True, "refusal": ""},
        "memory": memory | {"total": 53 * GIB // 8, "capacity": 53 * GIB // 2},
        "exchanges": {
            "all-reduce": {"times": 5, "bytes": 3500},
            "all-gather": {"times": 1, "bytes": 2000},
        },
        "flops": 3e12,
        "bound_seconds": {"compute": 0.002, "memory": 0.004, "network": None, "step": 0.004},
        **{"estimate_seconds": None, "kernels": None, "images_per_second": 16_000},
        "execution": {"attention": "xla", "remat": "full"},
        **{"mfu": 3e12 / 0.004 / 1.5e15, "steps": 90_000, "compile_seconds": 12.6},
        **{"chip_hours": 0.4, "device_hours": 0.8, "cost": 1.0},
    }


@pytest.mark.slow
@pytest.mark.parametrize("family", TPU_KINDS)
def test_every_generation_has_a_mesh(family):
    """Of as many devices to a chip as JAX makes there."""
    shape = "2x2x4" if family in ("v4", "v5p", "tpu7x") else "4x4"
    made = plan_for_tpu(
        f"--config={ROOT / 'tests' / 'tiny.py'}",
        f"--topology={family}:{shape}",
        "--config.mesh.fsdp=2",
    )[0]
    assert made["devices"] == 16 * made["devices_per_chip"] == 2 * made["mesh"]["data"]


def test_a_shape_that_no_slice_has_is_refused():
    if not importlib.util.find_spec("libtpu"):
        pytest.skip("needs libtpu")
    with pytest.raises(ConfigError, match="v5e:3x5"):
        open_topology("v5e:3x5")


def plan_for_tpu(*arguments):
    """The command's plans, from a process of its own."""
    if not importlib.util.find_spec("libtpu"):
        pytest.skip("needs libtpu")
    environment = {k: v for k, v in os.environ.items() if k not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    command = [sys.executable, "-m", "vit_jax.plan", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    return json.loads(done.stdout)


def test_several_hosts_share_their_ports(topology):
    host = dataclasses.replace(topology, compiler="cuda")
    assert host.interconnect == 450e9
    assert dataclasses.replace(host, hosts=2).interconnect == 4 * 50e9
    assert not topology.compiler_options
    assert host.compiler_options["xla_gpu_autotune_level"] == "0"


def test_an_estimate_decides_over_images_mfu_and_cost(planned, topology, capsys):
    """Without one, the bound; JSON says which."""
    assert planned.estimate is None
    assert planned.images_per_second == 32 / planned.bound.seconds
    estimated = dataclasses.replace(planned, estimate=0.5, kernels=900, steps=7200)
    made = as_json(estimated, topology, 3.0)
    assert (made["compiler"], made["estimate_seconds"]) == ("stand-in", 0.5)
    assert made["images_per_second"] == 64
    assert made["mfu"] == planned.flops / 0.5 / (8 * 1979e12 / 2)
    assert (made["device_hours"], made["chip_hours"], made["cost"]) == (8, 8, 24)
    text = "\n".join(describe_estimate(estimated, topology, 3.0))
    assert "a step takes about 500 ms, 900 kernels: 64 images/s" in text
    assert text.endswith("cost: about 24.00 at 3 an hour of a chip")
    assert as_json(planned, topology, None)["cost"] is None


def test_a_gpu_s_description_names_its_figures():
    for kind in set(GPU_KINDS.values()):
        text = gpu_compiler.target(kind)
        assert f'device_description_str: "{kind}"' in text
        assert text.count("{") == text.count("}") == 4
        assert (
            abs(float(re.search(r"bandwidth: (\d+)", text)[1]) / CHIPS[kind].bandwidth - 1) < 1e-3
        )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h100:8", "h200:2x8", "a100:1"])
def test_the_gpu_compiler_plans(name, capsys):
    """Also where the devices are several hosts'; with fused attention in bfloat16."""
    if not gpu_compiler.is_installed():
        pytest.skip(f"needs the compiler for NVIDIA: {gpu_compiler.INSTALL_PLUGIN}")
    options = ["--config.model.dtype=bfloat16", "--config.model.dropout_rate=0.1"]
    assert main([CONFIG, f"--topology={name}", "--config.batch_size=32", "--json", *options]) == 0
    (made,) = json.loads(capsys.readouterr().out)
    assert made["compiler"] == "cuda"
    assert made["stand_in"] == ""
    assert made["execution"] == {
        **{"attention": "cudnn", "remat": "dots", "scan_unroll": 2},
        "matmul_precision": "default",
    }
    assert made["estimate_seconds"] > made["kernels"] * 2e-6
    assert made["memory"]["temporaries"] > 0
    assert bool(made["exchanges"]) == (made["devices"] > 1)


@pytest.mark.slow
def test_the_tpu_compiler_plans():
    """Its figures at the versions that setup.py pins: see docs/scaling.md."""
    first = plan_for_tpu(
        "--config=configs/vit.py:b16", "--topology=v5e:4x4", "--config.model.remat=dots"
    )[0]
    assert first["fits"]
    assert not first["stand_in"]
    np.testing.assert_allclose(first["memory"]["temporaries"], 14_621_582_336, rtol=0.05)
    assert set(first["exchanges"]) == {"all-reduce"}


@pytest.mark.slow
def test_the_tpu_compiler_refuses():
    options = ["--topology=v5e:4x4", "--config.model.remat=none"]
    first = plan_for_tpu("--config=configs/vit.py:b16", *options)[0]
    assert not first["fits"]
    assert "exceeds" in first["refusal"]
    np.testing.assert_allclose(first["memory"]["temporaries"], 43.59 * GIB, rtol=0.05)


def test_a_plan_compares_with_what_this_host_loads(planned, topology):
    seconds = dict.fromkeys(("read", "decode and crop", "augment", "assemble"), 0.25)
    found = Supply(50.0, Costs(seconds, 1.0, 8, 4.0), 4, ("data.cache_gib=1",))
    (line,) = describe_input(planned, topology, found)
    assert line.startswith(
        f"input: each of 1 hosts needs {planned.images_per_second:,.0f} images/s; this"
    )
    assert line.endswith("of the time. It helps: data.cache_gib=1")
    (line,) = describe_input(planned, dataclasses.replace(topology, hosts=4), found)
    share = planned.images_per_second / 4
    assert line.startswith(f"input: each of 4 hosts needs {share:,.0f} images/s; this")
    assert found.compare(share) in line
    document = json.loads(json.dumps(input_json(found)))["input"]
    assert document["images_per_second"] == 50
    assert document["stage_milliseconds"]["read"] == 250
    assert describe_input(planned, topology, None) == []
    assert input_json(None) == {}


def test_the_input_is_measured_on_the_configs_own_data():
    found = measure_supply(tiny.get_config())
    assert found.costs.num_images == 64
    assert found.images_per_second > 0
