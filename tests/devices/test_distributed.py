"""How a process finds the others, from flags and from what each launcher sets."""

import fnmatch
import re
import socket
import threading
import time

import jax
import numpy as np
import pytest
from jax._src.clusters.ompi_cluster import OmpiCluster
from jax._src.clusters.slurm_cluster import SlurmCluster

from tests.runs import LIMIT_SECONDS, connected, start_command
from vit_jax.command_line import Parser, add_process_flags
from vit_jax.devices import distributed
from vit_jax.devices.distributed import Cluster, resolve, share_of_gpus
from vit_jax.errors import ConfigError, DataError

FLAGS = Cluster("host:1234", 4, 2)
SLURM = {
    "SLURM_JOB_ID": "70001",
    "SLURM_STEP_NUM_TASKS": "8",
    "SLURM_NTASKS": "8",
    "SLURM_STEP_NODELIST": "node[003-006]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x4)",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "2",
    "CUDA_VISIBLE_DEVICES": "0,1,2,3",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "OMPI_MCA_orte_hnp_uri": "1531576320.0;tcp://10.96.0.1,10.148.0.1:34911",
    "CUDA_VISIBLE_DEVICES": "",
}
KUBERNETES = {
    "JAX_COORDINATOR_ADDRESS": "run-0.run:1234",
    "JAX_NUM_PROCESSES": "4",
    "JOB_COMPLETION_INDEX": "3",
}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # A batch script itself.
        SLURM | {"SLURM_STEP_NUM_TASKS": "1"},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {"JOB_COMPLETION_INDEX": "3"},  # Of many jobs that know nothing of each other.
    ],
)
def test_a_process_on_its_own_stays_so(environment):
    assert resolve(Cluster(), environment) is None
    assert resolve(Cluster(num_processes=1), environment) is None


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SLURM, Cluster("node003:61809", 8, 5, (2, 3))),
        (OPEN_MPI, Cluster("10.96.0.1:62624", 4, 3)),
        (KUBERNETES, Cluster("run-0.run:1234", 4, 3)),
        (KUBERNETES | {"JAX_PROCESS_ID": "1"}, Cluster("run-0.run:1234", 4, 1)),
        (KUBERNETES | {"JAX_PROCESS_ID": ""}, Cluster("run-0.run:1234", 4, 3)),
    ],
)
def test_each_launcher_says_who_a_process_is(environment, expected):
    assert resolve(Cluster(), environment) == expected
    assert resolve(FLAGS, environment) == Cluster("host:1234", 4, 2, expected.local_device_ids)


@pytest.mark.parametrize(
    "nodes", ["node001", "node001,host2", "node[001-015],host2", "a-b[7,9-12]", "n[1-2],n[5-9]"]
)
def test_slurm_coordinators_are_those_of_jax(monkeypatch, nodes):
    environment = SLURM | {"SLURM_STEP_NODELIST": nodes}
    monkeypatch.setattr("os.environ", environment)
    expected = SlurmCluster.get_coordinator_address(None, None)
    assert resolve(Cluster(), environment).coordinator_address == expected


@pytest.mark.parametrize(
    "uri",
    [
        "1531576320.0;tcp://10.96.0.1,10.148.0.1,10.108.0.1:34911",
        "1531576320.0;tcp://10.96.0.1:34911",
        "1314521088.0;tcp6://[fe80::b9b:ac5d:9cf0:b858,2620:10d:c083:150e::3000:2]:43370",
    ],
)
def test_open_mpi_coordinators_are_those_of_jax(monkeypatch, uri):
    environment = OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": uri}
    monkeypatch.setattr("os.environ", environment)
    expected = OmpiCluster.get_coordinator_address(None, None)
    address = resolve(Cluster(), environment).coordinator_address
    assert re.sub(r"[\[\]]", "", address) == expected
    assert ("[" in address) == ("tcp6" in uri)  # What gRPC parses.


def test_newer_open_mpi_needs_the_address_only():
    environment = {k: v for k, v in OPEN_MPI.items() if k != "OMPI_MCA_orte_hnp_uri"}
    with pytest.raises(ConfigError, match="--coordinator_address is missing"):
        resolve(Cluster(), environment)
    assert resolve(Cluster("first:1"), environment) == Cluster("first:1", 4, 3)


def test_slurm_tasks_per_node_are_read_node_by_node():
    assert list(distributed._tasks_per_node("2(x3),1")) == [2, 2, 2, 1]
    last = SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x3),1", "SLURM_NODEID": "3"}
    assert resolve(Cluster(), last).local_device_ids is None  # Alone there: all four GPUs.


