"""Every configuration key, with its default and its meaning, and the checks on their values.

A file under `configs/` starts from `default_config()` and sets what differs. The result is locked:
a key that is not declared here is an error, in a config file as on the command line.
"""

import dataclasses
import logging
from typing import Annotated, Any

from ml_collections import ConfigDict
from ml_collections.config_dict import placeholder

from vit_jax import objectives
from vit_jax.choices import unused_options
from vit_jax.data.balance import SAMPLINGS, ClassWeights
from vit_jax.data.images.limits import MAX_IMAGE_GIB
from vit_jax.data.images.transforms import train_operations
from vit_jax.data.sources.columns import Columns
from vit_jax.data.sources.holding_out import Fold
from vit_jax.durations import DURATIONS, UNITS
from vit_jax.errors import ConfigError
from vit_jax.evaluators import read_evaluators
from vit_jax.kinds import (
    Amount,
    Anything,
    Count,
    Expression,
    FactorRule,
    Few,
    Flag,
    Fraction,
    Kind,
    Positive,
    Share,
    Text,
    number,
    one_of,
    optional,
    shown,
    tuple_of,
    whole,
)
from vit_jax.model_file import INTERPOLATIONS, PIXEL_DTYPES, Range
from vit_jax.models import registry
from vit_jax.models.base import ModelOptions
from vit_jax.optimizer import OPTIMIZERS
from vit_jax.optimizer.schedules import SCHEDULES
from vit_jax.sections import check, section_of
from vit_jax.weights.resampling import POSITION_RESIZES, is_grid
from vit_jax.writers import WRITERS

logger = logging.getLogger(__name__)


DEFAULT_MODEL = "ViT-B/16"
Epochs = number(0, 1_000_000)
Name = Annotated[
    str,
    Kind("a name in quotes, such as ('0','1')", lambda value: isinstance(value, str)),
]


def _is_grid_or_none(value: Any) -> bool:
    return value == () or (is_grid(value) and max(value) <= 10_000)


Grid = Annotated[tuple, Kind("(rows, columns), or () for none", _is_grid_or_none)]


@dataclasses.dataclass(frozen=True)
class Data:
    """`config.data`: where images come from, and what is done to each."""

    source: Text = ""  # One of data/sources/registry.py: folder:DIR | tfds:NAME | tar:PATTERN | ...
    data_dir: Text = ""  # Where prepared TFDS data lies; "": TFDS's own default.
    index_dir: Text = ""  # Of indices of files and records, made once; "": the workdir's `index`.
    protocols: tuple_of(Name) = ("gs", "s3", "https")  # Of URLs that a manifest may name.
    label: Text = ""  # Of a TFDS dataset: an integer feature, or one of data/sources/labels.py.
    columns: Columns = ""  # Of manifests and Parquet with other names: path=image,label=breed
    train_split: Text = "train"  # TFDS-style: train[:98%], train[:800]+train[1000:]
    eval_split: Text = ""  # "": the source's own evaluation split.
    classes: tuple_of(Name) = ()  # Only these, by name and in this order; (): all of them.
    exclude: Text = ""  # A list of training examples to leave out: data/sources/exclusions.py.
    max_train_examples: Count = 0  # A fair sample of so many, after `exclude`; 0: all.
    max_eval_examples: Count = 0  # The same of the evaluation split.
    allow_changes: Flag = False  # Resume with data elsewhere though its names or labels differ.
    num_train_examples: Count = 0  # 0: ask the data. Presets state it, to plan without data.
    num_eval_examples: Count = 0  # Only `fake` data needs it.
    num_classes: Count = 0  # Likewise; of `fake` data too.
    held_out_fraction: number(0, 0.9) = 0.1  # Evaluation share of data without a split for it.
    holding_out: one_of("stratified", "hash") = "stratified"  # Of each class alike, or of all.
    fold: Fold = ""  # k/K: the k-th of K parts is held out instead, for cross-validation.
    train_crop: Text = "inception"  # Of data/images/crops.py, with arguments: inception(0.2, 1).
    flip: Flag = True  # Mirror every other training image, at random.
    augmentation: Text = ""  # Of data/images/augmentation.py: randaug_tf(2, 15) | random_erasing
    class_weights: ClassWeights = ""  # In the loss: balanced, or a number for each; "": all are 1.
    sampling: one_of(*SAMPLINGS) = (
        "natural"  # How often classes come: balanced, sqrt; docs/data.md.
    )
    shuffle: one_of("global", "blocks") = "global"  # blocks: neighbours stay together, for buckets.
    on_error: one_of("raise", "skip") = "raise"  # skip: what cannot be read is masked and counted.
    max_skipped: Share = 0.1  # Share of the examples beyond which skipping ends the run.
    repeated_augmentation: whole(1) = 1  # Copies of an image in a batch, each augmented anew.
    eval_crop: one_of("resize", "center") = "resize"  # resize: the whole image.
    eval_resize: whole(1, 10_000) = 256  # The smaller side before the centre crop.
    interpolation: one_of(*INTERPOLATIONS) = "bilinear"
    eval_interpolation: one_of("same", *INTERPOLATIONS) = "same"  # In evaluation.
    antialias: Flag = True  # False: the reference's resize, which does not.
    mean: tuple_of(Amount) = (0.5,)  # Of pixels in [0, 1], for all channels or for each.
    std: tuple_of(Positive) = (0.5,)  # Pixels become (pixel - mean) / std.
    bit_depth: whole(8, 16) = 16  # Of the values in files with 16 bits of grey: 12, say.
    value_range: Range = ()  # Of the values in files: (black, white); (): as their type says.
    dtype: one_of(*PIXEL_DTYPES) = "uint8"  # Of pixels on their way to the model; float32 is exact.
    decode: one_of("exact", "fast") = "exact"  # fast: training JPEGs, less exact; performance.md.
    max_image_gib: Positive = MAX_IMAGE_GIB  # Of one decoded image: a larger one is refused unread.
    num_threads: Few = 0  # Decoding threads; 0: chosen from the number of cores.
    num_workers: whole(
        -1, 1000
    ) = -1  # Decoding processes besides; -1: chosen from the number of cores.
    cache_gib: Amount = 0.0  # Of memory in each process, for decoded training images.


