"""The command that writes data anew, once, as shards that feed accelerators.

    python -m vit_jax.prepare --source=folder:/data/photos --output=/data/shards --shorter_side=256

takes any source and writes its splits as shuffled tar files in WebDataset's layout, which
--config.data.source=tar:/data/shards reads. Stopped anywhere and started again, it goes on and
writes the same bytes, by any number of worker processes. --config.data.KEY=VALUE says more of the
source, as in training: columns, label, data_dir, classes, exclude, held_out_fraction.

Exit codes: 0 done; 1 done, but images were left out that cannot be read; 2 a mistake in what was
asked for.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from vit_jax import storage
from vit_jax.command_line import (
    DONE,
    SOME_UNREADABLE,
    Parser,
    at_least_one,
    parse_with_overrides,
    run_command,
)
from vit_jax.config import default_config, validate
from vit_jax.config_file import expand_paths, override
from vit_jax.console import format_duration
from vit_jax.data.images.transforms import decoding_of
from vit_jax.data.loading.pipeline import num_cores
from vit_jax.data.sources.examples import Source, digest_of
from vit_jax.data.sources.registry import find_splits, open_source
from vit_jax.data.sources.split_names import find_by_purpose, purpose_of
from vit_jax.data.sources.splits import abbreviate, written_names
from vit_jax.errors import ConfigError, DataError
from vit_jax.prepare.images import FORMATS, QUALITY, Rewriting
from vit_jax.prepare.shards import (
    Making,
    Part,
    Record,
    Sample,
    make_shards,
    read_record,
    samples,
    shuffled,
)

SHARD_MIB = 128
PLAN = "prepare.json"  # What the folder's shards are made of, and how.
CLASSES = "classes.json"
LIST = "shards.json"  # Written last, in the form that WebDataset's `wids` reads.
_SAMPLED = 64  # Images of a split that are made for an estimate.
_LOG_SECONDS = 10.0
_ANY_SIZE = (8, 8)  # Of `fake` images.

logger = logging.getLogger("vit_jax")


class Estimate(NamedTuple):
    """What a split will need, by a sample of it."""

    image_bytes: float  # in a shard
    image_seconds: float  # of one process


def parse_flags(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the config's overrides; raises ConfigError if they are not understood."""
    parser = Parser("vit_jax.prepare", "Writes data anew, once, as shards that feed accelerators.")
    parser.epilog = "--config.data.KEY=VALUE says more of the source, as in training."
    parser.add_argument(
        "--source", type=storage.expand_source, required=True, help="as --config.data.source"
    )
    parser.add_argument(
        "--output",
        type=storage.expand,
        required=True,
        metavar="DIR",
        help="a folder or URL for the shards",
    )
    parser.add_argument(
        "--split", action="append", metavar="NAME", help="one of the source's; default: all"
    )
    add_image_flags(parser)
    parser.add_argument(
        "--num_workers", type=at_least_one, metavar="N", help="processes; default: the cores"
    )
    parser.add_argument(
        "--shard_mib",
        type=at_least_one,
        default=SHARD_MIB,
        metavar="N",
        help="of a shard, about (%(default)s)",
    )
    parser.add_argument("--dry_run", action="store_true", help="only say what would be written")
    flags, overrides = parse_with_overrides(parser, arguments)
    if flags.quality > 100:
        raise ConfigError(f"--quality={flags.quality}: must be from 1 to 100.")
    return flags, overrides


