"""Keys, their ranges and choices, durations, and the model's options."""

import pathlib
import re

import pytest

import vit_jax.config as config_lib
from vit_jax.config import default_config, flatten, lookup, model_options, validate
from vit_jax.durations import durations
from vit_jax.errors import ConfigError
from vit_jax.models import list_models


def changed(**values):
    """The default config with some (dotted) keys set."""
    config = default_config()
    config.total_steps = 10
    with config.unlocked():
        config.update_from_flattened_dict(values)
    return config


def test_the_defaults_are_valid_but_for_the_missing_length():
    config = default_config()
    validate(config)
    with pytest.raises(ConfigError, match="total_steps, total_epochs and total_examples"):
        durations(config, 100)


def test_every_key_says_what_it_is_for():
    source = pathlib.Path(config_lib.__file__).read_text()
    declared = re.findall(r"^    (\w+): ([a-z]\w*\(.*\)|[A-Z]\w+) = (.*)$", source, re.MULTILINE)
    assert len(declared) > 80
    # Choices and sections say it themselves.
    silent = [
        name
        for name, kind, rest in declared
        if "#" not in rest and "one_of" not in kind and f"{kind}()" != rest
    ]
    assert silent == []


@pytest.mark.parametrize(
    "place",
    [
        "",
        "data",
        "objective",
        "objective.mixing",
        "model",
        "optimizer",
        "schedule",
        "mesh",
        "profile",
    ],
)
def test_unknown_keys_cannot_be_set(place):
    section = lookup(default_config(), place) if place else default_config()
    with pytest.raises(AttributeError, match="nonsense"):
        section.nonsense = 1


