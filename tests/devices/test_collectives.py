"""Exchanges, counted in a program's text: texts written by hand, and programs compiled here."""

import contextlib
import functools
import importlib.util
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import NamedSharding, PartitionSpec

from tests import tiny
from tests.runs import ROOT
from tests.stages import Setup, config_with, mesh_of
from vit_jax.devices.collectives import Collective, collectives
from vit_jax.devices.hlo import read_program
from vit_jax.devices.topology import open_topology
from vit_jax.training.planning import make_plan

# The forms that the TPU's and the CPU's compilers write: a loop without and with a stated count, a
# tuple of shapes with tiles, an asynchronous pair, a fused reduce-scatter, groups in three notations.
TEXT = """\
HloModule jit_step, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  ROOT %add = f32[]{:T(128)} add(%a, %b)
}

%body (p: (s32[], f32[4,8])) -> (s32[], f32[4,8]) {
  %ar = (bf16[3]{0:T(1024)(128)(2,1)S(1)}, /*index=1*/bf16[2,5]{1,0}) all-reduce(%x, %y), channel_id=1, replica_groups=mesh['axis_0'=4,'axis_1'=2] {'axis_0'}, to_apply=%sum
}

%condition (p: (s32[], f32[4,8])) -> pred[] {
  %limit = s32[]{:T(128)} constant(12)
  ROOT %lt = pred[]{:T(512)} compare(%i, %limit), direction=LT
}

%all-reduce-scatter.1 (q: f32[8,8]) -> f32[2,8] {
  %ar.2 = f32[8,8]{1,0} all-reduce(%q), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%sum
  ROOT %slice = f32[2,8]{1,0} dynamic-slice(%ar.2, %i, %z)
}

%counted (p: (s32[])) -> (s32[]) {
  %cp = (f32[16]{0}, f32[16]{0}, u32[], u32[]) collective-permute-start(%w), source_target_pairs={{0,1},{1,0}}
  %done = f32[16]{0} collective-permute-done(%cp)
}

ENTRY %main (state: f32[8,8]) -> f32[2,8] {
  %loop = (s32[], f32[4,8]{1,0}) while(%init), condition=%condition, body=%body, metadata={op_name="while"}
  %loop.2 = (s32[]) while(%init.2), condition=%sum, body=%counted, backend_config={"known_trip_count":{"n":"7"}}
  %gathered = (f32[2,8]{1,0}, f32[8,8]{1,0}) all-gather-start(%state), replica_groups=[2,4]<=[8], dimensions={0}
  %gathered.done = f32[8,8]{1,0} all-gather-done(%gathered)
  %rs = f32[2,8]{1,0} reduce-scatter(%big), replica_groups=[1,8]<=[8], dimensions={0}, to_apply=%sum
  ROOT %fused = f32[2,8]{1,0} fusion(%gathered.done), kind=kCustom, calls=%all-reduce-scatter.1
}
"""


def test_every_form_is_counted_with_its_size_group_and_times():
    assert collectives(read_program(TEXT)) == {
        Collective("all-reduce", 2 * (3 + 10), 4): 12,
        Collective("collective-permute", 4 * 16, 0): 7,
        Collective("all-gather", 4 * 64, 4): 1,
        Collective("reduce-scatter", 4 * 16 * 8, 8): 1,
        Collective("reduce-scatter", 4 * 64, 4): 1,
    }


# An all-gather that a TPU begins in one fusion, goes on with in another, and ends in a third; and one
# more on another channel.
ASYNCHRONOUS = """\
%start (p: bf16[1,8]) -> bf16[4,8] {
  %ag.1 = bf16[4,8]{1,0} all-gather(%p), channel_id=7, replica_groups={{0,1,2,3}}, dimensions={0}
}

%goes_on (p: bf16[1,8]) -> bf16[4,8] {
  %ag.2 = bf16[4,8]{1,0} all-gather(%p), channel_id=7, replica_groups={{0,1,2,3}}, dimensions={0}
}

%other (p: bf16[1,8]) -> bf16[4,8] {
  %ag.3 = bf16[4,8]{1,0} all-gather(%p), channel_id=8, replica_groups={{0,1,2,3}}, dimensions={0}
}

ENTRY %main (p: bf16[1,8]) -> bf16[4,8] {
  %a = bf16[4,8]{1,0} fusion(%p), kind=kCustom, calls=%start
  %b = bf16[4,8]{1,0} fusion(%p), kind=kOutput, calls=%goes_on
  %c = bf16[4,8]{1,0} fusion(%p), kind=kCustom, calls=%goes_on
  ROOT %d = bf16[4,8]{1,0} fusion(%p), kind=kCustom, calls=%other
}
"""