@pytest.mark.parametrize(
    ("local_id", "local_count", "visible", "expected"),
    [
        (0, 1, "0,1,2,3,4,5,6,7", None),  # One process drives all.
        (1, 2, "0,1,2,3", (2, 3)),
        (3, 4, "4,5,6,7", (3,)),  # Numbers count the visible ones.
        (3, 4, "6", None),  # The launcher has bound it.
        (0, 2, "", None),  # None is to be seen, of those that there are.
        (1, 2, None, (3, 4, 5)),  # Nobody says which: all of the host.
    ],
)
def test_processes_of_a_host_share_its_gpus(local_id, local_count, visible, expected, monkeypatch):
    names = ("0", "1", "2", "3", "4", "5", "ctl", "-uvm", "-caps")
    files = [f"/dev/nvidia{name}" for name in names]
    monkeypatch.setattr(distributed.glob, "glob", lambda pattern: fnmatch.filter(files, pattern))
    environment = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert share_of_gpus(local_id, local_count, environment) == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (Cluster("host:1"), "--num_processes is missing"),
        (Cluster(num_processes=2), "--coordinator_address is missing"),
        (Cluster("host:1", 2), "--process_id is missing"),
        (Cluster(process_id=1), "--coordinator_address is missing"),
        (Cluster("host", 2, 0), "--coordinator_address=host: expected HOST:PORT"),
        (Cluster("host:99999", 2, 0), "--coordinator_address=host:99999: expected HOST:PORT"),
        (Cluster("host:0", 2, 0), "--coordinator_address=host:0: expected HOST:PORT"),
        (Cluster("http://host:1", 2, 0), "--coordinator_address=http://host:1: expected HOST:PORT"),
        (Cluster("host:1", 2, 2), "--process_id=2: expected 0 to 1"),
        (Cluster("host:1", 2, -1), "--process_id=-1: expected 0 to 1"),
        (Cluster("host:1", 0, 0), "--num_processes=0: expected at least 1"),
    ],
)
def test_what_is_missing_or_wrong_is_named(flags, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        resolve(flags, {})


def test_variables_that_are_no_numbers_are_named():
    with pytest.raises(ConfigError, match="JAX_NUM_PROCESSES='two'"):
        resolve(Cluster(), KUBERNETES | {"JAX_NUM_PROCESSES": "two"})


@pytest.mark.parametrize("text", ["soon", "0", "-1", "inf", "nan"])
def test_the_time_to_wait_is_a_time(text):
    parser = Parser("vit_jax.main", "")
    add_process_flags(parser)
    with pytest.raises(ConfigError, match=f"--coordinator_timeout: '{text}' is not a number"):
        parser.parse_args([f"--coordinator_timeout={text}"])


@pytest.mark.parametrize(
    ("process_id", "message"), [(0, "Not all 2 processes"), (1, "Process 1 of 2")]
)
def test_processes_that_do_not_meet_end_with_one_message(tmp_path, process_id, message):
    process = start_command(
        "--config=tests/tiny.py",
        f"--workdir={tmp_path / 'run'}",
        *connected(2)[process_id],
        "--coordinator_timeout=1",
    )
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 2, output
    assert len(output.splitlines()) == 1
    assert message in output
    assert "within 1 s" in output
    assert not (tmp_path / "run").exists()


@pytest.fixture
def connection(monkeypatch):
    """What JAX's runtime is asked for, in its place."""
    asked = {}
    monkeypatch.setattr(jax.distributed, "initialize", lambda **arguments: asked.update(arguments))
    monkeypatch.setattr(
        distributed.atexit, "register", lambda *a, **k: asked.update(parting=(a, k))
    )
    monkeypatch.setattr(jax.config, "update", lambda name, value: asked.update({name: value}))
    return asked


def test_the_others_miss_a_process_that_died_within_the_minutes_that_the_docs_promise(connection):
    distributed.initialize(Cluster("localhost:1", 3, 2), timeout_seconds=20)
    assert connection == {
        **{"coordinator_address": "localhost:1", "num_processes": 3, "process_id": 2},
        "local_device_ids": None,
        "cluster_detection_method": "deactivate",
        "initialization_timeout": 80,  # Above ours of 20 s, whose message explains.
        "heartbeat_timeout_seconds": 60,  # `docs/launch.md`; JAX's own is 100.
        "parting": ((distributed.shutdown,), {"exit_code": 1}),
        "jax_enable_preemption_service": False,  # SIGTERM is ours to handle.
    }


def test_a_process_on_its_own_connects_with_nobody(connection, monkeypatch):
    monkeypatch.setattr(distributed, "_on_cloud_tpu", lambda: False)
    monkeypatch.setattr("os.environ", {})
    distributed.initialize(Cluster(), timeout_seconds=20)
    assert connection == {}


def test_a_process_that_failed_does_not_wait_for_ever_to_part(monkeypatch):
    """It ends by itself, with its code, if the others do not come to the parting."""
    ended, parted = [], threading.Event()
    monkeypatch.setattr(distributed, "PARTING_SECONDS", 0.01)
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: parted.wait(60))
    monkeypatch.setattr(distributed.logging, "shutdown", lambda: None)
    monkeypatch.setattr(distributed.os, "_exit", lambda code: ended.append(code) or parted.set())
    distributed.shutdown(exit_code=3)
    assert ended == [3]
    monkeypatch.setattr(jax.distributed, "shutdown", lambda: time.sleep(0.05))
    distributed.shutdown(exit_code=0)
    assert ended == [3], "who is done waits as long as the others work"


