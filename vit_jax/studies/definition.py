"""What a study is: a grid of models, data sizes, schedules and seeds, each cell one run."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
import pathlib
import re
import traceback
from collections.abc import Mapping

from vit_jax import storage
from vit_jax.config import validate
from vit_jax.config_file import find_file, load_config
from vit_jax.errors import ConfigError, UserError
from vit_jax.studies.runs import Run, trained
from vit_jax.studies.views import COMPUTE, SIZE, View

SHIPPED = "configs/studies/{}.py"
EXAMPLE = "fashion_mnist"  # One of the shipped.

Overrides = tuple[str, ...]  # "KEY=VALUE" each, as on the command line after --config.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A grid of runs of one config.

    Attributes:
      title: of its report.
      config: FILE[:ARGUMENTS], as for `vit_jax.main`; or one for each model, by its name.
      models: the overrides of each model, by its name. Names that begin alike, up to a colon, are
        one family and share a line against compute: "ViT: small", "ViT: large". One that belongs to
        several families names them all: "depth, width: base".
      sizes: training images, a fair sample of so many; 0: all.
      schedules: the overrides of each schedule, by its name.
      seeds: of the runs; figures have their mean, and the range between lowest and highest.
      metrics: that are compared, as in "eval/accuracy", by the label of figures' vertical axis, with
        its unit.
      finetune: the tasks on which each trained model is fine-tuned, by name: a config,
        FILE[:ARGUMENTS], and its overrides. Each one's "eval/accuracy" is a metric, too.
      overrides: of all cells; a model's and a schedule's own are stronger.
      run: what a cell does: `runs.trained` or `runs.trained_and_measured`.
      views: what figures show the metrics against; those that have points are drawn.
      notes: what the study shows and what it does not; stands in the report.
    """

    title: str
    config: str | Mapping[str, str]
    models: Mapping[str, Overrides]
    sizes: tuple[int, ...] = (0,)
    schedules: Mapping[str, Overrides] = dataclasses.field(default_factory=lambda: {"": ()})
    seeds: tuple[int, ...] = (0,)
    metrics: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"accuracy (share of images)": "eval/accuracy"}
    )
    finetune: Mapping[str, Overrides] = dataclasses.field(default_factory=dict)
    overrides: Overrides = ()
    run: Run = trained
    views: tuple[View, ...] = (SIZE, COMPUTE)
    notes: str = ""

    @property
    def all_metrics(self) -> dict[str, str]:
        """The metrics, and the accuracy of each task after fine-tuning, by their labels."""
        tuned = {f"accuracy on {task}": f"{task}/eval/accuracy" for task in self.finetune}
        return {**self.metrics, **tuned}

    def cells(self) -> list[Cell]:
        """All cells in the order in which they run: every seed comes to its end before the next."""
        grid = itertools.product(self.seeds, self.models, self.schedules, self.sizes)
        return [
            Cell(
                config=self.config if isinstance(self.config, str) else self.config[model],
                model=model,
                size=size,
                schedule=schedule,
                seed=seed,
                overrides=(
                    *self.overrides,
                    *self.models[model],
                    *self.schedules[schedule],
                    f"data.max_train_examples={size}",
                    f"seed={seed}",
                ),
            )
            for seed, model, schedule, size in grid
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a study; `overrides` are all that it sets of the config."""

    config: str
    model: str
    size: int
    schedule: str
    seed: int
    overrides: Overrides

    @property
    def name(self) -> str:
        """Its model and schedule."""
        return ", ".join(filter(None, (self.model, self.schedule)))

    @property
    def families(self) -> tuple[str, ...]:
        """Its model's: what stands before a colon, else its own name."""
        families, colon, _ = self.model.partition(":")
        return tuple(families.split(", ")) if colon else (self.model,)

    @property
    def folder(self) -> str:
        """The name of its workdir in the study's folder."""
        parts = (self.model, self.schedule, f"{self.size or 'all'}_images", f"seed_{self.seed}")
        return "-".join(as_file_name(part) for part in parts if part)


def as_file_name(text: str) -> str:
    """A text with nothing that files' names cannot have."""
    return re.sub(r"[^\w.+]+", "_", text)


def load_study(name: str) -> Study:
    """The study of a Python file's `get_study()`, or one that comes with the package, by its name.

    Raises ConfigError if there is none, or it fails.
    """
    file = find_file(storage.expand(name) if name.endswith(".py") else SHIPPED.format(name))
    if not os.path.isfile(file):
        raise ConfigError(
            f"{name}: there is no such study; name a Python file (.py), or one of the package's: "
            f"{', '.join(shipped())}."
        )
    spec = importlib.util.spec_from_file_location("study_file", file)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        study = module.get_study()
    except UserError:
        raise
    except Exception as error:
        lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
        location = f"{file}, line {lines[-1]}" if lines else file
        raise ConfigError(f"{location}: {error!r}.") from error
    if not isinstance(study, Study):
        raise ConfigError(f"{file}: get_study() must return a Study, not a {type(study).__name__}.")
    return study


def shipped() -> list[str]:
    """The names of the studies that come with the package."""
    folder = pathlib.Path(find_file(SHIPPED.format(EXAMPLE))).parent
    return sorted(path.stem for path in folder.glob("[!_]*.py"))


def check(study: Study, file: str) -> None:
    """Raises ConfigError for a grid without cells or with two in one folder, and for bad configs."""
    folders = [cell.folder for cell in study.cells()]
    if not folders:
        raise ConfigError(f"{file}: the study has no cells: name models, sizes and seeds.")
    twice = {folder for folder in folders if folders.count(folder) > 1}
    if twice:
        raise ConfigError(f"{file}: two cells would share the folder {min(twice)}: rename models.")
    configs = {cell.folder: (cell.config, cell.overrides) for cell in study.cells()}
    configs |= {task: (recipe, tuple(given)) for task, (recipe, *given) in study.finetune.items()}
    for name, (recipe, given) in configs.items():
        try:
            validate(load_config(recipe, given))  # Better now than after the work.
        except ConfigError as error:
            raise ConfigError(f"{file}: {name}: {error}") from error
