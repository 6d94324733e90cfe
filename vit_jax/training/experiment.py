"""A run, assembled from its config: everything that training, plans and tests need, in one object.

Nothing is allocated: states are shapes, types and shardings, and nothing is compiled.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Generator

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax import objectives
from vit_jax.checkpoint import TrainState
from vit_jax.choices import chosen_options
from vit_jax.config import model_options
from vit_jax.data.dataset import Batch, Dataset, train_batches
from vit_jax.data.evaluation_data import EvaluationData
from vit_jax.data.images.transforms import eval_transform, preprocessing_of
from vit_jax.data.sources.examples import digest_of
from vit_jax.devices import sharding
from vit_jax.durations import Durations, durations
from vit_jax.evaluators import base as evaluators
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models import registry
from vit_jax.models.base import AUTO, ModelOptions
from vit_jax.network import Network
from vit_jax.objectives.base import Labels, Objective
from vit_jax.optimizer import build_optimizer
from vit_jax.optimizer.groups import ParameterGroups, parameter_groups
from vit_jax.optimizer.schedules import SCHEDULES, Schedule, make_schedule
from vit_jax.training import execution
from vit_jax.training.execution import Choice, choose_execution, devices_of, with_choices
from vit_jax.training.gradients import check_batch
from vit_jax.training.state import (
    Initializer,
    abstract_frozen,
    abstract_params,
    abstract_state,
    initial_params,
    make_initializer,
)
from vit_jax.training.step import TrainStep, make_train_step
from vit_jax.training.workdir import Inputs

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Experiment:
    """A config with all that follows from it, from its data and from the devices.

    Attributes:
      config: the run's.
      mesh: of devices.
      dataset: the training data.
      options: of the model, complete; `auto` where the devices decide.
      execution: what was chosen for the devices.
      preprocessing: of images; with the mean and deviation that the weights were made for.
      network: the model as a function of its parameters.
      objective: what is minimised.
      durations: in updates.
      schedule: the learning rate by the number of completed updates.
      groups: how each parameter is trained.
      initialize: how a state begins.
      state: shapes, types and shardings.
      frozen: the same of the objective's frozen arrays.
      step: (state, frozen, batch) -> (state, metrics), jitted.
    """

    config: ConfigDict
    mesh: Mesh
    dataset: Dataset
    options: ModelOptions
    execution: dict[str, Choice]
    preprocessing: Preprocessing
    network: Network
    objective: Objective
    durations: Durations
    schedule: Schedule
    groups: ParameterGroups
    initialize: Initializer
    state: TrainState
    frozen: dict
    step: TrainStep

    @property
    def model_file(self) -> ModelFile:
        """The content of the run's `model.json`."""
        # Another machine may lack the kernel.
        options = dataclasses.asdict(self.options)
        options |= {"attention": AUTO} if "attention" in options else {}
        names = self.dataset.class_names if self.options.num_classes else ()
        return ModelFile(
            self.config.model.name,
            options,
            self.preprocessing,
            names,
            loss=self.objective.evaluation_loss,
        )

    @property
    def inputs(self) -> Inputs:
        """What goes into the run besides its config."""
        digest = digest_of(self.dataset.examples)
        chosen = execution.as_json(self.execution)
        return Inputs(self.dataset.num_examples, digest, self.objective.digest(), chosen)

    @property
    def flops_per_image(self) -> int:
        """FLOPs of an image in an update, nothing recomputed; sharpness takes two gradients."""
        gradients = 2 if self.config.optimizer.sharpness.rho else 1
        return gradients * self.objective.training_flops()

    @property
    def batch(self) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of one batch, split over the mesh."""
        rows, size = sharding.batch_sharding(self.mesh), self.config.batch_size
        image = (size, *self.options.image_size, self.options.channels)
        arrays = self.dataset.several_labels or self.dataset.numeric
        targets = (self.dataset.num_classes,) if arrays else ()
        shapes = {
            "image": (image, self.preprocessing.dtype),
            "label": ((size, *targets), np.float32 if targets else np.int32),
            "index": ((size,), np.int32),
            "mask": ((size,), np.bool_),
        }
        return {
            name: jax.ShapeDtypeStruct(shape, dtype, sharding=rows)
            for name, (shape, dtype) in shapes.items()
        }

    def batches(self, start: int, stop: int | None = None) -> Generator[Batch]:
        """The batches of updates `start` + 1 to `stop`, by default the last; close it when done."""
        stop = self.durations.total if stop is None else stop
        rows = sharding.batch_sharding(self.mesh)
        return train_batches(self.config, self.dataset, rows, start=start, stop=stop)

    def setting(self, data: ConfigDict) -> evaluators.Setting:
        """The setting of the run's evaluators; `data` is `config.data`, with a folder for indices."""
        image_size, channels = self.options.image_size, self.options.channels
        return evaluators.Setting(
            network=self.network,
            data=EvaluationData(
                config=data,
                transform=eval_transform(
                    self.preprocessing, image_size, channels, data.max_image_gib
                ),
                image_shape=(*image_size, channels),
                class_names=self.dataset.class_names,
                num_classes=self.dataset.num_classes,
                dtype=self.preprocessing.dtype,
                batch_size=self.config.batch_size,
                rows=sharding.batch_sharding(self.mesh),
            ),
            loss=self.objective.evaluation_loss,
            objective=self.objective,
        )


