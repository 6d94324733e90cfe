"""launch/tpu_vm.sh against a stand-in for gcloud, and tpu_worker.sh against ones for the worker's."""

import os
import shlex
import shutil

import pytest

from tests.launch.conftest import Stubs
from tests.runs import ROOT

TPU_VM = ("bash", ROOT / "launch/tpu_vm.sh")
WORKER = ("bash", ROOT / "launch/tpu_worker.sh")
OWNER = f"--owner={os.getuid()}"
PLACE = ["--zone=z", "--project=p"]
FLAGS = ("--name=n", *PLACE)
RUN = ("--config=a b.py", "--workdir=gs://b/r", "--config.note=it's $HOME")
DESCRIBE = ["describe", "n", *PLACE, "--format=value(state.state)"]
CREATE = [
    *("create", "n", *PLACE, "--node-id=n", "--accelerator-type=v5litepod-16"),
    "--runtime-version=v2-alpha-tpuv5-lite",
]
DELETE = ["delete", "n", *PLACE, "--force", "--quiet"]
APT = [
    *("sudo", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=600"),
    *("--quiet", "--yes"),
]

# Answers of gcloud: to `describe` and `status` one after another, the last one again and again. The
# connection that shows the log always breaks at its end.
GCLOUD = """
states, codes = {states!r}, {codes!r}
if "describe" in arguments:
    state = states[min(count(), len(states)) - 1]
    if state == "NONE":
        sys.exit("ERROR: NOT_FOUND: no such thing")
    print(state)
if arguments[-1].endswith("tpu_worker.sh status"):
    print(codes[min(count(), len(codes)) - 1])
if arguments[-1].endswith("tpu_worker.sh follow"):
    sys.exit(255)
"""


@pytest.fixture
def tpu_vm(stubs, tmp_path):
    """Runs tpu_vm.sh with these answers; its exit code, and the calls in few words."""

    def run(states, codes, *arguments):
        stubs.add("gcloud", GCLOUD.format(states=states, codes=codes))
        stubs.add("tar")
        code, _, errors = stubs.run(*TPU_VM, *arguments, TMPDIR=str(tmp_path))
        return code, [in_short(call) for call in stubs.calls], errors

    return run


def in_short(call):
    """Queued resources: their verb and flags. Of what runs on workers: which ones, and the command."""
    if call[:4] == ["gcloud", "compute", "tpus", "queued-resources"]:
        return call[4:]
    if call[:6] == ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "n"]:
        assert call[6:8] == PLACE
        worker, command = (text.split("=", 1)[1] for text in call[8:])
        return [worker, *shlex.split(command)]
    return call[:1] if call[0] == "tar" else call[3:5]


def worker(which, *arguments):
    return [which, "bash", "vit_jax/launch/tpu_worker.sh", *arguments]


UNPACK = ["all", *shlex.split("mkdir -p vit_jax && tar -xzf vit_jax.tar.gz -C vit_jax")]
INSTALL = [["tar"], ["tpu-vm", "scp"], UNPACK, worker("all", "install")]
START, FOLLOW = worker("all", "start", *RUN), worker("0", "follow")
STATUS = worker("0", "status")


def test_a_new_slice_is_made_ready_and_runs(tpu_vm, tmp_path):
    states = ["NONE", "WAITING_FOR_RESOURCES", "ACTIVE"]
    run = ("run", *FLAGS, "--type=v5litepod-16", "--spot", "--data=gs://d/images", "--", *RUN)
    code, calls, _ = tpu_vm(states, [0], *run)
    assert code == 0
    assert not list(tmp_path.glob("tmp*")), "the archive is left"
    assert calls == [
        *(DESCRIBE, [*CREATE, "--spot"], DESCRIBE, DESCRIBE),
        *(*INSTALL, worker("all", "mount", "gs://d/images", "/mnt/data")),
        *(START, FOLLOW, STATUS),
    ]


def test_a_run_that_is_going_on_is_only_shown(tpu_vm):
    run = ("run", *FLAGS, "--type=v5litepod-16", "--", *RUN)
    code, calls, _ = tpu_vm(["ACTIVE"], ["running", "running", 3], *run)
    assert code == 3
    assert calls == [DESCRIBE, STATUS, FOLLOW, STATUS, FOLLOW, STATUS]


def test_a_preempted_slice_is_asked_for_again(tpu_vm):
    states = ["ACTIVE", "SUSPENDED", "NONE", "ACTIVE"]
    run = ("run", *FLAGS, "--type=v5litepod-16", "--delete", "--", *RUN)
    code, calls, errors = tpu_vm(states, ["none", "none", 0], *run)
    assert code == 0
    again = [DESCRIBE, DELETE, DESCRIBE, CREATE, DESCRIBE, *INSTALL, START, FOLLOW, STATUS]
    assert calls == [DESCRIBE, STATUS, *INSTALL, START, FOLLOW, STATUS, *again, DELETE]
    assert "code none: starting it again (1 of 100)" in errors


