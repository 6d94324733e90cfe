"""Every configuration key, with its default and its meaning, and the checks on their values.

A file under `configs/` starts from `default_config()` and sets what differs. The result is locked:
a key that is not declared here is an error, in a config file as on the command line.
"""

import dataclasses
import difflib
import logging
import math
import re
from typing import Any

from ml_collections import ConfigDict
from ml_collections.config_dict import FieldReference, placeholder

from vit_jax import objectives
from vit_jax.choices import unused_options
from vit_jax.data.images.limits import MAX_IMAGE_GIB
from vit_jax.data.images.transforms import train_operations
from vit_jax.errors import ConfigError
from vit_jax.evaluators import read_evaluators
from vit_jax.models import registry
from vit_jax.objectives.losses import LOSSES
from vit_jax.objectives.mixing import FORMS
from vit_jax.optimizer import OPTIMIZERS
from vit_jax.optimizer.schedules import SCHEDULES
from vit_jax.weights.resampling import POSITION_RESIZES, is_grid

logger = logging.getLogger(__name__)

# The units of a duration. One is given; `total_steps` wins over the others.
UNITS = ("steps", "epochs", "examples")
DURATIONS = ("total", "warmup", "cooldown", "eval_every", "checkpoint_every")

# What a key may be, where its type does not say it.
CHOICES = {
    "objective.loss": tuple(LOSSES),
    "init_position_resize": POSITION_RESIZES,
    "optimizer.name": tuple(OPTIMIZERS),
    "optimizer.momentum_dtype": ("float32", "bfloat16"),
    "schedule.name": tuple(SCHEDULES),
    "objective.mixing.form": tuple(FORMS),
    "data.eval_crop": ("resize", "center"),
    "data.on_error": ("raise", "skip"),
    "data.shuffle": ("global", "blocks"),
    "data.interpolation": ("bilinear", "bicubic"),
}
ANY = math.inf
RANGES = {  # lowest, highest; both included, and finite
    "seed": (0, 2**32 - 1),
    "batch_size": (1, ANY),
    "data.num_train_examples": (0, ANY),
    "data.num_eval_examples": (0, ANY),
    "data.num_classes": (0, ANY),
    "data.max_train_examples": (0, ANY),
    "data.max_eval_examples": (0, ANY),
    "log_every_steps": (1, ANY),
    "keep_checkpoints": (1, ANY),
    "data.held_out_fraction": (0, 0.9),
    "data.repeated_augmentation": (1, ANY),
    "data.eval_resize": (1, ANY),
    "data.num_threads": (0, ANY),
    "data.num_workers": (-1, ANY),
    "data.cache_gib": (0, ANY),
    "data.max_image_gib": (0, ANY),
    "data.max_skipped": (0, 1),
    "objective.mixing.mixup_alpha": (0, ANY),
    "objective.mixing.cutmix_alpha": (0, ANY),
    "objective.mixing.probability": (0, 1),
    "objective.mixing.cutmix_probability": (0, 1),
    "model.num_classes": (0, ANY),
    "optimizer.learning_rate": (0, ANY),
    "optimizer.weight_decay": (0, ANY),
    "optimizer.grad_clip_norm": (0, ANY),
    "optimizer.layer_decay": (0.01, 1),
    "optimizer.accumulation_steps": (1, ANY),
    "optimizer.sharpness.rho": (0, ANY),
    "optimizer.sharpness.rho_min": (0, ANY),
    "optimizer.sharpness.alpha": (0, ANY),
    "schedule.warmup_start": (0, ANY),
    "schedule.end": (0, ANY),
    "schedule.timescale": (1, ANY),
    "schedule.factor": (0, ANY),
    "mesh.data": (-1, ANY),
    "mesh.fsdp": (-1, ANY),
    "mesh.tensor": (-1, ANY),
    "mesh.slices": (0, ANY),
    "profile.start_step": (0, ANY),
    "profile.num_steps": (0, ANY),
    **{f"{duration}_{unit}": (0, ANY) for duration in DURATIONS for unit in UNITS},
}
# At 1 a moving average never moves.
FROM_ZERO_BELOW_ONE = (
    *("ema_decay", "objective.label_smoothing"),
    *("optimizer.b1", "optimizer.b2", "optimizer.momentum"),
)

