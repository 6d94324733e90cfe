"""Shared by the commands: flags, the model they load, messages and exit codes.

Exit codes: 0 done; 1 done, but some images could not be read; 2 a mistake in what was asked for;
3 non-finite loss; 75 stopped by a signal, start the same command again; 130 stopped by Ctrl-C.
"""

import argparse
import logging
import os
import select
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import jax
import numpy as np

from vit_jax import storage
from vit_jax.averaging import AVERAGES, NUM_CROPS, PROBABILITIES
from vit_jax.config_file import parse_any
from vit_jax.console import python_command, setup_logging
from vit_jax.data.images.limits import MAX_IMAGE_GIB
from vit_jax.devices import distributed
from vit_jax.errors import CommandError, ConfigError, UserError, WeightsError
from vit_jax.kinds import MOST
from vit_jax.models.base import ImageClassifier
from vit_jax.weights.formats import is_workdir
from vit_jax.weights.loading import load_model

DONE, SOME_UNREADABLE, USER_ERROR, INTERRUPTED = 0, 1, UserError.exit_code, 130
FAILED = CommandError.exit_code
LONGEST_SIDE = 1 << 14  # Of a square, three quarters of a gigabyte.
STDOUT = 1  # Its file descriptor.
OVERRIDE = "--config."
RESERVED = (
    "path",
    "checkpoint",
    "ema",
    "weights",
    "pretrained",
)  # Arguments of loading that are no options.

logger = logging.getLogger("vit_jax")


class Parser(argparse.ArgumentParser):
    """Raises ConfigError for a command line that it does not understand."""

    def __init__(self, module: str, description: str):
        super().__init__(
            prog=python_command("-m", module), description=description, allow_abbrev=False
        )

    def error(self, message: str) -> NoReturn:
        """Called by argparse for any mistake."""
        raise ConfigError(f"{message}; --help lists the flags.")


