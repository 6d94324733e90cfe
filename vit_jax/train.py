"""The trainer, read from top to bottom: mesh, data, model, state, step, loop."""

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh
from ml_collections import ConfigDict

from vit_jax import config as config_lib
from vit_jax.checkpoint import Checkpoints, TrainState
from vit_jax.choices import chosen_options
from vit_jax.data.classes import difference
from vit_jax.data.dataset import (
    Batch,
    Dataset,
    count_skipped,
    eval_batches,
    open_dataset,
    train_batches,
)
from vit_jax.devices import distributed, sharding
from vit_jax.errors import CheckpointError
from vit_jax.evaluators.classification import ClassificationEvaluator
from vit_jax.forward import Forward, make_forward
from vit_jax.model_file import ModelFile, Preprocessing, read_model_file, write_model_file
from vit_jax.models import registry
from vit_jax.objectives.losses import LOSSES
from vit_jax.optimizer import build_optimizer
from vit_jax.optimizer.groups import ParameterGroups, parameter_groups
from vit_jax.optimizer.schedules import SCHEDULES, Schedule, make_schedule
from vit_jax.parameters import TrainablePart
from vit_jax.training import workdir
from vit_jax.training.overview import describe_run
from vit_jax.training.preemption import PreemptedError, stopping_after
from vit_jax.training.preview import Preview, make_preview
from vit_jax.training.profiling import Profiler
from vit_jax.training.step import TrainStep, make_train_step
from vit_jax.training.step_log import StepLog
from vit_jax.weights.loading import initialize_from

logger = logging.getLogger(__name__)

Evaluate = Callable[[TrainState], dict[str, float]]


class Initializer(NamedTuple):
    """How a state begins: parameters by a random key, then everything else by the parameters."""

    params: Callable[[jax.Array], dict]
    state: Callable[[dict], TrainState]


def run(
    config: ConfigDict,
    directory: str,
    *,
    dry_run: bool = False,
    stop: threading.Event | None = None,
) -> dict[str, float]:
    """Trains as `config` says, or goes on where the workdir's last checkpoint left off.

    Args:
      config: made from `vit_jax.config.default_config`.
      directory: the workdir, where everything that the run writes goes.
      dry_run: only check the config and print what would be done.
      stop: once set, the run saves its state and stops; see `preemption.stop_signal`.

    Returns:
      The last record of metrics.

    Raises:
      UserError: the config, data, weights or workdir cannot be used.
      NonFiniteLossError: the loss became infinite or NaN; the last checkpoint stays.
      PreemptedError: `stop` was set; the same command goes on from here.
    """
    config_lib.validate(config)
    mesh = sharding.build_mesh(config.mesh)
    sharding.check_batch(config.batch_size, config.optimizer.accumulation_steps, mesh)
    if not dry_run:
        workdir.check_apart_from_weights(directory, config.init)
    index_dir = "" if dry_run else workdir.index_directory(directory)
    dataset = open_dataset(config, required=not dry_run, index_dir=index_dir)
    parts = assemble(config, dataset, mesh)
    logger.info(
        "%s",
        describe_run(
            config,
            parts.options,
            dataset.num_train_examples,
            parts.durations,
            parts.schedule,
            parts.groups,
            parts.state,
            mesh,
        ),
    )
    file = ModelFile(
        config.model.name,
        dataclasses.asdict(parts.options),
        preprocessing_of(config.data),
        dataset.class_names,
        loss=config.objective.loss,
    )
    if not dry_run:
        return run_parts(config, directory, mesh, dataset, parts, file, stop or threading.Event())
    if config.init:
        read_initial_weights(config, file, parts.state)
    return {}