@dataclasses.dataclass(frozen=True)
class Objective:
    """`config.objective`: a name, beside every option of every objective, which is None until set."""

    name: Text = "classification"  # One of vit_jax/objectives, or module:Class.


@dataclasses.dataclass(frozen=True)
class Model:
    """`config.model`: a name, beside every option of every architecture, which is None until set."""

    name: optional(Text) = None  # One of `vit_jax.list_models()`; None: as `init`, else ViT-B/16.
    num_classes: Count = 0  # 0: as many as the data has.
    image_size: Anything = None  # 224, or (height, width); None: the model's own, mostly 224.


@dataclasses.dataclass(frozen=True)
class Sharpness:
    """`config.optimizer.sharpness`: sharpness-aware minimisation."""

    rho: Amount = 0.0  # How far uphill the gradient is taken; 0: off.
    rho_min: optional(Amount) = None  # At the lowest rate, as in GSAM; None: as `rho`.
    alpha: Amount = 0.0  # GSAM's.
    shares: whole(1) = 1  # Of the batch, each with an uphill of its own, as the originals' workers.


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """`config.optimizer`: which, with the options of all, and how each parameter is trained.

    What is None has the chosen optimiser's own default: see `vit_jax/optimizer/`. Expressions match
    names such as blocks/07/mlp/dense1/kernel: see docs/training.md.
    """

    name: one_of(*OPTIMIZERS) = "adamw"
    learning_rate: Amount = 1e-3  # At its peak, for the whole batch.
    weight_decay: Amount = 0.0  # Times the learning rate, on kernels only.
    grad_clip_norm: Amount = 0.0  # Of the global norm; 0: none.
    b1: optional(Fraction) = None  # Decay of the first moment.
    b2: optional(Fraction) = None  # Decay of the second moment; Adafactor's highest.
    momentum: optional(Fraction) = None  # Of sgd, adafactor and muon.
    momentum_dtype: optional(one_of("float32", "bfloat16")) = None  # Of the first moment.
    freeze: Expression = ""  # Parameters that stay as they are.
    rate_multipliers: tuple_of(FactorRule) = ()  # The first that matches a parameter counts.
    decay_multipliers: tuple_of(FactorRule) = (("kernel$", 1.0),)  # What none matches: no decay.
    layer_decay: number(0.01, 1) = 1.0  # Of the rate, from each block to the one below it.
    accumulation_steps: whole(1) = 1  # The batch is split into so many micro-batches.
    gradient_dtype: one_of("float32", "model") = "float32"  # Of their sums: docs/training.md.
    reduce_once: Flag = False  # An update, along `mesh.fsdp` too; takes memory: docs/scaling.md.
    sharpness: Sharpness = Sharpness()


