"""Combinations of options: those that make sense train, the rest are refused."""

import functools
import itertools
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from tests.models.filled import fill, random_images
from vit_jax.errors import ConfigError
from vit_jax.models import abstract_model, model_options

TINY = {
    "width": 16,
    "depth": 2,
    "mlp_width": 24,
    "num_heads": 2,
    "num_classes": 3,
    "image_size": (8, 12),
    "patch_size": 4,
}
CHOICES = {
    "positions": ("learned_1d", "learned_2d", "sincos_2d", "relative", "none"),
    "position_placement": ("stem", "every_layer", "every_layer_shared"),
    "pooling": ("token", "average", "attention"),
    "representation_size": (0, 8),
    "class_token": (None, True, False),
    "num_registers": (0, 2),
    "prefix_positions": (True, False),
    "relative_position_bias": ("none", "every_layer", "every_layer_shared"),
    "norm_after_pooling": (False, True),
    "layer_scale": (0.0, 0.1),
    "query_key_norm": (False, True),
    "stochastic_depth_rate": (0.0, 0.2),
    "stochastic_depth_schedule": ("linear", "constant"),
    "patch_dropout_rate": (0.0, 0.3),
    "dropout_rate": (0.0, 0.1),
    "attention_dropout_rate": (0.0, 0.1),
    "dropout_bits": (16, 32),
    "gelu": ("tanh", "erf"),
    "dtype": ("float32", "bfloat16"),
    "remat": ("none", "dots", "full"),
    "scan_unroll": (1, 2),
}
FAMILIES = {  # What makes a tiny model of each.
    "ViT-B/16": {},
    "R50+ViT-B/16": {"patch_size": 1, "stem_depths": (1,), "stem_width_factor": 0.5},
    "Axial-ViT-B/16": {},
}


def makes_sense(options, name="ViT-B/16"):
    positions, placement = options["positions"], options["position_placement"]
    has_bias = options["relative_position_bias"] != "none"
    at_stem = placement == "stem" and positions != "relative" and not has_bias
    return not (
        (options["pooling"] == "token" and options["class_token"] is False)
        or (positions in ("none", "relative") and placement != "stem")
        or (positions == "sincos_2d" and placement == "every_layer")
        or (options["patch_dropout_rate"] and not at_stem)
        or (name == "Axial-ViT-B/16" and not makes_sense_on_a_grid(options))
    )


def makes_sense_on_a_grid(options):
    return not (
        options["pooling"] == "token"
        or options["class_token"]
        or options["num_registers"]
        or options["positions"] == "relative"
        or options["relative_position_bias"] != "none"
        or options["position_placement"] == "every_layer"
        or options["patch_dropout_rate"]
    )


