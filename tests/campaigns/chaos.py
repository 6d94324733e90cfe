"""Kills runs at chosen and at random moments, goes on with them, and compares how they end.

    .venv/bin/python -m tests.campaigns.chaos --kills=100 --seed=0
    .venv/bin/python -m tests.campaigns.chaos --kills=20 --first=12   # rounds 12 and after

A round disturbs one run up to `DISTURBANCES` times, lets it end, and compares. Rounds take turns: one
process; 2 to 4 processes; processes and devices that change at each start; a file system that is
full. All but the third have to end in the same bits as a run that nobody disturbs, the third in
losses within 1e-5. Whoever is still there `HUNG_SECONDS` after a kill is counted as hung, a saved
step that is gone as lost. Rounds depend on seed and number alone, as far as a kill's moment can.
Exits with 1 where a run hung, or lost something.
"""

import argparse
import collections
import contextlib
import dataclasses
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

import numpy as np

import tests.conftest  # noqa: F401  Quick compilation, here and in the runs.
from tests.campaigns import faults
from tests.runs import ROOT, connected, read_metrics
from vit_jax.checkpoint import Checkpoints

HUNG_SECONDS = 90.0  # After a kill.
RUN_SECONDS = 900.0  # Of a whole run, on a machine that does much else.
TOLERANCE = 1e-5
DISTURBANCES = 4  # Of a round.
STEPS, EVALUATED, SAVED = 24, 6, 4  # Updates in all; every so many.
LOOK_SECONDS = 0.002  # Between two looks at what a run has written.
DISK_KIB = range(16, 1024)  # Left on a disk that may be too small: a whole run takes 1.4 MiB.
DISK_ENOUGH_KIB = 64 << 10
DONE, REFUSED, PREEMPTED = 0, 2, 75
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
CONFIG = (
    "--config=tests/tiny.py",
    "--coordinator_timeout=60",
    "--config.model.depth=1",
    "--config.model.dropout_rate=0.1",
    "--config.objective.mixing.mixup_alpha=0.8",
    "--config.ema_decay=0.9",
    "--config.keep_checkpoints=2",
    "--config.batch_size=24",  # Can be split over 1, 2, 3, 4 and 8 devices.
    f"--config.total_steps={STEPS}",
    f"--config.checkpoint_every_steps={SAVED}",
    f"--config.eval_every_steps={EVALUATED}",
)


@dataclasses.dataclass(frozen=True)
class Layout:
    """So many processes with so many CPU devices each."""

    processes: int = 1
    devices: int = 1

    def start(self, workdir: pathlib.Path, wrapper: tuple[str, ...] = ()) -> list[subprocess.Popen]:
        """Starts the run, whose output goes to files beside the workdir's folder."""
        several = self.processes > 1
        flags = connected(self.processes) if several else [()]
        module = wrapper or ("vit_jax.main",)
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(self.devices),
        }
        processes = []
        for number, each in enumerate(flags):
            command = [sys.executable, "-m", *module, *CONFIG, f"--workdir={workdir}", *each]
            with open(output_of(workdir, number), "wb") as file:
                processes.append(
                    subprocess.Popen(
                        command, cwd=ROOT, env=environment, stdout=file, stderr=subprocess.STDOUT
                    )
                )
        return processes


ALONE = Layout()
SEVERAL = (Layout(2, 2), Layout(3, 1), Layout(4, 1))
CHANGING = (
    *(Layout(1, count) for count in (1, 2, 4, 8)),
    *(Layout(2, 1), Layout(2, 4), Layout(4, 1), Layout(4, 2)),
)


def output_of(workdir: pathlib.Path, number: int) -> pathlib.Path:
    """The file that has what a process says, not on the disk that may be full."""
    return workdir.parent.parent / f"{workdir.parent.name}.{number}.txt"


class Run:
    """What a run has written so far, as seen from outside."""

    def __init__(self, workdir: pathlib.Path):
        self.workdir = workdir

    def step(self) -> int:
        """The last record's step; 0 without any."""
        try:
            lines = (self.workdir / "metrics.jsonl").read_bytes().splitlines()
        except OSError:
            return 0
        found = re.match(rb'\{"step": (\d+)', lines[-1]) if lines else None
        return int(found[1]) if found else 0

    def steps_saved(self) -> set[int]:
        """The steps of whole checkpoints."""
        found = (self.workdir / "checkpoints").glob("[0-9]*/commit_success.txt")
        return {int(path.parent.name) for path in found if path.parent.name.isdecimal()}

    def saving(self) -> bool:
        """Whether a checkpoint is being written."""
        return any(
            not (folder / "commit_success.txt").exists()
            for folder in (self.workdir / "checkpoints").glob("[0-9]*")
        )