@dataclasses.dataclass(frozen=True)
class Schedule:
    """`config.schedule`: the learning rate's course between warm-up and cool-down.

    What is None has the chosen schedule's own default: see `vit_jax/optimizer/schedules.py`.
    """

    name: one_of(*SCHEDULES) = "cosine"
    warmup_start: Amount = 0.0  # The rate that the warm-up starts from.
    end: optional(Amount) = None  # The last rate of cosine (0) and linear (1e-5).
    timescale: optional(number(1)) = None  # Of rsqrt (10,000), in updates.
    boundaries: optional(tuple_of(Share)) = None  # Of step (0.3, 0.6, 0.9), shares of the run.
    factor: optional(Amount) = None  # Of step (0.1): at each boundary.


@dataclasses.dataclass(frozen=True)
class Sweep:
    """`config.sweep`: of `python -m vit_jax.sweep` alone."""

    learning_rates: tuple_of(Amount) = ()  # To compare.
    train_split: Text = ""  # A part of the training images, to train on.
    eval_split: Text = ""  # The rest of them, to compare the rates on.


@dataclasses.dataclass(frozen=True)
class Mesh:
    """`config.mesh`: devices along each axis; -1: the rest of them."""

    data: whole(-1) = -1  # The batch is split, parameters are copied.
    fsdp: whole(-1) = 1  # The batch is split, and parameters too.
    tensor: whole(-1) = 1  # Attention heads and MLP columns are split.
    slices: Count = 0  # TPU slices, or hosts of GPUs, that only `data` crosses; 0: as TPUs say.


@dataclasses.dataclass(frozen=True)
class Log:
    """`config.log`: who gets the metrics, beside the workdir's files and TensorBoard's."""

    writers: tuple_of(one_of(*WRITERS)) = ()  # See docs/training.md.
    project: Text = "vit_jax"  # Under which they keep the run; an experiment, with MLflow.


@dataclasses.dataclass(frozen=True)
class Profile:
    """`config.profile`: a trace for TensorBoard's profiler."""

    start_step: Count = 0  # The first step in it.
    num_steps: Count = 0  # 0: no trace.


@dataclasses.dataclass(frozen=True)
class Config:
    """All keys. A duration is given in one of its units; 0: not given.

    Steps are updates, whatever the number of accumulated micro-batches.
    """

    note: Text = ""  # Printed at the start: what a preset had to assume.
    seed: whole(0, 2**32 - 1) = 0  # Of parameters, the order of examples, augmentation, dropout.
    batch_size: whole(1, 2**24) = 128  # Examples per update, over all devices.
    total_steps: Count = 0  # The run's length; wins over the other units.
    total_epochs: Epochs = 0.0  # The same.
    total_examples: Count = 0  # The same.
    warmup_steps: Count = 0  # Of the learning rate, from `schedule.warmup_start`, linear.
    warmup_epochs: Epochs = 0.0  # The same.
    warmup_examples: Count = 0  # The same.
    cooldown_steps: Count = 0  # Of the learning rate at the end, to 0, linear.
    cooldown_epochs: Epochs = 0.0  # The same.
    cooldown_examples: Count = 0  # The same.
    eval_every_steps: Count = 0  # Evaluations besides that at the end.
    eval_every_epochs: Epochs = 0.0  # The same.
    eval_every_examples: Count = 0  # The same.
    checkpoint_every_steps: Count = 0  # Checkpoints besides that at the end.
    checkpoint_every_epochs: Epochs = 0.0  # The same.
    checkpoint_every_examples: Count = 0  # The same.
    log_every_steps: whole(1) = 50  # Of the console and the metrics files.
    keep_checkpoints: whole(1) = 1  # The latest so many are kept, and the best one.
    watchdog_minutes: Amount = 0.0  # Without a step, evaluation or save: end with 75. 0: never.
    evaluators: Text = ""  # See vit_jax/evaluators; "": the objective's own.
    best_metric: Text = "auto"  # Or eval/accuracy, -eval/loss (the lowest), ...; "": keep no best.
    stop_after: Count = 0  # Evaluations in a row without a better one: the run ends. 0: never.
    ema_decay: Fraction = 0.0  # Of the averaged parameters; 0: none.
    ema_warmup: Flag = True  # A faster average at first; False: `ema_decay` from the start.
    init: Text = ""  # Weights to start from: a workdir, an export, .npz, hf:USER/NAME, ...
    init_skip: Expression = ""  # Parameters that start fresh all the same.
    init_head_map: Text = ""  # Rows of another head by class: names | FILE: class_mapping.py.
    init_checkpoint: Text = "latest"  # Of a workdir: latest | best | the number of a step.
    init_ema: Flag = False  # Of a workdir: its averaged parameters.
    init_teacher: Text = ""  # Weights of the model that objectives such as distillation learn from.
    init_source_grid: Grid = ()  # (rows, columns) of a file's positions, where it does not say.
    init_position_resize: one_of(*POSITION_RESIZES) = "auto"
    data: Data = Data()
    objective: Objective = Objective()
    model: Model = Model()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    sweep: Sweep = Sweep()
    mesh: Mesh = Mesh()
    log: Log = Log()
    profile: Profile = Profile()


