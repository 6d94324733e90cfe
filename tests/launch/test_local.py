"""launch/local.py, with small programs in place of training."""

import importlib.util
import json
import shlex
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.runs import LIMIT_SECONDS, ROOT

LOCAL = (sys.executable, ROOT / "launch/local.py")
ENDLESS = 2 * LIMIT_SECONDS  # Who sleeps so long is ended by another.


@pytest.fixture
def run(stubs, tmp_path):
    """Runs a module of the given body in so many processes: what Popen knows of the launcher."""

    def start(body, *flags, num_processes=2, arguments=(), **environment):
        (tmp_path / "trained.py").write_text(
            "import os, signal, sys, time\nindex = int(sys.argv[-1].split('=')[1])\n" + body
        )
        environment = {"PYTHONPATH": str(tmp_path), "CUDA_VISIBLE_DEVICES": "", **environment}
        flags = (f"--num_processes={num_processes}", "--module=trained", *flags)
        return stubs.start(*LOCAL, *flags, "--", *arguments, **environment)

    return start


def finish(process):
    output, errors = process.communicate(timeout=LIMIT_SECONDS)
    return process.returncode, output, errors


def test_every_process_gets_arguments_environment_and_its_place(run):
    body = "import json; print(json.dumps([os.environ['WORD'], *sys.argv[1:]])); print('e', file=sys.stderr)"
    code, output, errors = finish(
        run(body, "--port=1234", num_processes=3, arguments=("a b", "$c"), WORD="passed on")
    )
    assert code == 0
    assert sorted(errors.splitlines()) == ["[0] e", "[1] e", "[2] e"]
    seen = {line[:3]: json.loads(line[4:]) for line in output.splitlines()}
    for index in range(3):
        assert seen[f"[{index}]"] == [
            *("passed on", "a b", "$c", "--coordinator_address=localhost:1234"),
            *("--num_processes=3", f"--process_id={index}"),
        ]


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ("0, 0", 0),
        ("75, 75", 75),
        ("0, 3", 3),
        ("75, 2", 2),
        ("-9, 0", 137),
    ],
)
def test_exit_codes(run, codes, expected):
    body = f"""
code = ({codes})[index]
os.kill(os.getpid(), -code) if code < 0 else sys.exit(code)
"""
    assert finish(run(body))[0] == expected


def test_what_still_runs_after_a_failure_is_killed(run):
    body = f"time.sleep({ENDLESS}) if index else sys.exit(3)"
    assert finish(run(body, "--grace_seconds=0.5"))[0] == 3


def test_what_a_killed_process_started_ends_with_it(run):
    body = f"""
import subprocess
subprocess.Popen(["sleep", "{ENDLESS}"])
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert finish(run(body))[0] == 137


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such signal")
def test_processes_end_with_a_killed_launcher(run):
    process = run(f"print(os.getpid(), flush=True)\ntime.sleep({ENDLESS})")
    children = [int(process.stdout.readline().split()[1]) for _ in range(2)]
    process.kill()
    process.communicate()
    deadline = time.monotonic() + LIMIT_SECONDS
    while any(map(runs, children)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def runs(pid):
    """Whether a process does; one that ended and was not asked after is still listed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_a_run_goes_on_when_nobody_reads_its_output(run, tmp_path):
    body = f"""
for _ in range(20_000):
    print("more than a pipe holds")
open({str(tmp_path / "done")!r} + str(index), "w").close()
"""
    process = run(body)
    process.stdout.close()
    assert process.wait(timeout=LIMIT_SECONDS) == 0
    assert "Traceback" not in process.stderr.read()
    assert len(list(tmp_path.glob("done?"))) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_passed_on_and_no_restart_follows(run, number):
    body = f"""
def stop(number, frame):
    print("got", number, flush=True)
    sys.exit(75)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, stop)
print("ready", flush=True)
time.sleep({ENDLESS})
"""
    process = run(body, "--restarts=3")
    ready = {process.stdout.readline() for _ in range(2)}
    assert ready == {"[0] ready\n", "[1] ready\n"}
    process.send_signal(number)
    code, output, _ = finish(process)
    assert code == 75
    assert sorted(output.splitlines()) == [f"[0] got {number:d}", f"[1] got {number:d}"]


