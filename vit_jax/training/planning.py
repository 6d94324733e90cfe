"""A run's train step, compiled for devices that are not here: what it holds, exchanges and costs."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.data.dataset import Dataset, open_dataset
from vit_jax.data.supply import Supply, look_at
from vit_jax.devices import estimate, sharding
from vit_jax.devices.collectives import Collective, collectives
from vit_jax.devices.hardware import GIB
from vit_jax.devices.hlo import Program, read_program
from vit_jax.devices.topology import CUDA, STAND_IN, Topology
from vit_jax.training.architecture import with_architecture
from vit_jax.training.execution import Choice
from vit_jax.training.experiment import make_experiment
from vit_jax.training.step import TrainStep

# The TPU compiler's words for a program that needs more memory than there is.
NEEDED = re.compile(r"(?:Used|HLO temporaries \()\s*([\d.]+)([KMGT])")
UNITS = {"K": 2**10, "M": 2**20, "G": GIB, "T": 2**40}


class Memory(NamedTuple):
    """The memory of one device during a step, in bytes."""

    parameters: int
    optimizer: int
    average: int  # of the parameters (EMA)
    objective: int  # its frozen arrays, and what it updates itself
    batch: int
    temporaries: int  # activations, gradients, buffers of exchanges
    program: int

    @property
    def state(self) -> int:
        """The bytes that stay from step to step."""
        return self.parameters + self.optimizer + self.average + self.objective

    @property
    def total(self) -> int:
        """All of it at once."""
        return sum(self)


class Bound(NamedTuple):
    """Seconds that a step takes at least, by what limits it; None where a figure is unknown."""

    compute: float
    memory: float | None
    network: float | None

    @property
    def seconds(self) -> float:
        """The largest: at best, all three go on at the same time."""
        return max(value for value in self if value is not None)


@dataclasses.dataclass(frozen=True)
class Plan:
    """One config, compiled for one topology.

    Attributes:
      changes: "KEY=VALUE" of the config, beyond what was asked for.
      mesh: axis -> devices along it.
      memory: of one device. Temporaries are the compiler's, if it refused as far as it says.
      capacity: of one device's memory, nominal, bytes.
      refusal: the compiler's words if the program does not fit, else "".
      flops: of one step, forward and backward, recomputation not counted.
      exchanges: of one device in one step -> how often.
      bound: of a step's time.
      estimate: of a step's time, in seconds; None where the compiler is not the real one.
      kernels: that a GPU launches in a step; None for others.
      batch_size: images of a step.
      peak_flops: of all devices.
      execution: how the model is computed.
      steps: of the whole run.
      compile_seconds: for lowering and compiling here.
    """

    changes: tuple[str, ...]
    mesh: dict[str, int]
    memory: Memory
    capacity: int
    refusal: str
    flops: float
    exchanges: Counter[Collective]
    bound: Bound
    estimate: float | None
    kernels: int | None
    batch_size: int
    peak_flops: float
    execution: dict[str, Choice]
    steps: int
    compile_seconds: float

    @property
    def fits(self) -> bool:
        """Whether the compiler takes it and the nominal memory holds it."""
        return not self.refusal and self.memory.total <= self.capacity

    @property
    def step_seconds(self) -> float:
        """The estimate, else the bound."""
        return self.bound.seconds if self.estimate is None else self.estimate

    @property
    def images_per_second(self) -> float:
        """Of all devices, at `step_seconds`."""
        return self.batch_size / self.step_seconds

    @property
    def mfu(self) -> float:
        """The share of the peak FLOP/s that the model's arithmetic has, at `step_seconds`."""
        return self.flops / self.step_seconds / self.peak_flops

    @property
    def run_seconds(self) -> float:
        """All steps at `step_seconds`, without evaluations and the like."""
        return self.steps * self.step_seconds


def open_data(config: ConfigDict) -> Dataset:
    """The config's training examples, or their sizes alone; raises UserError as `open_dataset`."""
    config_lib.validate(config)
    return open_dataset(with_architecture(config, cached_only=True), required=False)