@pytest.mark.parametrize(
    ("key", "value"),
    [("batch_size", "64"), ("seed", 1.5), ("model.dropout_rate", "high"), ("data.flip", "yes")],
)
def test_values_of_another_type_cannot_be_set(key, value):
    section, _, name = key.rpartition(".")
    with pytest.raises(TypeError):
        (lookup(default_config(), section) if section else default_config())[name] = value


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("batch_size", 0, "must be a whole number from 1 to 16777216"),
        ("total_steps", -1, "number, at least 0"),
        ("total_epochs", float("inf"), "a number from 0 to 1000000"),
        ("warmup_epochs", float("nan"), "a number from 0 to 1000000"),
        ("log_every_steps", 0, "must be a whole number, at least 1"),
        ("keep_checkpoints", 0, "must be a whole number, at least 1"),
        ("ema_decay", 1.0, "less than 1"),
        ("ema_decay", -0.1, "at least 0"),
        ("objective.loss", "hinge", "softmax, sigmoid"),
        ("init_skip", "(", "unterminated"),
        ("optimizer.freeze", "[", "unterminated"),
        ("init_position_resize", "nearest", "auto, bilinear_corner, bilinear, bicubic"),
        ("init_source_grid", (14,), "rows, columns"),
        ("init_source_grid", (14, -20), "rows, columns"),
        ("data.held_out_fraction", 0.95, "from 0 to 0.9"),
        ("data.classes", (0, 1), "each element a name in quotes"),
        ("data.mean", (0.5, float("nan"), 0.5), "each element a number, at least 0"),
        ("data.std", (0.0,), "each element a positive number"),
        ("data.mean", (), "one number for all channels, or 3"),
        ("data.std", (0.5, 0.5), "one number for all channels, or 3"),
        ("data.num_classes", -1, "number, at least 0"),
        ("sweep.learning_rates", (0.1, -1.0), "each element a number, at least 0"),
        ("sweep.learning_rates", (0.1, float("nan")), "each element a number, at least 0"),
        ("sweep.learning_rates", ("a",), "each element a number, at least 0"),
        ("data.train_crop", "incepton", "the nearest: inception"),
        ("data.train_crop", "", "must be one of inception, random_resized"),
        ("data.train_crop", "inception | pad", "must be one of inception, random_resized"),
        ("data.repeated_augmentation", 0, "must be a whole number, at least 1"),
        ("data.augmentation", "randaug(2)", "the nearest: randaug_tf"),
        ("data.eval_crop", "centre", "the nearest: center"),
        ("data.interpolation", "linear", "the nearest: bilinear"),
        ("objective.mixing.mixup_alpha", -0.1, "number, at least 0"),
        ("objective.mixing.probability", 1.1, "must be a number from 0 to 1"),
        ("objective.mixing.form", "timm", "big_vision, deit"),
        ("model.num_classes", -1, "number, at least 0"),
        ("optimizer.name", "adam", "the nearest: adamw"),
        ("optimizer.learning_rate", -1.0, "number, at least 0"),
        ("optimizer.learning_rate", float("nan"), "number, at least 0"),
        ("optimizer.b1", 1.0, "less than 1"),
        ("optimizer.momentum_dtype", "float16", "float32, bfloat16"),
        ("optimizer.accumulation_steps", 0, "must be a whole number, at least 1"),
        ("optimizer.layer_decay", 0.0, "from 0.01 to 1"),
        ("optimizer.rate_multipliers", (("^head/", -1.0),), "each element a pair"),
        ("optimizer.rate_multipliers", ("^head/", 2.0), "each element a pair"),
        ("optimizer.rate_multipliers", (("^head/", True),), "each element a pair"),
        ("optimizer.decay_multipliers", (("(", 1.0),), "unterminated"),
        ("optimizer.decay_multipliers", ((3, 1.0),), "first argument"),
        ("optimizer.sharpness.rho", -0.1, "number, at least 0"),
        ("objective.label_smoothing", 1.0, "less than 1"),
        ("schedule.boundaries", (0.3, 200), "each element a number from 0 to 1"),
        ("schedule.end", -1.0, "number, at least 0"),
        ("schedule.name", "cosin", "the nearest: cosine"),
        ("mesh.slices", -1, "number, at least 0"),
        ("mesh.data", -2, "whole number, at least -1"),
        ("profile.num_steps", -1, "number, at least 0"),
    ],
)
def test_impossible_values_are_named(key, value, message):
    with pytest.raises(ConfigError, match=message) as error:
        validate(changed(**{key: value}))
    assert f"config.{key}=" in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("batch_size", 10**20),
        ("seed", 10**6000),
        ("total_steps", 10**30),
        ("total_epochs", 1e300),
        ("mesh.fsdp", 10**30),
        ("data.mean", (10**3000,)),
        ("init_source_grid", (10**30, 2)),
        ("init_skip", "(" * 100_000),
        ("data.train_crop", "x" * 100_000),
        ("data.train_crop", f"pad({10**100})"),
        ("data.augmentation", "(" * 10_000),
        ("objective.loss", "x" * 100_000),
        ("model.depth", 10**9),
        ("model.width", 12 * 10**30),
        ("model.image_size", 16 * 10**30),
        ("model.name", "x" * 100_000),
        ("model.gelu", "x" * 100_000),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
def test_values_beyond_all_sense_are_refused_in_few_words(key, value):
    config = changed(**{key: value})
    resolve = model_options if key.startswith("model.") else lambda config, _: validate(config)
    with pytest.raises(ConfigError) as error:
        resolve(config, 10)
    assert key in str(error.value)
    assert len(str(error.value)) < 700


def test_channels_have_as_many_means_as_the_model_has_channels():
    four = (0.1, 0.2, 0.3, 0.4)
    for values in (four, (0.5,)):
        validate(changed(**{"model.channels": 4, "data.mean": values, "data.std": (0.5,)}))
        validate(changed(**{"model.channels": 4, "data.mean": (0.5,), "data.std": values}))
    with pytest.raises(ConfigError, match=r"config\.data\.std=.* or 4, one for each"):
        validate(changed(**{"model.channels": 4, "data.mean": four, "data.std": four[:3]}))


def test_the_grid_of_a_file_is_of_some_thousands_of_rows_at_most():
    for grid in ((), (10_000, 1), (1, 10_000)):
        validate(changed(init_source_grid=grid))
    for grid in ((10_001, 1), (1, 10_001), (0, 1), (2, 3, 4), (2.0, 3)):
        with pytest.raises(ConfigError, match=r"init_source_grid=.*\(rows, columns\), or \(\) for"):
            validate(changed(init_source_grid=grid))