def run_parts(
    config: ConfigDict,
    directory: str,
    mesh: Mesh,
    dataset: Dataset,
    parts: "Parts",
    file: ModelFile,
    stop: threading.Event,
) -> dict[str, float]:
    """Trains in the workdir `directory`; arguments, result and errors as in and of `run`."""
    options, durations, schedule, groups, optimizer, initialize, abstract = parts
    distributed.check_same("training examples", dataset.num_train_examples)
    distributed.check_same("evaluation examples", len(dataset.eval))
    directory = workdir.open_directory(directory)
    workdir.enable_compilation_cache(directory)
    checkpoints = Checkpoints(
        directory, keep=config.keep_checkpoints, best_metric=config.best_metric
    )
    start_step = checkpoints.latest_step
    workdir.record_config(directory, config, dataset.num_train_examples, resuming=start_step > 0)
    state, file = restore_or_initialize(directory, config, file, checkpoints, initialize, abstract)
    if jax.process_index() == 0:
        write_model_file(directory, file)

    forward = make_forward(model_structure(file.name, options), file.preprocessing, mesh)
    train_step = make_train_step(
        config, forward, optimizer, groups.trainable, schedule, abstract, mesh
    )
    preview = make_preview(config, options.num_classes, dataset.class_names, mesh)
    evaluate = make_evaluate(config, dataset, forward, mesh)
    log = StepLog(
        directory,
        start_step=start_step,
        total_steps=durations.total,
        every_steps=config.log_every_steps,
        batch_size=config.batch_size,
        num_train_examples=dataset.num_train_examples,
        macs=options.macs(),
        max_skipped=config.data.max_skipped if dataset.train_skipping else None,
    )
    try:
        rows = sharding.batch_sharding(mesh)
        batches = train_batches(config, dataset, rows, start=start_step, stop=durations.total)
        profiler = Profiler(config.profile, directory)
        train(
            durations,
            state,
            train_step,
            batches,
            preview,
            evaluate,
            checkpoints,
            log,
            profiler,
            stopping_after(stop),
        )
    finally:
        log.close()
        checkpoints.close()
    return log.last_record


class Parts(NamedTuple):
    """What a config, its data and a mesh determine of a run, with nothing allocated yet."""

    options: Any  # of the model
    durations: config_lib.Durations
    schedule: Schedule
    groups: ParameterGroups
    optimizer: optax.GradientTransformation
    initialize: Initializer
    state: TrainState  # shapes, types and shardings


def assemble(config: ConfigDict, dataset: Dataset, mesh: Mesh) -> Parts:
    """The parts of a run; raises ConfigError if they do not fit each other."""
    options = config_lib.model_options(config, dataset.num_classes)
    durations = config_lib.durations(config, dataset.num_train_examples)
    schedule = build_schedule(config, durations)
    groups = parameter_groups(config.optimizer, abstract_params(config, options))
    optimizer = build_optimizer(config.optimizer, schedule, groups)
    initialize = make_initializer(config, options, optimizer, groups.trainable)
    state = abstract_state(initialize, config.seed, mesh)
    return Parts(options, durations, schedule, groups, optimizer, initialize, state)


# --------------------------------------------------------------------------------------- model


def build_schedule(config: ConfigDict, durations: config_lib.Durations) -> Schedule:
    """The learning rate by the number of completed updates."""
    warmup, cooldown, total = durations.warmup, durations.cooldown, durations.total
    if warmup >= total or warmup + cooldown > total:
        logger.warning(
            "The run of %d steps has no room for its warm-up of %d and cooldown of %d: the learning "
            "rate never peaks.",
            *(total, warmup, cooldown),
        )
    return make_schedule(
        config.schedule.name,
        base=config.optimizer.learning_rate,
        total_steps=durations.total,
        warmup_steps=durations.warmup,
        warmup_start=config.schedule.warmup_start,
        cooldown_steps=durations.cooldown,
        **chosen_options(config.schedule, SCHEDULES),
    )


def preprocessing_of(data: ConfigDict) -> Preprocessing:
    """How images are prepared for evaluation and for use."""
    return Preprocessing(
        mean=tuple(data.mean),
        std=tuple(data.std),
        crop=data.eval_crop,
        resize=data.eval_resize,
        interpolation=data.interpolation,
        antialias=data.antialias,
    )


