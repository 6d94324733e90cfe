"""What a plan computes of numbers that a compiler gives."""

import collections
import contextlib
import dataclasses
import types

import jax
import numpy as np
import pytest

from tests.calls import recorded
from tests.states import mesh_of
from vit_jax.training import planning
from vit_jax.training.planning import Bound, Memory, Plan, lower_bound, needed_bytes

MEMORY = Memory(
    parameters=1, optimizer=20, average=300, objective=4000, batch=50_000, temporaries=0, program=0
)


@dataclasses.dataclass(frozen=True)
class Exchange:
    size: int

    def bytes_sent(self, count):
        return self.size * count


def topology(**values):
    known = {"devices": [None] * 4, "peak_flops": 5, "bandwidth": 7, "interconnect": 3, "kind": "x"}
    known |= {"compiler": "cuda", "platform": "gpu", "memory": 123.7}
    return types.SimpleNamespace(**known | values)


def test_the_bound_is_of_all_chips_arithmetic_memory_and_what_they_send():
    exchanges = collections.Counter({Exchange(6): 2, Exchange(9): 1})
    found = lower_bound(topology(), 40, MEMORY, exchanges)
    assert found == (40 / (4 * 5), (2 * 4321 + 50_000) / 7, (6 * 2 + 9) * 4 / 3)
    assert found.seconds == max(found)
    unknown = lower_bound(topology(bandwidth=None, interconnect=None), 40, MEMORY, exchanges)
    assert (unknown, unknown.seconds) == ((2, None, None), 2)


@pytest.mark.parametrize(("own", "network", "expected"), [(3, 2, 3), (3, 5, 5), (3, None, 3)])
def test_the_estimate_is_the_devices_work_or_their_exchange(monkeypatch, own, network, expected):
    monkeypatch.setattr(planning.estimate, "device_seconds", lambda program, kind: own)
    bound = Bound(1, None, network)
    assert planning.estimated_seconds(topology(), None, bound) == expected
    monkeypatch.setattr(planning, "STAND_IN", "cuda")
    assert planning.estimated_seconds(topology(), None, bound) is None


def plan(**values):
    known = dict.fromkeys([field.name for field in dataclasses.fields(Plan)])
    known |= {"memory": MEMORY, "refusal": "", "capacity": 54_321, "flops": 60, "batch_size": 8}
    known |= {"bound": Bound(2, 4, 1), "steps": 10, "peak_flops": 30}
    return Plan(**known | values)


def test_a_plan_fits_where_the_memory_is_just_enough():
    assert plan().memory.total == 54_321
    assert plan().fits
    assert not plan(capacity=54_320).fits
    assert not plan(refusal="no").fits


def test_rates_are_of_the_estimate_or_else_the_bound():
    for estimate, seconds in ((None, 4), (5, 5)):
        found = plan(estimate=estimate)
        assert found.images_per_second == 8 / seconds
        assert found.mfu == 60 / seconds / 30
        assert found.run_seconds == 10 * seconds


@pytest.fixture
def parts(monkeypatch):
    """Stand-ins for all that a plan is made of, each with a size of its own; notes what each is given."""
    state = types.SimpleNamespace(params="p", opt_state="o", ema="e", objective="own")
    experiment = types.SimpleNamespace(
        state=state,
        frozen="frozen",
        batch="batch",
        step="step",
        flops_per_image=7,
        execution={"remat": 1},
        durations=types.SimpleNamespace(total=90),
    )
    analysis = types.SimpleNamespace(temp_size_in_bytes=600_000, generated_code_size_in_bytes=7)
    sizes = {"p": 1, "o": 20, "e": 300, ("frozen", "own"): 4000, "batch": 50_000}
    launches = [types.SimpleNamespace(times=2), types.SimpleNamespace(times=3)]
    parts = types.SimpleNamespace(
        config=types.SimpleNamespace(batch_size=48, mesh="axes"),
        mesh=types.SimpleNamespace(shape={"data": 4}),
        compiled=types.SimpleNamespace(memory_analysis=lambda: analysis, as_text=lambda: "text"),
        bound=Bound(1, 2, 3),
        state=state,
        given={},
    )

    def stand_in(module, name, result):
        parts.given[name] = recorded(monkeypatch, module, name, result)

    stand_in(planning.config_lib, "validate", None)
    stand_in(planning, "with_architecture", parts.config)
    stand_in(planning, "open_data", "data")
    stand_in(planning.sharding, "build_mesh", parts.mesh)
    stand_in(planning, "make_experiment", experiment)
    stand_in(planning, "try_to_compile", (parts.compiled, ""))
    stand_in(planning, "lower_bound", parts.bound)
    stand_in(planning, "estimated_seconds", 9.5)
    stand_in(planning.estimate, "gpu_kernels", launches)
    monkeypatch.setattr(planning, "bytes_per_device", sizes.__getitem__)
    monkeypatch.setattr(planning, "read_program", lambda text: f"program of {text!r}")
    monkeypatch.setattr(planning, "collectives", lambda program: f"exchanges of {program}")
    monkeypatch.setattr(planning, "CUDA", "cuda")
    return parts