def test_a_slice_is_waited_for_whatever_its_state(tpu_vm):
    states = ["DELETING", "FAILED", "SUSPENDING", "PROVISIONING", "ACTIVE"]
    run = ("run", *FLAGS, "--type=v5litepod-16", "--", *RUN)
    code, calls, errors = tpu_vm(states, [0], *run)
    assert code == 0
    waiting = [DESCRIBE, DESCRIBE, DELETE, DESCRIBE, DELETE, DESCRIBE, DESCRIBE]
    assert calls == [*waiting, *INSTALL, START, FOLLOW, STATUS], "what ran there before is gone"
    assert errors.splitlines() == [
        *(f"tpu_vm.sh: n is {state}: asking for it again" for state in ("FAILED", "SUSPENDING")),
        "tpu_vm.sh: n is PROVISIONING",
    ]


@pytest.mark.parametrize(("code", "starts"), [(75, 3), (1, 3), (134, 3), (2, 1), (3, 1)])
def test_what_is_worth_it_is_started_again(tpu_vm, code, starts):
    run = ("run", *FLAGS, "--type=v5litepod-16", "--restarts=2", "--copy_data", "--data=gs://d")
    returned, calls, _ = tpu_vm(["ACTIVE"], [code], *run, "--", *RUN)
    assert returned == code
    assert calls.count(START) == starts
    assert calls.count(worker("all", "copy", "gs://d", "/mnt/data")) == starts


@pytest.mark.parametrize("step", ["scp", "tar -xzf", "install"])
def test_a_run_does_not_start_where_a_step_before_failed(stubs, step):
    stubs.add("tar")
    stubs.add(
        "gcloud",
        GCLOUD.format(states=["ACTIVE"], codes=["none"])
        + f"""
if {step!r} in " ".join(arguments):
    sys.exit(1)
""",
    )
    run = ("run", *FLAGS, "--type=v5litepod-16", "--restarts=1", "--", *RUN)
    code, _, errors = stubs.run(*TPU_VM, *run)
    assert code == 1
    assert "the run ended with code none: starting it again (1 of 1)" in errors
    calls = [" ".join(call) for call in stubs.calls]
    assert sum(step in call for call in calls) == 2
    assert not any("tpu_worker.sh start" in call for call in calls)


def test_a_worker_that_cannot_be_asked_has_no_run(stubs):
    stubs.add("tar")
    stubs.add(
        "gcloud",
        """
if "describe" in arguments:
    print("ACTIVE")
if arguments[-1].endswith("status"):
    print("none")
    sys.exit(255)
""",
    )
    run = ("run", *FLAGS, "--type=v5litepod-16", "--restarts=0", "--", *RUN)
    assert stubs.run(*TPU_VM, *run)[0] == 1


def test_the_other_commands(tpu_vm):
    assert tpu_vm([], [], "delete", *FLAGS)[:2] == (0, [DELETE])
    assert tpu_vm([], [], "logs", *FLAGS)[1][1:] == [FOLLOW]
    assert tpu_vm([], [], "stop", *FLAGS)[1][2:] == [worker("all", "stop")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--name=n", "--", *RUN), "--name and --zone are needed"),
        (("run", *FLAGS, "--", *RUN), "--type is needed"),
        (("run", *FLAGS, "--type=v5litepod-16"), "name the run after --"),
        (("run", *FLAGS, "--type=v9-8", "--", *RUN), "name its runtime with --version"),
        (("run", *FLAGS, "--restarts=name[0]", "--", *RUN), "--restarts=name[0]: expected a whole"),
        (("fly", *FLAGS), "unknown command fly"),
    ],
)
def test_mistakes_are_named_before_anything_is_called(stubs, arguments, message):
    stubs.add("gcloud")
    code, _, errors = stubs.run(*TPU_VM, *arguments)
    assert code == 2
    assert message in errors
    assert not stubs.called


def test_what_gcloud_cannot_say_ends_it(stubs):
    stubs.add("gcloud", "sys.exit('ERROR: PERMISSION_DENIED')")
    run = ("run", *FLAGS, "--type=v5litepod-16", "--", *RUN)
    code, _, errors = stubs.run(*TPU_VM, *run)
    assert code == 2
    assert "PERMISSION_DENIED" in errors