def test_nothing_but_what_may_be_none_is_none():
    with pytest.raises(ConfigError, match=r"config.batch_size=None: must be a whole number"):
        validate(changed(batch_size=None))
    validate(changed(**{"optimizer.b1": None}))


def test_the_least_rho_is_not_above_rho():
    config = changed(**{"optimizer.sharpness.rho": 0.1, "optimizer.sharpness.rho_min": 0.5})
    with pytest.raises(ConfigError, match=r"rho_min=0.5: must be at most .*rho=0.1"):
        validate(config)
    config.optimizer.sharpness.rho = 0.5  # The same at every rate.
    validate(config)
    config.optimizer.sharpness.rho = 0.0  # Off, whatever else is set.
    validate(config)


def test_the_binary_loss_takes_no_smoothing():
    with pytest.raises(ConfigError, match="label_smoothing: the binary loss"):
        validate(changed(**{"objective.loss": "binary", "objective.label_smoothing": 0.1}))


def test_options_of_another_optimizer_are_warned_of(caplog):
    validate(changed(**{"optimizer.name": "sgd", "optimizer.b2": 0.95, "schedule.factor": 0.1}))
    assert [record.getMessage() for record in caplog.records] == [
        "config.optimizer.b2 has no effect: sgd has no such option.",
        "config.schedule.factor has no effect: cosine has no such option.",
    ]


def test_options_of_another_objective_are_warned_of(caplog):
    validate(changed(**{"objective.mask_ratio": 0.5, "objective.label_smoothing": 0.1}))
    assert caplog.messages == [
        "config.objective.mask_ratio has no effect: classification has no such option."
    ]


@pytest.mark.parametrize("duration", ["warmup", "cooldown", "eval_every", "checkpoint_every"])
def test_a_duration_in_two_units_is_refused(duration):
    config = changed(**{f"{duration}_epochs": 1.0, f"{duration}_examples": 7})
    with pytest.raises(ConfigError, match=f"{duration}_epochs and config.{duration}_examples"):
        validate(config)


def test_total_steps_wins_over_other_units_which_may_not_meet():
    config = changed(total_steps=7, total_epochs=3.0)
    validate(config)
    assert durations(config, 1000).total == 7
    with pytest.raises(ConfigError, match="total_epochs and config"):
        validate(changed(total_steps=0, total_epochs=3.0, total_examples=5))


@pytest.mark.parametrize(
    ("key", "value", "steps"),  # Of 1,000 examples in batches of 64.
    [
        ("steps", 12, 12),
        ("epochs", 3.0, 46),  # 3000 / 64 = 46.9
        ("epochs", 0.001, 1),
        ("epochs", 0.0004, 1),  # Less than one example, yet asked for.
        ("examples", 1280, 20),
        ("examples", 1343, 20),
        ("examples", 5, 1),
    ],
)
@pytest.mark.parametrize("duration", config_lib.DURATIONS)
def test_durations_in_every_unit(duration, key, value, steps):
    base = {} if duration == "total" else {"total_steps": 100}
    config = changed(**{"batch_size": 64, "total_steps": 0, **base, f"{duration}_{key}": value})
    assert getattr(durations(config, 1000), duration) == steps


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model.channels": 5, "data.mean": (0.1, 0.2)},
            r"^config\.data\.mean=\(0\.1, 0\.2\): .* or 5, .*\(config\.model\.channels\)\.$",
        ),
        ({"data.std": (0.1,) * 5}, r"^config\.data\.std=\(0\.1, .* or 3, "),
        ({"warmup_steps": 5, "warmup_examples": 7}, r"set one of them to 0\.$"),
    ],
)
def test_messages_have_the_keys_and_their_values(values, message):
    with pytest.raises(ConfigError, match=message):
        validate(changed(**values))


def test_a_run_without_a_length_is_refused_with_the_keys_for_it():
    with pytest.raises(ConfigError, match="total_steps, total_epochs and total_examples"):
        durations(default_config(), 100)