def model_structure(name: str, options: Any) -> nnx.GraphDef:
    """The model without its parameters."""
    key = jax.random.key(0)
    return nnx.split(nnx.eval_shape(lambda: registry.build_model(name, key, options)))[0]


# --------------------------------------------------------------------------------------- state


def initial_params(config: ConfigDict, options: Any, key: jax.Array) -> dict:
    """The model's parameters before training, a nested dict of arrays."""
    model = registry.build_model(config.model.name, key, options)
    return nnx.to_pure_dict(nnx.split(model)[1])


def abstract_params(config: ConfigDict, options: Any) -> dict:
    """The parameters' shapes and types, with nothing allocated."""
    return jax.eval_shape(lambda: initial_params(config, options, jax.random.key(0)))


def make_initializer(
    config: ConfigDict,
    options: Any,
    optimizer: optax.GradientTransformation,
    trainable: TrainablePart,
) -> Initializer:
    """The pure functions that make the state before the first update."""

    def state(params: dict) -> TrainState:
        ema = jax.tree.map(jnp.copy, params) if config.ema_decay else None
        opt_state = optimizer.init(trainable.select(params))
        return TrainState(jnp.int32(0), params, opt_state, ema)

    return Initializer(lambda key: initial_params(config, options, key), state)


def abstract_state(initialize: Initializer, seed: int, mesh: Mesh) -> TrainState:
    """The state's shapes, types and shardings, with nothing allocated."""
    shapes = jax.eval_shape(lambda: initialize.state(initialize.params(jax.random.key(seed))))
    of_params = sharding.param_shardings(shapes.params, mesh)
    places = sharding.like_params(shapes, shapes.params, of_params, mesh)
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place),
        shapes,
        places,
    )


def restore_or_initialize(
    directory: Any,
    config: ConfigDict,
    file: ModelFile,
    checkpoints: Checkpoints,
    initialize: Initializer,
    abstract: TrainState,
) -> tuple[TrainState, ModelFile]:
    """The state to go on from: the latest checkpoint's, else the given weights', else a fresh one.

    Returns it with `file`, whose normalisation is the one that the weights were made for. Raises
    CheckpointError if the checkpoint's classes are not those of `file`.
    """
    step = checkpoints.latest_step
    if not step and not config.init:
        return initial_state(initialize, config.seed, abstract), file
    if not step:
        # Before the long compilation, for what may be wrong with them.
        weights, file = read_initial_weights(config, file, abstract)
        state = initial_state(initialize, config.seed, abstract)
        return with_weights(state, weights), file
    logger.info("Resuming after step %d.", step)
    previous = read_model_file(directory)
    if previous.class_names != file.class_names:
        raise CheckpointError(
            f"{directory} was trained on other classes than the data has now "
            f"({difference(previous.class_names, file.class_names)}): restore its data, or choose "
            "another --workdir."
        )
    return checkpoints.restore(step, abstract), with_normalization(file, previous)


def with_normalization(file: ModelFile, source: ModelFile) -> ModelFile:
    """`file` with the mean and deviation of `source`."""
    mean, std = source.preprocessing.mean, source.preprocessing.std
    preprocessing = dataclasses.replace(file.preprocessing, mean=mean, std=std)
    return dataclasses.replace(file, preprocessing=preprocessing)


def initial_state(initialize: Initializer, seed: int, abstract: TrainState) -> TrainState:
    """A fresh state, made where it will lie, so that no device ever holds the whole of it."""
    places = sharding.shardings_of(abstract)
    draw = jax.jit(lambda: initialize.params(jax.random.key(seed)), out_shardings=places.params)
    # Apart, so that random numbers and the optimiser's zeros never need their space together.
    return jax.jit(initialize.state, donate_argnums=0, out_shardings=places)(draw())


