"""What a study is: a grid of models, data sizes, schedules and seeds, each cell one run."""

from __future__ import annotations

import dataclasses
import importlib.util
import itertools
import os
import pkgutil
import re
import traceback
from collections.abc import Mapping

from vit_jax import storage, studies
from vit_jax.errors import ConfigError, UserError

Overrides = tuple[str, ...]  # "KEY=VALUE" each, as on the command line after --config.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Study:
    """A grid of runs of one config.

    Attributes:
      title: of its report.
      config: FILE[:ARGUMENTS], as for `vit_jax.main`.
      models: the overrides of each model, by its name. Names that begin alike, up to a colon, are
        one family and share a line against compute: "ViT: small", "ViT: large".
      sizes: training images, a fair sample of so many; 0: all.
      schedules: the overrides of each schedule, by its name.
      seeds: of the runs; figures have their mean, and the range between lowest and highest.
      metric: that is compared, of the last record, as in "eval/accuracy".
      metric_label: of figures' vertical axis, with its unit.
      overrides: of all cells.
      notes: what the study shows and what it does not; stands in the report.
    """

    title: str
    config: str
    models: Mapping[str, Overrides]
    sizes: tuple[int, ...] = (0,)
    schedules: Mapping[str, Overrides] = dataclasses.field(default_factory=lambda: {"": ()})
    seeds: tuple[int, ...] = (0,)
    metric: str = "eval/accuracy"
    metric_label: str = "accuracy (share of images)"
    overrides: Overrides = ()
    notes: str = ""

    def cells(self) -> list[Cell]:
        """All cells in the order in which they run: every seed comes to its end before the next."""
        grid = itertools.product(self.seeds, self.models, self.schedules, self.sizes)
        return [
            Cell(
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
    """One run of a study; `overrides` are all that it sets of the study's config."""

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
    def family(self) -> str:
        """Its model's family."""
        return self.model.partition(":")[0]

    @property
    def folder(self) -> str:
        """The name of its workdir in the study's folder."""
        parts = (self.model, self.schedule, f"{self.size or 'all'}_images", f"seed_{self.seed}")
        return "-".join(re.sub(r"[^\w.+]+", "_", part) for part in parts if part)


def load_study(name: str) -> Study:
    """The study of a Python file's `get_study()`, or one that comes with the package, by its name.

    Raises ConfigError if there is none, or it fails.
    """
    if name.endswith(".py"):
        file = storage.expand(name)
        if not os.path.isfile(file):
            raise ConfigError(f"{name}: there is no such file.")
        spec = importlib.util.spec_from_file_location("study_file", file)
    else:
        known = sorted(found.name for found in pkgutil.iter_modules(studies.__path__))
        if name not in known:
            raise ConfigError(f"{name!r}: name a study's Python file (.py), or one of the package.")
        spec = importlib.util.find_spec(f"{studies.__name__}.{name}")
        file = spec.origin
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
    check(study, file)
    return study


def check(study: Study, file: str) -> None:
    """Raises ConfigError for a grid without cells, or with two in one folder."""
    folders = [cell.folder for cell in study.cells()]
    if not folders:
        raise ConfigError(f"{file}: the study has no cells: name models, sizes and seeds.")
    twice = {folder for folder in folders if folders.count(folder) > 1}
    if twice:
        raise ConfigError(f"{file}: two cells would share the folder {min(twice)}: rename models.")
