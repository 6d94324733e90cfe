"""The command that trains: flags, config, and what it exits with.

    python -m vit_jax.main --config=configs/vit.py:b16 --workdir=DIR [--config.KEY=VALUE ...]

Exit codes: 0 done; 2 bad config, data or weights; 3 non-finite loss; 75 stopped by a signal, start
the same command again. Several processes: see `vit_jax.devices.distributed` and docs/launch.md.
"""

if __name__ == "__main__":  # Before imports that take seconds.
    from vit_jax.allocator import keep_freed_memory
    from vit_jax.signals import nothing_to_save

    keep_freed_memory()
    nothing_to_save()

import argparse
import contextlib
import logging
import shlex
import sys
from collections.abc import Callable, Sequence

from ml_collections import ConfigDict

from vit_jax import storage, train
from vit_jax.checkpoint import Checkpoints
from vit_jax.checkpoint_errors import tell_once
from vit_jax.command_line import (
    DONE,
    Parser,
    add_process_flags,
    at_least_one,
    connect,
    parse_with_config,
    run_command,
)
from vit_jax.config import validate
from vit_jax.config_file import chosen_keys, describe, load_config
from vit_jax.console import python_command
from vit_jax.digests import go_back
from vit_jax.errors import ConfigError
from vit_jax.model_file import FILE_NAME, read_model_file
from vit_jax.objectives.regression import REGRESSION_LOSSES
from vit_jax.training import claim
from vit_jax.training.preemption import stop_signal
from vit_jax.training.resuming import has_checkpoints

Run = Callable[..., dict[str, float]]

logger = logging.getLogger("vit_jax")


def parse_flags(
    arguments: Sequence[str], command: str, description: str
) -> tuple[argparse.Namespace, list[str]]:
    """The flags, and the config's overrides as "KEY=VALUE"; raises ConfigError for unknown ones."""
    parser = Parser(command, description)
    parser.add_argument(
        "--workdir",
        type=storage.expand,
        metavar="DIR",
        help="where its files go, and resume from",
    )
    parser.add_argument(
        "--checkpoint",
        metavar="STEP",
        type=at_least_one,
        help="go on from this one, and rename later ones to STEP.damaged",
    )
    parser.add_argument("--dry_run", action="store_true", help="check and describe the run only")
    parser.add_argument(
        "--print_config", action="store_true", help="list every key; * is not the default's value"
    )
    add_process_flags(parser)
    flags, overrides = parse_with_config(parser, arguments)
    if not (flags.workdir or flags.dry_run or flags.print_config):
        raise ConfigError("Name a directory for the run's files: --workdir=DIR.")
    return flags, overrides


def print_config(config: ConfigDict) -> None:
    """Writes every key to standard output; raises ConfigError for a value that cannot work."""
    validate(config)
    print(describe(config))


def train_command(
    run: Run, arguments: Sequence[str], command: str, description: str, folder: str = ""
) -> int:
    """Trains as the command line says, and tells what came of it; returns the exit code.

    Args:
      run: `train.run`, or what has its signature.
      arguments: the command line, without the program's name.
      command: the program's name, for --help.
      description: what it does, for --help.
      folder: of the workdir, where the final run lies; "": the workdir itself.
    """
    flags, overrides = parse_flags(arguments, command, description)
    if flags.print_config:
        print_config(load_config(flags.config, overrides))
        return DONE
    connect(flags)
    tell_once()
    config = load_config(flags.config, overrides)
    if flags.checkpoint and not flags.dry_run:
        validate(config)  # Before anything is renamed.
        with claim.held(flags.workdir):
            go_back(flags.workdir, flags.checkpoint)
    with stop_signal() as stop:
        chosen = chosen_keys(overrides)
        results = run(config, flags.workdir, dry_run=flags.dry_run, stop=stop, chosen=chosen)
    if results:
        workdir = storage.join(flags.workdir, folder) if folder else flags.workdir
        logger.info("%s", summary(results, workdir))
    return DONE


def main(arguments: Sequence[str]) -> int:
    """Runs the command with `arguments`, without the program's name; returns its exit code."""
    description = "Trains a model, or goes on with a run that was interrupted."
    return run_command(
        lambda arguments: train_command(train.run, arguments, "vit_jax.main", description),
        arguments,
    )


def summary(results: dict[str, float], workdir: str) -> str:
    """A finished run's result, the paths of its files, and how to go on from it."""
    headline = f"Done after {results['step']:,} updates."
    answers = answers_of(workdir)
    if answers and "eval/accuracy" in results:
        count, accuracy = results["eval/count"], results["eval/accuracy"]
        headline += f" Accuracy on {count:,} evaluation images: {accuracy:.2%}"
        average = results.get("eval_ema/accuracy")
        headline += "." if average is None else f", of the averaged parameters {average:.2%}."
    command = python_command("-m", f"vit_jax.{'predict' if answers else 'embed'}", workdir)
    use = (
        {f"{answers} pictures": f"{command} FILE..."}
        if answers
        else {"embed pictures": f"{command} FILE... --output=FILE.npy"}
    )
    rows = {
        f"{workdir}/metrics.jsonl": f"every number above, and in {workdir}/tensorboard",
        f"{workdir}/checkpoints": f"the weights, with {workdir}/model.json",
        **best_checkpoint(workdir),
        **use,
        "in Python": f"model = vit_jax.load_model({workdir!r})",
        "train on from here": f"{shlex.quote(f'--config.init={workdir}')} with another config and workdir",
    }
    width = max(map(len, rows))
    return "\n".join([headline, *(f"  {what:{width}}  {how}" for what, how in rows.items())])


def answers_of(workdir: str) -> str:
    """What a run's model does with pictures, by its head; "" where it has none.

    Without its file it is taken to classify them.
    """
    if not storage.exists(storage.join(workdir, FILE_NAME)):
        return "classify"
    model = read_model_file(workdir)
    if not model.options["num_classes"]:
        return ""
    return "measure" if model.loss in REGRESSION_LOSSES else "classify"


def best_checkpoint(workdir: str) -> dict[str, str]:
    """The summary's row of the best checkpoint, if there is one."""
    if not has_checkpoints(workdir):
        return {}
    with contextlib.closing(Checkpoints(workdir, read_only=True)) as checkpoints:
        best = checkpoints.best()
        if best is None:
            return {}
        step, ((metric, score),) = best[0], best[1].items()
        value = -score if metric.startswith("-") else score
        whose = "averaged parameters" if checkpoints.scored_average(step) else "parameters"
    name = metric.removeprefix("-")
    return {f"{workdir}/checkpoints/{step}": f"the best {whose}: {name} {value:.5g}"}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
