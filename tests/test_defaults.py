"""What a config leaves open: numbers that documents, papers and earlier runs count on.

A run's record lacks the keys that came after it, and goes on with their defaults.
"""

import dataclasses

import pytest

from vit_jax.choices import chosen_options
from vit_jax.config import default_config, flatten
from vit_jax.evaluators import EVALUATORS
from vit_jax.objectives import OBJECTIVES
from vit_jax.objectives.base import Labels, Objective
from vit_jax.optimizer import OPTIMIZERS
from vit_jax.optimizer.schedules import SCHEDULES

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
    made = {name: kind() for name, kind in EVALUATORS.items()}
    found = {
        name: (one.prefix, one.NEEDS_HEAD, dataclasses.asdict(one)) for name, one in made.items()
    }
    assert found == OF_EVALUATORS
    assert {one.VERSION for one in made.values()} == {1}
    assert [name for name, one in made.items() if one.NEEDS_OBJECTIVE] == ["objective"]
    classifiers = {name: one for name, one in made.items() if hasattr(one, "RESTRICTED")}
    assert {name for name, one in classifiers.items() if not one.RESTRICTED} == FREE
    assert [name for name, one in classifiers.items() if not one.HAS_LOSS] == ["imagenet_real"]