def parse_with_config(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The flags of a command that takes --config, and its overrides of keys as "KEY=VALUE".

    Raises ConfigError for unknown flags, and for an override without a value.
    """
    parser.epilog = "--config.KEY=VALUE sets any key of vit_jax/config.py."
    parser.add_argument("--config", metavar="FILE[:ARGUMENTS]", required=True, help="the run")
    return parse_with_overrides(parser, arguments)


def parse_with_overrides(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, list[str]]:
    """The flags of a command, and its overrides of keys as "KEY=VALUE"; raises as the above."""
    overrides = [text.removeprefix(OVERRIDE) for text in arguments if text.startswith(OVERRIDE)]
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"{OVERRIDE}{override}: expected {OVERRIDE}KEY=VALUE.")
    return parser.parse_args([a for a in arguments if not a.startswith(OVERRIDE)]), overrides


def run_command(command: Callable[[Sequence[str]], int], arguments: Sequence[str]) -> int:
    """Runs a command, and turns what users and systems can cause into a message and a code."""
    setup_logging()
    try:
        exit_code = command(arguments)
        sys.stdout.flush()
    except CommandError as error:
        logger.log(error.level, "%s", error)
        exit_code = error.exit_code
    except KeyboardInterrupt:
        exit_code = INTERRUPTED
    except OSError as error:  # A full disk, a quota, a mount that vanished, too many open files.
        if discard_output() and isinstance(error, BrokenPipeError):
            exit_code = DONE  # Whoever reads standard output, such as `head`, has enough.
        else:
            logger.error("%s. Mend that, and start the same command again.", error)
            exit_code = USER_ERROR
    except jax.errors.JaxRuntimeError as error:
        if jax.process_count() == 1:
            raise
        logger.error("%s. Unless that says why, another process died: see their logs.", error)
        exit_code = FAILED
    distributed.shutdown(exit_code)
    return exit_code


def discard_output() -> bool:
    """Whether standard output takes no more; Python then does not try again when it ends."""
    readers = select.poll()
    readers.register(STDOUT, 0)  # Asks for errors alone: a pipe without a reader is one.
    try:
        sys.stdout.flush()
        gone = bool(readers.poll(0))
    except OSError:
        gone = True
    if gone:
        os.dup2(os.open(os.devnull, os.O_WRONLY), STDOUT)
    return gone


def at_least_one(text: str, most: int = MOST) -> int:
    """The type of a flag that counts something."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= most:
        limit = "" if number < 1 else f" and at most {most:,}"
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1{limit}")
    return number


def pixels(text: str) -> int:
    """The type of a flag that is the length of a picture's side."""
    return at_least_one(text, LONGEST_SIDE)


def positive(text: str) -> float:
    """The type of a flag that measures something, such as seconds to wait."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def share(text: str) -> float:
    """The type of a flag that is a number from 0 to 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to 1")
    return number


def named(ending: str) -> Callable[[str], str]:
    """The type of a flag that names a file of one format, which its name must not contradict."""

    def check(text: str) -> str:
        path = storage.expand(text)
        if os.path.splitext(path)[1].lower() not in ("", ending):
            raise argparse.ArgumentTypeError(
                f"{path!r} is no name for what is written: NAME{ending}"
            )
        return path

    return check


def add_model_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say which parameters of a model to load, and how to read its file."""
    parser.add_argument("--checkpoint", default="latest", help="of a workdir: latest, best, a step")
    parser.add_argument("--ema", action="store_true", help="of a workdir: averaged parameters")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a model option that its file does not say, or another value for it: image_size=384",
    )


def add_image_limit(parser: argparse.ArgumentParser) -> None:
    """The flag that says how much memory pictures may take."""
    parser.add_argument(
        "--max_image_gib",
        type=positive,
        metavar="GIB",
        help=f"of memory for a decoded picture; default: {MAX_IMAGE_GIB:g}, or as its run's config",
    )


def add_averaging_flags(parser: argparse.ArgumentParser) -> None:
    """The flags of what is averaged at test time, and of another resolution."""
    group = parser.add_argument_group("at test time (docs/evaluation.md)")
    group.add_argument(
        "--resize",
        type=pixels,
        help="of the smaller side, before the middle of the model's size is cut out",
    )
    group.add_argument(
        "--crops", type=int, choices=NUM_CROPS, default=1, help="the middle, or the corners too"
    )
    group.add_argument("--flips", action="store_true", help="each crop mirrored, too")
    group.add_argument("--ensemble", action="store_true", help="all models answer together, as one")
    group.add_argument(
        "--average", choices=AVERAGES, default=PROBABILITIES, help="what is averaged"
    )


def parse_options(pairs: Sequence[str]) -> dict[str, Any]:
    """`KEY=VALUE` pairs as model options; values are Python literals, else text."""
    options = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ConfigError(f"--option={pair}: write KEY=VALUE.")
        options[key] = parse_any(value)
    return options


def add_process_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of one of several processes; Slurm, Cloud TPU, GKE, Open MPI set them."""
    group = parser.add_argument_group("several processes (docs/launch.md)")
    group.add_argument("--coordinator_address", metavar="HOST:PORT", help="where process 0 is")
    group.add_argument("--num_processes", type=int, metavar="N", help="of the whole run")
    group.add_argument("--process_id", type=int, metavar="I", help="this one's, 0 to N - 1")
    group.add_argument(
        "--coordinator_timeout",
        type=positive,
        default=300,
        metavar="SECONDS",
        help="to wait for all at the start (default: %(default)s)",
    )


def connect(flags: argparse.Namespace) -> None:
    """Joins the processes that the flags or the environment name; see `distributed.initialize`."""
    cluster = distributed.Cluster(flags.coordinator_address, flags.num_processes, flags.process_id)
    distributed.initialize(cluster, flags.coordinator_timeout)
    if jax.distributed.is_initialized():
        setup_logging(jax.process_index())


def load_classifier(
    path: str, flags: argparse.Namespace, step: int | None = None, *, ema: bool = False
) -> ImageClassifier:
    """As `load_by_flags`, for a classifier.

    Raises WeightsError if it has no head.
    """
    model = load_by_flags(path, flags, step, ema=ema)
    if not model.options.num_classes:
        raise WeightsError(f"{path} has no head, so it is no classifier: fine-tune it.")
    if not np.any(model.head.kernel[...]):
        logger.warning("The head of %s is all zeros: nothing has been trained with it.", path)
    return model


def load_by_flags(
    path: str, flags: argparse.Namespace, step: int | None = None, *, ema: bool = False
) -> ImageClassifier:
    """The model at `path`, by the flags of `add_model_flags`; of a workdir a given step, if any.

    With `ema`, its averaged parameters, also where the flags do not ask for them.

    Raises:
      WeightsError: it cannot be read.
      ConfigError: the flags do not fit it.
    """
    if not is_workdir(path) and (flags.ema or flags.checkpoint != "latest"):
        raise ConfigError(f"--checkpoint and --ema choose from a run's workdir; {path} is none.")
    options = parse_options(flags.option)
    for key in RESERVED:
        if key in options:
            raise ConfigError(f"--option={key}=...: {key!r} is no option of a model.")
    chosen, averaged = step or flags.checkpoint, flags.ema or ema
    return load_model(path, checkpoint=chosen, ema=averaged, **options)
