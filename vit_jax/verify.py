"""The command that compares pretrained weights' accuracy with what was published of them.

    python -m vit_jax.verify NAME... --source=tfds:imagenet2012 [--tolerance=0.1]

NAME is a part of a model, tag or repository in `python -m vit_jax.models --pretrained`, or a glob:
`ViT-B/16 augreg_in21k_ft*`, `hf:timm/vit_base_patch16_224.augreg_in21k_ft_in1k`. Those with a
published top-1 are fetched and measured with their own preprocessing. Other flags are those of
`vit_jax.evaluate`. Exit codes: 0 all are within the tolerance; 1 some are not; 2 a mistake in what was
asked for, or some could not be measured.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from vit_jax import evaluate, hub
from vit_jax.command_line import DONE, USER_ERROR, Parser, positive, run_command
from vit_jax.errors import ConfigError, NonFiniteLossError, UserError
from vit_jax.evaluation_files import Result, write_results
from vit_jax.tables import format_table
from vit_jax.weights.pretrained import TOP1_SOURCE, Pretrained, list_pretrained

DIFFERS = 1
TOLERANCE = 0.1  # Percentage points: 50 of ImageNet's 50,000 images. Resizing differs a little.
HEADER = ("weights", "published %", "here %", "difference", "images")

logger = logging.getLogger("vit_jax")


def find(name: str) -> list[Pretrained]:
    """The weights that a name stands for and that have a published accuracy, else ConfigError."""
    found = list_pretrained(name.removeprefix(hub.SCHEME))
    published = [entry for entry in found if entry.top1 is not None]
    if not published:
        reason = "have no published top-1" if found else "are not known"
        raise ConfigError(
            f"{name!r}: such weights {reason}; see python -m vit_jax.models --pretrained."
        )
    return published


def row(entry: Pretrained, result: Result) -> tuple[str, ...]:
    """The cells of one result."""
    ours, published = 100 * (result.accuracy or 0), entry.top1 or 0
    difference = f"{ours - published:+.3f}"
    return (
        entry.reference,
        f"{published:.3f}",
        f"{ours:.3f}",
        difference,
        f"{result.count or 0:,}",
    )


def run(arguments: Sequence[str]) -> int:
    """Measures one after another; one that cannot be measured does not stop the rest."""
    parser = Parser("vit_jax.verify", "Compares pretrained weights with their published accuracy.")
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="as python -m vit_jax.models lists"
    )
    parser.add_argument(
        "--tolerance", type=positive, default=TOLERANCE, help="percentage points: %(default)s"
    )
    parser.epilog = "Other flags are those of vit_jax.evaluate: --source, --split, --csv, ..."
    flags, others = parser.parse_known_args(arguments)
    entries = dict.fromkeys(entry for name in flags.names for entry in find(name))
    evaluation = evaluate.parse_flags([*(entry.reference for entry in entries), *others])
    results, far = [], False
    rows: list[tuple[str, ...]] = [HEADER]
    for entry in entries:
        try:
            result = evaluate.evaluate([evaluate.plan(entry.reference, evaluation)], evaluation)
        except (UserError, NonFiniteLossError) as error:
            logger.error("%s", error)
            continue
        if result.accuracy is None:
            raise ConfigError("--evaluators measures no accuracy to compare: name classification.")
        results.append(result)
        rows.append(row(entry, result))
        far |= abs(float(rows[-1][3])) > flags.tolerance
        write_results(results, evaluation.json, evaluation.csv)
    print(format_table(rows))
    print(f"published: of {TOP1_SOURCE}")
    if len(results) < len(entries):
        return USER_ERROR
    return DIFFERS if far else DONE


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
