"""What a config leaves open: numbers that documents, papers and earlier runs count on.

A run's record lacks the keys that came after it, and goes on with their defaults.
"""

import dataclasses

import pytest

from vit_jax.choices import chosen_options
from vit_jax.config import Config, default_config, flatten
from vit_jax.evaluators import EVALUATORS, features, fewshot, judgements, metrics, objective, probe
from vit_jax.kinds import kind_of
from vit_jax.objectives import (
    OBJECTIVES,
    masked_autoencoder,
    masked_patches,
    mixing,
    self_distillation,
)
from vit_jax.objectives.base import Labels, Objective
from vit_jax.optimizer import OPTIMIZERS
from vit_jax.optimizer.schedules import SCHEDULES
from vit_jax.sections import options_of
from vit_jax.training import (
    claim,
    metrics_files,
    overview,
    preemption,
    preview,
    state,
    step,
    watchdog,
)

RUN = {
    **{"note": "", "seed": 0, "batch_size": 128, "log_every_steps": 50, "keep_checkpoints": 1},
    **{"watchdog_minutes": 0.0, "evaluators": "", "best_metric": "auto", "stop_after": 0},
    **{"ema_decay": 0.0, "ema_warmup": True, "init": "", "init_skip": "", "init_head_map": ""},
    **{"init_checkpoint": "latest", "init_ema": False, "init_teacher": "", "init_source_grid": ()},
    "init_position_resize": "auto",
    **{
        f"{duration}_{unit}": 0
        for duration in ("total", "warmup", "cooldown", "eval_every", "checkpoint_every")
        for unit in ("steps", "epochs", "examples")
    },
}
DATA = {
    **{"source": "", "data_dir": "", "index_dir": "", "protocols": ("gs", "s3", "https")},
    **{"label": "", "columns": "", "train_split": "train", "eval_split": "", "classes": ()},
    **{"exclude": "", "max_train_examples": 0, "max_eval_examples": 0, "allow_changes": False},
    **{"num_train_examples": 0, "num_eval_examples": 0, "num_classes": 0},
    **{"held_out_fraction": 0.1, "holding_out": "stratified", "fold": ""},
    **{"train_crop": "inception", "flip": True, "augmentation": "", "class_weights": ""},
    **{"sampling": "natural", "shuffle": "global", "on_error": "raise", "max_skipped": 0.1},
    **{"repeated_augmentation": 1, "eval_crop": "resize", "eval_resize": 256},
    **{"interpolation": "bilinear", "eval_interpolation": "same", "antialias": True},
    **{"mean": (0.5,), "std": (0.5,), "bit_depth": 16, "value_range": (), "dtype": "uint8"},
    **{"decode": "exact", "num_threads": 0, "num_workers": -1, "cache_gib": 0.0},
}
OPTIMIZER = {
    **{"name": "adamw", "learning_rate": 1e-3, "weight_decay": 0.0, "grad_clip_norm": 0.0},
    **{"freeze": "", "rate_multipliers": (), "decay_multipliers": (("kernel$", 1.0),)},
    **{"layer_decay": 1.0, "accumulation_steps": 1, "gradient_dtype": "float32"},
    "reduce_once": False,
    **{"sharpness.rho": 0.0, "sharpness.alpha": 0.0, "sharpness.shares": 1},
}
REST = {
    **{"model.num_classes": 0, "objective.name": "classification", "schedule.name": "cosine"},
    **{"schedule.warmup_start": 0.0, "mesh.data": -1, "mesh.fsdp": 1, "mesh.tensor": 1},
    **{"mesh.slices": 0, "log.writers": (), "log.project": "vit_jax"},
    **{"sweep.learning_rates": (), "sweep.train_split": "", "sweep.eval_split": ""},
    **{"profile.start_step": 0, "profile.num_steps": 0},
}


def test_of_a_run():
    found = {key: value for key, value in flatten(default_config()).items() if value is not None}
    del found["data.max_image_gib"]  # Of the package's own.
    expected = {**RUN, **REST} | {f"data.{key}": value for key, value in DATA.items()}
    assert found == expected | {f"optimizer.{key}": value for key, value in OPTIMIZER.items()}


