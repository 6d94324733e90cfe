"""The command that writes a model in another format.

    python -m vit_jax.export SOURCE DESTINATION.npz
    python -m vit_jax.export RUN hf:USER/NAME

SOURCE is anything that `vit_jax.load_model` reads. `hf:USER/NAME` is a repository on the Hub, made
(private) if there is none; a page goes with the model. Exit codes: 0 done; 2 SOURCE cannot be read, or
the format cannot express it, or DESTINATION cannot be written.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence

from vit_jax import hub, storage
from vit_jax.checkpoint import find_checkpoint
from vit_jax.command_line import DONE, Parser, add_model_flags, parse_options, run_command
from vit_jax.errors import ConfigError
from vit_jax.model_card import LIBRARIES, Run, write_card
from vit_jax.models.base import ImageClassifier
from vit_jax.weights.content import Hints
from vit_jax.weights.formats import is_workdir, read_weights
from vit_jax.weights.loading import build_model
from vit_jax.weights.resampling import POSITION_RESIZES
from vit_jax.weights.saving import (
    BY_ENDING,
    FORMATS,
    format_of,
    save_model,
)

logger = logging.getLogger("vit_jax")


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; raises ConfigError if it is not understood."""
    parser = Parser("vit_jax.export", "Writes a model in another format.")
    parser.add_argument(
        "source",
        type=storage.expand,
        metavar="SOURCE",
        help="a workdir, an export, .npz, hf:..., ...",
    )
    parser.add_argument(
        "destination",
        type=storage.expand,
        metavar="DESTINATION",
        help="the file or folder, or hf:USER/NAME",
    )
    parser.add_argument(
        "--format",
        choices=tuple(FORMATS),
        help=f"default: as DESTINATION ends, {', '.join(map('='.join, BY_ENDING.items()))}",
    )
    add_model_flags(parser)
    parser.add_argument(
        "--average", type=int, metavar="N", help="of a workdir: the mean of the last N checkpoints"
    )
    parser.add_argument(
        "--source_grid",
        type=int,
        nargs=2,
        metavar=("ROWS", "COLUMNS"),
        help="of SOURCE's position embeddings, where nothing else tells",
    )
    parser.add_argument(
        "--position_resize",
        choices=POSITION_RESIZES,
        default=POSITION_RESIZES[0],
        help="how they become those of another image_size",
    )
    parser.add_argument("--trunk_only", action="store_true", help="without the head")
    flags = parser.parse_args(arguments)
    if flags.average is not None and flags.checkpoint != "latest":
        raise ConfigError("--average takes the last checkpoints: leave out --checkpoint.")
    return flags


def run(arguments: Sequence[str]) -> int:
    """Reads, converts and writes as the command line says."""
    flags = parse_flags(arguments)
    pushing = hub.is_reference(flags.destination)
    # Before the work.
    format = push_format(flags) if pushing else format_of(flags.destination, flags.format)
    options = parse_options(flags.option)
    weights = read_weights(
        flags.source,
        Hints(options, flags.source_grid),
        checkpoint=flags.checkpoint,
        ema=flags.ema,
        average=flags.average,
    )
    model = build_model(weights, options, flags.position_resize)
    if pushing:
        page = push(model, flags, format)
        logger.info("Wrote %s (%s): %s", flags.destination, format, page)
        return DONE
    save_model(model, flags.destination, format, trunk_only=flags.trunk_only)
    logger.info("Wrote %s (%s).", flags.destination, format)
    return DONE


def push_format(flags: argparse.Namespace) -> str:
    """The format of what goes to the Hub; raises ConfigError for one that is no folder."""
    reference = hub.parse(flags.destination)
    if reference.path or reference.revision != hub.DEFAULT_REVISION:
        raise ConfigError(f"{flags.destination}: name the repository alone, hf:USER/NAME.")
    format = flags.format or "vit_jax"
    if format not in LIBRARIES:
        raise ConfigError(f"--format={format}: to the Hub go {', '.join(LIBRARIES)}.")
    return format


def push(model: ImageClassifier, flags: argparse.Namespace, format: str) -> str:
    """Writes the model with its page to the Hub; returns the page's address."""
    repository = hub.parse(flags.destination).repository
    is_run, step = is_workdir(flags.source), None
    if is_run and flags.average is None:
        step, _ = find_checkpoint(flags.source, flags.checkpoint)
    with tempfile.TemporaryDirectory() as folder:
        save_model(model, folder, format, trunk_only=flags.trunk_only)
        has_head = bool(model.options.num_classes) and not flags.trunk_only
        run = Run(flags.source, step) if is_run else None
        write_card(folder, repository, model, format, has_head=has_head, run=run)
        return hub.push(folder, repository, message="A model trained with vit_jax")


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
