"""The command that measures trained models.

    python -m vit_jax.evaluate MODEL... --source=folder:DIR [--json=FILE] [--csv=FILE]

MODEL is anything that `vit_jax.load_model` reads. Preprocessing and class names are the model's. A
run's workdir needs no --source: its own evaluation data is the default. Exit codes: 0 done; 1 done,
but some images could not be read; 2 some model could not be measured.
"""

import argparse
import contextlib
import csv
import dataclasses
import io
import json
import logging
import sys
from collections.abc import Sequence
from typing import Any

import jax
from flax import nnx
from ml_collections import ConfigDict

from vit_jax import hub, storage
from vit_jax.checkpoint import find_checkpoint
from vit_jax.command_line import (
    DONE,
    OVERRIDE,
    SOME_UNREADABLE,
    USER_ERROR,
    Parser,
    add_image_limit,
    add_model_flags,
    at_least_one,
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
from vit_jax.errors import ConfigError, DataError, UserError
from vit_jax.escaping import csv_row, printable
from vit_jax.evaluators import read_evaluators
from vit_jax.evaluators.base import Setting
from vit_jax.inference import Classifier, Stopwatch, make_classifier, make_transform
from vit_jax.models.base import ImageClassifier
from vit_jax.objectives import LOSS_NAMES, evaluators_of
from vit_jax.sections import check
from vit_jax.training.recorded import with_objective
from vit_jax.training.workdir import index_directory
from vit_jax.weights.formats import is_workdir

BATCH_SIZE = 64  # On each device.
COLUMNS = ("model", "checkpoint", "data", "images", "accuracy", "top-5", "loss", "images/s")
# Of `config.data`: what is measured, and how it is read. How images are prepared is the model's.
KEYS = (
    "source",
    "data_dir",
    "index_dir",
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
class Result:
    """The measures of one model on one source; a row of the table and of the CSV file."""

    model: str
    checkpoint: int | None  # the step; None if `model` is no workdir
    ema: bool
    parameters: int
    image_size: str  # height x width
    source: str
    split: str  # empty: the source's own evaluation split
    count: int | None  # of readable images; None, as the next three, where others were measured
    unreadable: int
    accuracy: float | None
    top5_accuracy: float | None  # None with five classes or fewer
    loss: float | None
    images_per_second: float
    metrics: dict[str, float]  # every evaluator's: "eval/accuracy", ...; not in the CSV file


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
        "--ignore_class_names", action="store_true", help="match classes by number, not by name"
    )
    parser.add_argument(
        "--json", type=named(".json"), metavar="FILE", help="write a list of objects"
    )
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
    return flags


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


def evaluate(task: Task, flags: argparse.Namespace) -> Result:
    """Loads one model and measures it.

    Raises:
      UserError: the model or its data cannot be read, or their classes differ.
    """
    step, ema = None, flags.ema
    if is_workdir(task.model):
        step, averaged = find_checkpoint(task.model, flags.checkpoint)
        ema = ema or averaged
    model = load_classifier(task.model, flags, step, ema=ema)
    classifier, stopwatch = make_classifier(model), Stopwatch()
    setting = open_setting(task, model, classifier, flags, stopwatch)
    text, params = flags.evaluators.strip(), classifier.params
    frozen: dict[str, Any] = {}
    if text and step is not None:
        setting, params, frozen = with_objective(setting, params, task.model, step, ema=ema)
    try:
        metrics = measure(text or evaluators_of(setting.loss), setting, params, frozen)
    except ClassesDifferError as error:
        advice = "" if flags.ignore_class_names else SAME_CLASSES
        raise DataError(f"{task.model} does not fit {error}{advice}") from None
    of_classes: dict[str, Any] = {name: metrics.get(f"eval/{name}") for name in CLASSIFICATION}
    if of_classes["count"] == 0:
        raise DataError(f"none of the {metrics['eval/skipped']:,} images can be read.")
    return Result(
        model=task.model,
        checkpoint=step,
        ema=ema,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(nnx.split(model)[1])),
        image_size="x".join(map(str, model.options.image_size)),
        source=task.data.source,
        split=task.data.eval_split,
        **of_classes,
        unreadable=int(metrics.get("eval/skipped", 0)),
        images_per_second=stopwatch.images_per_second,
        metrics=metrics,
    )