def default_config() -> ConfigDict:
    """All keys with their defaults, locked."""
    config = section_of(Config)
    names = registry.list_models()
    families = dict.fromkeys(registry.find_architecture(name).options_class for name in names)
    for field in (field for family in families for field in dataclasses.fields(family)):
        if field.name not in config.model:
            declared = field.type if field.type in (int, float, str, bool) else object
            config.model[field.name] = placeholder(declared)
    for name in objectives.OBJECTIVES:
        declare_options(config, name)
    return config.lock()


def declare_options(config: ConfigDict, objective: str) -> None:
    """Adds the keys of an objective that `config.objective` does not have yet, None until set.

    Raises ConfigError if there is no such objective.
    """
    options = section_of(objectives.find_objective(objective).Options, unset=True)
    with config.unlocked():
        for key, value in options.items(preserve_field_references=True):
            if key not in config.objective:
                config.objective[key] = value


def flatten(config: ConfigDict | dict, prefix: str = "") -> dict[str, Any]:
    """Every key with its value, nested ones joined by dots: {"optimizer.name": "adamw", ...}."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict | dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def resolved(config: ConfigDict) -> dict[str, Any]:
    """As `flatten`, with the objective's own defaults instead of None."""
    objective = objectives.resolved(config.objective)
    return flatten({**config, "objective": ConfigDict(objective)})


def model_options(config: ConfigDict, num_classes: int) -> ModelOptions:
    """The model's complete options: the named architecture's, with those that the config sets.

    An objective that does not classify trains a model without a head.
    """
    chosen = {key: value for key, value in config.model.items() if value is not None}
    name = chosen.pop("name", DEFAULT_MODEL)
    classifies = objectives.find_objective(config.objective.name).CLASSIFIES
    return registry.model_options(name, **{**chosen, "num_classes": num_classes * classifies})


def validate(config: ConfigDict) -> None:
    """Raises ConfigError, naming the key, for a value that cannot work."""
    check(config, Config)
    train_operations(config.data)
    _check_channels(config)
    if config.model.name:  # Else it is that of the weights.
        model_options(config, config.model.num_classes or 1)
    _check_sharpness(config.optimizer.sharpness)
    _check_objective(config)
    read_evaluators(config.evaluators)
    _check_units(config)
    for section, choices in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        for key in unused_options(config[section], choices):
            name = config[section].name
            logger.warning("config.%s.%s has no effect: %s has no such option.", section, key, name)


def _check_objective(config: ConfigDict) -> None:
    declare_options(config, config.objective.name)  # Of one that is imported by its name.
    section = config.objective
    check(section, objectives.find_objective(section.name).Options, "objective.", unset=True)
    objectives.chosen_options(section)
    for key in objectives.unused_options(section):
        logger.warning(
            "config.objective.%s has no effect: %s has no such option.", key, section.name
        )


def _check_channels(config: ConfigDict) -> None:
    channels = config.model.channels or 3
    for key in ("data.mean", "data.std"):
        values = lookup(config, key)
        if len(values) not in (1, channels):
            raise ConfigError(
                f"config.{key}={shown(values)}: must be one number for all channels, or {channels}, "
                "one for each (config.model.channels)."
            )


def _check_sharpness(sharpness: ConfigDict) -> None:
    if 0 < sharpness.rho < (sharpness.rho_min or 0):
        raise ConfigError(
            f"config.optimizer.sharpness.rho_min={sharpness.rho_min}: must be at most "
            f"config.optimizer.sharpness.rho={sharpness.rho}."
        )


def _check_units(config: ConfigDict) -> None:
    for duration in DURATIONS:
        given = [key for unit in UNITS if config[key := f"{duration}_{unit}"]]
        # An explicit total_steps shortens any preset.
        if len(given) > 1 and given[0] != "total_steps":
            raise ConfigError(
                f"config.{given[0]} and config.{given[1]} are both set: set one of them to 0."
            )


def lookup(config: ConfigDict, key: str) -> Any:
    """The value or section at a dotted key."""
    for part in key.split("."):
        config = config[part]
    return config
