"""Reads mutated files and values, each in a process that may die of it.

    .venv/bin/python -m tests.campaigns.fuzz --minutes=10 --seed=0
    .venv/bin/python -m tests.campaigns.fuzz --only=weights --first=123 --count=1   # that one again

Each trial ends in values that are right, as far as that can be told, or in one error of the package's
own (`UserError`). A failure is anything else: another exception, the end of the interpreter,
`HANG_SECONDS` of computing or `BLOCKED_SECONDS` of waiting, memory beyond the target's limit, a file
written or a process started outside the trial's folder. Trials depend on seed, target and number
alone. Exits with 1 where one failed.
"""

import argparse
import collections
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time

from tests.campaigns.fuzz.worker import STDERR, work

COUNTS = {
    "pictures": 10_000,
    "weights": 5_000,
    "configs": 2_000,
    "lists": 2_000,
    "checkpoints": 1_000,
}
HANG_SECONDS = 5.0  # Of its own on the processors: a busy machine's are not counted.
BLOCKED_SECONDS = 60.0
READY_SECONDS = 600.0  # For a worker's imports and the files that it begins with.


class Worker:
    """A process that does trials, and is started anew when one ends it."""

    def __init__(self, name: str, seed: int):
        self.name, self.seed = name, seed
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.connection, other = context.Pipe()
        arguments = self.name, self.seed, self.folder.name, other
        self.process = context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        other.close()
        if not self.connection.poll(READY_SECONDS):
            raise RuntimeError(f"{self.name}: its worker does not get ready")
        self.connection.recv()

    def run(self, number: int) -> tuple[str, str]:
        """(outcome, message) of a trial, whatever becomes of the process."""
        self.connection.send(number)
        used, began = self._seconds(), time.monotonic()
        while not self.connection.poll(0.5):
            blocked = time.monotonic() - began > BLOCKED_SECONDS
            if blocked or self._seconds() - used > HANG_SECONDS:
                self._restart()
                return "failed", "it hangs"
        try:
            return self.connection.recv()
        except EOFError:
            self.process.join()
            words = pathlib.Path(self.folder.name, STDERR).read_text(errors="replace")
            message = f"the interpreter ended with {self.process.exitcode}: {words[-1000:]}"
            self._restart()
            return "failed", message

    def _seconds(self) -> float:
        """Processor time so far."""
        try:
            fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2]
        except OSError:
            return 0.0
        return sum(map(int, fields.split()[11:13])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()
        self.folder.cleanup()

    def _restart(self) -> None:
        self.close()
        self._start()


def fuzz(name: str, numbers: range, seed: int, deadline: float) -> collections.Counter:
    """Does the trials of one target until the deadline; how many ended how."""
    worker, tally = Worker(name, seed), collections.Counter()
    for number in numbers:
        if time.monotonic() > deadline:
            break
        outcome, message = worker.run(number)
        tally[outcome] += 1
        if outcome == "failed":
            print(f"{name} {number}: {message.strip()}", flush=True)
    worker.close()
    done = ", ".join(f"{tally[kind]:,} {kind}" for kind in ("same", "other", "refused", "failed"))
    print(f"{name}: {tally.total():,} trials: {done}", flush=True)
    return tally


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="in all")
    parser.add_argument("--share", type=float, default=1.0, help=f"of the counts {COUNTS}")
    parser.add_argument("--only", choices=COUNTS, help="this target alone")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--count", type=int, help="of each target, instead of its share")
    parser.add_argument("--seed", type=int, default=0)
    flags = parser.parse_args(arguments)
    names = [flags.only] if flags.only else list(COUNTS)
    end, failed = time.monotonic() + 60 * flags.minutes, 0
    for index, name in enumerate(names):
        count = flags.count or max(1, round(flags.share * COUNTS[name]))
        left = end - time.monotonic()
        numbers = range(flags.first, flags.first + count)
        tally = fuzz(name, numbers, flags.seed, time.monotonic() + left / (len(names) - index))
        failed += tally["failed"]
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
