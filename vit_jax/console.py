"""The console: log messages, a run's lines and progress bar, and numbers as people read them."""

import logging
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping

from tqdm import tqdm

from vit_jax.escaping import legible, printable

logger = logging.getLogger(__name__)


def setup_logging(process_index: int = 0) -> None:
    """Sends log messages to stderr: ours from INFO, other libraries' from WARNING.

    Processes other than 0 report warnings only, marked with their index. May be called again.
    """
    mark = f"[process {process_index}] " if process_index else ""
    handler = _ConsoleHandler()
    handler.setFormatter(
        _Formatter(f"%(levelname).1s %(asctime)s {mark}%(message)s", datefmt="%H:%M:%S")
    )
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("absl").setLevel(logging.WARNING)  # Orbax and Grain log through absl.
    level = logging.WARNING if process_index else logging.INFO
    logging.getLogger("vit_jax").setLevel(level)


class _Formatter(logging.Formatter):
    """Escapes what would act on a terminal, shortens what is endless, and indents further lines, so
    that none looks like a message of its own.
    """

    def format(self, record: logging.LogRecord) -> str:
        return printable(legible(super().format(record)), keep="\n\t").replace("\n", "\n  ")


class _ConsoleHandler(logging.Handler):
    """Writes to stderr, above the progress bar if there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
        except Exception:
            self.handleError(record)


class Console:
    """A run's lines on the console, and a progress bar where stderr is a terminal."""

    def __init__(self, total_steps: int, start_step: int = 0, is_writer: bool = True):
        self._bar = tqdm(
            total=total_steps,
            initial=start_step,
            unit="step",
            dynamic_ncols=True,
            leave=False,
            disable=not (is_writer and sys.stderr.isatty()),
        )

    def line(self, text: str) -> None:
        """Logs one line at INFO; the bar stays below it."""
        logger.info(text)

    def update(self, step: int) -> None:
        """Moves the bar to `step`."""
        self._bar.update(step - self._bar.n)

    def close(self) -> None:
        """Removes the bar."""
        self._bar.close()


def python_command(*arguments: str) -> str:
    """A line that a shell runs as it stands: the interpreter of this process with `arguments`.

    It is called "python" where that is what the shell would find. Paths are quoted.
    """
    is_found = shutil.which("python") == sys.executable
    return shlex.join(["python" if is_found else sys.executable, *arguments])


def format_count(value: float) -> str:
    """Three digits and a suffix: 950, 1.23k, 45.6M, 7.89B."""
    for unit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * unit:  # What rounds to 1000 takes the next suffix.
            return f"{value / unit:.3g}{suffix}"
    return f"{value:.3g}"


def format_duration(seconds: float) -> str:
    """The two largest units: 45s, 3m12s, 2h05m, 3d04h."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{seconds:02}s" if minutes else f"{seconds}s"


# The console's columns in their order: metric -> text.
_COLUMNS: dict[str, Callable[[float], str]] = {
    "train/epoch": "epoch {:.2f}".format,
    "train/loss": "loss {:.4f}".format,
    "train/learning_rate": "lr {:.2e}".format,
    "train/grad_norm": "grad {:5.3g}".format,
    "train/images_per_second": lambda value: f"{format_count(value):>5} img/s",
    "train/mfu": "MFU {:5.1%}".format,
    "train/data_wait": "data wait {:5.1%}".format,
    "train/device_memory_bytes": lambda value: f"mem {value / 2**30:.1f} GiB",
    "train/examples": lambda value: f"{format_count(value):>5} examples",
    "train/device_hours": lambda value: f"{format_count(value)} device-h",
    "train/exaflops": lambda value: f"{format_count(value)} exaFLOPs",
    "train/eta_seconds": lambda value: f"ETA {format_duration(value)}",
}

_HIDDEN = "time/"  # For the files, and the line at the end.


def format_line(step: int, total_steps: int, metrics: Mapping[str, float]) -> str:
    """One console line: known metrics in a fixed order, then others as "name value"."""
    columns = [f"step {step:>{len(str(total_steps))}}/{total_steps}"]
    columns += [text(metrics[name]) for name, text in _COLUMNS.items() if name in metrics]
    others = (name for name in metrics if name not in _COLUMNS and not name.startswith(_HIDDEN))
    columns += [f"{name} {metrics[name]:.4g}" for name in others]
    return " | ".join(columns)
