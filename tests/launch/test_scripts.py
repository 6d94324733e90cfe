"""What all launchers have in common."""

import shutil
import subprocess
import sys

import pytest

from tests.runs import ROOT
from vit_jax.errors import PreemptedError

LAUNCH = ROOT / "launch"
SHELL = ("gpu_host.sh", "slurm.sbatch", "tpu_vm.sh", "tpu_worker.sh")
COMMANDS = {
    "local.py": (sys.executable, LAUNCH / "local.py"),
    "gpu_host.sh": ("bash", LAUNCH / "gpu_host.sh"),
    "slurm.sbatch": ("bash", LAUNCH / "slurm.sbatch"),
    "tpu_vm.sh": ("bash", LAUNCH / "tpu_vm.sh"),
    "run.py": (sys.executable, LAUNCH / "gke/run.py"),
}


@pytest.mark.skipif(not shutil.which("shellcheck"), reason="shellcheck is not installed")
def test_shell_scripts_are_clean():
    files = [LAUNCH / name for name in SHELL]
    checked = subprocess.run(["shellcheck", *files], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_the_flags(name):
    shown = subprocess.run([*COMMANDS[name], "--help"], capture_output=True, text=True, check=True)
    assert "--dry_run" in shown.stdout
    assert "-- ARGUMENTS" in shown.stdout
    assert "set -" not in shown.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_unknown_flags_are_refused(name):
    action = ["run"] if name == "tpu_vm.sh" else []
    command = [*COMMANDS[name], *action, "--restart=3", "--", "--config=x"]
    refused = subprocess.run(command, capture_output=True, text=True, check=False)
    assert refused.returncode == 2
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize("name", ["gpu_host.sh", "slurm.sbatch", "local.py"])
def test_launchers_know_the_exit_code_of_a_stopped_run(name):
    assert f"PREEMPTED={PreemptedError.exit_code}" in (LAUNCH / name).read_text().replace(" ", "")


def test_the_page_on_launching_names_every_file():
    page = (ROOT / "docs/launch.md").read_text()
    for file in LAUNCH.rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            assert file.name in page, file