def test_an_asynchronous_all_gather_counts_once():
    assert collectives(read_program(ASYNCHRONOUS)) == {Collective("all-gather", 2 * 32, 4): 2}


def test_a_loop_in_a_loop_multiplies():
    text = TEXT.replace(
        "to_apply=%sum\n}\n\n%condition",
        "to_apply=%sum\n  %in = (s32[]) while(%y), condition=%sum, "
        'body=%counted, backend_config={"known_trip_count":{"n":"7"}}\n}\n\n%condition',
    )
    assert (
        collectives(read_program(text))[Collective("collective-permute", 4 * 16, 0)] == 7 + 12 * 7
    )


@pytest.mark.parametrize(
    ("instruction", "expected"),
    [
        ("f32[4,6] all-to-all(%x), replica_groups={{0,1},{2,3}}", ("all-to-all", 96, 2)),
        ("f32[6] all-reduce(%x), to_apply=%sum", ("all-reduce", 24, 0)),
        ("(f32[6], bf16[3]) all-reduce-start(%x, %y), channel_id=3", ("all-reduce", 30, 0)),
        ("f32[6] all-reduce(%x), replica_groups=[2,4]<=[4,2]T(1,0)", ("all-reduce", 24, 4)),
        (
            "f32[6] all-reduce(%x), replica_groups=mesh['a'=3,'b'=2,'c'=5] {'a','c'}",
            ("all-reduce", 24, 15),
        ),
        ("f32[6] reduce-scatter(%x), dimensions={0}", ("reduce-scatter", 24, 0)),
        ("f32[2,3] all-gather(%x), dimensions={0}", ("all-gather", 24, 0)),
        (
            "(f32[2], f32[3], f32[8], f32[12]) all-gather-start(%x, %y), replica_groups={{0,1,2,3}}",
            ("all-gather", 80, 4),
        ),
        (
            "f32[6] collective-permute(%x), source_target_pairs={{0,1}}",
            ("collective-permute", 24, 0),
        ),
        ("f32[6] all-reduce-done(%x)", None),
        ("f32[6] collective-broadcast(%x)", None),
    ],
)
def test_each_form_by_itself(instruction, expected):
    line = (
        f"ENTRY %main (x: f32[6]) -> f32[6] {{\n  ROOT %a = {instruction}\n  %b = {instruction}\n}}"
    )
    found = {} if expected is None else {Collective(*expected): 2}
    assert collectives(read_program(line)) == found


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        *(("all-gather", 75), ("reduce-scatter", 75), ("all-to-all", 75)),
        *(("all-reduce", 150), ("collective-permute", 100)),
    ],
)
def test_bytes_sent(kind, sent):
    assert Collective(kind, 100, 4).bytes_sent(64) == sent
    assert Collective(kind, 100, 0).bytes_sent(4) == sent
    assert Collective(kind, 100, 1).bytes_sent(8) == (100 if "permute" in kind else 0)


def test_a_scan_counts_every_turn():
    mesh = mesh_of(data=8)
    split = NamedSharding(mesh, PartitionSpec("data"))

    def turn(carry, _):
        total = jax.lax.with_sharding_constraint(jnp.broadcast_to(carry.sum(0), carry.shape), split)
        return jnp.sin(carry + total), None

    def program(x):
        return jax.lax.scan(turn, x, length=5)[0]

    x = jax.ShapeDtypeStruct((8, 16), jnp.float32, sharding=split)
    assert collectives(read_program(jax.jit(program).lower(x).compile().as_text())) == {
        Collective("all-reduce", 4 * 16, 8): 5
    }


# -------------------------------------------------------------------- what a train step exchanges


def exchanged(plan, *kinds):
    """Bytes of these kinds in one step."""
    return sum(e.size * times for e, times in plan.exchanges.items() if e.kind in kinds)