ADAM = {"b1": 0.9, "b2": 0.999, "momentum_dtype": "float32"}
SGD = {"momentum": 0.9, "momentum_dtype": "float32"}
OF_OPTIMIZERS = {
    **{"adamw": ADAM, "lamb": ADAM, "sgd": SGD, "lars": SGD, "lion": ADAM | {"b2": 0.99}},
    "adafactor": {"b2": 0.999, "momentum": 0.9, "momentum_dtype": "bfloat16"},
    "muon": ADAM | {"momentum": 0.95},
}
OF_SCHEDULES = {
    **{"cosine": {"end": 0.0}, "linear": {"end": 1e-5}, "rsqrt": {"timescale": 10_000.0}},
    **{"constant": {}, "step": {"boundaries": (0.3, 0.6, 0.9), "factor": 0.1}},
}


@pytest.mark.parametrize(
    ("section", "choices", "expected"),
    [("optimizer", OPTIMIZERS, OF_OPTIMIZERS), ("schedule", SCHEDULES, OF_SCHEDULES)],
)
def test_of_optimizers_and_schedules(section, choices, expected):
    config = default_config()[section]
    found = {}
    for config.name in choices:
        found[config.name] = chosen_options(config, choices)
    assert found == expected


MIXING = {"mixup_alpha": 0.0, "cutmix_alpha": 0.0, "probability": 1.0, "cutmix_probability": 0.5}
MIXING |= {"form": "big_vision"}
OF_OBJECTIVES = {
    "classification": {"loss": "softmax", "label_smoothing": 0.0, "mixing": MIXING},
    "distillation": {
        **{"kind": "soft", "teacher_weight": 1.0, "temperature": 1.0, "teacher_dtype": "float32"},
        **{"label_smoothing": 0.0, "mixing": MIXING},
    },
    "masked_autoencoder": {
        **{"mask_ratio": 0.75, "normalize_patches": True},
        **{"decoder_width": 512, "decoder_depth": 8, "decoder_heads": 16},
    },
    "masked_patches": {"target": "mean_color", "corruption_rate": 0.5},
    "regression": {"loss": "l2", "huber_delta": 1.0},
    "self_distillation": {
        **{"prototypes": 65_536, "head_width": 2_048, "bottleneck_width": 256},
        **{"local_views": 8, "local_size": 0, "global_share": 0.4},
        **{"student_temperature": 0.1, "teacher_temperature": 0.04},
        **{"teacher_momentum": 0.996, "center_momentum": 0.9},
    },
}
MEASURED = {  # By which evaluators, what is best, and whether there is a head.
    "classification": ("classification", "eval/accuracy", True),
    "distillation": ("classification", "eval/accuracy", True),
    "masked_autoencoder": ("objective", "-eval/loss", False),
    "masked_patches": ("objective", "-eval/loss", False),
    "regression": ("regression", "-eval/rmse", True),
    "self_distillation": ("objective", "", False),
}


def test_of_objectives():
    found = {name: dataclasses.asdict(kind.Options()) for name, kind in OBJECTIVES.items()}
    assert found == OF_OBJECTIVES
    facts = {
        name: (kind.EVALUATORS, kind.BEST_METRIC, kind.CLASSIFIES)
        for name, kind in OBJECTIVES.items()
    }
    assert facts == MEASURED
    kinds = OBJECTIVES.items()
    assert [name for name, kind in kinds if kind.WEIGHS_CLASSES] == ["classification"]
    assert [name for name, kind in kinds if kind.HAS_TEACHER] == ["distillation"]


