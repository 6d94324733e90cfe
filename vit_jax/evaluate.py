"""The command that measures trained models.

    python -m vit_jax.evaluate MODEL... --source=folder:DIR [--json=FILE] [--csv=FILE]

MODEL is anything that `vit_jax.load_model` reads. Preprocessing and class names are the model's. A
run's workdir needs no --source: its own evaluation data is the default. Exit codes: 0 done; 1 done,
but some images could not be read; 2 some model could not be measured.
"""

import argparse
import contextlib
import dataclasses
import json
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from vit_jax import hub, storage
from vit_jax.averaging import Views, average
from vit_jax.checkpoint import find_checkpoint
from vit_jax.command_line import (
    DONE,
    OVERRIDE,
    SOME_UNREADABLE,
    USER_ERROR,
    Parser,
    add_averaging_flags,
    add_image_limit,
    add_model_flags,
    at_least_one,
    load_by_flags,
    load_classifier,
    named,
    parse_with_overrides,
    run_command,
)
from vit_jax.config import Data, default_config
from vit_jax.config_file import expand_paths, override
from vit_jax.data.classes import ClassesDifferError
from vit_jax.data.evaluation_data import EvaluationData
from vit_jax.devices import sharding
from vit_jax.earlier import recorded_values
from vit_jax.errors import ConfigError, DataError, NonFiniteLossError, UserError
from vit_jax.evaluation_files import (
    COLUMNS,
    Result,
    append_to_run,
    cells,
    check_results,
    table_row,
    write_pictures,
    write_results,
)
from vit_jax.evaluators import read_evaluators
from vit_jax.evaluators.base import Evaluator, Setting
from vit_jax.evaluators.results import describe_result
from vit_jax.inference import Stopwatch, preprocessing_of
from vit_jax.models.base import ImageClassifier
from vit_jax.network import Network
from vit_jax.objectives import LOSS_NAMES, evaluators_of
from vit_jax.sections import check
from vit_jax.training.recorded import with_objective
from vit_jax.training.workdir import index_directory
from vit_jax.weights.formats import is_workdir

BATCH_SIZE = 64  # On each device.
TOGETHER = " + "  # Between the names of an ensemble's models.
# Of `config.data`: what is measured, and how it is read. How images are prepared is the model's.
KEYS = (
    "source",
    "data_dir",
    "index_dir",
    "train_split",
    "label",
    "eval_split",
    "classes",
    "columns",
    "held_out_fraction",
    "holding_out",
    "fold",
    "max_eval_examples",
    "num_eval_examples",
    "num_threads",
    "num_workers",
)
CLASSIFICATION = ("count", "accuracy", "top5_accuracy", "loss")  # Of its numbers, in the table.
SAME_CLASSES = " If these are the same classes in the same order, add --ignore_class_names."
HOLDING_OUT = ("held_out_fraction", "holding_out", "fold")

logger = logging.getLogger("vit_jax")


@dataclasses.dataclass(frozen=True)
class Task:
    """A model to measure, and the data to measure it on."""

    model: str
    data: ConfigDict  # as `config.data`
    loss: str  # empty: the one that the model's file tells

    @property
    def origin(self) -> str:
        """The source, and the split if it is not the source's own."""
        return f"{self.data.source} {self.data.eval_split}".strip()


