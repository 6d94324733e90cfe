"""A Slurm cluster of one node on this machine, for tests; needs root, slurm-wlm and munge."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

DAEMONS = ("munged", "slurmctld", "slurmd")
COMMANDS = ("sbatch", "srun", "scontrol", "scancel", "sinfo", "squeue")
START_SECONDS = END_SECONDS = 300
CONFIG = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmdPort={node_port}
SlurmUser=root
AuthInfo=socket={place}/munge/socket,cred_expire=5
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=main Nodes={host} Default=YES State=UP
"""


def missing() -> str:
    """Why no cluster can be started here; "" if it can."""
    absent = [name for name in DAEMONS + COMMANDS if not shutil.which(name, path=_search_path())]
    if absent:
        return f"apt-get install slurm-wlm munge: {', '.join(absent)} not found"
    return "" if os.geteuid() == 0 else "a Slurm controller that starts jobs needs root"


@contextlib.contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """A running cluster; the variables with which Slurm's commands find it."""
    place = pathlib.Path(tempfile.mkdtemp(prefix="slurm-"))
    place.chmod(0o755)  # The authentication service, munge, is another user.
    host = socket.gethostname().partition(".")[0]
    ports = [_free_port() for _ in range(2)]
    text = CONFIG.format(place=place, host=host, controller_port=ports[0], node_port=ports[1])
    (place / "slurm.conf").write_text(text)
    variables = {"SLURM_CONF": str(place / "slurm.conf"), "PATH": _search_path()}
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        for name, command in _daemons(place, host).items():
            stack.enter_context(_running(place / f"{name}.log", command, variables))
        _wait_until_idle(place, variables)
        stack.callback(_end_jobs, variables)
        yield variables


def _daemons(place: pathlib.Path, host: str) -> dict[str, list[str]]:
    """The three services, in the order in which they need each other."""
    munge = place / "munge"
    for folder in (munge, place / "state", place / "spool"):
        folder.mkdir(mode=0o755)
    key = munge / "key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o600)
    for path in (munge, key):
        shutil.chown(path, "munge", "munge")
    files = {"socket": "socket", "key-file": "key", "pid-file": "pid", "log-file": "log"}
    files["seed-file"] = "seed"
    options = [f"--{option}={munge / name}" for option, name in files.items()]
    return {
        "munged": ["runuser", "--user", "munge", "--", "munged", "--foreground", *options],
        "slurmctld": ["slurmctld", "-D", "-i"],
        "slurmd": ["slurmd", "-D", "-N", host],
    }


@contextlib.contextmanager
def _running(log: pathlib.Path, command: list[str], variables: dict[str, str]) -> Iterator[None]:
    """Runs a service; ends it afterwards."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **variables}
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()


def _wait_until_idle(place: pathlib.Path, variables: dict[str, str]) -> None:
    """Returns once the node takes jobs; raises TimeoutError with the services' logs."""
    command = ("sinfo", "--noheader", "--format=%T")
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        asked = subprocess.run(
            command, capture_output=True, text=True, check=False, env={**os.environ, **variables}
        )
        if asked.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    logs = [log.read_text()[-2000:] for log in sorted(place.glob("*.log"))]
    raise TimeoutError("\n".join(["Slurm did not start.", asked.stdout, asked.stderr, *logs]))


def _end_jobs(variables: dict[str, str]) -> None:
    """Cancels what still runs, and waits for its end, so that no process is left behind."""
    environment = {**os.environ, **variables}
    subprocess.run(["scancel", "--user=root"], check=False, env=environment)
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        jobs = subprocess.run(
            ["squeue", "--noheader"], capture_output=True, check=False, env=environment
        )
        if not jobs.stdout:
            return
        time.sleep(0.5)


def _search_path() -> str:
    """Daemons lie where only root looks."""
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]
