"""launch/gpu_host.sh and launch/slurm.sbatch, with stand-ins for what they call."""

import shlex
import signal

import pytest

from tests.runs import LIMIT_SECONDS, ROOT

GPU_HOST = ("bash", ROOT / "launch/gpu_host.sh")
SLURM = ("bash", ROOT / "launch/slurm.sbatch")
RUN = ("--config=a b.py", "--config.note=it's $HOME")
TRAINING = ["-m", "vit_jax.main", *RUN]
ASK = ["scontrol", "show", "job", "12"]
REQUEUE = ["scontrol", "requeue", "12"]
SRUN = ["--kill-on-bad-exit=0", "--wait=120", "--label", "--unbuffered", "python", *TRAINING]


@pytest.mark.parametrize(
    ("body", "flags", "code", "starts"),
    [
        ("sys.exit(os.environ['PYTHONUNBUFFERED'] != '1')", (), 0, 1),
        ("sys.exit(2)", (), 2, 1),
        ("sys.exit(75 if count() < 3 else 0)", (), 0, 3),
        ("sys.exit(75)", ("--restarts=1",), 75, 2),
        ("sys.exit(75)", ("--restarts=0",), 75, 1),
    ],
)
def test_gpu_host_starts_a_stopped_run_again(stubs, body, flags, code, starts):
    stubs.add("nvidia-smi")
    stubs.add("python", body)
    returned, _, errors = stubs.run(*GPU_HOST, *flags, "--", *RUN, PYTHON="python")
    assert returned == code
    most = flags[0].partition("=")[2] if flags else "10"
    assert errors.splitlines() == [
        f"gpu_host.sh: starting again ({number} of {most})" for number in range(1, starts)
    ]
    assert stubs.calls == [["nvidia-smi", "--list-gpus"], *[["python", *TRAINING]] * starts]


@pytest.mark.parametrize(
    ("number", "passed_on"),
    [
        (signal.SIGTERM, signal.SIGTERM),
        (signal.SIGINT, signal.SIGINT),
        (signal.SIGHUP, signal.SIGTERM),
    ],
)
def test_gpu_host_passes_signals_on_and_does_not_restart(stubs, number, passed_on):
    stubs.add("nvidia-smi")
    stubs.add(
        "python",
        """
        import signal
        def stop(number, frame):
            print("got", number, flush=True)
            time.sleep(0.5)  # Saving.
            sys.exit(75)
        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        print("ready", flush=True)
        time.sleep(600)
        """,
    )
    process = stubs.start(*GPU_HOST, "--", *RUN, PYTHON="python")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    output, _ = process.communicate(timeout=LIMIT_SECONDS)
    assert output == f"got {passed_on:d}\n"
    assert process.returncode == 75
    assert len(stubs.calls) == 2


@pytest.mark.parametrize("script", [GPU_HOST, SLURM])
def test_a_run_has_to_be_named(stubs, script):
    code, _, errors = stubs.run(*script, "--")
    assert code == 2
    assert "name the run after --" in errors


def test_gpu_host_needs_gpus(stubs):
    stubs.add("nvidia-smi", "sys.exit(9)")
    code, _, errors = stubs.run(*GPU_HOST, "--", *RUN)
    assert code == 2
    assert "no NVIDIA GPU" in errors


def test_gpu_host_needs_a_number_of_restarts(stubs):
    code, _, errors = stubs.run(*GPU_HOST, "--restarts=code[0]", "--", *RUN)
    assert code == 2
    assert "--restarts=code[0]: expected a whole number" in errors


def test_gpu_host_dry_run(stubs):
    code, output, _ = stubs.run(*GPU_HOST, "--dry_run", "--", *RUN, PYTHON="python")
    assert code == 0
    assert [shlex.split(line) for line in output.splitlines()] == [
        ["nvidia-smi", "--list-gpus"],
        ["env", "PYTHONUNBUFFERED=1", "python", *TRAINING],
    ]
    assert not stubs.called


@pytest.mark.parametrize(
    ("code", "state", "calls"),
    [
        (0, "RUNNING", []),
        (3, "RUNNING", []),
        (75, "RUNNING", [ASK, REQUEUE]),
        (75, "COMPLETING", [ASK]),  # It was cancelled.
    ],
)
def test_slurm_requeues_a_stopped_run(stubs, code, state, calls):
    stubs.add("srun", f"print(os.environ['SRUN_CPUS_PER_TASK']); sys.exit({code})")
    stubs.add("scontrol", f"print('JobId=12 JobState={state}') if 'show' in arguments else 0")
    environment = {"SLURM_JOB_ID": "12", "SLURM_CPUS_PER_TASK": "7", "PYTHON": "python"}
    environment |= {"SLURM_RESTART_COUNT": "2", "SLURM_JOB_NODELIST": "n[1-2]"}
    returned, output, _ = stubs.run(*SLURM, "--", *RUN, **environment)
    assert returned == code
    first, *_, last = output.splitlines()
    assert first == "slurm.sbatch: job 12, start 2, on n[1-2]"
    said = "slurm.sbatch: stopped with its state saved" if calls else "7"
    assert last == said + "; back to the queue" * (REQUEUE in calls)
    assert "\n7\n" in output
    assert stubs.calls == [["srun", *SRUN], *calls]


def test_slurm_waits_for_the_tasks_when_it_is_signalled_itself(stubs):
    stubs.add("srun", "print('ready', flush=True); time.sleep(2); sys.exit(75)")
    stubs.add("scontrol", "print('JobState=RUNNING')")
    process = stubs.start(*SLURM, "--", *RUN, SLURM_JOB_ID="12")
    while process.stdout.readline() != "ready\n":
        pass
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=LIMIT_SECONDS)
    assert process.returncode == 75
    assert stubs.calls[-1] == REQUEUE


def test_what_slurm_is_asked_for():
    """A signal in time to save, no end by a requeue, one log for all starts, one task a node."""
    lines = SLURM[1].read_text().splitlines()
    asked = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH")}
    assert {"--requeue", "--open-mode=append", "--ntasks-per-node=1"} < asked
    assert {"--signal=TERM@180", "--output=vit_jax-%j.log"} < asked


def test_slurm_has_to_start_it(stubs):
    code, _, errors = stubs.run(*SLURM, "--", *RUN, SLURM_JOB_ID="")
    assert code == 2
    assert "start it with sbatch" in errors


def test_slurm_dry_run(stubs):
    code, output, _ = stubs.run(*SLURM, "--dry_run", "--", *RUN, PYTHON="python")
    assert code == 0
    lines = output.splitlines()
    assert shlex.split(lines[0]) == ["srun", *SRUN]
    assert lines[-1] == 'scontrol requeue "$SLURM_JOB_ID"'
    assert not stubs.called
