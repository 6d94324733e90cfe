"""What does not fit an objective is refused before anything is read, with what to do instead."""

import types

import numpy as np
import pytest

from tests.stages import config_with
from vit_jax import objectives
from vit_jax.errors import CheckpointError, ConfigError, WeightsError
from vit_jax.evaluators import check_head, read_evaluators
from vit_jax.models import model_options
from vit_jax.objectives import distillation
from vit_jax.objectives.base import Labels

SIZES = {"width": 32, "depth": 1, "num_heads": 2, "mlp_width": 32, "image_size": 16}
CLASSES, NUMBERS = Labels(("a", "b"), 2), Labels((), 2, numeric=True)
SEVERAL, WEIGHED = Labels((), 2, several=True), Labels((), 2, weights=(0.5, 2.0))


def make(name, labels=CLASSES, teacher="", options=None, model="ViT-Ti/8", **sizes):
    section = config_with(**{f"objective.{key}": value for key, value in (options or {}).items()})
    section.objective.name = name
    own = {} if model.startswith("BiT") else SIZES
    network = types.SimpleNamespace(options=model_options(model, **{**own, **sizes}), mesh=None)
    return objectives.make_objective(section.objective, network, labels, teacher)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("masked_patches", WEIGHED),
            r"^config\.data\.class_weights: .* set --config\.data\.sampling\.$",
        ),
        (("distillation",), r"needs a teacher: .* --config\.init_teacher\.$"),
        (
            ("regression", NUMBERS, "T"),
            r"^config\.init_teacher=T: .* set --config\.objective\.name=distillation\.$",
        ),
        (
            ("classification", NUMBERS),
            r"needs classes, .* has numbers: set --config\.objective\.name=regression\.$",
        ),
        (
            ("classification", SEVERAL),
            r"loss=softmax expects one class .* set --config\.objective\.loss=sigmoid\.$",
        ),
        (
            ("regression", CLASSES),
            r"needs numbers, .* has classes: .* column target .* --config\.data\.columns=target=",
        ),
        (
            ("distillation", SEVERAL, "T"),
            r"expects one class .* images with several: set --config\.objective\.name=classification",
        ),
        (
            ("distillation", NUMBERS, "T"),
            r"expects one class .* has numbers: set --config\.objective\.name=regression",
        ),
    ],
)
def test_data_and_teachers_that_do_not_fit_are_refused_with_what_to_set(arguments, message):
    with pytest.raises(ConfigError, match=message):
        make(*arguments)


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("classification", WEIGHED), {}),
        (("classification", SEVERAL), {"loss": "sigmoid"}),
        (("classification", SEVERAL), {"loss": "binary"}),
        (("regression", NUMBERS), {}),
        (("regression", Labels((), 2)), {}),  # Of data that does not say what it has.
        (("masked_patches", SEVERAL), {}),
    ],
)
def test_data_that_fits(arguments, options):
    assert make(*arguments, options=options).labels == arguments[1]


WITHOUT_POOLING = (
    r"leave config\.model\.pooling='attention' and .*representation_size to fine-tuning"
)