def test_of_an_objective_that_says_nothing():
    labels = Labels(("a",), 1)
    found = Objective(Objective.Options(), "network", labels)
    assert dataclasses.asdict(labels) == {
        **{"names": ("a",), "num_classes": 1, "several": False, "weights": ()},
        **{"numeric": False, "means": ()},
    }
    batch = {"image": 1, "label": 2}
    assert (found.head_bias, found.digest(), found.values) == ((), "", ())
    assert (found.init(None), found.frozen(), found.state({"a": 1})) == ({}, {}, {})
    assert found.abstract_frozen() == {}
    assert found.prepare(batch, 0, 0) is batch
    assert found.update({"b": 2}, {}, {}) == {"b": 2}
    assert found.show(batch) == (1, 2)
    assert found.pictures({}, {}, batch) is None
    assert found.evaluation_loss == "softmax"
    assert (found.describe(), found.describe_images()) == (["Objective"], [])
    with pytest.raises(NotImplementedError):
        found.loss({}, {}, batch, None)


AT_LEAST_0, AT_LEAST_1 = "a whole number, at least 0", "a whole number, at least 1"
AMOUNT, SHARE = "a number, at least 0", "a number from 0 to 1"
FRACTION, POSITIVE = "a number, at least 0 and less than 1", "a positive number"
DTYPES = "one of float32, bfloat16"
BOUNDS = {  # Of numbers and choices, but for those in steps, epochs and examples.
    **{"seed": "a whole number from 0 to 4294967295"},
    **{"batch_size": "a whole number from 1 to 16777216", "log_every_steps": AT_LEAST_1},
    **{"keep_checkpoints": AT_LEAST_1, "watchdog_minutes": AMOUNT, "stop_after": AT_LEAST_0},
    **{"ema_decay": FRACTION, "data.max_train_examples": AT_LEAST_0},
    **{"data.max_eval_examples": AT_LEAST_0, "data.num_train_examples": AT_LEAST_0},
    **{"data.num_eval_examples": AT_LEAST_0, "data.num_classes": AT_LEAST_0},
    **{"data.held_out_fraction": "a number from 0 to 0.9", "data.max_skipped": SHARE},
    **{"data.holding_out": "one of stratified, hash", "data.shuffle": "one of global, blocks"},
    **{"data.sampling": "one of natural, sqrt, balanced", "data.on_error": "one of raise, skip"},
    **{"data.repeated_augmentation": AT_LEAST_1, "data.eval_crop": "one of resize, center"},
    "data.eval_resize": "a whole number from 1 to 10000",
    "data.interpolation": "one of bilinear, bicubic, area",
    "data.eval_interpolation": "one of same, bilinear, bicubic, area",
    **{"data.mean": f"a tuple, each element {AMOUNT}"},
    **{"data.std": f"a tuple, each element {POSITIVE}"},
    **{"data.bit_depth": "a whole number from 8 to 16", "data.dtype": "one of uint8, float32"},
    **{"data.decode": "one of exact, fast", "data.max_image_gib": POSITIVE},
    "data.num_threads": "a whole number from 0 to 1000",
    **{"data.num_workers": "a whole number from -1 to 1000", "data.cache_gib": AMOUNT},
    "init_position_resize": "one of auto, bilinear_corner, bilinear, bicubic, bicubic_torch",
    **{"model.num_classes": AT_LEAST_0, "mesh.slices": AT_LEAST_0},
    **dict.fromkeys(("mesh.data", "mesh.fsdp", "mesh.tensor"), "a whole number, at least -1"),
    **{"profile.start_step": AT_LEAST_0, "profile.num_steps": AT_LEAST_0},
    "optimizer.name": "one of adamw, sgd, lion, lamb, lars, adafactor, muon",
    **{"optimizer.learning_rate": AMOUNT, "optimizer.weight_decay": AMOUNT},
    **{"optimizer.grad_clip_norm": AMOUNT, "optimizer.b1": FRACTION, "optimizer.b2": FRACTION},
    **{"optimizer.momentum": FRACTION, "optimizer.momentum_dtype": DTYPES},
    **{"optimizer.layer_decay": "a number from 0.01 to 1"},
    **{"optimizer.accumulation_steps": AT_LEAST_1},
    "optimizer.gradient_dtype": "one of float32, model",
    **{"optimizer.sharpness.rho": AMOUNT, "optimizer.sharpness.rho_min": AMOUNT},
    **{"optimizer.sharpness.alpha": AMOUNT, "optimizer.sharpness.shares": AT_LEAST_1},
    **{"schedule.name": "one of cosine, linear, rsqrt, constant, step"},
    **{"schedule.warmup_start": AMOUNT, "schedule.end": AMOUNT, "schedule.factor": AMOUNT},
    **{"schedule.timescale": "a number, at least 1"},
    "schedule.boundaries": f"a tuple, each element {SHARE}",
    "sweep.learning_rates": f"a tuple, each element {AMOUNT}",
    "log.writers": "a tuple, each element one of wandb, mlflow",
}
MIXED = {"mixing.mixup_alpha": AMOUNT, "mixing.cutmix_alpha": AMOUNT}
MIXED |= {"mixing.probability": SHARE, "mixing.cutmix_probability": SHARE}
MIXED |= {"mixing.form": "one of big_vision, deit", "label_smoothing": FRACTION}
BOUNDS_OF_OBJECTIVES = {
    "classification": MIXED | {"loss": "one of softmax, sigmoid, binary"},
    "distillation": {
        **MIXED,
        **{"kind": "one of soft, hard", "teacher_weight": SHARE, "temperature": POSITIVE},
        "teacher_dtype": DTYPES,
    },
    "masked_autoencoder": {
        **{"mask_ratio": FRACTION, "decoder_width": "a whole number, at least 8"},
        **{"decoder_depth": AT_LEAST_1, "decoder_heads": AT_LEAST_1},
    },
    "masked_patches": {
        **{"target": "one of mean_color, downsized, pixels", "corruption_rate": FRACTION}
    },
    "regression": {"loss": "one of l2, huber", "huber_delta": POSITIVE},
    "self_distillation": {
        **{"prototypes": "a whole number, at least 2", "head_width": AT_LEAST_1},
        **{"bottleneck_width": AT_LEAST_1, "local_views": AT_LEAST_0, "local_size": AT_LEAST_0},
        **{"global_share": FRACTION, "student_temperature": POSITIVE},
        **{"teacher_temperature": POSITIVE, "teacher_momentum": SHARE, "center_momentum": SHARE},
    },
}