@functools.cache
def step_plan(unroll, dtype="float32", **axes):
    """A step of a model whose blocks are large enough to be split."""
    config = tiny.get_config()
    config.model.update(
        {"width": 256, "mlp_width": 512, "depth": 2, "num_heads": 2, "scan_unroll": unroll}
    )
    config.model.update({"dtype": dtype, "remat": "dots"})
    config.mesh.update({"data": 1} | axes)
    return make_plan(config, open_topology("gpu:8"))


@pytest.mark.parametrize(
    "unroll",
    [
        pytest.param(1, id="scan"),
        # As the next test's, which gathers too.
        pytest.param(2, id="unrolled", marks=pytest.mark.slow),
    ],
)
def test_data_parallelism_reduces_each_gradient_once(unroll):
    plan = step_plan(unroll, data=8)
    reduced = exchanged(plan, "all-reduce", "reduce-scatter")
    assert plan.memory.parameters <= reduced <= plan.memory.parameters * 1.01
    assert not exchanged(plan, "all-gather", "all-to-all", "collective-permute")


@pytest.mark.parametrize("unroll", [1, 2], ids=["scan", "unrolled"])
def test_fsdp_gathers_each_parameter_twice_and_reduces_its_gradient_once(unroll):
    whole = step_plan(1, data=8).memory.parameters
    plan = step_plan(unroll, fsdp=8)
    assert plan.memory.parameters < whole / 6
    assert 0 < exchanged(plan, "all-gather") <= 2 * whole
    assert 0 < exchanged(plan, "all-reduce", "reduce-scatter") <= 1.02 * whole


def test_a_split_bfloat16_model_gathers_kernels_twice_and_never_holds_them_all():
    """Layer by layer; in float32 here, where the CPU has no sums in bfloat16."""
    plan = step_plan(1, "bfloat16", fsdp=8)
    kernels = 2 * 4 * (4 * 256 * 256 + 2 * 256 * 512)
    assert exchanged(plan, "all-gather") == 2 * kernels
    assert kernels < exchanged(plan, "reduce-scatter", "all-reduce") < 1.02 * kernels
    assert not exchanged(plan, "all-to-all", "collective-permute")


@pytest.mark.parametrize(
    "dtype",
    [
        pytest.param("float32", marks=pytest.mark.slow),  # The easier one.
        "bfloat16",
    ],
)
def test_micro_batches_add_up_before_they_are_exchanged(dtype):
    """In float32, whatever the model computes in."""
    reduced = []
    for micro in (1, 8):
        config = tiny.get_config()
        config.batch_size, config.optimizer.accumulation_steps = 64, micro
        config.model.dtype, config.mesh.data = dtype, 8
        plan = make_plan(config, open_topology("gpu:8"))
        assert not exchanged(plan, "all-gather", "reduce-scatter", "all-to-all")
        reduced.append(exchanged(plan, "all-reduce"))
    assert reduced[0] == reduced[1]
    assert plan.memory.parameters <= reduced[0] <= plan.memory.parameters * 1.01


MESHES = {
    "data": {"mesh.data": 8},
    "fsdp": {"mesh.data": 1, "mesh.fsdp": 8},
    "both": {"mesh.data": 2, "mesh.fsdp": 4},
    "once": {"mesh.data": 2, "mesh.fsdp": 4, "optimizer.reduce_once": True},
}
WIDE = {"model.width": 256, "model.mlp_width": 512, "model.depth": 1, "batch_size": 64}
REDUCED = re.compile(r"= \(?(\w+)\[([\d,]*)\].*? (all-reduce|reduce-scatter)(?:-start)?\(")


def reductions(text):
    """The element types of what devices sum up, by kind; of arrays, not of single numbers."""
    kinds = {}
    for dtype, shape, kind in REDUCED.findall(text):
        if shape:
            kinds.setdefault(kind, set()).add(dtype)
    return kinds


@contextlib.contextmanager
def uncached():
    """Compiles: a program from the cache of an earlier run dumps nothing."""
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()
    yield
    jax.config.update("jax_enable_compilation_cache", True)
    compilation_cache.reset_cache()


