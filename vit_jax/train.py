"""The trainer, read from top to bottom: a run, and its loop."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable, Collection
from contextlib import closing

import jax
from etils import epath
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.checkpoint import Checkpoints, TrainState
from vit_jax.checkpoint_errors import check_path
from vit_jax.data.dataset import open_dataset, with_index
from vit_jax.data.split_checks import check_run
from vit_jax.devices import distributed, sharding
from vit_jax.errors import PreemptedError
from vit_jax.model_file import write_model_file
from vit_jax.training import claim, workdir
from vit_jax.training.architecture import with_architecture
from vit_jax.training.beginning import Beginning, find_beginning
from vit_jax.training.clock import Kind
from vit_jax.training.early_stopping import Patience, open_patience
from vit_jax.training.evaluation import Evaluation, open_evaluation, saved_if_it_fails
from vit_jax.training.experiment import Experiment, make_experiment
from vit_jax.training.gradients import check_batch
from vit_jax.training.overview import describe_run
from vit_jax.training.preemption import stopping_after
from vit_jax.training.preview import make_preview
from vit_jax.training.profiling import Profiler
from vit_jax.training.resuming import as_recorded
from vit_jax.training.state import load_frozen
from vit_jax.training.step_log import StepLog, open_log
from vit_jax.training.watchdog import watching

logger = logging.getLogger(__name__)


def run(
    config: ConfigDict,
    directory: str,
    *,
    dry_run: bool = False,
    stop: threading.Event | None = None,
    chosen: Collection[str] | None = None,
) -> dict[str, float]:
    """Trains as `config` says, or goes on where the workdir's last checkpoint left off.

    Args:
      config: made from `vit_jax.config.default_config`.
      directory: the workdir, where everything that the run writes goes.
      dry_run: only check the config and print what would be done.
      stop: once set, the run saves its state and stops; see `preemption.stop_signal`.
      chosen: the keys that the command line sets. Where the run goes on, all others have the values
        that it recorded; None: each was set on purpose. See `training.resuming`.

    Returns:
      The last record of metrics.

    Raises:
      UserError: the config, data, weights or workdir cannot be used.
      NonFiniteLossError: the loss became infinite or NaN; the last checkpoint stays.
      PreemptedError: `stop` was set; the same command goes on from here.
    """
    config_lib.validate(config)
    if not dry_run:
        check_path(directory)
        workdir.check_apart_from_weights(directory, config.init)
        config = as_recorded(config, directory, chosen)
    config = with_architecture(config, cached_only=dry_run)
    mesh = sharding.build_mesh(config.mesh)
    check_batch(config, mesh)
    index_dir = "" if dry_run else workdir.index_directory(directory)
    dataset = open_dataset(config, required=not dry_run, index_dir=index_dir)
    beginning = find_beginning(config, "" if dry_run else directory, dataset)
    experiment = make_experiment(config, mesh, dataset, beginning.source)
    beginning = beginning.fitted(experiment)
    logger.info("%s", describe_run(experiment))
    if dry_run and dataset.source is None:  # A plan without the data.
        return {}
    evaluation = open_evaluation(experiment, with_index(config.data, index_dir))
    check_run(dataset, evaluation.data)
    if dry_run:
        return {}
    distributed.check_same("training examples", experiment.dataset.num_examples)
    evaluation.check_same()
    stop = stop or threading.Event()
    with claim.held(workdir.open_directory(directory)):
        return run_experiment(experiment, evaluation, beginning, directory, stop)


def run_experiment(
    experiment: Experiment,
    evaluation: Evaluation,
    beginning: Beginning,
    directory: str,
    stop: threading.Event,
) -> dict[str, float]:
    """Trains in the workdir `directory`; result and errors as in and of `run`."""
    config, directory = experiment.config, epath.Path(directory)
    workdir.enable_compilation_cache(directory)
    best = evaluation.best_metric
    checkpoints = Checkpoints(directory, keep=config.keep_checkpoints, best_metric=best)
    start = checkpoints.latest_step
    workdir.record_config(directory, config, experiment.inputs, best, resuming=start > 0)
    state = beginning.state(experiment, checkpoints)
    frozen = load_frozen(experiment.objective, experiment.frozen)
    if jax.process_index() == 0:
        write_model_file(directory, experiment.model_file)
    log = open_log(experiment, directory, start)
    # Whatever fails, each is closed; an error of the last save is told rather than what it led to.
    with watching(config.watchdog_minutes, log.clock), closing(checkpoints), closing(log):
        profiler = Profiler(config.profile, directory)
        patience = open_patience(directory, evaluation.best_metric, config.stop_after, start)
        evaluation = evaluation.recorded_in(directory, start)
        tools = Tools(evaluation, checkpoints, log, profiler, patience, stopping_after(stop))
        train(experiment, state, frozen, tools)
    return log.last_record


@dataclasses.dataclass(frozen=True)
class Tools:
    """The tools of the loop, besides the experiment and its state."""

    evaluation: Evaluation
    checkpoints: Checkpoints
    log: StepLog
    profiler: Profiler
    patience: Patience
    stop: Callable[[], bool]  # Whether to save and stop after this update; the same on all hosts.


def train(experiment: Experiment, state: TrainState, frozen: dict, tools: Tools) -> None:
    """Updates the state with every batch; evaluates, saves and stops in between."""
    checkpoints, log, profiler = tools.checkpoints, tools.log, tools.profiler
    start = checkpoints.latest_step
    total = start if tools.patience.over else experiment.durations.total
    every = experiment.durations.checkpoint_every
    train_step: jax.stages.Wrapped | jax.stages.Compiled = experiment.step
    preview = make_preview(experiment.objective, experiment.config.seed, experiment.mesh)

    batches = experiment.batches(start)
    with closing(batches), closing(profiler), jax.transfer_guard("disallow"):
        for step in range(start + 1, total + 1):
            with log.spending(Kind.DATA_WAIT):
                batch = next(batches)
            if step == start + 1:
                log.write_image(step, "train/augmented_batch", preview(batch, step))
                logger.info("Compiling the update. A large model takes minutes.")
                with log.spending(Kind.COMPILE):
                    train_step = experiment.step.lower(state, frozen, batch).compile()
                    distributed.gather(0)  # All have compiled: some connect for 30 s only.
                log.start(start)
            profiler.before(step)
            state, metrics = train_step(state, frozen, batch)
            log.add(step, metrics)
            profiler.after(step, log.drain)

            # The order matters: losses are known to be finite before anything is evaluated or
            # saved, and records are on disk before the checkpoint that will cut later ones. So a
            # saved step's evaluation is never owed, even where the run stops.
            numbers: dict[str, float] = {}
            if tools.evaluation.due(step):
                log.drain()
                with (
                    log.spending(Kind.EVALUATION),
                    saved_if_it_fails(step, state, log, checkpoints),
                ):
                    numbers, pictures = tools.evaluation.measure(step, state, frozen)
                log.write(step, numbers)
                for name, picture in pictures.items():
                    log.write_image(step, name, picture)
            tools.patience.see(step, numbers)
            last = step == total or tools.patience.over
            best, stopping = checkpoints.is_best(numbers), tools.stop()
            if best or stopping or last or (every and step % every == 0):
                log.drain()
                with log.spending(Kind.SAVING):
                    log.flush()
                    checkpoints.save(step, state, numbers)
            if last:
                return
            if stopping:
                raise PreemptedError(
                    f"Stopped after step {step}, which is saved. Start the same command again to go on."
                )