def test_a_port_that_is_taken_is_named():
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=f"Process 0 could not start at {address}"):
            distributed.initialize(Cluster(address, 2, 0), timeout_seconds=LIMIT_SECONDS)
    distributed.check_port(address)


def test_the_others_need_no_port_of_their_own(connection):
    """Several processes of a host have the same address."""
    with socket.create_server(("", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        distributed.initialize(Cluster(address, 2, 1), timeout_seconds=LIMIT_SECONDS)
    assert connection["coordinator_address"] == address


def test_a_cloud_tpu_s_own_metadata_tell_who_there_is(connection, monkeypatch, caplog):
    monkeypatch.setattr(distributed, "_on_cloud_tpu", lambda: True)
    monkeypatch.setattr("os.environ", {})
    distributed.initialize(Cluster(), timeout_seconds=20)
    assert connection.pop("parting") == ((distributed.shutdown,), {"exit_code": 1})
    assert "coordinator_address" not in connection
    assert connection["cluster_detection_method"] is None

    def alone(**arguments):
        raise ValueError("no workers")

    connection.clear()
    monkeypatch.setattr(jax.distributed, "initialize", alone)
    caplog.set_level("INFO")
    distributed.initialize(Cluster(), timeout_seconds=20)
    assert caplog.messages == ["Cloud TPU's metadata names no other workers: one process."]
    assert "parting" not in connection, "there is nobody to part from"
    with pytest.raises(ValueError, match="no workers"):
        distributed.initialize(Cluster("localhost:1", 3, 2), timeout_seconds=20)


@pytest.mark.parametrize(
    ("platforms", "files", "installed", "expected"),
    [
        ("", ["/dev/accel0"], True, True),
        ("", ["/dev/vfio/1"], True, True),
        ("tpu,cpu", ["/dev/accel0"], True, True),
        ("cpu", ["/dev/accel0"], True, False),
        ("", [], True, False),
        ("", ["/dev/accel0"], False, False),
        ("", ["/dev/vfio/vfio", "/dev/nvidia0"], True, False),
    ],
)
def test_where_jax_will_use_tpus(platforms, files, installed, expected, monkeypatch):
    monkeypatch.setattr(distributed.glob, "glob", lambda pattern: fnmatch.filter(files, pattern))
    found = object() if installed else None
    monkeypatch.setattr(distributed.importlib.util, "find_spec", {"libtpu": found}.__getitem__)
    monkeypatch.setenv("JAX_PLATFORMS", platforms)
    assert distributed._on_cloud_tpu() is expected


def test_what_is_said_where_processes_do_not_meet():
    first, third = (Cluster("host:12", 4, index) for index in (0, 2))
    assert distributed._unreachable_message(first, 90).startswith(
        "Not all 4 processes reached process 0, this one, at host:12 within 90 s: look"
    )
    message = distributed._unreachable_message(third, 90)
    assert message.startswith("Process 2 of 4 could not join process 0 at host:12 within 90 s: is")
    assert message.endswith("are all 4 processes started?")
    assert "TPU slice did not meet within 90 s" in distributed._unreachable_message(None, 90)


def test_gpus_are_shared_by_the_processes_of_a_host_alone():
    """By the number on the host, not in the run."""
    visible = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
    assert resolve(Cluster(), OPEN_MPI | visible).local_device_ids == (2, 3)
    other = {"SLURM_LOCALID": "0", "SLURM_PROCID": "6", "SLURM_NODEID": "3"}
    assert resolve(Cluster(), SLURM | other).local_device_ids == (0, 1)


@pytest.mark.parametrize(
    ("address", "is_one"),
    [("host:1", True), ("[fe80::1]:65535", True), ("host:0", False), ("host:65536", False)],
)
def test_ports_that_there_are(address, is_one):
    assert distributed._is_address(address) == is_one


def test_processes_that_see_other_data_are_named(monkeypatch):
    distributed.check_same("training examples", 5)
    monkeypatch.setattr(distributed, "gather", lambda value: np.array([value, value, 7, 8]))
    with pytest.raises(DataError, match=r"Process 0 has 5,000 pictures, process 2 has 7: all"):
        distributed.check_same("pictures", 5000)


def test_processes_that_share_a_host_are_counted(monkeypatch):
    distributed.processes_on_host.cache_clear()
    assert distributed.processes_on_host() == 1
    distributed.processes_on_host.cache_clear()
    monkeypatch.setattr(distributed, "gather", lambda value: np.array([value, value + 1, value]))
    assert distributed.processes_on_host() == 2
    distributed.processes_on_host.cache_clear()