def partitioned(experiment, folder):
    """The program of a step for one device, before the CPU's compiler widens what is bfloat16."""
    options = {"xla_dump_to": str(folder), "xla_dump_hlo_pass_re": "spmd-partitioning"}
    lowered = experiment.step.lower(experiment.state, {}, experiment.batch)
    with uncached():
        lowered.compile(compiler_options=options)
    (path,) = folder.glob("*after_spmd-partitioning*")
    return path.read_text()


PARTS = ("data", "fsdp")  # Of "both".


@pytest.mark.parametrize(
    "mesh",
    [
        *(pytest.param(name, marks=[pytest.mark.slow] * (name in PARTS)) for name in MESHES),
        "left to the compiler",
    ],
)
def test_gradients_of_a_bfloat16_model_are_reduced_in_float32(mesh, tmp_path):
    """In the program after partitioning; the CPU's final one always does."""
    values = MESHES.get(mesh, MESHES["both"] | {"optimizer.gradient_dtype": "model"})
    config = config_with(**{**WIDE, "model.dtype": "bfloat16", **values})
    sizes = {"data": config.mesh.data, "fsdp": config.mesh.fsdp}
    text = partitioned(Setup(config, mesh_of(**sizes)).experiment, tmp_path)
    found = reductions(text)
    if mesh not in MESHES:
        assert "bf16" in found["all-reduce"], "so this is what the test would see"
        return
    assert set.union(*found.values()) <= {"f32", "s32"}
    assert ("reduce-scatter" in found) == (mesh != "data")
    # Where they are used, kernels are rounded before they are sent.
    gathered = {dtype for dtype, shape in re.findall(r"= (\w+)\[([\d,]+)\]\S* all-gather\(", text)}
    assert gathered == {"data": set(), "once": {"f32"}}.get(mesh, {"bf16"})


def test_fsdp_may_gather_and_reduce_once_an_update_instead_of_at_every_micro_batch():
    """Whole parameters and gradients are then in memory during the update."""

    def plan(micro, once):
        values = {"optimizer.accumulation_steps": micro, "optimizer.reduce_once": once}
        config = config_with(**{**WIDE, **MESHES["fsdp"], **values})
        return make_plan(config, open_topology("gpu:8"))

    kinds = ("all-gather", "all-reduce", "reduce-scatter")
    once, each = plan(8, once=True), plan(8, once=False)
    whole = 8 * each.memory.parameters
    assert exchanged(once, *kinds) < 2.1 * whole
    assert exchanged(each, *kinds) > 3 * exchanged(once, *kinds)
    assert once.memory.parameters == each.memory.parameters
    assert once.memory.temporaries > each.memory.temporaries + whole / 2


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_a_tpu_reduces_in_float32(mesh):
    """In the TPU compiler's final text; with 8 micro-batches once as with one, or each time."""
    if not importlib.util.find_spec("libtpu"):
        pytest.skip("needs libtpu")
    values = {**WIDE, "model.dtype": "bfloat16", **MESHES[mesh]}
    once = mesh in ("data", "once")
    sizes = []
    for micro in (1, 8) if once else (8,):
        text = tpu_program({**values, "optimizer.accumulation_steps": micro})
        found = reductions(text)
        assert found
        assert set.union(*found.values()) <= {"f32", "s32"}
        exchanges = collectives(read_program(text)).items()
        sizes.append(sum(e.size * n for e, n in exchanges if e.kind != "all-gather"))
        scattered = [n for e, n in exchanges if e.kind == "reduce-scatter"]
        assert bool(scattered) == (mesh != "data")
        assert once or not any(n % micro for n in scattered)
    assert sizes[0] == sizes[-1]


def tpu_program(values):
    """The final text of a step for v5e:2x4, from a process of its own."""
    ours = ("XLA_FLAGS", "JAX_PLATFORMS")
    environment = {key: value for key, value in os.environ.items() if key not in ours}
    environment |= {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    environment |= {"ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}
    program = (
        "import sys; from tests.stages import Setup, config_with\n"
        "from vit_jax.devices import sharding; from vit_jax.devices.topology import open_topology\n"
        f"config = config_with(**{values!r})\n"
        "mesh = sharding.build_mesh(config.mesh, open_topology('v5e:2x4').devices)\n"
        "experiment = Setup(config, mesh).experiment\n"
        "lowered = experiment.step.lower(experiment.state, {}, experiment.batch)\n"
        "sys.stdout.write(lowered.compile().as_text())\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