def make_plan(
    config: ConfigDict,
    topology: Topology,
    changes: Sequence[str] = (),
    dataset: Dataset | None = None,
) -> Plan:
    """Compiles the train step of `config` for the devices of `topology`.

    Args:
      config, topology: of the run.
      changes: "KEY=VALUE" of the config, beyond what was asked for.
      dataset: as of `open_data`, for plans that share it; None: opened here.

    Raises:
      UserError: the config is wrong, or does not divide over these devices.
    """
    config_lib.validate(config)
    config = with_architecture(config, cached_only=True)
    mesh = sharding.build_mesh(config.mesh, topology.devices)
    dataset = open_data(config) if dataset is None else dataset
    experiment = make_experiment(config, mesh, dataset, platform=topology.platform)
    state, frozen, batch = experiment.state, experiment.frozen, experiment.batch

    start = time.perf_counter()
    arguments = (state, frozen, batch)
    compiled, refusal = try_to_compile(experiment.step, topology, *arguments)
    seconds = time.perf_counter() - start
    analysis = compiled and compiled.memory_analysis()
    memory = Memory(
        bytes_per_device(state.params),
        bytes_per_device(state.opt_state),
        bytes_per_device(state.ema),
        bytes_per_device((frozen, state.objective)),
        bytes_per_device(batch),
        analysis.temp_size_in_bytes if analysis else needed_bytes(refusal),
        analysis.generated_code_size_in_bytes if analysis else 0,
    )
    program = read_program((compiled and compiled.as_text()) or "")
    exchanges = collectives(program)
    flops = experiment.flops_per_image * config.batch_size
    bound = lower_bound(topology, flops, memory, exchanges)
    launches = estimate.gpu_kernels(program) if topology.compiler == CUDA else None
    return Plan(
        tuple(changes),
        dict(mesh.shape),
        memory,
        int(topology.memory),
        refusal,
        flops,
        exchanges,
        bound,
        None if refusal else estimated_seconds(topology, program, bound),
        None if launches is None else sum(kernel.times for kernel in launches),
        config.batch_size,
        len(topology.devices) * topology.peak_flops,
        experiment.execution,
        experiment.durations.total,
        seconds,
    )


def measure_supply(config: ConfigDict) -> Supply:
    """What this host loads of the config's data, by a look at it; raises UserError as `open_dataset`."""
    config_lib.validate(config)
    config = with_architecture(config, cached_only=True)
    return look_at(config, open_dataset(config))


def try_to_compile(
    step: TrainStep, topology: Topology, *arguments: Any
) -> tuple[jax.stages.Compiled | None, str]:
    """The compiled program, or None and the compiler's words if there is not enough memory."""
    try:
        with topology.compiling():
            lowered = step.lower(*arguments)
            return lowered.compile(compiler_options=dict(topology.compiler_options)), ""
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None, str(error).splitlines()[0]


def estimated_seconds(topology: Topology, program: Program, bound: Bound) -> float | None:
    """One step's time: the devices' own work, or what they exchange if that takes longer."""
    if topology.compiler == STAND_IN:
        return None
    own = estimate.device_seconds(program, topology.kind)
    return own and max(own, bound.network or 0.0)


def bytes_per_device(tree: Any) -> int:
    """The bytes on one device of the arrays that a tree of shapes describes."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def needed_bytes(refusal: str) -> int:
    """The memory that the compiler says a refused program needs; 0 if it does not say."""
    found = NEEDED.search(refusal)
    return int(float(found[1]) * UNITS[found[2]]) if found else 0


def lower_bound(
    topology: Topology, flops: float, memory: Memory, exchanges: Counter[Collective]
) -> Bound:
    """The roofline: no step is faster than its arithmetic, its state's way through memory, or what
    a chip has to send to others.

    The state is read and written once; activations and a second reading of the parameters come on
    top. What the devices of one chip exchange among themselves is not counted twice.
    """
    count = len(topology.devices)
    sent = sum(exchange.bytes_sent(count) * times for exchange, times in exchanges.items())
    bandwidth, link = topology.bandwidth, topology.interconnect
    return Bound(
        flops / (count * topology.peak_flops),
        (2 * memory.state + memory.batch) / bandwidth if bandwidth else None,
        sent / link if link else None,
    )