def test_a_plan_is_made_of_what_the_compiler_says(parts):
    devices = topology()
    found = planning.make_plan("given", devices, ("a=1",))
    memory = Memory(1, 20, 300, 4000, 50_000, 600_000, 7)
    assert found.memory == memory
    assert (found.changes, found.mesh, found.capacity) == (("a=1",), {"data": 4}, 123)
    assert (found.refusal, found.bound, found.estimate) == ("", parts.bound, 9.5)
    assert (found.flops, found.batch_size) == (7 * 48, 48)
    assert found.peak_flops == len(devices.devices) * devices.peak_flops
    assert (found.execution, found.steps) == ({"remat": 1}, 90)
    assert found.exchanges == "exchanges of program of 'text'"
    given = parts.given
    assert given["validate"] == [(("given",), {})]
    assert given["with_architecture"] == [(("given",), {"cached_only": True})]
    assert given["open_data"] == [((parts.config,), {})]
    made_of = (parts.config, parts.mesh, "data")
    assert given["make_experiment"] == [(made_of, {"platform": "gpu"})]
    compiled = ("step", devices, parts.state, "frozen", "batch")
    assert given["try_to_compile"] == [(compiled, {})]
    assert given["lower_bound"] == [((devices, 7 * 48, memory, found.exchanges), {})]
    assert given["estimated_seconds"] == [((devices, "program of 'text'", parts.bound), {})]


def test_of_a_program_that_is_refused_the_compiler_says_how_much_it_needs(parts, monkeypatch):
    refused = (None, "Used 2K of 1K hbm")
    recorded(monkeypatch, planning, "try_to_compile", refused)
    found = planning.make_plan("given", topology())
    assert found.memory == Memory(1, 20, 300, 4000, 50_000, 2048, 0)
    assert (found.refusal, found.estimate) == ("Used 2K of 1K hbm", None)
    assert found.exchanges == "exchanges of program of ''"


@pytest.mark.parametrize(("compiler", "kernels"), [("cuda", 5), ("tpu", None)])
def test_kernels_are_launched_by_gpus_alone(parts, compiler, kernels):
    assert planning.make_plan("given", topology(compiler=compiler)).kernels == kernels


def test_the_data_that_plans_share_is_not_opened_again(parts):
    planning.make_plan("given", topology(), dataset="shared")
    assert not parts.given["open_data"]
    ((made_of, _),) = parts.given["make_experiment"]
    assert made_of[2] == "shared"


def test_what_this_host_loads_is_of_the_runs_own_model_and_data(monkeypatch):
    monkeypatch.setattr(planning.config_lib, "validate", lambda config: None)
    monkeypatch.setattr(
        planning, "with_architecture", lambda config, cached_only: (config, cached_only)
    )
    monkeypatch.setattr(
        planning, "open_dataset", lambda config, **options: ("data", config, options)
    )
    monkeypatch.setattr(planning, "look_at", lambda *given: given)
    known = ("given", True)
    assert planning.measure_supply("given") == (known, ("data", known, {}))
    assert planning.open_data("given") == ("data", known, {"required": False})


def compiling(error=None):
    """A step whose program is "compiled", or whose compiler fails."""

    def compile_(compiler_options):
        if error:
            raise error
        return "compiled", compiler_options

    lowered = types.SimpleNamespace(compile=compile_)
    step = types.SimpleNamespace(lower=lambda *arguments: arguments == (1, 2) and lowered)
    options = {"compiling": contextlib.nullcontext, "compiler_options": (("xla", True),)}
    return planning.try_to_compile(step, topology(**options), 1, 2)


def test_a_program_that_needs_too_much_memory_is_refused_in_the_compilers_words():
    assert compiling() == (("compiled", {"xla": True}), "")
    error = jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Used 2G of 1G hbm\nand a list")
    assert compiling(error) == (None, "RESOURCE_EXHAUSTED: Used 2G of 1G hbm")
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        compiling(jax.errors.JaxRuntimeError("INTERNAL: it broke"))


def test_a_devices_bytes_are_those_of_its_parts():
    mesh = mesh_of(8, fsdp=4)

    def leaf(shape, dtype, *spec):
        sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec))
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    tree = {"a": leaf((6, 8), np.float32, None, "fsdp"), "b": [leaf((3,), np.int8)]}
    assert planning.bytes_per_device(tree) == 6 * 2 * 4 + 3
    assert planning.bytes_per_device(None) == 0


def test_units_of_memory():
    sizes = [needed_bytes(f"Used 1.5{unit} of 1G hbm") for unit in "KMGT"]
    assert sizes == [1.5 * 1024**power for power in (1, 2, 3, 4)]
    assert needed_bytes("HLO temporaries (2.5G)") == 2.5 * 2**30
    assert needed_bytes("no words for it") == 0