def open_setting(
    task: Task,
    model: ImageClassifier,
    classifier: Classifier,
    flags: argparse.Namespace,
    stopwatch: Stopwatch,
) -> Setting:
    """The setting of evaluators for a model: its function, and its data labelled by its classes."""
    config = task.data.copy_and_resolve_references()
    config.update(on_error="skip", max_skipped=1.0)  # They are counted, and the exit code says so.
    options, mesh, loss = model.options, classifier.network.mesh, task.loss or model.loss
    if loss not in LOSS_NAMES:
        raise ConfigError(f"{task.model} was trained with an unknown loss, {loss!r}: add --loss.")
    data = EvaluationData(
        config=config,
        transform=make_transform(model, flags.max_image_gib or config.max_image_gib),
        image_shape=(*options.image_size, options.channels),
        class_names=() if flags.ignore_class_names else model.class_names,
        num_classes=options.num_classes,
        dtype=classifier.network.preprocessing.dtype,
        batch_size=classifier.round_up(flags.batch_size or BATCH_SIZE * mesh.size),
        rows=sharding.batch_sharding(mesh),
        watch=stopwatch.time,
    )
    batch_size = min(data.batch_size, classifier.round_up(len(data.examples())))
    return Setting(classifier.network, dataclasses.replace(data, batch_size=batch_size), loss)


def measure(text: str, setting: Setting, params: dict, frozen: dict) -> dict[str, float]:
    """Each evaluator's numbers, as in "eval/accuracy"."""
    metrics: dict[str, float] = {}
    for evaluator in read_evaluators(text):
        numbers = evaluator.bind(setting)(params, frozen).numbers
        metrics |= {f"{evaluator.prefix}/{name}": value for name, value in numbers.items()}
    return metrics


# ------------------------------------------------------------------------------------- results


def as_percent(value: float | None) -> str:
    """A share for the table."""
    return "–" if value is None else f"{value:.2%}"


def table_row(tasks: Sequence[Task]) -> str:
    """The format of the table's rows, as wide as the names in it."""
    names = max(len(printable(task.model)) for task in tasks)
    origins = max(len(printable(task.origin)) for task in tasks)
    return f"{{:{names}}}  {{:14}}  {{:{origins}}}" + "  {:>8}" * 5


def cells(task: Task, result: Result) -> tuple[str, ...]:
    """A row of the table."""
    return (
        printable(task.model),
        f"{result.checkpoint or '–'}{' average' * result.ema}",
        printable(task.origin),
        "–" if result.count is None else f"{result.count:,}",
        as_percent(result.accuracy),
        as_percent(result.top5_accuracy),
        "–" if result.loss is None else f"{result.loss:.4f}",
        f"{result.images_per_second:,.0f}",
    )


def write_json(path: str, results: Sequence[Result]) -> None:
    """Writes a list of objects; what is not a number is null."""
    rows = storage.without_nan([*map(vars, results)])
    storage.write(path, f"{json.dumps(rows, indent=2)}\n".encode())


def write_csv(path: str, results: Sequence[Result]) -> None:
    """Writes a row for each result under a header."""
    names = [field.name for field in dataclasses.fields(Result) if field.name != "metrics"]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows(csv_row(getattr(each, name) for name in names) for each in results)
    storage.write(path, text.getvalue().encode("utf-8", "surrogateescape"))


def write_results(results: Sequence[Result], flags: argparse.Namespace) -> None:
    """Writes the files asked for; raises ConfigError if one cannot be."""
    for flag, path, write in (("json", flags.json, write_json), ("csv", flags.csv, write_csv)):
        try:
            if path:
                write(path, results)
        except OSError as error:
            raise ConfigError(
                f"--{flag}={path} cannot be written: {error.strerror or error}."
            ) from error


# ------------------------------------------------------------------------------------- command


def run(arguments: Sequence[str]) -> int:
    """Measures one model after another; one that cannot be measured does not stop the rest."""
    flags = parse_flags(arguments)
    tasks = [plan(path, flags) for path in flags.models]
    write_results([], flags)  # Better an error now than after the work.
    row, results = table_row(tasks), []
    for task in tasks:
        try:
            results.append(evaluate(task, flags))
        except UserError as error:
            logger.error("%s", error)
            continue
        if len(results) == 1:
            print(row.format(*COLUMNS))
        print(row.format(*cells(task, results[-1])), flush=True)
        for name, value in results[-1].metrics.items():
            if name.removeprefix("eval/") not in (*CLASSIFICATION, "skipped"):
                print(f"  {name} {value:.6g}", flush=True)
        write_results(results, flags)
    complete = SOME_UNREADABLE if any(result.unreadable for result in results) else DONE
    return complete if len(results) == len(tasks) else USER_ERROR


def main(arguments: Sequence[str]) -> int:
    """Runs the command; returns its exit code."""
    return run_command(run, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
