"""What a config leaves open: numbers that documents, papers and earlier runs count on.

A run's record lacks the keys that came after it, and goes on with their defaults.
"""

import dataclasses
import math
from typing import NamedTuple

import pytest

from vit_jax.choices import chosen_options
from vit_jax.config import Config, default_config, flatten
from vit_jax.evaluators import EVALUATORS, fewshot, judgements, metrics, probe
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
from vit_jax.training import claim, state, step

RUN = {
    "note": "",
    "seed": 0,
    "batch_size": 128,
    "log_every_steps": 50,
    "keep_checkpoints": 1,
    "watchdog_minutes": 0.0,
    "evaluators": "",
    "best_metric": "auto",
    "stop_after": 0,
    "ema_decay": 0.0,
    "ema_warmup": True,
    "init": "",
    "init_skip": "",
    "init_head_map": "",
    "init_checkpoint": "latest",
    "init_ema": False,
    "init_teacher": "",
    "init_source_grid": (),
    "init_position_resize": "auto",
    **{
        f"{duration}_{unit}": 0
        for duration in ("total", "warmup", "cooldown", "eval_every", "checkpoint_every")
        for unit in ("steps", "epochs", "examples")
    },
}
DATA = {
    "source": "",
    "data_dir": "",
    "index_dir": "",
    "protocols": ("gs", "s3", "https"),
    "label": "",
    "columns": "",
    "train_split": "train",
    "eval_split": "",
    "classes": (),
    "exclude": "",
    "max_train_examples": 0,
    "max_eval_examples": 0,
    "allow_changes": False,
    "num_train_examples": 0,
    "num_eval_examples": 0,
    "num_classes": 0,
    "held_out_fraction": 0.1,
    "holding_out": "stratified",
    "fold": "",
    "train_crop": "inception",
    "flip": True,
    "augmentation": "",
    "class_weights": "",
    "sampling": "natural",
    "shuffle": "global",
    "on_error": "raise",
    "max_skipped": 0.1,
    "repeated_augmentation": 1,
    "eval_crop": "resize",
    "eval_resize": 256,
    "interpolation": "bilinear",
    "eval_interpolation": "same",
    "antialias": True,
    "mean": (0.5,),
    "std": (0.5,),
    "bit_depth": 16,
    "value_range": (),
    "dtype": "uint8",
    "decode": "exact",
    "num_threads": 0,
    "num_workers": -1,
    "cache_gib": 0.0,
}
OPTIMIZER = {
    "name": "adamw",
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "grad_clip_norm": 0.0,
    "freeze": "",
    "rate_multipliers": (),
    "decay_multipliers": (("kernel$", 1.0),),
    "layer_decay": 1.0,
    "accumulation_steps": 1,
    "gradient_dtype": "float32",
    "reduce_once": False,
    "sharpness.rho": 0.0,
    "sharpness.alpha": 0.0,
    "sharpness.shares": 1,
}
REST = {
    "model.num_classes": 0,
    "objective.name": "classification",
    "schedule.name": "cosine",
    "schedule.warmup_start": 0.0,
    "mesh.data": -1,
    "mesh.fsdp": 1,
    "mesh.tensor": 1,
    "mesh.slices": 0,
    "log.writers": (),
    "log.project": "vit_jax",
    "sweep.learning_rates": (),
    "sweep.train_split": "",
    "sweep.eval_split": "",
    "profile.start_step": 0,
    "profile.num_steps": 0,
}


def test_defaults_of_a_run():
    found = flatten(default_config())
    expected = {**RUN, **REST} | {f"data.{key}": value for key, value in DATA.items()}
    expected |= {f"optimizer.{key}": value for key, value in OPTIMIZER.items()}
    assert {key: found[key] for key in expected} == expected
    open_until_chosen = [f"optimizer.{key}" for each in OF_OPTIMIZERS.values() for key in each]
    open_until_chosen += [f"schedule.{key}" for each in OF_SCHEDULES.values() for key in each]
    assert {found[key] for key in open_until_chosen} == {None}


ADAM = {"b1": 0.9, "b2": 0.999, "momentum_dtype": "float32"}
SGD = {"momentum": 0.9, "momentum_dtype": "float32"}
OF_OPTIMIZERS = {
    "adamw": ADAM,
    "lamb": ADAM,
    "lion": ADAM | {"b2": 0.99},
    "sgd": SGD,
    "lars": SGD,
    "adafactor": {"b2": 0.999, "momentum": 0.9, "momentum_dtype": "bfloat16"},
    "muon": ADAM | {"momentum": 0.95},
}
OF_SCHEDULES = {
    "cosine": {"end": 0.0},
    "linear": {"end": 1e-5},
    "rsqrt": {"timescale": 10_000.0},
    "constant": {},
    "step": {"boundaries": (0.3, 0.6, 0.9), "factor": 0.1},
}


