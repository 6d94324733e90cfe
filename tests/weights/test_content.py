"""What a file's parameters, its metadata and the caller say together, in small pieces."""

import re

import numpy as np
import pytest

from vit_jax.errors import ConfigError, WeightsError
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models import model_options
from vit_jax.weights.architecture import FAMILIES
from vit_jax.weights.content import (
    HeadOrder,
    Hints,
    Stated,
    Weights,
    check_stated,
    describe_pixels,
    fold_class_position,
    input_options,
    size_of,
    unused_remarks,
    with_defaults,
    with_one_bias,
    without,
)

VIT = FAMILIES[-1]


@pytest.mark.parametrize(
    ("order", "indices"),
    [
        # Heads of width 8 have four pairs: those of two rows' frequencies, then of two columns'.
        (HeadOrder(interleaved=False, column_first=False), [0, 1, 2, 3, 4, 5, 6, 7]),
        (HeadOrder(interleaved=True, column_first=False), [0, 2, 4, 6, 1, 3, 5, 7]),
        (HeadOrder(interleaved=False, column_first=True), [2, 3, 0, 1, 6, 7, 4, 5]),
        (HeadOrder(interleaved=True, column_first=True), [4, 6, 0, 2, 5, 7, 1, 3]),
    ],
)
def test_the_order_of_a_heads_features(order, indices):
    np.testing.assert_array_equal(order.indices(8), indices)
    turned = ("query/kernel", "key/bias", "query_norm/scale", "key_norm/bias")
    kept = ("value/kernel", "out/kernel", "norm/scale")
    names = [f"blocks/attention/{name}" for name in (*turned, *kept)]
    parameters = {name: np.arange(8.0)[None] + index for index, name in enumerate(names)}
    ours = order.apply(parameters)
    for index, name in enumerate(names):
        expected = np.array(indices) if index < len(turned) else np.arange(8)
        np.testing.assert_array_equal(ours[name][0] - index, expected)
    back = order.invert(ours)
    for name, array in parameters.items():
        np.testing.assert_array_equal(back[name], array)


@pytest.mark.parametrize("grid", [(), (0, 2), (2,), (1, 2, 3), (2.0, 3), "23"])
def test_grids_that_cannot_be(grid):
    with pytest.raises(
        ConfigError, match=r"source_grid=.*: must be \(rows, columns\), two positive"
    ):
        Hints(source_grid=grid)
    assert Hints().source_grid is None


def test_two_biases_are_one():
    each, shared = np.arange(6.0).reshape(2, 3, 1), np.array([[10.0], [20.0], [30.0]])
    both = {"blocks/relative_position_bias": each, "relative_position_bias": shared, "a": each}
    one = with_one_bias(both)
    assert set(one) == {"blocks/relative_position_bias", "a"}
    expected = [[[10], [21], [32]], [[13], [24], [35]]]
    np.testing.assert_array_equal(one["blocks/relative_position_bias"], expected)
    alone = {"relative_position_bias": shared}
    assert with_one_bias(alone) is alone


@pytest.mark.parametrize(
    ("pixels", "words"),
    [
        (Preprocessing(), "[-1, 1], of whole pictures resized (bilinear)"),
        (
            Preprocessing(antialias=False, interpolation="bicubic"),
            "[-1, 1], of whole pictures resized (bicubic, not antialiased)",
        ),
        (
            Preprocessing((0.1,), (0.5,), "center", 36, "area", antialias=False),
            "mean (0.1,) and std (0.5,), of the centres of pictures resized to 36 (area)",
        ),
        (
            Preprocessing((0.5,), (0.1,)),
            "mean (0.5,) and std (0.1,), of whole pictures resized (bilinear)",
        ),
    ],
)
def test_pixels_in_words(pixels, words):
    assert describe_pixels(pixels) == f"pixels are normalised to {words}"


