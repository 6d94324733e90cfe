"""The beginning of a run: its own last checkpoint, given weights, or random parameters."""

from __future__ import annotations

import dataclasses
import logging
import os

from ml_collections import ConfigDict

from vit_jax.checkpoint import Checkpoints, TrainState
from vit_jax.class_mapping import chosen_mapping
from vit_jax.config import model_options
from vit_jax.data.classes import difference
from vit_jax.data.dataset import Dataset
from vit_jax.errors import CheckpointError
from vit_jax.hub import NotCachedError
from vit_jax.model_file import ModelFile, read_model_file
from vit_jax.parameters import OBJECTIVE
from vit_jax.training.experiment import Experiment
from vit_jax.training.recorded import recorded_name
from vit_jax.training.resuming import has_checkpoints
from vit_jax.training.state import initial_state, with_weights
from vit_jax.weights.content import Weights
from vit_jax.weights.loading import describe, fit_weights, read_initial_weights

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Beginning:
    """The state that a run goes on from.

    Attributes:
      source: what its parameters were made for, whose mean and deviation replace the config's: the
        run itself, or the weights of `config.init`; None: it starts from random parameters.
      weights: of `config.init`, as in their file; None for a run that is resumed.
      params: those of the weights that fit; parameters that start fresh are their shapes.
    """

    source: ModelFile | None = None
    weights: Weights | None = None
    params: dict | None = None
    resumes: bool = False  # The workdir has a checkpoint.

    def fitted(self, experiment: Experiment) -> Beginning:
        """The same with the weights fitted to the model; prints what becomes of each parameter.

        Before the long compilation, for what may be wrong with them.
        """
        if self.weights is None:
            return self
        config = experiment.config
        weights = self.weights
        if OBJECTIVE in experiment.state.params:  # Else they are listed as those that it lacks.
            weights = without_another_objectives(weights, config)
        params, report = fit_weights(
            weights,
            experiment.options,
            experiment.state.params,
            skip=config.init_skip,
            head_map=chosen_mapping(config.init_head_map, "config.init_head_map"),
            class_names=experiment.dataset.class_names,
            position_resize=config.init_position_resize,
        )
        logger.info("%s", report)
        return dataclasses.replace(self, params=params)

    def state(self, experiment: Experiment, checkpoints: Checkpoints) -> TrainState:
        """The state before the first update, or after the last checkpoint's.

        Raises CheckpointError if that one's classes are not the data's.
        """
        step = checkpoints.latest_step
        if bool(step) != self.resumes:
            raise CheckpointError(
                "Another run saved or removed checkpoints in this workdir while this one began: "
                "start the same command again."
            )
        if step:
            logger.info("Resuming after step %d.", step)
            self._check_classes(experiment.model_file.class_names)
            return checkpoints.restore(step, experiment.state)
        state = initial_state(experiment.initialize, experiment.config.seed, experiment.state)
        if self.params is None:
            return state
        return with_weights(state, self.params, experiment.objective)

    def _check_classes(self, names: tuple[str, ...]) -> None:
        before = self.source.class_names
        if before != names:
            raise CheckpointError(
                "The workdir's run was trained on other classes than the data has now "
                f"({difference(before, names)}): restore its data, or start from its weights in "
                "a new --workdir, with --config.init."
            )


def without_another_objectives(weights: Weights, config: ConfigDict) -> Weights:
    """The weights, without what was the own of another objective than the run's."""
    own = {name for name in weights.parameters if name.startswith(f"{OBJECTIVE}/")}
    if not own or (before := recorded_name(config.init)) == config.objective.name:
        return weights
    logger.info("config.init=%s: what was %s's own is left out.", config.init, before)
    kept = {name: array for name, array in weights.parameters.items() if name not in own}
    return dataclasses.replace(weights, parameters=kept)


def find_beginning(
    config: ConfigDict, directory: str | os.PathLike[str], dataset: Dataset
) -> Beginning:
    """Looks at the workdir, then at `config.init`.

    Args:
      config: of the run.
      directory: the workdir, which need not exist; "" in a dry run, which asks nothing of the
        network: weights on the Hub that are not here are left out, with a line.
      dataset: of the run.

    Raises:
      CheckpointError: the workdir's `model.json` cannot be read.
      WeightsError: the weights cannot be read.
      HubError: they cannot be fetched.
    """
    if directory and has_checkpoints(directory):
        return Beginning(read_model_file(directory), resumes=True)
    if not config.init:
        logger.info("From scratch: config.init names no weights.")
        return Beginning()
    options = model_options(config, dataset.num_classes)
    try:
        weights = read_initial_weights(
            config.init,
            options,
            checkpoint=config.init_checkpoint,
            ema=config.init_ema,
            source_grid=config.init_source_grid or None,
            cached_only=not directory,
        )
    except NotCachedError as error:
        logger.info("The run would fetch config.init=%s. %s", config.init, error)
        return Beginning()
    return Beginning(describe(weights, options), weights)