EXPRESSIONS = ("init_skip", "optimizer.freeze")  # Regular expressions.
RULES = ("optimizer.rate_multipliers", "optimizer.decay_multipliers")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < ANY


def _is_rule(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2 and _is_number(value[1])


# What the elements of tuples are, and how to call them.
ELEMENTS = {
    "data.classes": (lambda value: isinstance(value, str), "names in quotes, such as ('0','1')"),
    "data.mean": (_is_number, "finite numbers from 0 on"),
    "data.std": (lambda value: _is_number(value) and value > 0, "positive numbers"),
    "sweep.learning_rates": (_is_number, "finite numbers from 0 on"),
    "schedule.boundaries": (
        lambda value: _is_number(value) and value <= 1,
        "shares of the run, from 0 to 1",
    ),
    **dict.fromkeys(RULES, (_is_rule, "pairs (expression, factor), such as (('^head/', 10.0),)")),
}

# Keys and sections of earlier versions -> what they are called now.
MOVED = {
    "loss": "objective.loss",
    "label_smoothing": "objective.label_smoothing",
    "mixing": "objective.mixing",
}


def current_name(key: str) -> str:
    """What a key of an earlier version is called now; any other key's own name."""
    for old, new in MOVED.items():
        if key == old or key.startswith(f"{old}."):
            return new + key.removeprefix(old)
    return key


def default_config() -> ConfigDict:
    """All keys with their defaults.

    A duration may be given in `_steps`, `_epochs` or `_examples`; 0 means not given. Steps are
    updates, whatever the number of accumulated micro-batches.
    """
    config = ConfigDict()
    config.note = ""  # Printed at the start: what a preset had to assume.
    config.seed = 0  # Of the parameters, the order of examples, augmentation and dropout.
    config.batch_size = 128  # Examples per update, over all devices.
    for duration in DURATIONS:
        for unit in UNITS:
            config[f"{duration}_{unit}"] = 0.0 if unit == "epochs" else 0
    config.log_every_steps = 50  # Of the console and the metrics files.
    config.keep_checkpoints = 1  # The latest so many are kept, and the best one.
    config.evaluators = ""  # See vit_jax/evaluators; "": the objective's own.
    config.best_metric = "auto"  # Or eval/accuracy, -eval/loss (the lowest), ...; "": keep no best.
    config.ema_decay = 0.0  # Of the averaged parameters; 0: none.
    config.init = ""  # Weights to start from: a workdir, an export, .npz, .safetensors, ...
    config.init_skip = ""  # Regular expression of parameters that start fresh all the same.
    config.init_checkpoint = "latest"  # Of a workdir: latest | best | the number of a step.
    config.init_ema = False  # Of a workdir: its averaged parameters.
    config.init_source_grid = ()  # (rows, columns) of a file's positions, where it does not say.
    config.init_position_resize = "bilinear_corner"  # bilinear_corner | bilinear | bicubic

    config.data = _data_config()

    config.objective = _objective_config()

    config.model = _model_config()

    config.optimizer = _optimizer_config()

    config.schedule = schedule = ConfigDict()
    schedule.name = "cosine"  # cosine | linear | rsqrt | constant | step
    schedule.warmup_start = 0.0  # The rate that the warm-up starts from.
    # What is None has the chosen schedule's own default: see `vit_jax/optimizer/schedules.py`.
    schedule.end = placeholder(float)  # The last rate of cosine (0) and linear (1e-5).
    schedule.timescale = placeholder(float)  # Of rsqrt (10,000), in updates.
    schedule.boundaries = placeholder(tuple)  # Of step (0.3, 0.6, 0.9), in shares of the run.
    schedule.factor = placeholder(float)  # Of step (0.1): at each boundary.

    config.sweep = sweep = ConfigDict()  # Of `python -m vit_jax.sweep` alone.
    sweep.learning_rates = ()  # To compare.
    sweep.train_split = ""  # A part of the training images, to train on.
    sweep.eval_split = ""  # The rest of them, to compare the rates on.

    config.mesh = mesh = ConfigDict()  # Devices along each axis; -1: the rest of them.
    mesh.data = -1  # The batch is split, parameters are copied.
    mesh.fsdp = 1  # The batch is split, and parameters too.
    mesh.tensor = 1  # Attention heads and MLP columns are split.
    mesh.slices = 0  # TPU slices, or hosts of GPUs, that only `data` crosses; 0: as TPUs say.

    config.profile = profile = ConfigDict()
    profile.start_step = 0  # The first step in the trace for TensorBoard's profiler.
    profile.num_steps = 0  # 0: no trace.
    return config.lock()


def _data_config() -> ConfigDict:
    """`config.data`: where images come from, and what is done to each."""
    data = ConfigDict()
    data.source = ""  # One of data/sources.py: folder:DIR | tfds:NAME | tar:PATTERN | ...
    data.data_dir = ""  # Where prepared TFDS data lies; "": TFDS's own default.
    data.index_dir = ""  # Of indices of files and records, made once; "": the workdir's `index`.
    data.label = ""  # Of a TFDS dataset: an integer feature, or one of data/sources/labels.py.
    data.train_split = "train"  # TFDS-style: train[:98%], train[:800]+train[1000:]
    data.eval_split = ""  # "": the source's own evaluation split.
    data.classes = ()  # Only these, by name and in this order; (): all of them.
    data.exclude = ""  # A list of training examples to leave out: see data/exclusions.py.
    data.max_train_examples = 0  # A fair sample of so many, after `exclude`; 0: all.
    data.max_eval_examples = 0  # The same of the evaluation split.
    data.num_train_examples = 0  # 0: ask the data. Presets state it, to plan without data.
    data.num_eval_examples = 0  # Only `fake` data needs it.
    data.num_classes = 0  # To plan with until `source` is named; of `fake` data.
    data.held_out_fraction = 0.1  # Evaluation share of a folder without split folders.
    data.train_crop = "inception"  # Of data/crops.py, with arguments: "inception(0.2, 1)".
    data.flip = True  # Mirror every other training image, at random.
    data.augmentation = ""  # Of data/augmentation.py: "randaug_tf(2, 15) | random_erasing(0.25)".
    data.shuffle = "global"  # global | blocks (neighbours stay together: for object storage)
    data.on_error = "raise"  # raise | skip (what cannot be read is masked, counted and logged)
    data.max_skipped = 0.1  # Share of the examples beyond which skipping ends the run.
    data.repeated_augmentation = 1  # Copies of an image in a batch, each augmented differently.
    data.eval_crop = "resize"  # resize (the whole image) | center
    data.eval_resize = 256  # The smaller side before the centre crop.
    data.interpolation = "bilinear"  # bilinear | bicubic
    data.antialias = True  # False: the reference's resize, which does not.
    data.mean = (0.5,)  # Of pixels in [0, 1], for all channels or each; weights bring their own.
    data.std = (0.5,)  # Pixels become (pixel - mean) / std.
    data.max_image_gib = MAX_IMAGE_GIB  # Of one decoded image: a larger one is refused unread.
    data.num_threads = 0  # Decoding threads; 0: chosen from the number of cores.
    data.num_workers = -1  # Decoding processes besides; -1: chosen from the number of cores.
    data.cache_gib = 0.0  # Of memory in each process, for decoded training images.
    return data


def _objective_config() -> ConfigDict:
    """`config.objective`: what is minimised."""
    objective = ConfigDict()
    objective.name = "classification"  # One of vit_jax/objectives.
    objective.loss = "softmax"  # softmax | sigmoid (summed over classes) | binary (DeiT-III's)
    objective.label_smoothing = 0.0  # Share of the training targets spread over all classes.
    objective.mixing = mixing = ConfigDict()  # See objectives/mixing.py.
    mixing.mixup_alpha = 0.0  # Two images are blended by λ ~ Beta(alpha, alpha); 0: no mixup.
    mixing.cutmix_alpha = 0.0  # A rectangle of 1 - λ is laid over another image; 0: no CutMix.
    mixing.probability = 1.0  # Of a batch to be mixed at all.
    mixing.cutmix_probability = 0.5  # Of CutMix rather than mixup, where both are on.
    mixing.form = "big_vision"  # big_vision (λ ≥ 1/2, with the row before) | deit (a random row)
    return objective


def _optimizer_config() -> ConfigDict:
    """`config.optimizer`: which, with the options of all, and how each parameter is trained."""
    optimizer = ConfigDict()
    optimizer.name = "adamw"  # adamw | sgd | lion | lamb | adafactor | muon
    optimizer.learning_rate = 1e-3  # At its peak, for the whole batch.
    optimizer.weight_decay = 0.0  # Times the learning rate, on kernels only.
    optimizer.grad_clip_norm = 0.0  # Of the global norm; 0: none.
    # What is None has the chosen optimiser's own default: see `vit_jax/optimizer/`.
    optimizer.b1 = placeholder(float)  # Decay of the first moment.
    optimizer.b2 = placeholder(float)  # Decay of the second moment; Adafactor's highest.
    optimizer.momentum = placeholder(float)  # Of sgd, adafactor and muon.
    optimizer.momentum_dtype = placeholder(str)  # Of the first moment: float32 | bfloat16
    # Regular expressions of names such as blocks/07/mlp/dense1/kernel: see docs/training.md.
    optimizer.freeze = ""  # Parameters that stay as they are.
    optimizer.rate_multipliers = ()  # Pairs (expression, factor); the first that matches counts.
    optimizer.decay_multipliers = (("kernel$", 1.0),)  # The same; what none matches: no decay.
    optimizer.layer_decay = 1.0  # Of the rate, from each block to the one below it.
    optimizer.accumulation_steps = 1  # The batch is split into so many micro-batches.
    optimizer.sharpness = sharpness = ConfigDict()  # Sharpness-aware minimisation.
    sharpness.rho = 0.0  # How far uphill the gradient is taken; 0: off.
    sharpness.rho_min = placeholder(float)  # At the lowest rate, as in GSAM; None: as `rho`.
    sharpness.alpha = 0.0  # GSAM's.
    return optimizer


def _model_config() -> ConfigDict:
    """`config.model`: a name, and every option of every architecture, None until set."""
    config = ConfigDict()
    names = registry.list_models()
    families = dict.fromkeys(registry.find_architecture(name).options_class for name in names)
    for options_class in families:
        for field in dataclasses.fields(options_class):
            declared = field.type if field.type in (int, float, str, bool) else object
            config[field.name] = placeholder(declared)
    config.name = "ViT-B/16"  # One of `vit_jax.list_models()`.
    config.num_classes = 0  # 0: as many as the data has.
    config.image_size = FieldReference(224, field_type=object)  # Or (height, width).
    return config


def flatten(config: ConfigDict | dict, prefix: str = "") -> dict[str, Any]:
    """Every key with its value, nested ones joined by dots: {"optimizer.name": "adamw", ...}."""
    flat = {}
    for key, value in config.items():
        if isinstance(value, ConfigDict | dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[prefix + key] = value
    return flat


def model_options(config: ConfigDict, num_classes: int) -> Any:
    """The model's complete options: the named architecture's, with those that the config sets."""
    chosen = {key: value for key, value in config.model.items() if value is not None}
    name = chosen.pop("name")
    return registry.model_options(name, **{**chosen, "num_classes": num_classes})


def validate(config: ConfigDict) -> None:
    """Raises ConfigError, naming the key, for a value that cannot work."""
    for key, choices in CHOICES.items():
        value = lookup(config, key)
        if value is not None and value not in choices:
            near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0)[0]
            raise ConfigError(
                f"config.{key}={value!r}: must be one of {', '.join(choices)}; the nearest: {near}."
            )
    for key, (lowest, highest) in RANGES.items():
        if (value := lookup(config, key)) is None:
            continue
        if not lowest <= value <= highest or math.isinf(value):  # NaN is in no range.
            limit = f"at least {lowest}" if highest == ANY else f"from {lowest} to {highest}"
            raise ConfigError(f"config.{key}={value}: must be {limit}.")
    for key in FROM_ZERO_BELOW_ONE:
        if (value := lookup(config, key)) is not None and not 0 <= value < 1:
            raise ConfigError(f"config.{key}={value}: must be at least 0 and less than 1.")
    for key, (accepts, expected) in ELEMENTS.items():
        for value in lookup(config, key) or ():
            if not accepts(value):
                raise ConfigError(
                    f"config.{key}={lookup(config, key)}: its elements must be {expected}."
                )
    for key in ("data.mean", "data.std"):
        values, channels = lookup(config, key), config.model.channels or 3
        if len(values) not in (1, channels):
            raise ConfigError(
                f"config.{key}={values}: must be one number for all channels, or {channels}, one for "
                "each (config.model.channels)."
            )
    sharpness = config.optimizer.sharpness
    if 0 < sharpness.rho < (sharpness.rho_min or 0):
        raise ConfigError(
            f"config.optimizer.sharpness.rho_min={sharpness.rho_min}: must be at most "
            f"config.optimizer.sharpness.rho={sharpness.rho}."
        )
    train_operations(config.data)
    for key in EXPRESSIONS:
        _check_expression(key, lookup(config, key))
    for key in RULES:
        for expression, _ in lookup(config, key):
            _check_expression(key, expression)
    grid = config.init_source_grid
    if grid and not is_grid(grid):
        raise ConfigError(
            f"config.init_source_grid={grid}: must be (rows, columns), or () for none."
        )
    objectives.chosen_options(config.objective)
    read_evaluators(config.evaluators)
    for section, choices in (("optimizer", OPTIMIZERS), ("schedule", SCHEDULES)):
        for key in unused_options(config[section], choices):
            name = config[section].name
            logger.warning("config.%s.%s has no effect: %s has no such option.", section, key, name)
    for duration in DURATIONS:
        given = [key for unit in UNITS if config[key := f"{duration}_{unit}"]]
        # An explicit total_steps shortens any preset.
        if len(given) > 1 and given[0] != "total_steps":
            raise ConfigError(
                f"config.{given[0]} and config.{given[1]} are both set: set one of them to 0."
            )


def _check_expression(key: str, expression: Any) -> None:
    try:
        re.compile(expression)
    except (re.error, TypeError) as error:
        raise ConfigError(f"config.{key}={expression!r}: {error}.") from error


def lookup(config: ConfigDict, key: str) -> Any:
    """The value or section at a dotted key."""
    for part in key.split("."):
        config = config[part]
    return config


@dataclasses.dataclass(frozen=True)
class Durations:
    """A run's durations in updates; 0 for what is not asked for."""

    total: int
    warmup: int
    cooldown: int
    eval_every: int
    checkpoint_every: int


def durations(config: ConfigDict, num_train_examples: int) -> Durations:
    """All durations in updates, rounded down, but at least 1 where given.

    Raises ConfigError if the run has no length.
    """

    def steps(duration: str) -> int:
        if given := config[f"{duration}_steps"]:
            return given
        epochs, examples = config[f"{duration}_epochs"], config[f"{duration}_examples"]
        examples = round(epochs * num_train_examples) if epochs else examples
        return max(1, examples // config.batch_size) if epochs or examples else 0

    resolved = Durations(**{duration: steps(duration) for duration in DURATIONS})
    if not resolved.total:
        raise ConfigError("config.total_steps, total_epochs and total_examples are all 0: set one.")
    return resolved