def test_a_stopped_run_starts_again(run, tmp_path):
    body = f"""
path = {str(tmp_path)!r} + f"/{{index}}"
again = os.path.exists(path)
open(path, "w").close()
sys.exit(0 if again else 75)
"""
    code, _, errors = finish(run(body, "--restarts=1"))
    assert code == 0
    assert "Starting again (1 of 1)." in errors


@pytest.mark.parametrize("flag", ["--num_processes=0", "--restarts=-1", "--grace_seconds=nan"])
def test_mistakes_are_named(stubs, flag):
    code, _, errors = stubs.run(*LOCAL, "--num_processes=2", flag, "--", "--config=x")
    assert code == 2
    assert f"{flag.split('=')[0]} must be at least" in errors


def test_a_dry_run_prints_the_commands(stubs):
    code, output, _ = stubs.run(
        *LOCAL, "--num_processes=2", "--port=7", "--dry_run", "--", "--config=a b",
        CUDA_VISIBLE_DEVICES="0,1,2,3",
    )  # fmt: skip
    assert code == 0
    expected = [
        [
            *("PYTHONUNBUFFERED=1", f"JAX_LOCAL_DEVICE_IDS={2 * index},{2 * index + 1}"),
            *(sys.executable, "-m", "vit_jax.main", "--config=a b"),
            *("--coordinator_address=localhost:7", "--num_processes=2", f"--process_id={index}"),
        ]
        for index in range(2)
    ]
    assert [shlex.split(line) for line in output.splitlines()] == expected


@pytest.fixture(scope="module")
def local():
    spec = importlib.util.spec_from_file_location("launch_local", LOCAL[1])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ((0, None), 0),
        ((75, 0), 0),
        ((0, 3, 2), 3),
        ((75, -9), 137),
        ((None, -15, 1), 143),
    ],
)
def test_the_code_of_the_first_failure(local, codes, expected):
    processes = [SimpleNamespace(poll=lambda code=code: code) for code in codes]
    assert local.first_failure(processes) == expected


@pytest.mark.parametrize(
    ("visible", "count", "ids"),
    [
        ("0,1,2,3", 2, ["0,1", "2,3"]),
        ("5,6,7", 2, ["0", "1"]),  # Their numbers among those that are visible.
        ("0", 2, [None, None]),
        ("", 2, [None, None]),  # None is to be seen, of those that there are.
        (None, 2, ["0,1", "2,3"]),  # Nobody says which: all of the machine.
    ],
)
def test_the_share_of_gpus(local, visible, count, ids, monkeypatch, tmp_path):
    for name in ("nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    monkeypatch.setattr(local, "Path", {"/dev": tmp_path}.__getitem__)
    for name in ("CUDA_VISIBLE_DEVICES", "JAX_LOCAL_DEVICE_IDS"):
        monkeypatch.delenv(name, raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = [local.environment(index, count) for index in range(count)]
    assert [each.get("JAX_LOCAL_DEVICE_IDS") for each in found] == ids
    assert all(each["PYTHONUNBUFFERED"] == "1" for each in found)
    monkeypatch.setenv("JAX_LOCAL_DEVICE_IDS", "9")
    assert "JAX_LOCAL_DEVICE_IDS" not in local.environment(0, 1)


def test_the_launchers_flags(local):
    flags, arguments = local.parse_arguments(["--num_processes=3", "--", "--a", "--", "b"])
    assert arguments == ["--a", "--", "b"]
    assert vars(flags) == {
        **{"num_processes": 3, "module": "vit_jax.main", "port": None, "restarts": 0},
        **{"grace_seconds": 30, "dry_run": False},
    }
    local.parse_arguments(["--num_processes=1", "--restarts=0", "--grace_seconds=0"])
    assert local.PREEMPTED == 75


def test_others_have_some_time_after_a_failure(local, monkeypatch):
    clock, killed = [100.0], []
    monkeypatch.setattr(local.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(local.time, "sleep", lambda seconds: clock.append(clock.pop() + 1))
    monkeypatch.setattr(local.os, "killpg", lambda *given: None)

    def send(number):
        killed.append((clock[0], number))
        slow.returncode = -9

    failed = SimpleNamespace(pid=1, readers=(), returncode=3)
    slow = SimpleNamespace(pid=2, readers=(), returncode=None, send_signal=send)
    for process in (failed, slow):
        process.poll = lambda process=process: process.returncode
    assert local.wait([failed, slow], grace_seconds=5) == 3
    assert killed == [(106.0, signal.SIGKILL)]