# Moments: from the run, and a step still to come, to whether it is now. And how long after that the
# kill may come, in seconds.
MOMENTS: dict[str, tuple[Callable[[Run, int], bool], float]] = {
    "start": (lambda run, step: True, 12.0),
    "step": (lambda run, step: run.step() >= step, 0.05),
    "evaluation": (lambda run, step: run.step() >= -(-step // EVALUATED) * EVALUATED, 0.3),
    "save": (lambda run, step: run.step() >= step and run.saving(), 0.2),
    "exit": (lambda run, step: run.step() >= STEPS, 1.5),
}


@dataclasses.dataclass
class Tally:
    """What came of the kills."""

    kills: int = 0
    after_progress: int = 0  # Of these, those after which a checkpoint was there.
    full: int = 0  # Runs that a full disk ended.
    hung: int = 0
    lost: int = 0  # Runs that did not end as they should, and saved steps that were gone.
    rude: int = 0  # Exit codes and messages other than those that are documented.
    kinds: collections.Counter = dataclasses.field(default_factory=collections.Counter)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(self.kinds.items()))
        return (
            f"{self.kills} kills, {self.after_progress} of them after a checkpoint, {self.full} full "
            f"disks: {self.hung} hung, {self.lost} lost, {self.rude} with another exit code or a "
            f"traceback ({kinds})"
        )


def finish(
    processes: list[subprocess.Popen], tally: Tally | None = None, seconds: float = RUN_SECONDS
) -> list[int]:
    """The exit codes, once all have ended; whoever has not by then is killed and counted."""
    deadline = time.monotonic() + seconds
    for process in processes:
        try:
            process.wait(timeout=max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            if tally:
                tally.hung += 1
            process.kill()
            process.wait()
    return [process.returncode for process in processes]


def wait_for(moment: str, run: Run, step: int, processes: list[subprocess.Popen]) -> None:
    """Returns at a moment of a run, or when one of its processes has ended."""
    reached = MOMENTS[moment][0]
    while all(process.poll() is None for process in processes) and not reached(run, step):
        time.sleep(LOOK_SECONDS)


def disturb(rng: random.Random, layout: Layout, workdir: pathlib.Path, tally: Tally) -> None:
    """Starts a run, or goes on with it, and kills one of its processes, or all."""
    run = Run(workdir)
    saved, number = run.steps_saved(), rng.choice(SIGNALS)
    moment = rng.choice([*MOMENTS, "change"])
    if moment == "change":  # The process kills itself, before it changes the file system again.
        changes = rng.randrange(1, 120)
        wrapper = ("tests.campaigns.faults", f"--kill_before={changes}", f"--below={workdir}")
        processes = layout.start(workdir, wrapper)
        number, chosen = signal.SIGKILL, processes
        while all(process.poll() is None for process in processes):
            time.sleep(LOOK_SECONDS)
        running = any(process.returncode == -signal.SIGKILL for process in processes)
        early = False
    else:
        processes = layout.start(workdir)
        wait_for(moment, run, rng.randint(min(run.step() + 1, STEPS), STEPS), processes)
        time.sleep(rng.uniform(0, MOMENTS[moment][1]))
        chosen = processes if rng.random() < 0.5 else [rng.choice(processes)]
        running = any(process.poll() is None for process in chosen)
        early = any(process.poll() is None and not is_ready(process) for process in chosen)
        early |= layout.processes > 1 and moment == "start"  # The others may wait for it in vain.
        for process in chosen:
            process.send_signal(number)
    codes = finish(processes, tally, HUNG_SECONDS)
    if not early:
        check_politeness(workdir, codes, number, tally)
    tally.kills += running
    tally.after_progress += running and bool(run.steps_saved())
    tally.kinds[f"{moment} {number.name}"] += running
    if saved and max(run.steps_saved(), default=0) < max(saved):
        tally.lost += 1
        print(f"  LOST: {saved} were saved, {run.steps_saved()} are left", flush=True)
    print(
        f"  {moment}: {number.name} to {len(chosen)} of {layout.processes} with {layout.devices} "
        f"devices each: {codes}, saved {sorted(run.steps_saved())}{'' if running else ', too late'}",
        flush=True,
    )


def is_ready(process: subprocess.Popen) -> bool:
    """Whether it catches SIGTERM: until its first line, a signal ends it as it ends any program."""
    try:
        status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return True  # It has ended.
    return bool(int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (signal.SIGTERM - 1) & 1)


def check_politeness(
    workdir: pathlib.Path, codes: list[int], number: signal.Signals, tally: Tally
) -> None:
    """Counts what is not documented: after TERM and INT other codes than 0 and 75, tracebacks."""
    if number == signal.SIGKILL:
        return  # Others of its run may be ended by JAX's own runtime.
    texts = [output_of(workdir, index).read_text(errors="replace") for index in range(len(codes))]
    if set(codes) - {DONE, PREEMPTED} or any("Traceback" in text for text in texts):
        tally.rude += 1
        print(f"  RUDE: {codes}\n" + "\n".join(text[-2000:] for text in texts), flush=True)


def fill(rng: random.Random, layout: Layout, workdir: pathlib.Path, tally: Tally) -> None:
    """Starts a run, or goes on with it, on a disk that may be too small for it."""
    size, run = rng.choice(DISK_KIB), Run(workdir)
    used = sum(path.stat().st_blocks for path in workdir.rglob("*")) // 2
    faults.resize(workdir.parent, used + size)
    saved = run.steps_saved()
    codes = finish(layout.start(workdir), tally)
    faults.resize(workdir.parent, DISK_ENOUGH_KIB)
    tally.full += any(codes)
    text = output_of(workdir, 0).read_text(errors="replace")
    if set(codes) - {DONE, REFUSED} or "Traceback" in text:
        tally.rude += 1
        print(f"  RUDE: {codes}\n{text[-2000:]}", flush=True)
    if saved and max(run.steps_saved(), default=0) < max(saved):
        tally.lost += 1
        print(f"  LOST: {saved} were saved, {run.steps_saved()} are left", flush=True)
    last = text.strip().rpartition("\n")[2][:150] if any(codes) else ""
    print(
        f"  disk with {size} KiB left: {codes}, saved {sorted(run.steps_saved())} {last}",
        flush=True,
    )


def arrays(workdir: pathlib.Path) -> dict:
    """Everything in the last checkpoint."""
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        step = checkpoints.latest_step
        return {
            item: checkpoints.restore_item(step, item) for item in ("params", "optimizer", "ema")
        }


def is_same(found: object, expected: object) -> bool:
    """Whether nested dicts of arrays are the same."""
    if isinstance(found, dict) and isinstance(expected, dict):
        return found.keys() == expected.keys() and all(
            is_same(found[name], expected[name]) for name in found
        )
    return np.array_equal(found, expected)


def differences(workdir: pathlib.Path, expected: pathlib.Path, *, bits: bool) -> list[str]:
    """How a run ended otherwise than another one: in bits, or in losses beyond `TOLERANCE`."""
    losses, others = (
        np.array([record["train/loss"] for record in read_metrics(each)])
        for each in (workdir, expected)
    )
    if losses.shape != others.shape:
        return [f"{len(losses)} records instead of {len(others)}"]
    found = []
    if (largest := np.abs(losses - others).max()) > (0 if bits else TOLERANCE):
        found.append(f"losses differ by {largest:.2g}")
    if bits and not is_same(arrays(workdir), arrays(expected)):
        found.append("other arrays in the last checkpoint")
    return found


class Campaign:
    """Rounds in one folder, which has the runs that nobody disturbs, by layout."""

    def __init__(self, folder: pathlib.Path):
        self.folder, self.tally = folder, Tally()

    def expected(self, layout: Layout) -> pathlib.Path:
        """The workdir of the run that nobody disturbs."""
        workdir = self.folder / f"alone_{layout.processes}_{layout.devices}" / "run"
        workdir.parent.mkdir(exist_ok=True)
        if STEPS not in Run(workdir).steps_saved() and any(codes := finish(layout.start(workdir))):
            raise RuntimeError(f"the run that nobody disturbs ended with {codes}: {workdir}")
        return workdir

    def round(self, number: int, seed: int) -> None:
        """Disturbs one run, lets it end, and compares."""
        rng = random.Random(f"{seed}/{number}")
        kind = number % 4
        layouts = {0: (ALONE,), 1: (rng.choice(SEVERAL),), 2: CHANGING, 3: (ALONE,)}[kind]
        print(f"round {number}", flush=True)
        expected = self.expected(layouts[0])
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            workdir = pathlib.Path(folder, "disk", "run")
            workdir.parent.mkdir()
            if kind == 3 and faults.may_mount():
                stack.enter_context(faults.disk(workdir.parent, DISK_ENOUGH_KIB))
            for _ in range(DISTURBANCES):
                if STEPS in Run(workdir).steps_saved():
                    break
                full = kind == 3 and faults.may_mount() and rng.random() < 0.75
                action = fill if full else disturb
                action(rng, rng.choice(layouts), workdir, self.tally)
            codes = finish(layouts[0].start(workdir))
            found = (
                differences(workdir, expected, bits=kind != 2) if not any(codes) else [str(codes)]
            )
            if found:
                self.tally.lost += 1
                print(f"  LOST: {'; '.join(found)}", flush=True)
                print(output_of(workdir, 0).read_text(errors="replace")[-2000:], flush=True)
            else:
                print("  compared: the same", flush=True)


@contextlib.contextmanager
def folder_at(path: str) -> Iterator[pathlib.Path]:
    """A folder that stays, or one that goes."""
    if path:
        pathlib.Path(path).mkdir(parents=True, exist_ok=True)
        yield pathlib.Path(path)
        return
    with tempfile.TemporaryDirectory() as folder:
        yield pathlib.Path(folder)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=9, help="at least; full disks not counted")
    parser.add_argument("--minutes", type=float, default=1e6, help="no round begins after them")
    parser.add_argument("--first", type=int, default=0, help="number of the first round")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default="", help="keeps compiled programs and undisturbed runs")
    flags = parser.parse_args(arguments)
    end, number = time.monotonic() + 60 * flags.minutes, flags.first
    with folder_at(flags.folder) as folder:
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(folder / "compiled"))
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        campaign = Campaign(folder)
        while campaign.tally.kills < flags.kills and time.monotonic() < end:
            campaign.round(number, flags.seed)
            number += 1
    print(f"rounds {flags.first} to {number - 1}: {campaign.tally}")
    return int(campaign.tally.hung + campaign.tally.lost + campaign.tally.rude > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
