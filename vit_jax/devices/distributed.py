"""Several processes as one run: how they find each other, agree, and part.

Each process drives some of the devices and runs the same program; JAX's own runtime
(`jax.distributed`) connects them. Who they are comes from the command line, or from the variables that
started them: `DETECTORS` and Cloud TPU's metadata. With one process nothing here does anything.
"""

import atexit
import dataclasses
import functools
import glob
import importlib.util
import itertools
import logging
import os
import re
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import jax
import numpy as np
from jax.experimental import multihost_utils

from vit_jax.errors import ConfigError, DataError

HEARTBEAT_SECONDS = 60  # JAX ends the other processes so long after one died or hung.
PARTING_SECONDS = 15  # A process that failed waits so long for the others to fail as well.
UNREACHABLE_EXIT_CODE = 2  # As for other mistakes in the command.

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """A process's index among the others; None where it is not known.

    Attributes:
        coordinator_address: HOST:PORT where process 0 listens.
        num_processes: of the run.
        process_id: of this one, from 0.
        local_device_ids: the GPUs on its host that are its own; None for all.
    """

    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_device_ids: tuple[int, ...] | None = None


# ------------------------------------------------------------------------------------ start-up


def initialize(flags: Cluster, timeout_seconds: float) -> None:
    """Connects this process with the others, if there are any; before any other call of JAX.

    Args:
      flags: what the command line says; the rest comes from the environment.
      timeout_seconds: the process ends, with one message and exit code 2, if after this time not
        all have met.

    Raises ConfigError if the index of this process stays unclear, or process 0 cannot listen there.
    """
    cluster = resolve(flags, os.environ)
    if cluster is None and not _on_cloud_tpu():
        return
    if cluster and cluster.process_id == 0:
        check_port(cluster.coordinator_address)
    arguments = dataclasses.asdict(cluster) if cluster else {}
    # It would take SIGTERM away from us: `training.preemption` agrees on a step sooner.
    jax.config.update("jax_enable_preemption_service", False)
    with _deadline(timeout_seconds, _unreachable_message(cluster, timeout_seconds)):
        try:
            jax.distributed.initialize(
                **arguments,
                cluster_detection_method="deactivate" if cluster else None,
                # JAX aborts the process at its own timeout: ours, which explains, comes first.
                initialization_timeout=int(timeout_seconds) + 60,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
        except ValueError:
            if cluster:
                raise
            logger.info("Cloud TPU's metadata names no other workers: one process.")
            return
    atexit.register(shutdown, exit_code=1)  # After an error that nobody expected.


def check_port(address: str) -> None:
    """Raises ConfigError if process 0 cannot listen at the port of `address`.

    JAX would not always say so: sometimes it crashes.
    """
    port = int(address.rpartition(":")[2])
    try:
        with socket.create_server(("", port)):
            pass
    except OSError as error:
        raise ConfigError(
            f"Process 0 could not start at {address} ({error.strerror}): does another run on that "
            "host listen at the same port?"
        ) from error


def resolve(flags: Cluster, environment: Mapping[str, str]) -> Cluster | None:
    """The cluster of the flags, filled up from the environment; None for a process on its own.

    Raises ConfigError if a part is missing or wrong.
    """
    found = next((c for detect in DETECTORS if (c := detect(environment))), Cluster())
    parts = dataclasses.asdict(found)
    parts |= {name: part for name, part in dataclasses.asdict(flags).items() if part is not None}
    cluster = Cluster(**parts)
    if cluster in (Cluster(), Cluster(num_processes=1)):
        return None
    for name in ("coordinator_address", "num_processes", "process_id"):
        if parts[name] is None:
            raise ConfigError(
                f"--{name} is missing: without a launcher that vit_jax knows (docs/launch.md), each "
                "process needs --coordinator_address=HOST:PORT, --num_processes and --process_id."
            )
    if not _is_address(cluster.coordinator_address):
        raise ConfigError(
            f"--coordinator_address={cluster.coordinator_address}: expected HOST:PORT, the host of "
            "process 0 and a free port there."
        )
    if cluster.num_processes < 1:
        raise ConfigError(f"--num_processes={cluster.num_processes}: expected at least 1.")
    if not 0 <= cluster.process_id < cluster.num_processes:
        raise ConfigError(
            f"--process_id={cluster.process_id}: expected 0 to {cluster.num_processes - 1}, for "
            f"--num_processes={cluster.num_processes}."
        )
    return cluster


def _is_address(text: str) -> bool:
    """Whether it is a host, by name or number, and a port."""
    found = re.fullmatch(r"[^\s/]+:([0-9]{1,5})", text)
    return bool(found) and 0 < int(found[1]) < 2**16


def _variables(environment: Mapping[str, str]) -> Cluster | None:
    """JAX's variables; a Kubernetes Job numbers its pods itself (completionMode: Indexed)."""
    address = environment.get("JAX_COORDINATOR_ADDRESS") or None
    count = _number(environment, "JAX_NUM_PROCESSES")
    index = _number(environment, "JAX_PROCESS_ID")
    if address is None and count is None:
        return None
    if index is None:
        index = _number(environment, "JOB_COMPLETION_INDEX")
    return Cluster(address, count, index)


def _slurm(environment: Mapping[str, str]) -> Cluster | None:
    """A task that `srun` started; a batch script itself is not one."""
    count = _number(environment, "SLURM_STEP_NUM_TASKS") or 1
    if count == 1 or "SLURM_STEP_NODELIST" not in environment:
        return None
    # "node[001-015,020],host2" or "node001,host2": the first host runs task 0.
    prefix, first = re.match(
        r"([^,\[]+)(?:\[([^,\-\]]+))?", environment["SLURM_STEP_NODELIST"]
    ).groups(default="")
    tasks = _tasks_per_node(environment.get("SLURM_STEP_TASKS_PER_NODE", "1"))
    local_count = next(itertools.islice(tasks, int(environment.get("SLURM_NODEID", 0)), None), 1)
    return Cluster(
        f"{prefix}{first}:{_port(int(environment['SLURM_JOB_ID']))}",
        count,
        int(environment["SLURM_PROCID"]),
        share_of_gpus(int(environment["SLURM_LOCALID"]), local_count, environment),
    )


def _tasks_per_node(text: str) -> Iterator[int]:
    """Slurm's "2(x3),1": 2, 2, 2, 1."""
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        yield from itertools.repeat(int(count), int(times or 1))


def _open_mpi(environment: Mapping[str, str]) -> Cluster | None:
    """A process that `mpirun` started; only Open MPI 4 says where."""
    count = _number(environment, "OMPI_COMM_WORLD_SIZE") or 1
    if count == 1:
        return None
    # "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911" or "...;tcp6://[fe80::1,fe80::2]:43370"
    uri = environment.get("OMPI_MCA_orte_hnp_uri", "")
    found = re.match(r"(\d+)\..*?(?:tcp://([^,:]+)|tcp6://(\[[^,\]]+))", uri)
    host = found and (found[2] or found[3] + "]")
    return Cluster(
        f"{host}:{_port(int(found[1]) >> 12)}" if found else None,
        count,
        int(environment["OMPI_COMM_WORLD_RANK"]),
        share_of_gpus(
            int(environment["OMPI_COMM_WORLD_LOCAL_RANK"]),
            int(environment.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1)),
            environment,
        ),
    )