@pytest.mark.parametrize(
    ("name", "model", "message"),
    [
        ("masked_patches", {"model": "BiT-R50x1"}, "a Vision Transformer or a hybrid"),
        (
            "masked_autoencoder",
            {"patch_dropout_rate": 0.5},
            r"chooses the patches itself: set config\.model\.patch_dropout_rate=0\.$",
        ),
        ("masked_patches", {"pooling": "attention"}, WITHOUT_POOLING),
        ("masked_patches", {"representation_size": 8}, WITHOUT_POOLING),
        ("masked_autoencoder", {"pooling": "attention"}, WITHOUT_POOLING),
        ("masked_autoencoder", {"representation_size": 8}, WITHOUT_POOLING),
        (
            "self_distillation",
            {"model": "Axial-ViT-B/16", "patch_size": 4},
            "axial attention needs whole rows and columns: choose a Vision Transformer or a hybrid",
        ),
        (
            "masked_autoencoder",
            {"image_size": 8},
            r"one patch an image, .* choose a smaller model\.patch_size\.$",
        ),
        (
            "masked_patches",
            {"channels": 5},
            r"up to 4 channels, .* model\.channels=5: set --config\.objective\.target=pixels\.$",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused_with_what_to_choose(name, model, message):
    with pytest.raises(ConfigError, match=message) as error:
        make(name, **model)
    if "channels" in model:
        assert str(error.value).startswith("config.objective.target: ")
    else:
        assert str(error.value).startswith(f"config.objective.name={name!r}")


def test_models_that_fit():
    assert make("masked_patches", channels=4).target.num_colors == 8**4
    assert make("masked_patches", options={"target": "pixels"}, channels=5).target.size == 320
    assert make("masked_autoencoder", image_size=(8, 16)).num_masked == 1, "of two"


@pytest.mark.parametrize(
    ("size", "patch", "nearest"),
    [(6, (2, 2), None), (8, (2, 4), None), (5, (2, 2), 4), (6, (2, 4), 4), (1, (2, 2), 2)],
)
def test_local_views_are_of_whole_patches(size, patch, nearest):
    options = {"local_size": size}
    if nearest is None:
        found = make("self_distillation", options=options, patch_size=patch)
        assert found.local_size == (size, size)
        return
    sides = f"{patch[0]}x{patch[1]}"
    message = rf"^config\.objective\.local_size={size}: .* {sides} pixels .* such as {nearest}\.$"
    with pytest.raises(ConfigError, match=message):
        make("self_distillation", options=options, patch_size=patch)


@pytest.mark.parametrize("kind", [WeightsError, CheckpointError])
def test_a_teacher_that_cannot_be_read_is_named_by_its_key(monkeypatch, kind):
    def load(teacher, dtype):
        raise kind(f"{teacher} is torn")

    monkeypatch.setattr(distillation, "load_model", load)
    with pytest.raises(kind, match=r"^config\.init_teacher: T is torn$") as error:
        make("distillation", CLASSES, "T")
    assert type(error.value) is kind


def teacher_of(names, count=3):
    return types.SimpleNamespace(
        options=types.SimpleNamespace(num_classes=count), class_names=names
    )


def test_a_teachers_classes_are_found_by_their_names():
    labels = Labels(("a", "b", "c"), 3)
    order = distillation._order_of_classes
    assert order(teacher_of(("c", "a", "b")), labels, "T").tolist() == [1, 2, 0]
    for names, known in (((), labels), (("a", "b", "c"), labels), (("x", "y", "z"), Labels((), 3))):
        assert order(teacher_of(names), known, "T") is None
    missing = r"^config\.init_teacher=T does not know .* class 'b' \(2 in all\): .* such as 'a'\.$"
    with pytest.raises(ConfigError, match=missing):
        order(teacher_of(("a", "x", "y")), labels, "T")
    with pytest.raises(ConfigError, match=r"^config\.init_teacher=T knows 4 classes, .* has 3: "):
        order(teacher_of((), 4), labels, "T")


@pytest.mark.parametrize(
    ("weight", "token", "told"),
    [
        (0.0, True, "the distillation token's"),
        (1.0, True, "the class token's"),
        (0.5, True, ""),
        (1.0, False, ""),
    ],
)
def test_a_head_without_a_loss_is_told(caplog, weight, token, told):
    own = types.SimpleNamespace(
        options=types.SimpleNamespace(teacher_weight=weight),
        network=types.SimpleNamespace(options=types.SimpleNamespace(distillation_token=token)),
    )
    distillation.Distillation._warn_of_a_head_without_a_loss(own)
    assert [told in message for message in caplog.messages] == [True] * bool(told)


def test_what_is_said_of_distillation():
    options = types.SimpleNamespace(kind="soft", temperature=2.5, teacher_weight=0.75)
    options.teacher_dtype = "bfloat16"
    network = types.SimpleNamespace(options=types.SimpleNamespace(image_size=(16, 24)))
    own = types.SimpleNamespace(options=options, teacher="runs/t", _teacher=network)
    describe = distillation.Distillation.describe
    sees = "which sees 16x24 px in bfloat16"
    assert describe(own) == ["soft at temperature 2.5, 75% from runs/t", sees]
    options.kind = "hard"
    assert describe(own) == ["hard, 75% from runs/t", sees]


@pytest.mark.parametrize(
    ("arguments", "options", "expected"),
    [
        (("classification",), {"loss": "sigmoid"}, ["sigmoid"]),
        (("classification",), {"label_smoothing": 0.25}, ["softmax", "label smoothing 0.25"]),
        (("classification", WEIGHED), {}, ["softmax", "times the weights of classes"]),
        (("regression", NUMBERS), {}, ["l2", "outputs begin at 0"]),
        (
            ("regression", Labels((), 2, numeric=True, means=(0.25, 123.456))),
            {"loss": "huber", "huber_delta": 0.5},
            ["huber from 0.5 on", "outputs begin at 0.25, 123.5"],
        ),
        (
            ("masked_patches",),
            {"target": "pixels", "corruption_rate": 0.25},
            ["pixels of 1 of 4 patches"],
        ),
        (
            ("masked_autoencoder",),
            {"decoder_width": 24, "decoder_depth": 3, "decoder_heads": 4},
            ["3 of 4 patches left out", "3 blocks of width 24"],
        ),
        (
            ("self_distillation",),
            {"local_views": 5, "local_size": 8, "prototypes": 1_234},
            ["2 global and 5 local views of 8x8 px", "1,234 prototypes"],
        ),
    ],
)
def test_what_is_said_of_the_others(arguments, options, expected):
    assert list(make(*arguments, options=options).describe()) == expected


def test_numbers_stand_under_their_images_by_name():
    found = make("regression", Labels(("age", "height"), 2, numeric=True))
    assert found.captions(np.array([[12.34567, -0.5], [1e6, 0.0]])) == [
        ["age 12.35", "height -0.5"],
        ["age 1e+06", "height 0"],
    ]
    assert make("regression", NUMBERS).captions(np.array([[1.5, 2.0]])) == [["0 1.5", "1 2"]]


def test_the_loss_that_evaluators_measure_is_the_one_that_is_trained_with():
    given = {"classification": {"loss": "binary"}, "regression": {"loss": "huber"}}
    for name, options in given.items():
        labels = NUMBERS if name == "regression" else CLASSES
        assert make(name, labels, options=options).evaluation_loss == options["loss"]
    assert make("masked_patches").evaluation_loss == "softmax"


def test_outputs_of_regression_begin_at_the_means():
    labels = Labels((), 2, numeric=True, means=(0.25, 4.0))
    assert make("regression", labels).head_bias == (0.25, 4.0)
    assert make("classification").head_bias == ()


@pytest.mark.parametrize(
    ("text", "named"), [("classification(name='v2')", "v2"), ("knn | imagenet_a", "imagenet_a")]
)
def test_evaluators_of_classes_need_a_head(text, named):
    evaluators = read_evaluators(text)
    options = types.SimpleNamespace(num_classes=0)
    with pytest.raises(ConfigError, match=f"the evaluator '{named}' needs a classifier") as error:
        check_head(evaluators, options)
    advice = str(error.value).rpartition("choose among ")[2].rstrip(".")
    assert {*advice.split(", ")} == {"objective", "fewshot", "knn", "probe"}
    check_head(evaluators, types.SimpleNamespace(num_classes=1))
    check_head(read_evaluators("knn | objective"), options)


def test_a_custom_objective_is_found_by_its_name_or_by_module_and_class(monkeypatch):
    monkeypatch.setattr(objectives, "OBJECTIVES", dict(objectives.OBJECTIVES))
    objectives.register("mine", objectives.MaskedPatches)
    assert objectives.find_objective("mine") is objectives.MaskedPatches
    imported = objectives.find_objective("vit_jax.objectives.regression:Regression")
    assert imported is objectives.Regression
    with pytest.raises(ConfigError, match=r"module:Class; the nearest: distillation\.$") as error:
        objectives.find_objective("distilation")
    assert all(name in str(error.value) for name in ("config.objective.name='distilation'", "mine"))


def test_evaluators_of_a_model_are_those_of_its_loss():
    found = {loss: objectives.evaluators_of(loss) for loss in objectives.LOSS_NAMES}
    classes = dict.fromkeys(("softmax", "sigmoid", "binary"), "classification")
    assert found == {**classes, "l2": "regression", "huber": "regression"}


def test_options_of_other_objectives_are_unused():
    section = config_with(
        **{"objective.mixing.mixup_alpha": 0.5, "objective.temperature": 2.0}
    ).objective
    assert objectives.unused_options(section) == ["temperature"]
    section.name = "masked_patches"
    assert sorted(objectives.unused_options(section)) == ["mixing", "temperature"]
    section.name = "distillation"
    assert objectives.unused_options(section) == []
    found = objectives.resolved(section)
    assert (found["temperature"], found["kind"]) == (2.0, "soft")
    assert (found["mixing"]["mixup_alpha"], found["mixing"]["probability"]) == (0.5, 1.0)
    assert (found["name"], found["target"]) == ("distillation", None)
