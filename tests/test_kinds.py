"""Kinds of options: what is just accepted, what just not, and how that is said."""

import math

import numpy as np
import pytest

from vit_jax.config import Config
from vit_jax.kinds import (
    MOST,
    SHOWN,
    Amount,
    Count,
    Expression,
    FactorRule,
    Few,
    Flag,
    Fraction,
    Pixels,
    Positive,
    Share,
    Text,
    kind_of,
    number,
    one_of,
    optional,
    shortened,
    shown,
    tuple_of,
    type_of,
    whole,
)
from vit_jax.sections import options_of

JUST_ACCEPTED = [
    (whole(3, 9), (3, 9)),
    (whole(3), (3, MOST)),
    (number(0.5, 2), (0.5, 2, 2.0, 1)),
    (number(0.5), (0.5, 1e308)),
    (Count, (0, 10**12)),
    (Pixels, (0, 10_000)),
    (Few, (0, 1000)),
    (Amount, (0, 0.0, 1e300)),
    (Positive, (1e-300, 1)),
    (Share, (0, 1, 0.0, 1.0)),
    (Fraction, (0, 0.999_999)),
    (Text, ("", "a")),
    (Flag, (True, False)),
    (Expression, ("", "^head/")),
    (FactorRule, (("a", 0), ["a", 2.5])),
    (one_of("a", "b"), ("a", "b")),
    (optional(Count), (None, 0)),
    (tuple_of(Count), ((), [], (0, 1))),
]
JUST_REFUSED = [
    (whole(3, 9), (2, 10, 3.0, True, "3", None, np.float32(3))),
    (whole(3), (2, MOST + 1)),
    (number(0.5, 2), (0.499, 2.001, math.nan, "1", None)),
    (number(0.5), (math.inf, 10**400)),
    (number(-1, 1), (-1.1, -math.inf)),
    (Count, (-1, False)),
    (Pixels, (-1, 10_001)),
    (Few, (-1, 1001)),
    (Amount, (-1e-9, -math.inf, True)),
    (Positive, (0, 0.0, math.inf)),
    (Share, (-1e-9, 1.000_001)),
    (Fraction, (-1e-9, 1, 1.0)),
    (Text, (1, None, b"")),
    (Flag, (0, 1, "true", None)),
    (Expression, ("(", 1)),
    (FactorRule, (("a", -1e-9), ("(", 1), ("a",), ("a", 1, 1), "ab", ("a", True), ("a", "1"))),
    (one_of("a", "b"), ("c", None, 1)),
    (optional(Count), (-1, "")),
    (tuple_of(Count), ((0, -1), "", 1, None)),
]


@pytest.mark.parametrize(("kind", "values"), JUST_ACCEPTED)
def test_what_is_just_accepted(kind, values):
    assert [kind_of(kind).fault(value) for value in values] == [""] * len(values)


@pytest.mark.parametrize(("kind", "values"), JUST_REFUSED)
def test_what_is_just_not(kind, values):
    for value in values:
        assert kind_of(kind).fault(value).startswith(f"must be {kind_of(kind).meaning}"), value


@pytest.mark.parametrize(
    ("kind", "value", "fault"),
    [
        (whole(1), MOST + 1, "must be a whole number, at least 1 and at most 1,000,000,000,000"),
        (whole(1), 0, "must be a whole number, at least 1"),
        (whole(1, 9), 10, "must be a whole number from 1 to 9"),
        (number(1), 0, "must be a number, at least 1"),
        (number(1, 9), 10, "must be a number from 1 to 9"),
        (one_of("cosine", "linear"), "liner", "must be one of cosine, linear; the nearest: linear"),
        (
            tuple_of(one_of("mean", "median", "most")),
            ("mean", "meen", "mosd"),
            "must be a tuple, each element one of mean, median, most; the nearest: mean",
        ),
        (
            optional(one_of("yes", "no")),
            "yess",
            "must be one of yes, no; the nearest: yes",
        ),
    ],
)
def test_how_it_is_said(kind, value, fault):
    assert kind_of(kind).fault(value) == fault