DETECTORS: tuple[Callable[[Mapping[str, str]], Cluster | None], ...] = (
    _variables,
    _slurm,
    _open_mpi,
)


def share_of_gpus(
    local_id: int, local_count: int, environment: Mapping[str, str]
) -> tuple[int, ...] | None:
    """The GPUs of one of `local_count` processes on a host; None for all that it sees.

    JAX alone would give every process one GPU, so seven of eight would idle with one process a
    host. A launcher that binds GPUs to processes shows each fewer than there are processes.
    """
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    devices = glob.glob("/dev/nvidia[0-9]*") if visible is None else visible.split(",")
    share = len(devices) // local_count
    if local_count == 1 or not share:
        return None
    return tuple(range(local_id * share, (local_id + 1) * share))


def _port(job: int) -> int:
    """A port in the upper ephemeral range, so that two jobs on a host seldom meet; as JAX does."""
    return 65536 - 4096 + job % 4096


def _number(environment: Mapping[str, str], name: str) -> int | None:
    """The value of a variable; None if it is not set, or empty."""
    text = environment.get(name)
    if text and not text.isdecimal():
        raise ConfigError(
            f"The variable {name}={text!r} should be a whole number: mend or unset it."
        )
    return int(text) if text else None


def _on_cloud_tpu() -> bool:
    """Whether JAX is going to use TPUs of this machine."""
    platforms = os.environ.get("JAX_PLATFORMS", "")
    allowed = not platforms or "tpu" in platforms
    chips = glob.glob("/dev/accel[0-9]*") + glob.glob("/dev/vfio/[0-9]*")
    return bool(allowed and chips and importlib.util.find_spec("libtpu"))