@pytest.mark.parametrize(
    ("section", "choices", "expected"),
    [("optimizer", OPTIMIZERS, OF_OPTIMIZERS), ("schedule", SCHEDULES, OF_SCHEDULES)],
)
def test_defaults_of_optimizers_and_schedules(section, choices, expected):
    config = default_config()[section]
    found = {}
    for name in expected:
        config.name = name
        found[name] = chosen_options(config, choices)
    assert found == expected


MIXING = {"mixup_alpha": 0.0, "cutmix_alpha": 0.0, "probability": 1.0, "cutmix_probability": 0.5}
MIXING |= {"form": "big_vision"}
OF_OBJECTIVES = {
    "classification": {"loss": "softmax", "label_smoothing": 0.0, "mixing": MIXING},
    "distillation": {
        "kind": "soft",
        "teacher_weight": 1.0,
        "temperature": 1.0,
        "teacher_dtype": "float32",
        "label_smoothing": 0.0,
        "mixing": MIXING,
    },
    "masked_autoencoder": {
        "mask_ratio": 0.75,
        "normalize_patches": True,
        "decoder_width": 512,
        "decoder_depth": 8,
        "decoder_heads": 16,
    },
    "masked_patches": {"target": "mean_color", "corruption_rate": 0.5},
    "regression": {"loss": "l2", "huber_delta": 1.0},
    "self_distillation": {
        "prototypes": 65_536,
        "head_width": 2_048,
        "bottleneck_width": 256,
        "local_views": 8,
        "local_size": 0,
        "global_share": 0.4,
        "student_temperature": 0.1,
        "teacher_temperature": 0.04,
        "teacher_momentum": 0.996,
        "center_momentum": 0.9,
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


def test_defaults_of_objectives():
    shipped = {name: OBJECTIVES[name] for name in OF_OBJECTIVES}
    found = {name: dataclasses.asdict(kind.Options()) for name, kind in shipped.items()}
    assert found == OF_OBJECTIVES
    facts = {
        name: (kind.EVALUATORS, kind.BEST_METRIC, kind.CLASSIFIES) for name, kind in shipped.items()
    }
    assert facts == MEASURED
    assert [name for name, kind in shipped.items() if kind.WEIGHS_CLASSES] == ["classification"]
    assert [name for name, kind in shipped.items() if kind.HAS_TEACHER] == ["distillation"]


def test_an_objective_that_says_nothing_adds_nothing():
    labels = Labels(("a",), 1)
    found = Objective(Objective.Options(), "network", labels)
    assert dataclasses.asdict(labels) == {
        "names": ("a",),
        "num_classes": 1,
        "several": False,
        "weights": (),
        "numeric": False,
        "means": (),
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


class Rule(NamedTuple):
    """What an option may be, by its edges."""

    allowed: tuple
    refused: tuple


def whole(lowest, highest=None):
    """Whole numbers from `lowest`, to `highest` if there is one."""
    if highest is None:
        return Rule((lowest, 10_000), (lowest - 1, lowest + 0.5))
    return Rule((lowest, highest), (lowest - 1, lowest + 0.5, highest + 1))


def number(lowest, highest):
    """Numbers from `lowest` to `highest`."""
    return Rule((lowest, highest), (lowest - STEP, highest + STEP))


def one_of(*names):
    """These names; there may be others."""
    return Rule(names, ("", "no such name"))


def each(rule):
    """Tuples of what a rule allows."""
    allowed, refused = ([(value,) for value in values] for values in rule)
    return Rule(((), *allowed), (*refused, rule.allowed[0]))


STEP = 1e-6
AT_LEAST_0, AT_LEAST_1 = whole(0), whole(1)
AMOUNT = Rule((0, STEP, 1e9), (-STEP, math.inf, math.nan))
SHARE = number(0, 1)
FRACTION = Rule((0, 1 - STEP), (-STEP, 1))
POSITIVE = Rule((STEP, 1e9), (0, -STEP, math.inf, math.nan))
DTYPES = one_of("float32", "bfloat16")
BOUNDS = {  # Of options that are no durations.
    "seed": whole(0, 2**32 - 1),
    "batch_size": whole(1, 2**24),
    "log_every_steps": AT_LEAST_1,
    "keep_checkpoints": AT_LEAST_1,
    "watchdog_minutes": AMOUNT,
    "stop_after": AT_LEAST_0,
    "ema_decay": FRACTION,
    "data.max_train_examples": AT_LEAST_0,
    "data.max_eval_examples": AT_LEAST_0,
    "data.num_train_examples": AT_LEAST_0,
    "data.num_eval_examples": AT_LEAST_0,
    "data.num_classes": AT_LEAST_0,
    "data.held_out_fraction": number(0, 0.9),
    "data.max_skipped": SHARE,
    "data.holding_out": one_of("stratified", "hash"),
    "data.shuffle": one_of("global", "blocks"),
    "data.sampling": one_of("natural", "sqrt", "balanced"),
    "data.on_error": one_of("raise", "skip"),
    "data.repeated_augmentation": AT_LEAST_1,
    "data.eval_crop": one_of("resize", "center"),
    "data.eval_resize": whole(1, 10_000),
    "data.interpolation": one_of("bilinear", "bicubic", "area"),
    "data.eval_interpolation": one_of("same", "bilinear", "bicubic", "area"),
    "data.mean": each(AMOUNT),
    "data.std": each(POSITIVE),
    "data.bit_depth": whole(8, 16),
    "data.dtype": one_of("uint8", "float32"),
    "data.decode": one_of("exact", "fast"),
    "data.max_image_gib": POSITIVE,
    "data.num_threads": whole(0, 1000),
    "data.num_workers": whole(-1, 1000),
    "data.cache_gib": AMOUNT,
    "init_position_resize": one_of(
        "auto", "bilinear_corner", "bilinear", "bicubic", "bicubic_torch"
    ),
    "model.num_classes": AT_LEAST_0,
    "mesh.slices": AT_LEAST_0,
    **dict.fromkeys(("mesh.data", "mesh.fsdp", "mesh.tensor"), whole(-1)),
    "profile.start_step": AT_LEAST_0,
    "profile.num_steps": AT_LEAST_0,
    "optimizer.name": one_of("adamw", "sgd", "lion", "lamb", "lars", "adafactor", "muon"),
    "optimizer.learning_rate": AMOUNT,
    "optimizer.weight_decay": AMOUNT,
    "optimizer.grad_clip_norm": AMOUNT,
    "optimizer.b1": FRACTION,
    "optimizer.b2": FRACTION,
    "optimizer.momentum": FRACTION,
    "optimizer.momentum_dtype": DTYPES,
    "optimizer.layer_decay": number(0.01, 1),
    "optimizer.accumulation_steps": AT_LEAST_1,
    "optimizer.gradient_dtype": one_of("float32", "model"),
    "optimizer.sharpness.rho": AMOUNT,
    "optimizer.sharpness.rho_min": AMOUNT,
    "optimizer.sharpness.alpha": AMOUNT,
    "optimizer.sharpness.shares": AT_LEAST_1,
    "schedule.name": one_of("cosine", "linear", "rsqrt", "constant", "step"),
    "schedule.warmup_start": AMOUNT,
    "schedule.end": AMOUNT,
    "schedule.factor": AMOUNT,
    "schedule.timescale": Rule((1, 1e9), (1 - STEP,)),
    "schedule.boundaries": each(SHARE),
    "sweep.learning_rates": each(AMOUNT),
    "log.writers": each(one_of("wandb", "mlflow")),
}
MIXED = {"mixing.mixup_alpha": AMOUNT, "mixing.cutmix_alpha": AMOUNT}
MIXED |= {"mixing.probability": SHARE, "mixing.cutmix_probability": SHARE}
MIXED |= {"mixing.form": one_of("big_vision", "deit"), "label_smoothing": FRACTION}
BOUNDS_OF_OBJECTIVES = {
    "classification": MIXED | {"loss": one_of("softmax", "sigmoid", "binary")},
    "distillation": {
        **MIXED,
        "kind": one_of("soft", "hard"),
        "teacher_weight": SHARE,
        "temperature": POSITIVE,
        "teacher_dtype": DTYPES,
    },
    "masked_autoencoder": {
        "mask_ratio": FRACTION,
        "decoder_width": whole(8),
        "decoder_depth": AT_LEAST_1,
        "decoder_heads": AT_LEAST_1,
    },
    "masked_patches": {
        "target": one_of("mean_color", "downsized", "pixels"),
        "corruption_rate": FRACTION,
    },
    "regression": {"loss": one_of("l2", "huber"), "huber_delta": POSITIVE},
    "self_distillation": {
        "prototypes": whole(2),
        "head_width": AT_LEAST_1,
        "bottleneck_width": AT_LEAST_1,
        "local_views": AT_LEAST_0,
        "local_size": AT_LEAST_0,
        "global_share": FRACTION,
        "student_temperature": POSITIVE,
        "teacher_temperature": POSITIVE,
        "teacher_momentum": SHARE,
        "center_momentum": SHARE,
    },
}


BOUNDS_OF_EVALUATORS = {
    "worst": AT_LEAST_0,
    "every_steps": AT_LEAST_0,
    "seed": AT_LEAST_0,
    "k": AT_LEAST_1,
    "shots": each(AT_LEAST_1),
    "seeds": AT_LEAST_1,
    "l2": POSITIVE,
    "weights": one_of("exponential", "uniform"),
    "temperature": POSITIVE,
    "max_iterations": AT_LEAST_1,
}
UNITS = {"steps": AT_LEAST_0, "examples": AT_LEAST_0, "epochs": number(0, 1e6)}


def kinds_of(section, prefix=""):
    """The kinds of all options of a section, by their dotted names."""
    found = {}
    for name, annotation, _ in options_of(section):
        if isinstance(annotation, type):
            found |= kinds_of(annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = kind_of(annotation)
    return found


def assert_kept(rules, section):
    """Messages may be in other words, and there may be more options and choices."""
    kinds = kinds_of(section)
    for key, rule in rules.items():
        assert [value for value in rule.allowed if kinds[key].fault(value)] == [], key
        assert [value for value in rule.refused if not kinds[key].fault(value)] == [], key


def test_what_options_may_be():
    durations = {
        f"{duration}_{unit}": rule
        for duration in ("total", "warmup", "cooldown", "eval_every", "checkpoint_every")
        for unit, rule in UNITS.items()
    }
    assert_kept({**BOUNDS, **durations}, Config)
    for name, rules in BOUNDS_OF_OBJECTIVES.items():
        assert_kept(rules, OBJECTIVES[name].Options)
    for name, (*_, options) in OF_EVALUATORS.items():
        own = {key: rule for key, rule in BOUNDS_OF_EVALUATORS.items() if key in options}
        assert_kept(own, EVALUATORS[name])


def test_a_run_goes_on_with_the_same_random_numbers():
    assert (step.STEP_STREAM, state.OBJECTIVE_STREAM, mixing.STREAM) == (0x57E9, 0x0B1E, 0x3117)
    streams = (masked_autoencoder.STREAM, masked_patches.STREAM, self_distillation.STREAM)
    assert streams == (0x3AE0, 0x4DA5, 0xD190)


def test_earlier_versions_on_other_machines_know_whose_workdir_it_is():
    """They renew their claims every 10 s, and take an owner for gone after 60 s of silence."""
    assert claim.FILE_NAME == "claim.json"
    assert claim.LOST_EXIT_CODE == 2
    assert claim.SILENT_SECONDS >= 3 * 10
    assert 3 * claim.BEAT_SECONDS <= 60


def test_objectives_have_their_papers_numbers():
    assert (masked_autoencoder.MLP_RATIO, masked_autoencoder.EPSILON) == (4, 1e-6)
    assert (self_distillation.GLOBAL_VIEWS, self_distillation.SMALLEST_SHARE) == (2, 0.05)


def test_the_first_version_of_evaluators_measures_with_these_numbers():
    """Others would need another `VERSION`: results are compared."""
    assert {EVALUATORS[name].VERSION for name in OF_EVALUATORS} == {1}
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


def test_defaults_of_evaluators():
    made = {name: EVALUATORS[name]() for name in OF_EVALUATORS}
    found = {
        name: (one.prefix, one.NEEDS_HEAD, dataclasses.asdict(one)) for name, one in made.items()
    }
    assert found == OF_EVALUATORS
    assert [name for name, one in made.items() if one.NEEDS_OBJECTIVE] == ["objective"]
    classifiers = {name: one for name, one in made.items() if hasattr(one, "RESTRICTED")}
    assert {name for name, one in classifiers.items() if not one.RESTRICTED} == FREE
    assert [name for name, one in classifiers.items() if not one.HAS_LOSS] == ["imagenet_real"]