def parse_flags(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line; raises ConfigError if it is not understood."""
    parser = Parser("vit_jax.evaluate", "Measures trained models.")
    parser.add_argument(
        "models", type=storage.expand, nargs="+", metavar="MODEL", help="a workdir, .npz, ..."
    )
    parser.add_argument(
        "--source", type=storage.expand_source, default="", help="folder:DIR, ...: see docs/data.md"
    )
    parser.add_argument("--split", default="", help="such as test or train[:10%%]")
    parser.add_argument(
        "--data_dir", type=storage.expand, default="", help="where prepared TFDS data lies"
    )
    add_model_flags(parser)
    add_image_limit(parser)
    parser.add_argument(
        "--batch_size", type=at_least_one, help=f"over all devices; default: {BATCH_SIZE} on each"
    )
    parser.add_argument(
        "--loss", choices=LOSS_NAMES, help="default: the one that it was trained with"
    )
    parser.add_argument(
        "--evaluators", default="", help="default: classification; see docs/evaluation.md"
    )
    parser.add_argument(
        "--classes",
        default="",
        metavar="FILE",
        help="lines of NAME IN THE DATA, tab, NAME IN THE MODEL: only these classes are predicted",
    )
    parser.add_argument(
        "--pictures",
        type=storage.expand,
        default="",
        metavar="FOLDER",
        help="write what evaluators draw, of one model",
    )
    add_averaging_flags(parser)
    parser.add_argument(
        "--ignore_class_names", action="store_true", help="match classes by number, not by name"
    )
    parser.add_argument("--json", type=named(".json"), metavar="FILE", help="write a JSON list")
    parser.add_argument("--csv", type=named(".csv"), metavar="FILE", help="write a table")
    parser.epilog = (
        "--source, --split and --data_dir are short for --config.data.source, --config.data.eval_split "
        f"and --config.data.data_dir; of config.data may be set: {', '.join(KEYS)}."
    )
    flags, overrides = parse_with_overrides(parser, arguments)
    for text in overrides:
        if text.partition("=")[0] not in {f"data.{key}" for key in KEYS}:
            raise ConfigError(f"{OVERRIDE}{text}: of config.data may be set: {', '.join(KEYS)}.")
    flags.overrides = overrides
    if flags.classes and flags.evaluators:
        raise ConfigError(
            f"--classes={flags.classes} is for classification alone: with --evaluators write "
            "classification(classes='FILE')."
        )
    if flags.pictures and len(flags.models) > 1 and not flags.ensemble:
        raise ConfigError(f"--pictures={flags.pictures}: name one model, not {len(flags.models)}.")
    return flags


def asked_evaluators(flags: argparse.Namespace, loss: str = "") -> tuple[Evaluator, ...]:
    """The evaluators that the flags ask for, else those of models trained with a loss.

    Raises ConfigError if they cannot be read.
    """
    if flags.classes:
        return read_evaluators(f"classification(classes={flags.classes!r})", "--evaluators")
    return read_evaluators(flags.evaluators.strip() or evaluators_of(loss), "--evaluators")


def plan(path: str, flags: argparse.Namespace) -> Task:
    """The task for one model, from the flags and, where they leave it open, its run's config.

    Raises ConfigError if neither names the data, or there is no such model.
    """
    if not path or not (hub.is_reference(path) or storage.exists(path)):
        raise ConfigError(f"{path!r}: there is no such file or folder.")
    data, loss = default_config().data, ""
    file = storage.join(path, "config.json")
    if is_workdir(path) and (storage.exists(file) or not flags.source):
        needed = not (flags.source and flags.loss)
        with contextlib.nullcontext() if needed else contextlib.suppress(ConfigError):
            data, loss = read_run_config(file)
    if flags.source:
        recorded, data = data, default_config().data
        data.update(source=flags.source, data_dir=flags.data_dir)
        # Else images that it was trained on might be held out.
        if flags.source.rstrip("/") == recorded.source.rstrip("/"):
            data.update({key: recorded[key] for key in HOLDING_OUT})
    config = ConfigDict({"data": data}, convert_dict=False)
    override(config, flags.overrides)
    data = expand_paths(config).data
    check(data, Data, "data.")
    if not data.source:
        raise ConfigError(f"{path} does not name its data: add --source=folder:DIR, or another.")
    data.eval_split = flags.split or data.eval_split
    if is_workdir(path):  # What the run indexed need not be indexed again.
        data.index_dir = data.index_dir or index_directory(path)
    return Task(path, data, flags.loss or loss)


def read_run_config(file: str) -> tuple[ConfigDict, str]:
    """A run's `config.data` and its loss; raises ConfigError if the file is missing or damaged."""
    data = default_config().data
    try:
        config = json.loads(storage.read(file))["config"]
        recorded = recorded_values(config)
        data.update({key: recorded[name] for key in data if (name := f"data.{key}") in recorded})
        loss = recorded["objective.loss"] or ""  # Other objectives have none; the model says one.
        if loss not in ("", *LOSS_NAMES):
            raise ValueError(f"loss={loss!r}")
        return data, loss
    except FileNotFoundError:
        raise ConfigError(f"{file} is missing: name the data with --source.") from None
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise ConfigError(f"{file} is damaged ({error!r}): give --source and --loss.") from error


@dataclasses.dataclass(frozen=True)
class Loaded:
    """A model with what it is of: a run's checkpoint, or a file."""

    path: str
    model: ImageClassifier
    step: int | None  # None: of no run
    ema: bool


def load_task(task: Task, flags: argparse.Namespace, *, needs_head: bool) -> Loaded:
    """Loads a model; raises UserError if it cannot be read."""
    step, ema = None, flags.ema
    if is_workdir(task.model):
        step, averaged = find_checkpoint(task.model, flags.checkpoint)
        ema = ema or averaged
    load = load_classifier if needs_head else load_by_flags
    model = load(task.model, flags, step, ema=ema)
    if flags.resize:
        middle = {"crop": "center", "resize": flags.resize}
        model.preprocessing = dataclasses.replace(preprocessing_of(model), **middle)
    return Loaded(task.model, model, step, ema)


def evaluate(tasks: Sequence[Task], flags: argparse.Namespace) -> Result:
    """Loads a model, or several that answer together, and measures it.

    Raises:
      UserError: a model or its data cannot be read, or their classes differ.
    """
    task = tasks[0]
    needs_head = any(evaluator.NEEDS_HEAD for evaluator in asked_evaluators(flags))
    loaded = [load_task(each, flags, needs_head=needs_head) for each in tasks]
    first, stopwatch = loaded[0], Stopwatch()
    setting, params = open_setting(task, [each.model for each in loaded], flags, stopwatch)
    evaluators = asked_evaluators(flags, setting.loss)
    frozen: dict[str, Any] = {}
    step = first.step if isinstance(setting.network, Network) else None  # Of a run's own model.
    if step is not None and any(evaluator.NEEDS_OBJECTIVE for evaluator in evaluators):
        setting, params, frozen = with_objective(setting, params, task.model, step, ema=first.ema)
    metrics: dict[str, float] = {}
    try:
        for evaluator in evaluators:
            start = time.monotonic()
            results = evaluator.bind(setting)(params, frozen)
            seconds = time.monotonic() - start
            prefix = evaluator.prefix
            metrics |= {f"{prefix}/{name}": value for name, value in results.numbers.items()}
            write_pictures(flags.pictures, prefix, results)
            if step is not None:
                record = describe_result(
                    evaluator,
                    task.data,
                    results.numbers,
                    step=step,
                    averaged=first.ema,
                    seconds=seconds,
                )
                append_to_run(first.path, record)
    except ClassesDifferError as error:
        advice = "" if flags.ignore_class_names else SAME_CLASSES
        raise DataError(f"{task.model} does not fit {error}{advice}") from None
    of_classes: dict[str, Any] = {name: metrics.get(f"eval/{name}") for name in CLASSIFICATION}
    if of_classes["count"] == 0:
        raise DataError(f"none of the {metrics['eval/skipped']:,} images can be read.")
    return Result(
        model=TOGETHER.join(each.path for each in loaded),
        checkpoint=first.step,
        ema=first.ema,
        parameters=sum(
            leaf.size for each in loaded for leaf in jax.tree.leaves(nnx.split(each.model)[1])
        ),
        image_size="x".join(map(str, first.model.options.image_size)),
        source=task.data.source,
        split=task.data.eval_split,
        **of_classes,
        unreadable=int(max((v for k, v in metrics.items() if k.endswith("/skipped")), default=0)),
        images_per_second=stopwatch.images_per_second,
        metrics=metrics,
    )


def open_setting(
    task: Task,
    models: Sequence[ImageClassifier],
    flags: argparse.Namespace,
    stopwatch: Stopwatch,
) -> tuple[Setting, dict]:
    """The setting of evaluators for models that answer as one, and their parameters."""
    config, model = task.data.copy_and_resolve_references(), models[0]
    config.update(on_error="skip", max_skipped=1.0)  # They are counted, and the exit code says so.
    options, loss = model.options, task.loss or model.loss
    if loss not in LOSS_NAMES:
        raise ConfigError(f"{task.model} was trained with an unknown loss, {loss!r}: add --loss.")
    averaged = average(
        models,
        Views(flags.crops, flags.flips),
        flags.average,
        loss,
        flags.max_image_gib or config.max_image_gib,
    )
    mesh = averaged.network.mesh
    data = EvaluationData(
        config=config,
        transform=averaged.transform,
        image_shape=(*averaged.image_size, options.channels),
        class_names=() if flags.ignore_class_names else model.class_names,
        num_classes=options.num_classes,
        dtype=preprocessing_of(model).dtype,
        batch_size=averaged.round_up(flags.batch_size or BATCH_SIZE * mesh.size),
        rows=sharding.batch_sharding(mesh),
        watch=stopwatch.time,
    )
    batch_size = min(data.batch_size, averaged.round_up(len(data.examples())))
    setting = Setting(averaged.network, dataclasses.replace(data, batch_size=batch_size), loss)
    return setting, averaged.params


def run(arguments: Sequence[str]) -> int:
    """Measures one model after another; one that cannot be measured does not stop the rest."""
    flags = parse_flags(arguments)
    tasks = [plan(path, flags) for path in flags.models]
    asked_evaluators(flags)
    check_results(flags.json, flags.csv)  # Better an error now than after the work.
    groups = [tasks] if flags.ensemble else [[task] for task in tasks]
    names = [TOGETHER.join(task.model for task in group) for group in groups]
    row = table_row(names, [task.origin for task in tasks])
    results: list[Result] = []
    for group in groups:
        try:
            results.append(evaluate(group, flags))
        except (UserError, NonFiniteLossError) as error:
            logger.error("%s", error)
            continue
        if len(results) == 1:
            print(row.format(*COLUMNS))
        print(row.format(*cells(results[-1])), flush=True)
        for name, value in results[-1].metrics.items():
            if name.removeprefix("eval/") not in (*CLASSIFICATION, "skipped"):
                print(f"  {name} {value:.6g}", flush=True)
        write_results(results, flags.json, flags.csv)
    complete = SOME_UNREADABLE if any(result.unreadable for result in results) else DONE
    return complete if len(results) == len(groups) else USER_ERROR


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