def combinations(*names):
    for values in itertools.product(*(CHOICES[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def all_pairs(name):
    """Few combinations that make sense, which together have every pair of choices that does."""
    rng = random.Random(0)
    drawn = ({key: rng.choice(values) for key, values in CHOICES.items()} for _ in range(9000))
    sample = list(itertools.islice((drawn for drawn in drawn if makes_sense(drawn, name)), 500))
    pairs = [set(itertools.combinations(options.items(), 2)) for options in sample]
    missing, chosen = set().union(*pairs), []
    while missing:
        best = max(range(len(sample)), key=lambda index: len(pairs[index] & missing))
        chosen.append(sample[best])
        missing -= pairs[best]
    return chosen


EACH_CHOICE_ONCE = [
    {"positions": "learned_1d", "num_registers": 2, "prefix_positions": True}
    | {"representation_size": 8, "dropout_rate": 0.1, "patch_dropout_rate": 0.3},
    {"positions": "learned_2d", "position_placement": "every_layer", "pooling": "average"}
    | {"class_token": True, "layer_scale": 0.1, "stochastic_depth_rate": 0.2},
    {"positions": "sincos_2d", "position_placement": "every_layer_shared", "pooling": "attention"}
    | {"norm_after_pooling": True, "query_key_norm": True, "num_registers": 2},
    {"positions": "relative", "pooling": "average", "class_token": False, "dropout_rate": 0.1}
    | {"stochastic_depth_rate": 0.2, "stochastic_depth_schedule": "constant"}
    | {"relative_position_bias": "every_layer"},
    {"positions": "none", "num_registers": 2, "prefix_positions": False, "layer_scale": 0.1}
    | {"gelu": "erf", "attention_dropout_rate": 0.1, "remat": "dots", "scan_unroll": 2}
    | {"relative_position_bias": "every_layer_shared"},
    {"positions": "rotary_2d", "num_registers": 2, "mlp": "swiglu", "mlp_norm": True}
    | {"qkv_bias": False, "pre_norm": True, "dropout_rate": 0.1, "stochastic_depth_rate": 0.2},
    {"positions": "learned_1d_rotary_2d", "rotary_coordinates": "centred", "gelu": "quick"}
    | {"final_norm": False, "attention_norm": True, "mlp_norm": True, "query_key_norm": True},
]
NO_BIAS = {"relative_position_bias": "none"}
TABLE_8 = [  # Positions and placements with every pooling and head.
    options
    for options in combinations("positions", "position_placement", "pooling", "representation_size")
    if makes_sense({"class_token": None, "patch_dropout_rate": 0, **NO_BIAS, **options})
]


@functools.partial(jax.jit, static_argnums=0)
def train_step(graphdef, state, images, labels, key):
    def loss(state):
        logits = nnx.merge(graphdef, state)(images, key=key)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, gradients = jax.value_and_grad(loss)(state)
    return jax.tree.map(lambda leaf, slope: leaf - 0.05 * slope, state, gradients), value


UNSEEN = (("key", "bias"), ("key_norm", "bias"))  # Softmax does not see what all keys share.


def check_training(options, name="ViT-B/16"):
    """Three steps move every parameter and end on a finite loss."""
    model = fill(abstract_model(name, **{**TINY, **FAMILIES[name], **options}))
    images, labels = random_images(model.options, batch_size=4), np.array([0, 1, 2, 0])
    graphdef, first = nnx.split(model)
    state = first
    for step in range(3):
        state, value = train_step(graphdef, state, images, labels, jax.random.key(step))
        assert np.isfinite(value)
    train_step.clear_cache()  # A hundred programs in one process are too many for LLVM.
    for (path, before), (_, after) in zip(
        nnx.to_flat_state(first), nnx.to_flat_state(state), strict=True
    ):
        assert np.isfinite(after[...]).all(), path
        if path[-2:] not in UNSEEN:
            assert np.any(before[...] != after[...]), path


@pytest.mark.parametrize("options", EACH_CHOICE_ONCE, ids=lambda options: options["positions"])
def test_each_choice_trains(options):
    check_training(options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", TABLE_8, ids=lambda options: "-".join(map(str, options.values()))
)
def test_positions_poolings_and_heads_train(options):
    check_training(options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [(name, options) for name in FAMILIES for options in all_pairs(name)],
    ids=str,
)
def test_every_pair_of_choices_trains(name, options):
    check_training(options, name)


@pytest.mark.parametrize("name", FAMILIES)
def test_exactly_the_combinations_that_make_sense_are_accepted(name):
    of_the_shape = ("positions", "position_placement", "pooling", "class_token", "num_registers")
    for options in combinations(*of_the_shape, "patch_dropout_rate", "relative_position_bias"):
        try:
            model_options(name, **{**TINY, **FAMILIES[name], **options})
            accepted = True
        except ConfigError:
            accepted = False
        assert accepted == makes_sense(options, name), options


@pytest.mark.parametrize("options", TABLE_8[::3], ids=str)
def test_combinations_keep_the_shape_of_logits(options):
    model = abstract_model("ViT-B/16", **TINY, num_registers=1, **options)
    graphdef, state = nnx.split(model)
    images = jax.ShapeDtypeStruct((2, 8, 12, 3), jnp.float32)
    key = jax.random.key(0)
    logits = jax.eval_shape(lambda state, x: nnx.merge(graphdef, state)(x, key=key), state, images)
    assert logits.shape == (2, 3)


REFUSED = {
    "model.pooling='token' needs model.class_token": {"class_token": False},
    "model.positions='relative' has no table to add": {
        "positions": "relative",
        "position_placement": "every_layer",
    },
    "model.positions='none' has no table to add": {
        "positions": "none",
        "position_placement": "every_layer_shared",
    },
    "model.positions='sincos_2d' is one fixed table": {
        "positions": "sincos_2d",
        "position_placement": "every_layer",
    },
    "model.patch_dropout_rate=0.5 needs positions that are added at the stem": {
        "patch_dropout_rate": 0.5,
        "position_placement": "every_layer",
    },
    "at the stem, not model.relative_position_bias='every_layer'": {
        "patch_dropout_rate": 0.5,
        "relative_position_bias": "every_layer",
    },
    "model.relative_position_bias='yes': must be one of none, every_layer": {
        "relative_position_bias": "yes"
    },
    "model.width=18 is not divisible by model.num_heads=4": {"width": 18, "num_heads": 4},
    "model.width=18 must be a multiple of 4": {"width": 18, "positions": "sincos_2d"},
    "model.positions='2d': must be one of learned_1d, learned_2d": {"positions": "2d"},
    "model.pooling='gap': must be one of token, average, attention": {"pooling": "gap"},
    "model.stochastic_depth_rate=1.0: must be in [0, 1)": {"stochastic_depth_rate": 1.0},
    "model.stochastic_depth_rate=-0.1: must be a number and at least 0": {
        "stochastic_depth_rate": -0.1
    },
    "model.layer_scale=-1: must be a number and at least 0": {"layer_scale": -1},
    "model.position_std=inf: must be a finite number": {"position_std": float("inf")},
    "model.head_bias=nan: must be a finite number": {"head_bias": float("nan")},
    "model.image_size=22.4: must be a positive integer or a pair": {"image_size": 22.4},
    "model.image_size=None: must be a positive integer or a pair": {"image_size": None},
    "model.num_registers=-1: must be an integer and at least 0": {"num_registers": -1},
    "model.image_size 10 (height) is not divisible by model.patch_size 4": {"image_size": 10},
    "the nearest sizes that are: 8 and 12": {"image_size": (12, 10)},
    "model.dtype='float16': must be one of float32, bfloat16": {"dtype": "float16"},
    "model.norm_after_pooling='no': must be true or false": {"norm_after_pooling": "no"},
    "model.class_token=2: must be true, false or None": {"class_token": 2},
    "model.head_bias='-10': must be a number": {"head_bias": "-10"},
    "model.gelu=['erf']: must be text": {"gelu": ["erf"]},
    "model.scan_unroll='all': must be an integer and at least 1": {"scan_unroll": "all"},
    "model.width=4 must be a multiple of 4": {"width": 4, "positions": "sincos_2d"},
    "model.width=15 must be a multiple of 2": {
        "width": 15,
        "num_heads": 3,
        "positions": "learned_2d",
    },
    "model.width / model.num_heads = 6 must be a multiple of 4, and model.rotary_temperature=10000.0": {
        "width": 12,
        "positions": "rotary_2d",
    },
    "= 8 must be a multiple of 4, and model.rotary_temperature=0.99 at least 1": {
        "rotary_temperature": 0.99,
        "positions": "learned_1d_rotary_2d",
    },
    "model.head_norm='batch' needs one head": {"head_norm": "batch", "distillation_token": True},
    "model.distillation_token needs model.pooling='token', not 'average'": {
        "distillation_token": True,
        "pooling": "average",
    },
    "model.patch_size=(4, 0): must be a positive integer or a pair": {"patch_size": (4, 0)},
    "model.image_size=(8, 12, 4): must be a positive integer or a pair": {"image_size": (8, 12, 4)},
    "must be a positive integer or a pair of them, at most 10,000,000": {
        "image_size": (8, 10**7 + 4)
    },
    "model.mlp_width=10000001: must be at most 10,000,000": {"mlp_width": 10**7 + 1},
    "model.depth=10001: must be at most 10,000": {"depth": 10_001},
    "model.image_size 3 (width) is not divisible by model.patch_size 4: the nearest that is: 4.": {
        "image_size": (8, 3)
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_makes_no_sense_is_refused_by_name(message):
    with pytest.raises(ConfigError) as error:
        model_options("ViT-B/16", **{**TINY, **REFUSED[message]})
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("option", "value", "choices"),
    [
        ("position_placement", "all", "stem, every_layer, every_layer_shared"),
        ("stochastic_depth_schedule", "cosine", "linear, constant"),
        ("gelu", "relu", "tanh, erf, quick"),
        ("attention", "flash", "auto, xla, joint, cudnn"),
        ("dropout_bits", 8, "16, 32"),
        ("mlp", "geglu", "dense, swiglu"),
        ("rotary_coordinates", "centered", "indices, centred"),
        ("head_norm", "layer", "none, batch"),
        ("matmul_precision", "medium", "auto, default, high, highest"),
        ("remat", "query+all", "auto, none, full, dots, or what is kept, of query, key"),
        ("remat", "query+query", "auto, none, full, dots, or what is kept, of query, key"),
    ],
)
def test_a_choice_that_there_is_not_is_refused_with_those_that_there_are(option, value, choices):
    message = f"model.{option}={value!r}: must be one of {choices}"
    with pytest.raises(ConfigError, match=re.escape(message)):
        model_options("ViT-B/16", **{**TINY, option: value})


@pytest.mark.parametrize(
    "options",
    [
        {"depth": 10_000, "mlp_width": 10**7},
        {"image_size": [8, 12], "patch_size": [4, 2]},
        {"width": 8, "positions": "sincos_2d", "num_registers": 0, "norm_epsilon": 0},
        {"width": 8, "positions": "rotary_2d", "rotary_temperature": 1, "rotary_reference": 1},
        {"distillation_token": True, "head_norm": "none", "scan_unroll": 1},
        {"patch_dropout_rate": 0.99, "dropout_rate": 0, "kernel_std": 0, "layer_scale": 0},
        {"remat": "query+dense2"},
    ],
    ids=str,
)
def test_what_just_makes_sense_is_accepted(options):
    found = model_options("ViT-B/16", **{**TINY, **options})
    for key, value in options.items():
        assert getattr(found, key) == (tuple(value) if isinstance(value, list) else value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("Axial-ViT-B/16", {"pooling": "token"}, "axial attention sees patches only"),
        ("Axial-ViT-B/16", {"num_registers": 1}, "axial attention sees patches only"),
        ("Axial-ViT-B/16", {"positions": "relative"}, "is not defined for axial attention"),
        ("Axial-ViT-B/16", {"relative_position_bias": "every_layer"}, "axial attention sees one"),
        ("Axial-ViT-B/16", {"patch_dropout_rate": 0.1}, "needs the whole grid"),
        ("AxialResNet50", {"num_heads": 5}, "model.num_heads=5: twice it must divide 64"),
        ("AxialResNet50", {"preactivation": True}, "post-activation only"),
        ("BiT-R50x1", {"stage_depths": (3, 0)}, "model.stage_depths=(3, 0): must be positive"),
        ("BiT-R50x1", {"stage_depths": (10**9,)}, "must be positive integers up to 1000"),
        ("BiT-R50x1", {"width_factor": 0.3}, "model.width_factor=0.3: 64 times it must be"),
        ("BiT-R50x1", {"pool_padding": "same"}, "must be one of zeros, infinity"),
        ("R+ViT-Ti/16", {"image_size": 100}, "patch_size 8 times the stem's 4: the nearest sizes"),
        ("BiT-R50x1", {"width_factor": 1.01}, "model.width_factor=1.01: 64 times it must be"),
        ("R50+ViT-B/16", {"stem_width_factor": 0.1}, "model.stem_width_factor=0.1: 64 times it"),
        ("R50+ViT-B/16", {"stem_depths": (3, 0)}, "model.stem_depths=(3, 0): must be positive"),
        ("Mixer-B/16", {"image_size": 100}, "not divisible by model.patch_size 16"),
        ("Mixer-B/16", {"gelu": "relu"}, "model.gelu='relu': must be one of tanh, erf, quick"),
        ("BiT-R50x1", {"width_factor": 0.0}, "model.width_factor=0.0: 64 times it must be"),
        ("BiT-R50x1", {"stage_depths": (1.5,)}, "model.stage_depths=(1.5,): must be positive"),
        ("BiT-R50x1", {"stage_depths": (1001,)}, "(1001,): must be positive integers up to 1000"),
        (
            "Axial-ViT-B/16",
            {"position_placement": "every_layer"},
            "model.positions='learned_1d' with model.position_placement='every_layer' is not defined",
        ),
        (
            "Axial-ViT-B/16",
            {"positions": "rotary_2d"},
            "model.positions='rotary_2d' with model.posi",
        ),
    ],
)
def test_other_families_refuse_by_name(name, options, message):
    with pytest.raises(ConfigError) as error:
        model_options(name, **options)
    assert message in str(error.value)