def test_resolved_values_are_the_chosen_objectives_defaults():
    config = changed(**{"objective.name": "distillation", "objective.temperature": 2.0})
    found = config_lib.resolved(config)
    assert (found["objective.temperature"], found["objective.kind"]) == (2.0, "soft")
    assert found["objective.mixing.cutmix_probability"] == 0.5
    assert found["objective.target"] is None
    assert (found["total_steps"], found["optimizer.b1"]) == (10, None)


def test_epochs_are_not_cut_short_by_rounding_errors():
    assert 0.29 * 100 < 29  # In floating point.
    config = changed(batch_size=1, total_steps=0, total_epochs=0.29)
    assert durations(config, 100).total == 29


def test_flatten_joins_keys_by_dots():
    assert flatten({"a": 1, "b": {"c": (2, 3), "d": {"e": None}}}) == {
        "a": 1,
        "b.c": (2, 3),
        "b.d.e": None,
    }
    assert flatten(default_config())["optimizer.name"] == "adamw"


def test_model_options_are_the_architectures_unless_set():
    options = model_options(changed(**{"model.name": "ViT-S/32"}), num_classes=7)
    assert (options.width, options.patch_size, options.num_classes) == (384, (32, 32), 7)
    assert (options.dropout_rate, options.image_size) == (0.0, (224, 224))
    config = changed(**{"model.name": "ViT-S/32", "model.dropout_rate": 0.3})
    config.model.image_size = (64, 96)
    config.model.patch_size = (16, 8)
    options = model_options(config, num_classes=7)
    assert options.dropout_rate == 0.3
    assert (options.image_size, options.patch_size) == ((64, 96), (16, 8))


@pytest.mark.parametrize(
    ("objective", "classes"),
    [("classification", 7), ("distillation", 7), ("masked_autoencoder", 0)],
)
def test_what_does_not_classify_has_no_head(objective, classes):
    config = changed(**{"model.name": "ViT-S/32", "objective.name": objective})
    assert model_options(config, num_classes=7).num_classes == classes


@pytest.mark.parametrize("name", list_models())
def test_every_listed_model_can_be_configured(name):
    assert model_options(changed(**{"model.name": name}), num_classes=3).num_classes == 3


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"model.name": "ViT-B16"}, "ViT-B/16"),
        ({"model.image_size": 230}, "230.*16"),
        ({"model.width": 100}, "model.width=100 .*model.num_heads=12"),
        ({"model.dropout_rate": 1.5}, "model.dropout_rate=1.5"),
        ({"model.depth": 10_001}, "model.depth=10001: must be at most 10,000"),
        ({"model.depth": 10**400}, "model.depth=1000.*must be at most 10,000"),  # No float.
        ({"model.mlp_width": 10**400}, "model.mlp_width=1000.*must be at most 10,000,000"),
        ({"model.name": "BiT-R50x1", "model.num_heads": 3}, "model.num_heads: BiT-R50x1 has no"),
    ],
)
def test_impossible_models_are_named(values, message):
    with pytest.raises(ConfigError, match=message):
        model_options(changed(**values), num_classes=10)


HUGE = 10**30
WHOLE_KEYS = [
    key
    for key, value in flatten(default_config()).items()
    if isinstance(value, int) and not isinstance(value, bool)
]


@pytest.mark.parametrize("key", [*WHOLE_KEYS, "model.depth", "model.channels", "model.width"])
def test_no_whole_number_is_without_a_limit(key):
    config = default_config()
    config.update_from_flattened_dict({"model.name": "ViT-B/16", key: HUGE})
    with pytest.raises(ConfigError, match=re.escape(key)):
        validate(config)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("data.train_crop", f"pad({10**11})"),
        ("data.train_crop", f"resize_crop({10**11})"),
        ("data.augmentation", f"randaug_tf(layers={10**11})"),
        ("data.augmentation", f"randaug_timm({10**11})"),
        ("model.name", "nope"),
        ("model.name", "ViT-B"),
        ("model.pooling", "nope"),
    ],
)
def test_what_no_run_can_do_is_refused_before_the_data_is_read(key, value):
    config = default_config()
    config.update_from_flattened_dict({"model.name": "ViT-B/16", key: value})
    with pytest.raises(ConfigError):
        validate(config)
