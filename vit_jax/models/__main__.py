"""The table of models: python -m vit_jax.models [PATTERN] [--image_size N] [--csv] [--pretrained].

One line a model: name, parameters (1,000 classes), GMACs of one image's forward pass, tokens (the
length of the blocks' sequence; none for ResNets), and input size. PATTERN is a part of a name or a
glob, in upper or lower case: `R50+`, `bit-v1`, `ViT-*/16`. No parameter is allocated.

With `--pretrained`, the weights that can be loaded by name: `vit_jax.load_model(MODEL,
pretrained=TAG)`, or by their repository. Nothing is asked of the network.
"""

import csv
import fnmatch
import logging
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from vit_jax.command_line import DONE, USER_ERROR, Parser, run_command
from vit_jax.errors import ConfigError
from vit_jax.models import count_parameters, list_models, model_options
from vit_jax.models.registry import find_architecture, our_name
from vit_jax.tables import format_table
from vit_jax.weights.pretrained import TOP1_SOURCE, Pretrained, list_pretrained

logger = logging.getLogger("vit_jax")

TEXT_ROW = "{:<16} {:>15} {:>9} {:>7} {:>11}"


class Row(NamedTuple):
    """A line of the table."""

    name: str
    parameters: int
    gmacs: float
    tokens: int | None
    input_size: str  # height x width


def find_names(pattern: str) -> list[str]:
    """The names that contain or match `pattern`, or itself if it is one; else ConfigError."""
    glob = f"*{our_name(pattern)}*".lower()
    names = [name for name in list_models() if fnmatch.fnmatchcase(name.lower(), glob)]
    if not names:
        find_architecture(pattern)  # "ViT-B/4" is not listed; raises ConfigError for no model.
    return names or [pattern]


def describe(name: str, **options: int) -> Row:
    """One model's line, without allocating its parameters."""
    complete = model_options(name, **options)
    height, width = complete.image_size
    return Row(
        name,
        count_parameters(name, **options),
        complete.macs() / 1e9,
        complete.num_tokens,
        f"{height}x{width}",
    )


def describe_all(names: Sequence[str], image_size: int) -> Iterator[Row]:
    """The lines of those models that take the size; what the others say goes to the log."""
    for name in names:
        try:
            yield describe(name, image_size=image_size)
        except ConfigError as error:
            logger.error("%s: %s", name, error)


def print_pretrained(pattern: str, as_csv: bool) -> int:
    """Prints the table of weights; returns the exit code."""
    found = list_pretrained(pattern)
    if not found:
        raise ConfigError(f"{pattern!r}: no pretrained weights have such a name.")
    header = ("model", "tag", "pixels", "trained on", "top-1 %", "licence", "source", "repository")
    rows = [weights_row(entry) for entry in found]
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([header, *rows])
    else:
        print(format_table([header, *rows]))
        print(f"top-1: of {TOP1_SOURCE}")
    return DONE


def weights_row(entry: Pretrained) -> tuple[str, ...]:
    """The cells of one entry of the catalogue."""
    top1 = "" if entry.top1 is None else f"{entry.top1:.2f}"
    pixels, reference = str(entry.image_size), entry.reference
    names = (entry.model, entry.tag, pixels, entry.data, top1)
    return (*names, entry.licence, entry.source, reference)


def run(arguments: Sequence[str]) -> int:
    """Prints a table; returns the exit code."""
    parser = Parser("vit_jax.models", "The table of models.")
    parser.add_argument("pattern", nargs="?", default="", help="part of a name, or a glob")
    parser.add_argument("--image_size", type=int, default=224, help="pixels, of a square")
    parser.add_argument("--csv", action="store_true", help="comma-separated, for a spreadsheet")
    parser.add_argument("--pretrained", action="store_true", help="weights, instead of models")
    flags = parser.parse_args(arguments)
    if flags.pretrained:
        return print_pretrained(flags.pattern, flags.csv)
    names = find_names(flags.pattern)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if flags.csv:
        writer.writerow(Row._fields)
    else:
        print(TEXT_ROW.format("name", "parameters", "GMACs", "tokens", "input size"))
    rows = 0
    for row in describe_all(names, flags.image_size):
        rows += 1
        if flags.csv:
            writer.writerow(row._replace(gmacs=round(row.gmacs, 4)))
        else:
            counts = (f"{row.parameters:,}", f"{row.gmacs:,.2f}", row.tokens or "–")
            print(TEXT_ROW.format(row.name, *counts, row.input_size), flush=True)
    return DONE if rows else USER_ERROR


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