@pytest.mark.parametrize(
    ("stated", "hinted", "expected", "assumed"),
    [
        ({}, {}, {"gelu": "erf", "pooling": "token"}, ["gelu='erf'", "pooling='token'"]),
        ({"gelu": "tanh"}, {}, {"gelu": "tanh", "pooling": "token"}, ["pooling='token'"]),
        ({}, {"gelu": "tanh"}, {"gelu": "tanh", "pooling": "token"}, ["pooling='token'"]),
        ({}, {"pooling": "average"}, {"gelu": "erf", "pooling": "average"}, ["gelu='erf'"]),
        # Tensors show attention pooling: who asks for it asks for another model.
        (
            {},
            {"pooling": "attention"},
            {"gelu": "erf", "pooling": "token"},
            ["gelu='erf'", "pooling='token'"],
        ),
        (
            {"gelu": "erf"},
            {"gelu": "tanh", "pooling": "token"},
            {"gelu": "erf", "pooling": "token"},
            [],
        ),
    ],
)
def test_what_nobody_says_is_assumed(stated, hinted, expected, assumed):
    defaults = {"gelu": "erf", "pool_padding": "zeros", "pooling": "token"}  # One is no ViT's.
    assert with_defaults(VIT, stated, defaults, Hints(hinted)) == (expected, assumed)


def test_what_the_tensors_contradict():
    shown = {"width": 24, "patch_size": (4, 4), "layer_scale": 1e-5, "num_classes": 3}

    def check(name="", classes=(), **options):
        check_stated(Stated(options, name=name, class_names=classes), VIT, shown)

    check(width=24, patch_size=4, layer_scale=0.7, gelu="erf")
    check(name="ViT-B/16", patch_size=(4, 4), classes=("a", "b", "c"))
    with pytest.raises(WeightsError, match=r"says width=25, but its tensors have 24\."):
        check(width=25)
    with pytest.raises(WeightsError, match=r"says patch_size=5, but its tensors have \(4, 4\)"):
        check(patch_size=5)
    with pytest.raises(WeightsError, match="describes a Mixer-B/16, but its tensors are a ViT's"):
        check(name="Mixer-B/16")
    with pytest.raises(WeightsError, match="says stem_depths=1, which a ViT does not have"):
        check(stem_depths=1)
    with pytest.raises(WeightsError, match="names 2 classes, but its head has 3"):
        check(classes=("a", "b"))


SIZES = {
    **{"width": 24, "depth": 3, "mlp_width": 40, "num_heads": 2, "patch_size": (4, 2)},
    **{"pooling": "average"},
}


def test_the_size_that_has_a_grid():
    of = type(model_options("ViT-Ti/16"))
    assert size_of(of, (3, 5), SIZES) == (12, 10)
    stated, hinted = ({**SIZES, "image_size": size} for size in ((8, 6), (12, 10)))
    assert size_of(of, (2, 3), stated, hinted) == (8, 6)
    assert size_of(of, (3, 5), stated, hinted) == (12, 10)
    assert size_of(of, (9, 7), stated, hinted) == (36, 14)
    assert size_of(of, (3, 5), {**SIZES, "patch_size": (4, 6)}) == (12, 30)


@pytest.mark.parametrize(
    ("tokens", "rows", "stated", "hint", "expected"),
    [
        (
            {},
            16,
            {},
            {},
            ((16, 8), True),
        ),  # Without tokens it says nothing, so as it is by default.
        ({}, 16, {"prefix_positions": False}, {}, ((16, 8), False)),
        ({"class_token": 1}, 17, {}, {}, ((16, 8), True)),
        ({"class_token": 1}, 16, {}, {}, ((16, 8), False)),
        ({"class_token": 1, "registers": 4, "distillation_token": 1}, 22, {}, {}, ((16, 8), True)),
        ({"class_token": 1}, 16, {}, {"image_size": (8, 16)}, ((16, 8), False)),
        ({"class_token": 1}, 7, {}, {"image_size": (8, 6)}, ((8, 6), True)),
        ({"class_token": 1}, 7, {"image_size": (12, 4)}, {"image_size": (8, 6)}, ((12, 4), True)),
    ],
)
def test_the_size_that_a_table_implies(tokens, rows, stated, hint, expected):
    parameters = {name: np.empty((1, count, 24)) for name, count in tokens.items()}
    parameters["position_embedding"] = np.empty((1, rows, 24))
    options = {**SIZES, **stated}
    if tokens:
        options |= {"class_token": True, "num_registers": tokens.get("registers", 0)}
        if "distillation_token" in tokens:
            options |= {"distillation_token": True, "pooling": "token"}
    choices = tuple({0, sum(tokens.values())})
    found = input_options(VIT, parameters, options, choices, Hints(hint))
    assert (found["image_size"], found["prefix_positions"]) == expected