# --------------------------------------------------------------------------------------- parting


def shutdown(exit_code: int) -> None:
    """Leaves the others, who may still be at work if this process failed.

    All that end together keep their exit codes. A process that failed alone waits a little, then
    ends with `exit_code` here; JAX ends the others once they miss it.
    """
    if not jax.distributed.is_initialized():
        return
    atexit.unregister(shutdown)
    if exit_code == 0:
        jax.distributed.shutdown()
        return
    with _deadline(PARTING_SECONDS, "", exit_code):
        jax.distributed.shutdown()


@contextmanager
def _deadline(
    seconds: float, message: str, exit_code: int = UNREACHABLE_EXIT_CODE
) -> Iterator[None]:
    """Ends the process, with `message`, if what is inside takes longer.

    From a thread: JAX waits in C++, which no signal interrupts, and would abort with a stack trace.
    """

    def end() -> None:
        if message:
            logger.error("%s", message)
        logging.shutdown()
        os._exit(exit_code)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _unreachable_message(cluster: Cluster | None, seconds: float) -> str:
    if cluster is None:
        return (
            f"The workers of this TPU slice did not meet within {seconds:g} s: start the same "
            "command on all of them."
        )
    address, count = cluster.coordinator_address, cluster.num_processes
    if cluster.process_id == 0:
        return (
            f"Not all {count} processes reached process 0, this one, at {address} within "
            f"{seconds:g} s: look at their logs, and whether they can open that address."
        )
    return (
        f"Process {cluster.process_id} of {count} could not join process 0 at {address} within "
        f"{seconds:g} s: is --coordinator_address right, the port open, and are all {count} "
        "processes started?"
    )


# ------------------------------------------------------------------------------------- agreement


def gather(value: int | bool | np.generic) -> np.ndarray:
    """Every process's `value`, [processes]; waits until all have called this."""
    return multihost_utils.process_allgather(np.asarray(value))


@functools.cache
def processes_on_host() -> int:
    """How many processes of the run share this one's host; the first call waits for them all."""
    host = zlib.crc32(socket.gethostname().encode()) >> 1  # Fits in 32 bits with a sign.
    return int(np.sum(np.atleast_1d(gather(host)) == host))


def check_same(what: str, number: int) -> None:
    """Raises DataError, in every process, unless all have the same `number` of `what`."""
    numbers = np.atleast_1d(gather(number))
    other = int(np.argmax(numbers != numbers[0]))
    if other:
        raise DataError(
            f"Process 0 has {numbers[0]:,} {what}, process {other} has {numbers[other]:,}: all hosts "
            "must see the same data, and no older list of it in config.data.index_dir."
        )