def shipped_evaluators():
    """Those of the package; modules of other tests may have added theirs."""
    return {
        name: kind for name, kind in EVALUATORS.items() if kind.__module__.startswith("vit_jax.")
    }


BOUNDS_OF_EVALUATORS = {
    **{"worst": AT_LEAST_0, "every_steps": AT_LEAST_0, "seed": AT_LEAST_0, "k": AT_LEAST_1},
    **{"shots": f"a tuple, each element {AT_LEAST_1}", "seeds": AT_LEAST_1, "l2": POSITIVE},
    **{"weights": "one of exponential, uniform", "temperature": POSITIVE},
    "max_iterations": AT_LEAST_1,
}
UNITS = {"steps": AT_LEAST_0, "examples": AT_LEAST_0, "epochs": "a number from 0 to 1000000"}
OTHERS = ("text", "true or false", "a regular", "anything", "(", "k/K", "NAME=", "balanced, a")
OTHERS += ("a tuple, each element a name", "a tuple, each element a pair")


def bounds_of(section, prefix=""):
    """The rules of all options, dotted, but for those that are no numbers and no choices."""
    found = {}
    for name, annotation, _ in options_of(section):
        if isinstance(annotation, type):
            found |= bounds_of(annotation, f"{prefix}{name}.")
        elif not (meaning := kind_of(annotation).meaning).startswith(OTHERS):
            found[prefix + name] = meaning
    return found


def test_the_bounds_of_numbers():
    durations = {
        f"{duration}_{unit}": bounds
        for duration in ("total", "warmup", "cooldown", "eval_every", "checkpoint_every")
        for unit, bounds in UNITS.items()
    }
    assert bounds_of(Config) == {**BOUNDS, **durations}
    found = {name: bounds_of(kind.Options) for name, kind in OBJECTIVES.items()}
    assert found == BOUNDS_OF_OBJECTIVES
    found = [bounds_of(kind) for kind in shipped_evaluators().values()]
    found = {key: value for bounds in found for key, value in bounds.items()}
    assert found == BOUNDS_OF_EVALUATORS


