"""The command that writes a model in another format.

    python -m vit_jax.export SOURCE DESTINATION --format=npz

SOURCE is anything that `vit_jax.load_model` reads. Exit codes: 0 done; 2 SOURCE cannot be read, or
the format cannot express it.
"""

import argparse
import logging
import sys
from typing import Any

from vit_jax.config_file import parse_any
from vit_jax.errors import ConfigError, UserError
from vit_jax.logging import setup_logging
from vit_jax.weights.formats import read_weights
from vit_jax.weights.loading import build_model
from vit_jax.weights.resize import POSITION_RESIZES
from vit_jax.weights.saving import FORMATS, save_model
from vit_jax.weights.source import Hints

USER_ERROR_EXIT_CODE = 2

logger = logging.getLogger("vit_jax")


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    """The command line; prints help and leaves with code 2 if it is not understood."""
    parser = argparse.ArgumentParser(
        prog="python -m vit_jax.export", description="Writes a model in another format."
    )
    parser.add_argument("source", help="a workdir, an export, .npz, .safetensors, a folder")
    parser.add_argument("destination", help="the file or folder to write")
    parser.add_argument("--format", choices=tuple(FORMATS), default="npz")
    parser.add_argument("--checkpoint", default="latest", help="of a workdir: latest, best, a step")
    parser.add_argument("--ema", action="store_true", help="of a workdir: averaged parameters")
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
    parser.add_argument("--position_resize", choices=POSITION_RESIZES, default=POSITION_RESIZES[0])
    parser.add_argument("--trunk_only", action="store_true", help="without the head")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="a model option that SOURCE does not say, or another value for it: image_size=384",
    )
    return parser.parse_args(arguments)


def parse_options(pairs: list[str]) -> dict[str, Any]:
    """`KEY=VALUE` pairs as model options; values are Python literals, else text."""
    options = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise ConfigError(f"--option={pair}: write KEY=VALUE.")
        options[key] = parse_any(value)
    return options


def export(arguments: argparse.Namespace) -> None:
    """Reads, converts and writes as the command line says."""
    options = parse_options(arguments.option)
    if arguments.average is not None and arguments.checkpoint != "latest":
        raise ConfigError("--average takes the last checkpoints: leave out --checkpoint.")
    weights = read_weights(
        arguments.source,
        Hints(options, arguments.source_grid),
        checkpoint=arguments.checkpoint,
        ema=arguments.ema,
        average=arguments.average,
    )
    save_model(
        build_model(weights, options, arguments.position_resize),
        arguments.destination,
        arguments.format,
        trunk_only=arguments.trunk_only,
    )
    logger.info("Wrote %s (%s).", arguments.destination, arguments.format)


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit code."""
    setup_logging()
    try:
        export(parse_arguments(arguments))
    except UserError as error:
        logger.error("%s", error)
        return USER_ERROR_EXIT_CODE
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