def make_experiment(
    config: ConfigDict,
    mesh: Mesh,
    dataset: Dataset,
    source: ModelFile | None = None,
    platform: str | None = None,
) -> Experiment:
    """Assembles a run.

    Args:
      config: valid, see `vit_jax.config.validate`.
      mesh: of `config.mesh`.
      dataset: of `config.data`.
      source: what the parameters that the run starts from were made for, whose mean and deviation
        replace the config's; None: a fresh start.
      platform: that the mesh's devices stand in for; None: their own.

    Raises:
      ConfigError: parts of the config do not fit each other.
    """
    check_batch(config, mesh)
    options = model_options(config, dataset.num_classes)
    preprocessing = preprocessing_for(config, source)
    chosen = choose_execution(options, devices_of(config, mesh, platform))
    executed = with_choices(options, chosen)
    structure, shapes = registry.abstract_parts(config.model.name, executed)
    network = Network(structure, executed, preprocessing, mesh)
    objective = objectives.make_objective(
        config.objective, network, labels_of(dataset), config.init_teacher
    )

    def params(key: jax.Array) -> dict:
        return initial_params(config.model.name, options, objective, key)

    shapes = abstract_params(shapes, objective)
    groups = parameter_groups(config.optimizer, shapes)
    lengths = durations(config, dataset.num_examples)
    schedule = build_schedule(config, lengths)
    optimizer = build_optimizer(config.optimizer, schedule, groups)
    initialize = make_initializer(config, params, objective, optimizer, groups.trainable)
    state = abstract_state(initialize, shapes, mesh)
    return Experiment(
        config=config,
        mesh=mesh,
        dataset=dataset,
        options=options,
        execution=chosen,
        preprocessing=preprocessing,
        network=network,
        objective=objective,
        durations=lengths,
        schedule=schedule,
        groups=groups,
        initialize=initialize,
        state=state,
        frozen=abstract_frozen(objective, mesh),
        step=make_train_step(config, objective, optimizer, groups.trainable, schedule, state, mesh),
    )


def labels_of(dataset: Dataset) -> Labels:
    """What an objective has to know of the data."""
    return Labels(
        dataset.class_names,
        dataset.num_classes,
        several=dataset.several_labels,
        weights=dataset.balance.weights if dataset.balance else (),
        numeric=dataset.numeric,
        means=dataset.means,
    )


def preprocessing_for(config: ConfigDict, source: ModelFile | None) -> Preprocessing:
    """The config's, with the mean and deviation that the first parameters were made for."""
    preprocessing = preprocessing_of(config.data)
    if source is None:
        return preprocessing
    made_for = source.preprocessing
    return dataclasses.replace(preprocessing, mean=made_for.mean, std=made_for.std)


def build_schedule(config: ConfigDict, durations: Durations) -> Schedule:
    """The learning rate by the number of completed updates."""
    warmup, cooldown, total = durations.warmup, durations.cooldown, durations.total
    if warmup >= total or warmup + cooldown > total:
        logger.warning(
            "The run of %s steps has no room for its warm-up of %s and cooldown of %s: the learning "
            "rate never peaks. Set config.warmup_* and config.cooldown_* lower, or train longer.",
            *(f"{steps:,}" for steps in (total, warmup, cooldown)),
        )
    schedule = make_schedule(
        config.schedule.name,
        base=config.optimizer.learning_rate,
        total_steps=total,
        warmup_steps=warmup,
        warmup_start=config.schedule.warmup_start,
        cooldown_steps=cooldown,
        **chosen_options(config.schedule, SCHEDULES),
    )
    if not any(float(schedule(step)) for step in {0, total // 2, total - 1}):
        logger.warning(
            "NOTHING WILL BE LEARNED: the learning rate of all %s updates is 0 "
            "(config.optimizer.learning_rate=%g, and a warm-up of %s updates begins at %g).",
            *(f"{total:,}", config.optimizer.learning_rate, f"{warmup:,}"),
            config.schedule.warmup_start,
        )
    return schedule