def test_numbers_that_files_and_other_machines_count_on():
    """Other streams would make a run go on with other random numbers."""
    assert (step.STEP_STREAM, state.OBJECTIVE_STREAM, mixing.STREAM) == (0x57E9, 0x0B1E, 0x3117)
    streams = (masked_autoencoder.STREAM, masked_patches.STREAM, self_distillation.STREAM)
    assert streams == (0x3AE0, 0x4DA5, 0xD190)
    waits = (claim.BEAT_SECONDS, claim.LOOK_SECONDS, claim.SETTLE_SECONDS, claim.SILENT_SECONDS)
    assert waits == (10, 1, 2, 60)
    assert (claim.FILE_NAME, claim.LOST_EXIT_CODE) == ("claim.json", 2)
    assert (watchdog.LOOK_SECONDS, watchdog.PARTING_SECONDS) == (10, 5)
    assert (preemption.AHEAD, preemption.LOOK_SECONDS) == (3, 0.5)
    assert (metrics_files.FLUSH_SECONDS, metrics_files.EVENTS) == (30, "tensorboard")
    assert (overview.USUAL_MFU, preview.NUM_IMAGES) == (0.4, 36)
    assert (masked_autoencoder.MLP_RATIO, masked_autoencoder.EPSILON) == (4, 1e-6)
    assert (self_distillation.GLOBAL_VIEWS, self_distillation.SMALLEST_SHARE) == (2, 0.05)
    assert (objective.NUM_PICTURES, objective.SMALLEST, features.CHUNK_ROWS) == (8, 96, 4096)
    assert (judgements.TOP_K, metrics.NUM_BINS) == (5, 15)
    assert (fewshot.BIAS, fewshot.SMALLEST_DEVIATION) == (100, 1e-5)
    assert (probe.COARSE, probe.FINEST_STEP) == ((-6, -4, -2, 0, 2, 4, 6), 1 / 8)
    assert (probe.HELD_OUT_SHARE, probe.GRADIENT_TOLERANCE) == (0.1, 1e-6)


EVALUATOR = {"name": "", "source": "", "train_split": "", "split": "", "every_steps": 0}
CLASSIFIER = EVALUATOR | {"classes": "", "detailed": False, "per_class": False, "rows": ""}
CLASSIFIER |= {"worst": 0}
OF_EVALUATORS = {  # The name of its results, whether it needs a head, and its options.
    "classification": ("eval", True, CLASSIFIER),
    "regression": ("eval", True, EVALUATOR),
    "objective": ("eval", False, EVALUATOR | {"seed": 0}),
    "fewshot": ("fewshot", False, EVALUATOR | {"shots": (1, 5, 10, 25), "seeds": 3, "l2": 1024.0}),
    "knn": ("knn", False, EVALUATOR | {"k": 20, "weights": "exponential", "temperature": 0.07}),
    "probe": ("probe", False, EVALUATOR | {"l2": None, "max_iterations": 1000}),
    **{
        name: (name, True, CLASSIFIER)
        for name in ("imagenet_a", "imagenet_r", "imagenet_sketch", "imagenet_v2", "objectnet")
    },
    "imagenet_real": ("imagenet_real", True, CLASSIFIER | {"labels": ""}),
}
FREE = {"imagenet_sketch", "imagenet_v2", "objectnet"}  # Any class may be predicted.


def test_of_evaluators():
    made = {name: kind() for name, kind in shipped_evaluators().items()}
    found = {
        name: (one.prefix, one.NEEDS_HEAD, dataclasses.asdict(one)) for name, one in made.items()
    }
    assert found == OF_EVALUATORS
    assert {one.VERSION for one in made.values()} == {1}
    assert [name for name, one in made.items() if one.NEEDS_OBJECTIVE] == ["objective"]
    classifiers = {name: one for name, one in made.items() if hasattr(one, "RESTRICTED")}
    assert {name for name, one in classifiers.items() if not one.RESTRICTED} == FREE
    assert [name for name, one in classifiers.items() if not one.HAS_LOSS] == ["imagenet_real"]
