"""Looks at a long run's memory, file handles and threads from outside.

    .venv/bin/python -m tests.campaigns.leaks --updates=20000

The demo's config with an evaluation every 100 updates and a checkpoint every 200, with one block and
16 images an update: it is the loop that might leak, not the model. Exits with 1 where the last quarter
needs more of something than the second one: handles or threads at all, or memory by more than
`MEMORY_GROWTH`.
"""

import argparse
import pathlib
import statistics
import sys
import tempfile
import threading
import time
from typing import NamedTuple

from tests.runs import read_metrics, start_command

MEMORY_GROWTH = 0.02  # Share; allocators keep some of what was freed.
SECONDS = 0.5  # Between two looks.
DONE = 0


class Sample(NamedTuple):
    """The needs of a process at a moment."""

    memory: float  # MiB, resident
    handles: int
    threads: int


def look(pid: int) -> Sample | None:
    """The needs of a running process; None once it has ended."""
    folder = pathlib.Path(f"/proc/{pid}")
    try:
        fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        handles = len([*(folder / "fd").iterdir()])
        return Sample(int(fields["VmRSS"].split()[0]) / 1024, handles, int(fields["Threads"]))
    except (OSError, KeyError):
        return None


def medians(samples: list[Sample]) -> Sample:
    return Sample(*map(statistics.median, zip(*samples, strict=True)))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=2000)
    flags = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        process = start_command(
            "--config=configs/digits.py",
            f"--workdir={folder}",
            "--config.model.depth=1",
            "--config.batch_size=16",
            f"--config.total_steps={flags.updates}",
            "--config.eval_every_steps=100",
            "--config.checkpoint_every_steps=200",
        )
        reader = threading.Thread(target=process.stdout.read)  # Or its pipe would be full.
        reader.start()
        while process.poll() is None and not read_steps(folder):
            time.sleep(SECONDS)
        samples = []  # From the first recorded step on: what it compiles for is there.
        while process.poll() is None:
            samples += [sample] if (sample := look(process.pid)) else []
            time.sleep(SECONDS)
        reader.join()
        if process.returncode != DONE or len(samples) < 8:
            print(f"the run ended with {process.returncode}, after {len(samples)} looks")
            return 1
    quarter = len(samples) // 4
    before, after = medians(samples[quarter : 2 * quarter]), medians(samples[-quarter:])
    print(f"{flags.updates} updates, {len(samples)} looks; medians of the second and last quarter:")
    for name, earlier, later in zip(Sample._fields, before, after, strict=True):
        print(f"  {name:8} {earlier:8.0f} {later:8.0f}")
    grown = after.memory > (1 + MEMORY_GROWTH) * before.memory
    return int(grown or after.handles > before.handles or after.threads > before.threads)


def read_steps(workdir: str) -> int:
    """The number of records so far."""
    try:
        return len(read_metrics(workdir))
    except (OSError, ValueError):
        return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