def test_types():
    kinds = (Count, Amount, Text, Flag, tuple_of(Count), optional(Amount), optional(Text))
    assert [type_of(kind) for kind in kinds] == [int, float, str, bool, tuple, float, str]


def test_long_values_are_shown_in_part():
    assert shortened("a" * SHOWN) == "a" * 80
    assert shortened("a" * 1081) == f"{'a' * 80}... (1,081 characters)"
    assert shown("é") == "'é'"
    assert shown(10**5000) == "an integer of thousands of digits"


WHOLE = "a whole number"
SOME = f"{WHOLE}, at least 0"  # Or none.
ONE = f"{WHOLE}, at least 1"
EPOCHS = "a number from 0 to 1000000"
AMOUNT, SHARE = "a number, at least 0", "a number from 0 to 1"
FRACTION = "a number, at least 0 and less than 1"
DURATIONS = ("total", "warmup", "cooldown", "eval_every", "checkpoint_every")
# All that the config's numbers may be; the words are made of the limits.
LIMITS = {
    **{f"{duration}_{unit}": SOME for duration in DURATIONS for unit in ("steps", "examples")},
    **{f"{duration}_epochs": EPOCHS for duration in DURATIONS},
    **{"seed": f"{WHOLE} from 0 to 4294967295", "batch_size": f"{WHOLE} from 1 to 16777216"},
    **{"log_every_steps": ONE, "keep_checkpoints": ONE, "watchdog_minutes": AMOUNT},
    **{"stop_after": SOME, "ema_decay": FRACTION},
    **{"data.max_train_examples": SOME, "data.max_eval_examples": SOME},
    **{"data.num_train_examples": SOME, "data.num_eval_examples": SOME, "data.num_classes": SOME},
    **{"data.held_out_fraction": "a number from 0 to 0.9", "data.max_skipped": SHARE},
    **{"data.repeated_augmentation": ONE, "data.eval_resize": f"{WHOLE} from 1 to 10000"},
    **{"data.bit_depth": f"{WHOLE} from 8 to 16", "data.max_image_gib": "a positive number"},
    **{"data.num_threads": f"{WHOLE} from 0 to 1000"},
    **{"data.num_workers": f"{WHOLE} from -1 to 1000", "data.cache_gib": AMOUNT},
    **{"data.mean": f"a tuple, each element {AMOUNT}"},
    **{"data.std": "a tuple, each element a positive number", "model.num_classes": SOME},
    **{"optimizer.learning_rate": AMOUNT, "optimizer.weight_decay": AMOUNT},
    **{"optimizer.grad_clip_norm": AMOUNT, "optimizer.b1": FRACTION, "optimizer.b2": FRACTION},
    **{"optimizer.momentum": FRACTION, "optimizer.layer_decay": "a number from 0.01 to 1"},
    **{"optimizer.accumulation_steps": ONE, "optimizer.sharpness.rho": AMOUNT},
    **{"optimizer.sharpness.rho_min": AMOUNT, "optimizer.sharpness.alpha": AMOUNT},
    **{"optimizer.sharpness.shares": ONE, "schedule.warmup_start": AMOUNT},
    **{"schedule.end": AMOUNT, "schedule.timescale": "a number, at least 1"},
    **{"schedule.boundaries": f"a tuple, each element {SHARE}", "schedule.factor": AMOUNT},
    **{"sweep.learning_rates": f"a tuple, each element {AMOUNT}"},
    **{f"mesh.{axis}": f"{WHOLE}, at least -1" for axis in ("data", "fsdp", "tensor")},
    **{"mesh.slices": SOME, "profile.start_step": SOME, "profile.num_steps": SOME},
}
UNLIMITED = ("data.class_weights", "data.value_range")  # By rules of their own.


def meanings(section, prefix=""):
    for name, annotation, _ in options_of(section):
        if isinstance(annotation, type):
            yield from meanings(annotation, f"{prefix}{name}.")
        elif "number" in kind_of(annotation).meaning:
            yield f"{prefix}{name}", kind_of(annotation).meaning


def test_the_limits_of_every_number_of_a_config():
    found = dict(meanings(Config))
    for key in UNLIMITED:
        del found[key]
    assert found == LIMITS
