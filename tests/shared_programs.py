"""Runs of one module that differ in nothing that is compiled share their traced programs.

For tests of what surrounds the update: files, signals, data and commands. Tracing the same update,
evaluation and first parameters again takes two thirds of a tiny run's time. Import `shared_programs`
into the module and name it in `pytest.mark.usefixtures`.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest

from tests.stages import drawing_once
from vit_jax import train
from vit_jax.benchmark import loop as benchmark_loop
from vit_jax.benchmark import step as benchmark_step
from vit_jax.durations import DURATIONS, UNITS, durations
from vit_jax.evaluators import classification
from vit_jax.evaluators.classification import ClassificationMeans
from vit_jax.training import beginning
from vit_jax.training.experiment import labels_of, make_experiment, preprocessing_for
from vit_jax.training.state import initial_state

# Keys of the config that no program depends on but by the dataset, the first weights or durations.
OUTSIDE = {
    *(f"{duration}_{unit}" for duration in DURATIONS for unit in UNITS),
    *("init", "init_checkpoint", "init_ema", "init_skip", "init_head_map", "init_source_grid"),
    *("data", "evaluators", "best_metric", "stop_after", "keep_checkpoints", "log_every_steps"),
    *("init_position_resize", "profile", "watchdog_minutes"),
}


class SharedPrograms:
    """What runs make before their first update, with the functions of earlier runs.

    Attributes:
      experiments: by all that their programs depend on.
      states: before the first update, by what makes them.
      plain_means: of evaluations that look at no image closer.
    """

    def __init__(self):
        self.experiments, self.states = {}, {}
        self.plain_means = functools.cache(ClassificationMeans)

    def experiment(self, config, mesh, dataset, source=None):
        """As `make_experiment`."""
        lengths = durations(config, dataset.num_examples)
        compiled = {key: value for key, value in config.to_dict().items() if key not in OUTSIDE}
        preprocessing = preprocessing_for(config, source)
        schedule = lengths.total, lengths.warmup, lengths.cooldown
        program = repr((compiled, mesh, labels_of(dataset), preprocessing, schedule))
        if program not in self.experiments:
            self.experiments[program] = make_experiment(config, mesh, dataset, source)
        own = {"config": config, "dataset": dataset, "durations": lengths}
        return dataclasses.replace(self.experiments[program], **own)

    def state(self, initialize, seed, abstract):
        """As `initial_state`: a copy, which an update may take."""
        if initialize not in self.states:
            found = (one for one in self.experiments.values() if one.initialize is initialize)
            self.states[initialize] = initial_state(drawing_once(next(found)), seed, abstract)
        return jax.tree.map(jnp.copy, self.states[initialize])

    def means(self, logits_of, loss, *closer):
        """As `ClassificationMeans`."""
        if any(one is not None for one in closer):
            return ClassificationMeans(logits_of, loss, *closer)
        return self.plain_means(logits_of, loss)


@pytest.fixture(scope="module")
def shared_programs():
    programs = SharedPrograms()
    with pytest.MonkeyPatch.context() as patch:
        for module in (train, benchmark_step):
            patch.setattr(module, "make_experiment", programs.experiment)
        for module in (beginning, benchmark_step, benchmark_loop):
            patch.setattr(module, "initial_state", programs.state)
        patch.setattr(train, "make_preview", functools.cache(train.make_preview))
        patch.setattr(classification, "ClassificationMeans", programs.means)
        yield
