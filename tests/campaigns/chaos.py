"""Kills runs at random moments, goes on with them, and compares how they end.

    .venv/bin/python -m tests.campaigns.chaos --kills=10 --seed=0

A third of the kills hits a run of one process whose devices stay, a third one of several processes,
a third one whose number of devices changes at each start. The first two have to end in the same bits
as a run that nobody disturbs, the last in losses within 1e-5. Exits with 1 where one does not, and
where a process is still there `HUNG_SECONDS` after the kill.
"""

import argparse
import contextlib
import dataclasses
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

import tests.conftest  # noqa: F401  Quick compilation, here and in the runs.
from tests.runs import connected, read_metrics, start_command
from vit_jax.checkpoint import Checkpoints

HUNG_SECONDS = 90.0
TOLERANCE = 1e-5
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
CONFIG = (
    "--config=tests/tiny.py",
    "--config.model.depth=1",
    "--config.model.dropout_rate=0.1",
    "--config.objective.mixing.mixup_alpha=0.8",
    "--config.ema_decay=0.9",
    "--config.checkpoint_every_steps=3",
    "--config.eval_every_steps=4",
)


@dataclasses.dataclass(frozen=True)
class Layout:
    """So many processes with so many CPU devices each."""

    processes: int = 1
    devices: int = 1

    def start(self, workdir: pathlib.Path, *arguments: str) -> list[subprocess.Popen]:
        several = self.processes > 1
        flags = connected(self.processes) if several else [()]
        command = (*CONFIG, *arguments, f"--workdir={workdir}")
        return [
            start_command(*command, *each, JAX_NUM_CPU_DEVICES=str(self.devices)) for each in flags
        ]


@dataclasses.dataclass
class Tally:
    """What came of the kills."""

    kills: int = 0
    after_progress: int = 0  # Of these, those after which a checkpoint was there.
    hung: int = 0
    lost: int = 0  # Runs that did not end as they should.


def finish(processes: list[subprocess.Popen], tally: Tally | None = None) -> list[int]:
    """The exit codes, once all have ended; with a tally, whoever hangs is counted and killed."""
    deadline = time.monotonic() + (HUNG_SECONDS if tally else 10 * HUNG_SECONDS)
    for process in processes:
        try:
            process.communicate(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            if tally:
                tally.hung += 1
            process.kill()
            process.communicate()
    return [process.returncode for process in processes]


def disturb(
    rng: random.Random, layout: Layout, workdir: pathlib.Path, seconds: float, tally: Tally
) -> None:
    """Starts a run, or goes on with it, and kills one of its processes, or all, at a random moment."""
    processes = layout.start(workdir)
    time.sleep(rng.uniform(0, seconds))
    number = rng.choice(SIGNALS)
    chosen = processes if rng.random() < 0.5 else [rng.choice(processes)]
    running = sum(process.poll() is None for process in processes)
    for process in chosen:
        process.send_signal(number)
    codes = finish(processes, tally)
    tally.kills += running > 0
    saved = any((workdir / "checkpoints").glob("[0-9]*"))
    tally.after_progress += saved
    print(
        f"  {number.name} to {len(chosen)} of {layout.processes} with {layout.devices} devices each: "
        f"{codes}{', after a checkpoint' if saved else ''}",
        flush=True,
    )


def arrays(workdir: pathlib.Path) -> dict:
    """Everything in the last checkpoint."""
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        step = checkpoints.latest_step
        return {
            item: checkpoints.restore_item(step, item) for item in ("params", "optimizer", "ema")
        }


def is_same(workdir: pathlib.Path, expected: pathlib.Path, *, bits: bool) -> bool:
    """Whether a run ended as the other one: in the same bits, or in losses within `TOLERANCE`."""
    losses, others = (
        np.array([record["train/loss"] for record in read_metrics(each)])
        for each in (workdir, expected)
    )
    if losses.shape != others.shape or np.abs(losses - others).max() > (0 if bits else TOLERANCE):
        return False
    pairs = jax.tree.map(np.array_equal, arrays(workdir), arrays(expected)) if bits else True
    return all(jax.tree.leaves(pairs))


def campaign(
    name: str, layouts: list[Layout], kills: int, rng: random.Random, folder: pathlib.Path
) -> Tally:
    """Disturbs one run so often, each time with one of the layouts, and lets it end."""
    print(name, flush=True)
    tally, alone, disturbed = Tally(), folder / "alone", folder / "disturbed"
    began = time.monotonic()
    if any(codes := finish(layouts[0].start(alone))):
        raise RuntimeError(f"the run that nobody disturbs ended with {codes}")
    seconds = time.monotonic() - began
    for _ in range(kills):
        disturb(rng, rng.choice(layouts), disturbed, seconds, tally)
    codes = finish(layouts[0].start(disturbed))
    if any(codes) or not is_same(disturbed, alone, bits=len(layouts) == 1):
        tally.lost += 1
    print(f"  {tally}", flush=True)
    return tally


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=9, help="in all")
    parser.add_argument("--processes", type=int, default=2, help="of the run of several")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(arguments)
    rng = random.Random(flags.seed)
    parts = {
        "one process": [Layout()],
        "several processes": [Layout(flags.processes, 2)],
        "changing devices": [Layout(devices=count) for count in (1, 2, 4, 8)],
    }
    tallies = []
    for index, (name, layouts) in enumerate(parts.items()):
        kills = (flags.kills + index) // len(parts)
        with tempfile.TemporaryDirectory() as folder:
            tallies.append(campaign(name, layouts, kills, rng, pathlib.Path(folder)))
    kills, saved, hung, lost = (
        sum(getattr(tally, field.name) for tally in tallies) for field in dataclasses.fields(Tally)
    )
    print(f"{kills} kills, {saved} of them after a checkpoint: {hung} hung, {lost} runs lost")
    return int(hung + lost > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