def add_image_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that say what becomes of an image."""
    parser.add_argument(
        "--shorter_side", type=at_least_one, default=0, metavar="N", help="larger ones become so"
    )
    parser.add_argument(
        "--format",
        choices=FORMATS,
        default="",
        help="of all images; default: as they are, and JPEG where they are resized; raw: pixels",
    )
    parser.add_argument(
        "--quality",
        type=at_least_one,
        default=QUALITY,
        metavar="Q",
        help="of JPEG and WebP, to 100 (%(default)s)",
    )
    parser.add_argument(
        "--on_error",
        choices=("raise", "skip"),
        default="raise",
        help="what an image that cannot be read does (%(default)s)",
    )


def run(arguments: Sequence[str]) -> int:
    """Writes the shards; returns the exit code."""
    flags, overrides = parse_flags(arguments)
    config = read_config(flags.source, overrides)
    rewriting = Rewriting(flags.shorter_side, flags.format, flags.quality, decoding_of(config.data))
    sources = open_splits(config, flags.split)
    plan = describe_plan(flags, sources)
    before = read_plan(flags.output, plan)
    estimates = {name: estimate(source, rewriting) for name, source in sources.items()}
    parts = [
        Part(name, source, before.get(name) or shard_size(estimates[name], flags.shard_mib))
        for name, source in sources.items()
    ]
    num_workers = flags.num_workers or num_cores()
    finished, wanted = find_finished(flags.output, parts, started=bool(before))
    missing = sum(len(parts[part].positions(number)) for part, number in wanted)
    describe(parts, estimates, missing, num_workers)
    check_space(flags.output, parts, estimates, wanted)
    if flags.dry_run:
        return DONE
    begin(flags.output, plan, parts)
    making = Making(parts, flags.output, rewriting, flags.on_error == "skip")
    finished += follow(make_shards(making, wanted, num_workers), missing)
    return finish(flags.output, parts, finished)


def read_config(source: str, overrides: Sequence[str]) -> ConfigDict:
    """A config whose `data` says what to read; raises ConfigError for keys that say something else."""
    config = default_config()
    for text in overrides:
        if not text.startswith(("data.", "model.num_classes=")):
            raise ConfigError(
                f"--config.{text}: only --config.data.KEY and --config.model.num_classes say what is "
                "read."
            )
    override(config, overrides)
    config.data.source = source
    config = expand_paths(config)
    validate(config)
    return config


def open_splits(config: ConfigDict, names: Sequence[str] | None) -> dict[str, Source]:
    """The splits to write, by name: those asked for, else all that the source has."""
    splits = find_splits(config.data, _ANY_SIZE, 3, config.model.num_classes)
    written = written_names(splits)
    if unknown := [name for name in names or () if name not in splits]:
        raise ConfigError(
            f"--split={unknown[0]}: {config.data.source} has only {', '.join(written)}."
        )
    chosen = [name for name in names or written if purpose_of(name)]
    if others := [name for name in names or written if not purpose_of(name)]:
        logger.warning(
            "Left out, as tar shards have no such splits: %s; take one as another source with "
            "--config.data.train_split.",
            abbreviate(others),
        )
    train = find_by_purpose(tuple(written), "train")
    return {
        name: open_source(
            config.data,
            config.data.train_split if name == train else name,
            image_size=_ANY_SIZE,
            channels=3,
            num_classes=config.model.num_classes,
            training=name == train,
        )
        for name in chosen
    }


# ------------------------------------------------------------------------------------- the plan


def describe_plan(flags: argparse.Namespace, sources: dict[str, Source]) -> dict[str, Any]:
    """All that the bytes of the shards depend on, for JSON."""
    return {
        "splits": {name: digest_of(source) for name, source in sources.items()},
        "shorter_side": flags.shorter_side,
        "format": flags.format,
        "quality": flags.quality,
        "shard_mib": flags.shard_mib,
        "on_error": flags.on_error,
    }


def read_plan(folder: str, plan: dict[str, Any]) -> dict[str, int]:
    """The images in a shard of each split, where shards were begun by this plan; else nothing.

    Raises DataError where the folder's shards are made by another.
    """
    path = storage.join(folder, PLAN)
    if not storage.exists(path):
        return {}
    try:
        found = json.loads(storage.read(path))
        sizes = found.pop("shard_sizes")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be read ({error}): name another --output.") from error
    if different := sorted(key for key in plan if found.get(key) != plan[key]):
        raise DataError(
            f"{folder} holds shards that were made otherwise: {', '.join(different)} differ, by "
            f"{path}. Give the same flags and data, or name another --output."
        )
    return sizes


def begin(folder: str, plan: dict[str, Any], parts: Sequence[Part]) -> None:
    """Writes what does not depend on the images: the plan, and the classes."""
    sizes = {part.name: part.shard_size for part in parts}
    storage.write_json(storage.join(folder, PLAN), {**plan, "shard_sizes": sizes})
    names = list(parts[0].source.class_names)
    storage.write(storage.join(folder, CLASSES), json.dumps(names, indent=1).encode())


def estimate(source: Source, rewriting: Rewriting) -> Estimate:
    """What an image of a split needs, by the first ones of the shuffled order."""
    start = time.perf_counter()
    positions = range(min(_SAMPLED, len(source)))
    made = [each for each in samples(source, positions, rewriting) if isinstance(each, Sample)]
    if not made:
        first = source.name_of(int(shuffled(source, range(1))[0]))
        raise DataError(f"None of {len(positions)} images can be read, the first is {first}.")
    seconds = (time.perf_counter() - start) / len(positions)
    return Estimate(sum(each.num_bytes for each in made) / len(made), seconds)


def shard_size(needs: Estimate, shard_mib: int) -> int:
    """The images in a shard."""
    return max(1, int(shard_mib * 2**20 / needs.image_bytes))


def find_finished(
    folder: str, parts: Sequence[Part], started: bool
) -> tuple[list[Record], list[tuple[int, int]]]:
    """The records of finished shards, and the others as (number of the part, number of the shard)."""
    finished, wanted = [], []
    for number, part in enumerate(parts):
        for shard in range(part.num_shards):
            record = read_record(folder, part.shard_name(shard)) if started else None
            if record is None:
                wanted.append((number, shard))
            else:
                finished.append(record)
    return finished, wanted


def describe(
    parts: Sequence[Part], estimates: dict[str, Estimate], missing: int, num_workers: int
) -> None:
    """Says what is written, and how long it takes."""
    for part in parts:
        size = len(part.source) * estimates[part.name].image_bytes
        logger.info(
            "%s: %s images in %s shards of %s, about %.3g GB.",
            part.name,
            f"{len(part.source):,}",
            f"{part.num_shards:,}",
            f"{part.shard_size:,}",
            size / 1e9,
        )
    total = sum(len(part.source) for part in parts)
    seconds = sum(len(part.source) * estimates[part.name].image_seconds for part in parts)
    left = seconds * missing / total / num_workers
    logger.info(
        "%s of %s images are left to write: about %s with %d processes on cores of their own.",
        *(f"{missing:,}", f"{total:,}", format_duration(left), num_workers),
    )


def check_space(
    folder: str,
    parts: Sequence[Part],
    estimates: dict[str, Estimate],
    wanted: Sequence[tuple[int, int]],
) -> None:
    """Raises DataError where a local disk has too little left for the shards that are wanted."""
    if storage.is_remote(folder):
        return
    needed = sum(
        len(parts[part].positions(shard)) * estimates[parts[part].name].image_bytes
        for part, shard in wanted
    )
    there = os.path.abspath(folder)
    while not os.path.isdir(there):
        there = os.path.dirname(there)
    free = shutil.disk_usage(there).free
    if needed > free:
        raise DataError(
            f"--output={folder} needs about {needed / 1e9:,.1f} GB more, and the disk has "
            f"{free / 1e9:,.1f} GB left: name a folder elsewhere, or make images smaller."
        )


# -------------------------------------------------------------------------------------- the work


def follow(records: Any, missing: int) -> list[Record]:
    """The records of the shards as they are made; says how far it is every ten seconds."""
    start = logged = time.monotonic()
    done, found = 0, []
    for record in records:
        found.append(record)
        done += record.num_images + len(record.unreadable)
        for name, reason in record.unreadable.items():
            logger.warning("Left out: %s: %s", name, reason)
        now = time.monotonic()
        if now > logged + _LOG_SECONDS:
            logged, rate = now, done / (now - start)
            logger.info(
                "%s of %s images (%.1f %%), %.0f images/s, %s left.",
                *(f"{done:,}", f"{missing:,}", 100 * done / missing, rate),
                format_duration((missing - done) / rate),
            )
    return found


def finish(folder: str, parts: Sequence[Part], records: Sequence[Record]) -> int:
    """Writes the list of shards, and says what was made; returns the exit code."""
    ordered = sorted(records, key=lambda record: record.name)
    listed = [
        {"url": each.name, "nsamples": each.num_images, "filesize": each.num_bytes}
        for each in ordered
    ]
    unreadable = {name: reason for each in ordered for name, reason in each.unreadable.items()}
    content = {"wids_version": 1, "shardlist": listed, "unreadable": unreadable}
    storage.write_json(storage.join(folder, LIST), content)
    size = sum(each.num_bytes for each in ordered)
    count = sum(each.num_images for each in ordered)
    print(
        f"{count:,} images of {len(parts[0].source.class_names):,} classes in {len(ordered):,} "
        f"shards, {size / 1e9:.3g} GB. Train on them with --config.data.source=tar:{folder}"
    )
    if unreadable:
        logger.warning(
            "%s images were left out, as they cannot be read: %s has their names.",
            *(f"{len(unreadable):,}", storage.join(folder, LIST)),
        )
    return SOME_UNREADABLE if unreadable else DONE


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