def test_a_dry_run_prints_what_a_new_slice_takes(stubs, tpu_vm):
    run = (*FLAGS, "--type=v5litepod-16", "--delete", "--data=gs://d")
    code, output, _ = stubs.run(*TPU_VM, "run", "--dry_run", *run, "--", *RUN)
    assert code == 0
    assert not stubs.called
    printed = [in_short(shlex.split(line)) for line in output.splitlines()]
    calls = tpu_vm(["NONE", "ACTIVE"], [0], "run", *run, "--", *RUN)[1]
    assert printed == [call for call in calls if call not in (DESCRIBE, STATUS)]


def test_each_command_in_full(stubs):
    """Without a project, a bucket for the workdir, or a runtime by the type."""
    given = ("--name=n", "--zone=z", "--type=v5p-8", "--version=own", "--data=gs://d/a")
    flags = (*given, "--data_dir=/data", "--copy_data")
    code, output, errors = stubs.run(*TPU_VM, "run", "--dry_run", *flags, "--", "--workdir=r")
    assert code == 0
    assert "tpu_vm.sh: without --workdir=gs://… a preemption loses the run" in errors
    ssh = ["gcloud", "compute", "tpus", "tpu-vm", "ssh", "n", "--zone=z"]
    exclude = [f"--exclude={name}" for name in ("./.git", "./.venv", "./runs", "__pycache__")]
    script = "--command=bash vit_jax/launch/tpu_worker.sh"
    assert [shlex.split(line) for line in output.splitlines()] == [
        [
            *("gcloud", "compute", "tpus", "queued-resources", "create", "n", "--zone=z"),
            *("--node-id=n", "--accelerator-type=v5p-8", "--runtime-version=own"),
        ],
        ["tar", "--create", "--gzip", "--file=ARCHIVE", f"--directory={ROOT}", *exclude, "."],
        [
            *("gcloud", "compute", "tpus", "tpu-vm", "scp", "ARCHIVE", "n:vit_jax.tar.gz"),
            *("--zone=z", "--worker=all"),
        ],
        [
            *(*ssh, "--worker=all"),
            "--command=mkdir -p vit_jax && tar -xzf vit_jax.tar.gz -C vit_jax",
        ],
        [*ssh, "--worker=all", f"{script} install"],
        [*ssh, "--worker=all", f"{script} copy gs://d/a /data"],
        [*ssh, "--worker=all", f"{script} start --workdir=r"],
        [*ssh, "--worker=0", f"{script} follow"],
    ]


@pytest.mark.parametrize(
    ("kind", "version"),  # cloud.google.com/tpu/docs/runtimes
    [
        *((f"v{number}-8", "tpu-ubuntu2204-base") for number in (2, 3, 4)),
        ("v5litepod-4", "v2-alpha-tpuv5-lite"),
        ("v5p-8", "v2-alpha-tpuv5"),
        ("v6e-4", "v2-alpha-tpuv6e"),
    ],
)
def test_each_generation_has_its_runtime(stubs, kind, version):
    run = ("run", "--dry_run", "--name=n", "--zone=z", f"--type={kind}", "--", *RUN)
    code, output, errors = stubs.run(*TPU_VM, *run)
    assert (code, errors) == (0, "")
    assert f"--runtime-version={version}" in shlex.split(output.splitlines()[0])


@pytest.mark.parametrize(
    ("has_python", "has_ensurepip"), [(True, True), (True, False), (False, True), (False, False)]
)
def test_the_worker_installs_with_a_python_that_is_new_enough(
    stubs, tmp_path, has_python, has_ensurepip
):
    here = tmp_path / "vit_jax"
    (here / "launch").mkdir(parents=True)
    (here / ".venv").mkdir()
    script = shutil.copy(WORKER[1], here / "launch")
    installed = Stubs(here / ".venv" / "bin")
    installed.add("python")
    stubs.add("sudo")
    for name in ("python3", "python3.11"):
        lacking = [*["-c"] * (name == "python3" and not has_python)]
        lacking += ["ensurepip"] * (not has_ensurepip)
        stubs.add(name, f"sys.exit(any(word in arguments for word in {lacking}))")
    assert stubs.run("bash", script, "install")[0] == 0
    system = "python3" if has_python else "python3.11"
    assert stubs.calls[1:] == [
        [system, "-m", "ensurepip", "--version"],
        *([] if has_ensurepip else [[*APT, "update"], [*APT, "install", system, f"{system}-venv"]]),
        [system, "-m", "venv", str(here / ".venv")],
    ]
    lock = ["--constraint", str(here / "requirements.lock")]
    assert installed.calls == [["python", "-m", "pip", "install", "--quiet", *lock, f"{here}[tpu]"]]


