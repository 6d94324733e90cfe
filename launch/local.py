#!/usr/bin/env python3
"""Runs N processes of one run on this machine, to test or to debug what a cluster does.

    python launch/local.py --num_processes=2 -- --config=configs/digits.py --workdir=runs/digits

Everything after `--` goes to every process, and so do the environment (JAX_NUM_CPU_DEVICES=2 gives
each two CPU devices) and signals. On a machine with GPUs each process takes its share of them.
Output is passed on line by line, marked with the process it came from.

Exit codes: 0 if all ended so; 75 if the run was stopped and saved; else that of the process that
failed first, 128 + N for signal N. Whatever then still runs after --grace_seconds is killed; on
Linux, whatever runs when this launcher itself is killed, too.
"""

import argparse
import contextlib
import ctypes
import functools
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

PREEMPTED = 75  # vit_jax.training.preemption.EXIT_CODE
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
POLL_SECONDS = 0.1
PR_SET_PDEATHSIG = 1  # linux/prctl.h
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None  # Before any fork.

received: list[int] = []  # Signals that came to this launcher.


def parse_arguments(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """This launcher's flags, and what follows `--`."""
    description, details = __doc__.split("\n", 1)
    parser = argparse.ArgumentParser(
        description=description,
        epilog=details,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s --num_processes=N [flags] -- ARGUMENTS",
        allow_abbrev=False,
    )
    parser.add_argument("--num_processes", type=int, required=True, metavar="N")
    parser.add_argument("--module", default="vit_jax.main", help="python -m this (%(default)s)")
    parser.add_argument("--port", type=int, help="of the coordinator (default: a free one)")
    parser.add_argument("--restarts", type=int, default=0, help="after exit code 75 (%(default)s)")
    parser.add_argument(
        "--grace_seconds",
        type=float,
        default=30,
        help="for the others, once a process failed (%(default)s)",
    )
    parser.add_argument("--dry_run", action="store_true", help="only print the commands")
    arguments = list(arguments)
    split = arguments.index("--") if "--" in arguments else len(arguments)
    flags = parser.parse_args(arguments[:split])
    for flag, least in (("num_processes", 1), ("restarts", 0), ("grace_seconds", 0)):
        if not getattr(flags, flag) >= least:
            parser.error(f"--{flag} must be at least {least}")
    return flags, arguments[split + 1 :]


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        return listener.getsockname()[1]


def commands(flags: argparse.Namespace, arguments: Sequence[str]) -> list[list[str]]:
    """The command line of each process."""
    address = f"localhost:{flags.port or free_port()}"
    return [
        [
            *(sys.executable, "-m", flags.module, *arguments),
            f"--coordinator_address={address}",
            f"--num_processes={flags.num_processes}",
            f"--process_id={index}",
        ]
        for index in range(flags.num_processes)
    ]


def environment(index: int, num_processes: int) -> dict[str, str]:
    """What a process gets on top of this one's environment."""
    added = {"PYTHONUNBUFFERED": "1"}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = visible.split(",") if visible else list(Path("/dev").glob("nvidia[0-9]*"))
    share = len(gpus) // num_processes
    if share and visible != "" and "JAX_LOCAL_DEVICE_IDS" not in os.environ:
        own = range(index * share, (index + 1) * share)
        added["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, own))
    return added


def start(command: Sequence[str], index: int, num_processes: int) -> subprocess.Popen:
    """Starts one process; its session is its own, so that Ctrl-C reaches it through us only.

    It is killed when this launcher ends, even by a signal that nobody can handle.
    """
    process = subprocess.Popen(
        command,
        env={**os.environ, **environment(index, num_processes)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=functools.partial(end_with, os.getpid()),
    )
    mark = f"[{index}] ".encode()
    outputs = (process.stdout, sys.stdout.buffer), (process.stderr, sys.stderr.buffer)
    process.readers = [
        threading.Thread(target=pass_on, args=(source, target, mark)) for source, target in outputs
    ]
    for reader in process.readers:
        reader.start()
    return process


def end_with(parent: int) -> None:
    """Has Linux kill this process, a child just forked, when its parent ends."""
    if LIBC is not None:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # It ended before.
        os._exit(128 + signal.SIGKILL)


def pass_on(source: BinaryIO, target: BinaryIO, mark: bytes) -> None:
    """Copies lines, marked, until `source` ends; reads on when `target` takes no more."""
    for line in source:
        with contextlib.suppress(OSError):
            target.write(mark + line.rstrip(b"\n") + b"\n")
            target.flush()


def wait(processes: Sequence[subprocess.Popen], grace_seconds: float) -> int:
    """The exit code of the run, once all processes have ended."""
    failed_at, code = None, 0
    forwarded = 0
    while any(process.poll() is None for process in processes):
        for number in received[forwarded:]:
            send(processes, number)
        forwarded = len(received)
        if failed_at is None and (failure := first_failure(processes)):
            failed_at, code = time.monotonic(), failure
        if failed_at and time.monotonic() > failed_at + grace_seconds:
            send(processes, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    for process in processes:
        with contextlib.suppress(ProcessLookupError):  # Its own processes, which hold its output.
            os.killpg(process.pid, signal.SIGKILL)
        for reader in process.readers:
            reader.join()
    preempted = any(process.returncode == PREEMPTED for process in processes)
    return code or first_failure(processes) or (PREEMPTED if preempted else 0)


def first_failure(processes: Sequence[subprocess.Popen]) -> int:
    """The exit code of a process that failed; 0 for none."""
    codes = [process.poll() for process in processes]
    failures = [code for code in codes if code not in (None, 0, PREEMPTED)]
    return 0 if not failures else failures[0] if failures[0] > 0 else 128 - failures[0]


def send(processes: Sequence[subprocess.Popen], number: int) -> None:
    """Sends a signal to the processes that still run."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(number)


def main(arguments: Sequence[str]) -> int:
    """Runs the processes; returns the exit code of the run."""
    flags, arguments = parse_arguments(arguments)
    if flags.dry_run:
        for index, command in enumerate(commands(flags, arguments)):
            variables = [f"{k}={v}" for k, v in environment(index, flags.num_processes).items()]
            print(shlex.join([*variables, *command]))
        return 0
    for number in FORWARDED:
        signal.signal(number, lambda received_number, _: received.append(received_number))
    for attempt in range(flags.restarts + 1):
        if attempt:
            print(f"Starting again ({attempt} of {flags.restarts}).", file=sys.stderr)
        processes = [
            start(command, index, flags.num_processes)
            for index, command in enumerate(commands(flags, arguments))
        ]
        code = wait(processes, flags.grace_seconds)
        if code != PREEMPTED or received:
            break
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
