"""What tests read of a run's workdir, and how they start the command."""

import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys

GOLDEN = pathlib.Path(__file__).parent / "golden"
ROOT = pathlib.Path(__file__).parent.parent
LIMIT_SECONDS = 300  # For what must not hang: a limit, which measures nothing.
EVERYTHING = (  # All that is random or keeps a state is on, and a layer frozen.
    "--config.data.augmentation=randaug_tf(1, 3) | random_erasing(0.3)",
    "--config.data.repeated_augmentation=2",
    "--config.objective.mixing.mixup_alpha=0.8",
    "--config.objective.mixing.cutmix_alpha=1.0",
    "--config.model.dropout_rate=0.1",
    "--config.model.stochastic_depth_rate=0.2",
    "--config.optimizer.accumulation_steps=2",
    "--config.optimizer.freeze=blocks/00/",
    "--config.ema_decay=0.9",
)


def read_metrics(workdir) -> list[dict]:
    """The records of `metrics.jsonl`."""
    text = (pathlib.Path(workdir) / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def rewound(workdir, step: int, copy) -> None:
    """Copies a run's workdir as a run killed after the checkpoint of `step` leaves it."""
    shutil.copytree(workdir, copy, dirs_exist_ok=True)
    for checkpoint in (pathlib.Path(copy) / "checkpoints").iterdir():
        if int(checkpoint.name) > step:
            shutil.rmtree(checkpoint)
    assert (pathlib.Path(copy) / "checkpoints" / str(step)).is_dir(), "nothing to go on from"


def start(*command: str, group: bool = False, **environment: str) -> subprocess.Popen:
    """Starts a command of this checkout on one CPU device, or as `environment` says.

    With `group`, as a process group of its own, to which signals can be sent.
    """
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        process_group=0 if group else None,
    )


def start_command(*arguments: str, group: bool = False, **environment: str) -> subprocess.Popen:
    """Starts `python -m vit_jax.main` with these arguments, as `start` does."""
    return start(sys.executable, "-m", "vit_jax.main", *arguments, group=group, **environment)


def connected(num_processes: int) -> list[tuple[str, ...]]:
    """The flags that connect so many processes over loopback."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        port = listener.getsockname()[1]
    return [
        (
            f"--coordinator_address=localhost:{port}",
            f"--num_processes={num_processes}",
            f"--process_id={index}",
        )
        for index in range(num_processes)
    ]


def start_processes(num_processes: int, *arguments: str) -> list[subprocess.Popen]:
    """Starts one run as so many processes of two CPU devices each."""
    return [
        start_command(*arguments, *flags, JAX_NUM_CPU_DEVICES="2")
        for flags in connected(num_processes)
    ]