def test_a_worker_without_gcsfuse_installs_it_or_says_so(stubs):
    stubs.add("mountpoint", "sys.exit(1)")
    stubs.add("sudo", "sys.exit('apt-get' in arguments)")
    code, _, errors = stubs.run(*WORKER, "mount", "gs://d", "/mnt/x")
    assert code == 2
    assert "Install gcsfuse" in errors
    assert "--copy_data" in errors
    assert stubs.calls[-1] == [*APT, "install", "gcsfuse"]


def test_the_worker_stops_a_run_that_may_be_over_and_does_nothing_unknown(stubs):
    stubs.add("sudo", "sys.exit(5)")
    assert stubs.run(*WORKER, "stop")[0] == 0
    assert stubs.calls == [["sudo", "systemctl", "stop", "vit_jax"]]
    for words in (("fly",), ()):
        code, output, _ = stubs.run(*WORKER, *words)
        assert code == 2
        assert "tpu_worker.sh stop\n" in output
    assert len(stubs.calls) == 1


def test_the_worker_starts_a_unit_in_place_of_one_that_others_left(stubs):
    for name in ("sudo", "systemctl"):
        stubs.add(name)
    assert stubs.run(*WORKER, "start", *RUN)[0] == 0
    *before, last = (call[1:] for call in stubs.calls)
    assert before == [["systemctl", "stop", "vit_jax"], ["systemctl", "reset-failed", "vit_jax"]]
    assert last[:2] == ["systemd-run", "--unit=vit_jax"]
    assert f"--working-directory={ROOT}" in last
    assert {"--property=RemainAfterExit=yes", "--property=TimeoutStopSec=90"} < {*last}
    assert {"--setenv=PYTHONUNBUFFERED=1", f"--uid={os.getuid()}"} < {*last}
    as_run = [argument.replace("$$", "$") for argument in last]  # By systemd.
    assert as_run[-6:] == [f"{ROOT}/.venv/bin/python", "-m", "vit_jax.main", *RUN]
    assert last[-1] == "--config.note=it's $$HOME"


@pytest.mark.parametrize(
    ("state", "expected"),
    [("running", "running"), ("exited", "75"), ("failed", "75"), ("dead", "none")],
)
def test_the_worker_tells_how_the_run_is(stubs, state, expected):
    stubs.add("systemctl", f"print({state!r} if 'SubState' in arguments[2] else 75)")
    code, output, _ = stubs.run(*WORKER, "status")
    assert (code, output) == (0, expected + "\n")


def test_the_worker_shows_the_log_until_the_run_ends(stubs):
    stubs.add(
        "systemctl",
        "print('abc' if 'Invocation' in arguments[2] else 'running' if count() < 2 else 'failed')",
    )
    stubs.add("sudo", "print('line', flush=True); time.sleep(0 if arguments[0] == 'kill' else 1)")
    code, output, _ = stubs.run(*WORKER, "follow")
    assert code == 0
    assert output == "line\n" * 2
    journal, kill = (call for call in stubs.calls if call[0] == "sudo")
    assert journal[1:3] == ["journalctl", "--unit=vit_jax"]
    expected = {"--follow", "--no-tail", "--output=cat", "_SYSTEMD_INVOCATION_ID=abc"}
    assert expected <= set(journal)
    assert (len(kill), kill[1]) == (3, "kill")


@pytest.mark.parametrize(
    ("url", "bucket"), [("gs://d", ["d"]), ("gs://d/a/b", ["--only-dir=a/b", "d"])]
)
def test_the_worker_mounts_a_bucket_or_a_folder_in_it_once(stubs, url, bucket):
    stubs.add("mountpoint", "sys.exit(1)")
    for name in ("gcsfuse", "sudo"):
        stubs.add(name)
    assert stubs.run(*WORKER, "mount", url, "/mnt/x")[0] == 0
    assert stubs.calls[-1] == ["gcsfuse", "--implicit-dirs", "-o", "ro", *bucket, "/mnt/x"]
    assert stubs.calls[-2] == ["sudo", "install", "--directory", OWNER, "/mnt/x"]
    stubs.add("mountpoint")
    before = len(stubs.calls)
    assert stubs.run(*WORKER, "mount", url, "/mnt/x")[0] == 0
    assert len(stubs.calls) == before + 1


def test_the_worker_copies_data(stubs):
    for name in ("gcloud", "sudo"):
        stubs.add(name)
    assert stubs.run(*WORKER, "copy", "gs://d/a", "/mnt/x")[0] == 0
    assert stubs.calls == [
        ["sudo", "install", "--directory", OWNER, "/mnt/x"],
        ["gcloud", "storage", "rsync", "--recursive", "gs://d/a", "/mnt/x"],
    ]