def read_initial_weights(
    config: ConfigDict, file: ModelFile, abstract: TrainState
) -> tuple[dict, ModelFile]:
    """The parameters of `config.init` that fit, and `file` with their normalisation.

    Parameters that start fresh are their shapes, as in `abstract`. Prints what becomes of each.
    """
    weights, report, source = initialize_from(
        config.init,
        registry.model_options(file.name, **file.options),
        abstract.params,
        checkpoint=config.init_checkpoint,
        ema=config.init_ema,
        skip=config.init_skip,
        class_names=file.class_names,
        source_grid=config.init_source_grid or None,
        position_resize=config.init_position_resize,
    )
    logger.info("%s", report)
    return weights, with_normalization(file, source)


def with_weights(state: TrainState, weights: dict) -> TrainState:
    """The state with those of its parameters that `weights` has values for."""

    def fill(fresh: jax.Array, given: Any) -> jax.Array:
        if isinstance(given, jax.ShapeDtypeStruct):
            return fresh
        if isinstance(given, np.ma.MaskedArray):  # Single layers start fresh.
            given = jnp.where(given.mask, fresh, given.data)
        return jax.device_put(given, fresh.sharding)

    params = jax.tree.map(fill, state.params, weights)
    ema = state.ema and jax.tree.map(jnp.copy, params)
    return state._replace(params=params, ema=ema)


# ---------------------------------------------------------------------------------------- loop


def make_evaluate(config: ConfigDict, dataset: Dataset, forward: Forward, mesh: Mesh) -> Evaluate:
    """The function that measures a state on the evaluation split: `eval/accuracy`, ..."""
    evaluator = ClassificationEvaluator(forward, LOSSES[config.objective.loss])
    rows = sharding.batch_sharding(mesh)

    def measure(params: dict) -> dict[str, float]:
        with contextlib.closing(eval_batches(config, dataset, rows)) as batches:
            results = evaluator(params, batches)
        return {**results, **count_skipped(config, dataset, results["count"])}

    def evaluate(state: TrainState) -> dict[str, float]:
        results = {f"eval/{name}": value for name, value in measure(state.params).items()}
        if state.ema is not None:
            averaged = measure(state.ema).items()
            results |= {f"eval_ema/{name}": value for name, value in averaged}
        return results

    return evaluate


def train(
    durations: config_lib.Durations,
    state: TrainState,
    train_step: TrainStep,
    batches: Iterator[Batch],
    preview: Preview,
    evaluate: Evaluate,
    checkpoints: Checkpoints,
    log: StepLog,
    profiler: Profiler,
    stop: Callable[[], bool],
) -> None:
    """Updates the state with every batch; evaluates, saves and stops in between."""
    start = checkpoints.latest_step

    def due(step: int, every: int) -> bool:
        return step == durations.total or (every > 0 and step % every == 0)

    with (
        contextlib.closing(batches),
        contextlib.closing(profiler),
        jax.transfer_guard("disallow"),
    ):
        for step in range(start + 1, durations.total + 1):
            with log.waiting_for_data():
                batch = next(batches)
            if step == start + 1:
                log.write_image(step, "train/augmented_batch", preview(batch, step))
                train_step = train_step.lower(state, batch).compile()
                distributed.gather(0)  # All have compiled: some connect for 30 s only.
                log.start(start)
            profiler.before(step)
            state, metrics = train_step(state, batch)
            log.add(step, metrics)
            profiler.after(step, log.drain)

            # The order matters: losses are known to be finite before anything is evaluated or
            # saved, and records are on disk before the checkpoint that will cut later ones. So a
            # saved step's evaluation is never owed, even where the run stops.
            results = {}
            if due(step, durations.eval_every):
                log.drain()
                with log.paused():
                    results = evaluate(state)
                log.write(step, results)
            best, stopping = checkpoints.is_best(results), stop()
            if best or stopping or due(step, durations.checkpoint_every):
                log.drain()
                with log.paused():
                    log.flush()
                    checkpoints.save(step, state, results)
            if stopping and step < durations.total:
                raise PreemptedError(f"Stopped after step {step}, which is saved.")
