"""What tests read of a run's workdir, and how they start the command."""

import json
import os
import pathlib
import subprocess
import sys

GOLDEN = pathlib.Path(__file__).parent / "golden"
XLA_FLAGS = "--xla_backend_optimization_level=0"  # Compiles in a third of the time.
ROOT = pathlib.Path(__file__).parent.parent


def read_metrics(workdir) -> list[dict]:
    """The records of `metrics.jsonl`."""
    text = (pathlib.Path(workdir) / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def start_command(*arguments: str, **environment: str) -> subprocess.Popen:
    """Starts `python -m vit_jax.main` with these arguments, on one CPU device."""
    return subprocess.Popen(
        [sys.executable, "-m", "vit_jax.main", *arguments],
        cwd=ROOT,
        env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": XLA_FLAGS, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
