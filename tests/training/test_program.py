"""A step's compiled program: the state is donated, nothing is float64, nothing goes to the host.

On the CPU, and with the compilers of TPUs and of NVIDIA's GPUs where they are installed.
"""

import importlib.util
import math
import re

import jax
import pytest

from tests.devices.test_collectives import tpu_program
from tests.stages import Setup, config_with, mesh_of
from vit_jax.devices import gpu_compiler, sharding
from vit_jax.devices.hlo import array_shapes, read_program
from vit_jax.devices.topology import open_topology

WIDTH, HIDDEN, BATCH, DEVICES = 32, 64, 64, 8
TOKENS = 17
VALUES = {
    "model.dtype": "bfloat16",
    "model.dropout_rate": 0.1,
    "model.width": WIDTH,
    "model.mlp_width": HIDDEN,
    "batch_size": BATCH,
    "mesh.data": DEVICES,
}
NORM = "layer_norm"  # The scope in the names of its operations.
NAMES_ONLY = ("parameter", "get-tuple-element", "tuple", "while", "bitcast")
TO_THE_HOST = re.compile(r"infeed|outfeed|\bsend\(|\brecv\(|host_transfer|_callback|:S\(5\)")
ALIAS = re.compile(r"\((\d+), \{\}, (?:may|must)-alias\)")


def program_text(platform):
    """The final text of a step on eight devices."""
    if platform == "cpu":
        mesh, compiling, options = mesh_of(data=DEVICES), None, {}
    elif platform == "tpu":
        if not importlib.util.find_spec("libtpu"):
            pytest.skip("needs libtpu")
        return tpu_program(VALUES)
    else:
        if not gpu_compiler.is_installed():
            pytest.skip(f"needs the compiler for NVIDIA: {gpu_compiler.INSTALL_PLUGIN}")
        topology = open_topology(f"h100:{DEVICES}")
        mesh = sharding.build_mesh(config_with(**VALUES).mesh, topology.devices)
        compiling, options = topology.compiling(), topology.compiler_options
    experiment = Setup(config_with(**VALUES), mesh).experiment
    arguments = (experiment.state, {}, experiment.batch)
    if compiling is None:
        return experiment.step.lower(*arguments).compile().as_text()
    with compiling:
        return experiment.step.lower(*arguments).compile(compiler_options=dict(options)).as_text()


@pytest.mark.parametrize(
    "platform",
    ["cpu", *(pytest.param(name, marks=pytest.mark.slow) for name in ("tpu", "gpu"))],
)
def test_the_program_of_a_step(platform):
    text = program_text(platform)
    assert "f64[" not in text
    assert not TO_THE_HOST.findall(text)
    state = Setup(config_with(**VALUES), mesh_of(data=DEVICES)).experiment.state
    header = text.partition("entry_computation_layout")[0]
    assert {int(number) for number in ALIAS.findall(header)} == set(
        range(len(jax.tree.leaves(state)))
    )
    if platform != "cpu":  # Whose compiler widens all that is bfloat16.
        assert float32_activations(text) == []


def float32_activations(text):
    """The instructions that write float32 arrays as large as the tokens or the MLP's hidden ones.

    Those of LayerNorm may.
    """
    rows = BATCH // DEVICES * TOKENS
    sizes = {rows * width for width in (WIDTH, HIDDEN)}
    program, found = read_program(text), []
    for instruction, *_ in program.executed():
        inner = [part for name in instruction.called for part in program.instructions(name)]
        if instruction.operation in NAMES_ONLY or any(
            NORM in x.rest for x in (instruction, *inner)
        ):
            continue
        for dtype, shape in array_shapes(instruction.shape):
            if dtype == "f32" and math.prod(shape) in sizes:
                found.append(f"{instruction.name} {instruction.shape}")
    return found
