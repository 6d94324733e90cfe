"""The command that chooses a learning rate, and trains with it (Table 4 of the paper).

    python -m vit_jax.sweep --config=configs/finetune.py:b16,cifar10 --workdir=DIR

One run for each of `config.sweep.learning_rates` trains on `config.sweep.train_split` and is
measured on `config.sweep.eval_split`, a part of the training images. The best rate then trains on
the config's own splits, in DIR/best. Interrupted, the same command goes on where it was. Flags and
exit codes are those of `vit_jax.main`.
"""

if __name__ == "__main__":  # Before imports that take seconds.
    from vit_jax.allocator import keep_freed_memory
    from vit_jax.signals import nothing_to_save

    keep_freed_memory()
    nothing_to_save()

import logging
import math
import os
import sys
import threading
from collections.abc import Collection, Sequence

import jax
from ml_collections import ConfigDict

from vit_jax import storage, train
from vit_jax.command_line import run_command
from vit_jax.config import validate
from vit_jax.errors import ConfigError, NonFiniteLossError
from vit_jax.main import train_command
from vit_jax.training.evaluation import wanted_metric

BEST = "best"  # The folder of the final run.

logger = logging.getLogger("vit_jax")


def sweep(
    config: ConfigDict,
    directory: str,
    *,
    dry_run: bool = False,
    stop: threading.Event | None = None,
    chosen: Collection[str] | None = None,
) -> dict[str, float]:
    """Trains with each learning rate, then with the best one; see `train.run`.

    Writes the measures to `directory`/sweep.json, and returns the final run's last record of
    metrics. Raises ConfigError if the config does not say what to sweep, NonFiniteLossError if
    every rate diverges.
    """
    check(config)
    metric = wanted_metric(config)
    name, sign = metric.removeprefix("-"), -1 if metric.startswith("-") else 1
    if dry_run:
        rates = ", ".join(map(str, config.sweep.learning_rates))
        logger.info("Would train with the learning rates %s; the first of these runs:", rates)
        return train.run(trial(config, config.sweep.learning_rates[0]), "", dry_run=True)
    chosen = None if chosen is None else {*chosen, "optimizer.learning_rate"}
    measures: dict[float, float] = {}
    for rate in config.sweep.learning_rates:
        logger.info("Learning rate %g:", rate)
        try:
            folder = os.path.join(directory, f"learning_rate_{rate:g}")
            last = train.run(trial(config, rate), folder, stop=stop, chosen=chosen)
            if name not in last:
                raise ConfigError(
                    f"config.best_metric={config.best_metric!r}: {name} is not measured, but "
                    f"{', '.join(last)}; name one of these to compare rates by."
                )
            measures[rate] = last[name]
        except NonFiniteLossError as error:
            logger.warning("%s", error)
            measures[rate] = math.nan
    finished = {rate: measure for rate, measure in measures.items() if not math.isnan(measure)}
    if not finished:
        raise NonFiniteLossError("The run with every learning rate diverged: sweep lower ones.")
    best = max(finished, key=lambda rate: sign * finished[rate])
    logger.info("%s", table(measures, best, name, config.sweep.eval_split))
    if jax.process_index() == 0:
        record = {"metric": name, "best": best}
        record["measures"] = {rate: finished.get(rate) for rate in measures}  # None: diverged.
        storage.write_json(storage.join(directory, "sweep.json"), record)
    final = config.copy_and_resolve_references()
    final.optimizer.learning_rate = best
    return train.run(final, os.path.join(directory, BEST), stop=stop, chosen=chosen)


def check(config: ConfigDict) -> None:
    """Raises ConfigError unless the config says which rates to compare, and on what."""
    validate(config)
    for key in ("learning_rates", "train_split", "eval_split"):
        if not config.sweep[key]:
            raise ConfigError(
                f"config.sweep.{key} is empty: a sweep compares rates, such as (0.001,0.003,0.01), "
                "on a part of the training images, such as train[:90%] and train[90%:]."
            )
    if not wanted_metric(config):
        raise ConfigError(
            f"config.best_metric={config.best_metric!r} names no metric with "
            f"config.objective.name={config.objective.name!r}: by which one shall rates be compared?"
        )


def trial(config: ConfigDict, rate: float) -> ConfigDict:
    """The config of the run that tries one learning rate."""
    config = config.copy_and_resolve_references()
    config.optimizer.learning_rate = rate
    config.data.train_split = config.sweep.train_split
    config.data.eval_split = config.sweep.eval_split
    return config


def table(measures: dict[float, float], best: float, metric: str, split: str) -> str:
    """Every rate's result, for the console."""
    rows = [f"{'learning rate':>15}  {metric} on {split}"]
    for rate, measure in measures.items():
        text = "diverged" if math.isnan(measure) else f"{measure:.5g}"
        rows.append(f"{rate:>15g}  {text}{'  <- best' if rate == best else ''}")
    return "\n".join(["The sweep:", *rows])


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    description = "Chooses a learning rate, and trains with it."
    return run_command(
        lambda arguments: train_command(sweep, arguments, "vit_jax.sweep", description, BEST),
        arguments,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