@pytest.mark.parametrize(
    ("stated", "hint", "size"),
    [
        ({}, {}, (32, 20)),
        ({}, {"image_size": (30, 18)}, (30, 18)),
        ({"image_size": (29, 17)}, {"image_size": (30, 18)}, (29, 17)),
        ({}, {"image_size": (28, 16)}, (32, 20)),  # Another grid's.
    ],
)
def test_of_sizes_that_a_stem_rounds_up_the_known_one_is_meant(stated, hint, size):
    """On a map of 8×5 elements, four pixels each."""
    options = {**SIZES, "patch_size": (1, 1), "stem_depths": (1,), **stated}
    table = {"position_embedding": np.empty((1, 40, 24))}
    hybrid = next(one for one in FAMILIES if one.name == "Hybrid")
    hints = Hints({**hint}, source_grid=(8, 5))
    found = input_options(hybrid, table, options, (0,), hints)
    assert found["image_size"] == size


@pytest.mark.parametrize("token", ["class_token", "distillation_token", "registers"])
def test_the_size_that_a_bias_implies(token):
    options = {**SIZES, "relative_position_bias": "every_layer"}
    table = {"blocks/relative_position_bias": np.empty((3, 25 + 3, 2))}
    others = {token: np.empty((1, 1, 24))}
    found = input_options(VIT, {**table, **others}, options, (), Hints())
    assert found == {"image_size": (12, 6)}
    bare = {"blocks/relative_position_bias": np.empty((3, 25, 2))}
    assert input_options(VIT, bare, options, (), Hints()) == {"image_size": (12, 6)}
    assert input_options(VIT, {}, options, (), Hints()) == {}


def test_tensors_that_inference_does_not_use():
    tensors = {name: np.zeros(1) for name in ("a", "mask", "b.mask", "c")}
    kept, unused = without(tensors, re.compile("mask|.*c"))
    assert (list(kept), unused) == (["a", "b.mask"], ["mask", "c"])
    assert unused_remarks([]) == ()
    (three,) = unused_remarks(["a", "b", "c"])
    assert three == "a, b, c skipped: inference does not use them"
    (five,) = unused_remarks(["a", "b", "c", "d", "e"])
    assert five == "a, b, c and 2 more skipped: inference does not use them"


def test_a_class_tokens_position_becomes_part_of_it():
    table = np.arange(6.0).reshape(1, 3, 2)
    tensors = {"token": np.array([[[10.0, 20.0]]]), "table": table}
    fold_class_position(tensors, "token", "table")
    np.testing.assert_array_equal(tensors["token"], [[[10, 21]]])
    np.testing.assert_array_equal(tensors["table"], table[:, 1:])


def test_a_value_that_is_none_is_told_with_its_index():
    array = np.zeros((2, 3), np.float32)
    array[1, 0], array[1, 2] = np.nan, np.inf
    weights = Weights("x", {"a": array}, ModelFile("x", {}), file_names={"a": "theirs"})
    message = r"theirs has 2 of 6 values .* \(the first nan at \[1, 0\]\)"
    with pytest.raises(WeightsError, match=message):
        weights.check_finite()
    Weights("x", {"a": array[:1]}, ModelFile("x", {})).check_finite()


def test_what_our_own_description_states():
    file = ModelFile("n", {"width": 3}, Preprocessing((0.1,)), ("a", "b"), "huber")
    stated = Stated.by(file)
    assert (stated.name, stated.options, stated.class_names) == ("n", {"width": 3}, ("a", "b"))
    assert (stated.preprocessing, stated.loss) == (Preprocessing((0.1,)), "huber")
