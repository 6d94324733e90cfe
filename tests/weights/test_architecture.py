"""What the shapes of parameters show of a model, and what its grid of positions may be."""

import math
import re

import numpy as np
import pytest

from vit_jax.errors import WeightsError
from vit_jax.models import model_options
from vit_jax.models.positions import num_offsets
from vit_jax.weights.architecture import (
    FAMILIES,
    abstract_parameters,
    axis_length,
    check_heads,
    find_family,
    find_grid,
    name_of,
    num_heads_of_width,
    registered_name,
    square,
)
from vit_jax.weights.mapping import Reading

VIT = {
    **{"width": 24, "depth": 3, "mlp_width": 40, "num_heads": 2, "channels": 5, "num_classes": 7},
    **{"patch_size": (4, 2), "image_size": (12, 8)},
}
MODELS = [
    ("ViT-Ti/16", VIT),
    ("ViT-Ti/16", {**VIT, "attention_norm": True}),
    ("ViT-Ti/16", {**VIT, "mlp_norm": True}),
    ("ViT-Ti/16", {**VIT, "pre_norm": True, "final_norm": False}),
    ("ViT-Ti/16", {**VIT, "query_key_norm": True, "qkv_bias": False}),
    ("ViT-Ti/16", {**VIT, "num_registers": 4, "mlp": "swiglu", "num_classes": 0}),
    ("ViT-Ti/16", {**VIT, "representation_size": 11, "distillation_token": False}),
    ("ViT-Ti/16", {**VIT, "distillation_token": True, "positions": "none"}),
    ("ViT-Ti/16", {**VIT, "pooling": "average", "relative_position_bias": "every_layer"}),
    ("ViT-Ti/16", {**VIT, "pooling": "attention", "relative_position_bias": "every_layer_shared"}),
    ("R26+ViT-S/32", {**VIT, "patch_size": 1, "stem_depths": (1, 3), "stem_width_factor": 0.5}),
    ("BiT-R50x1", {"channels": 5, "num_classes": 7, "stage_depths": (2, 1), "width_factor": 1.5}),
    ("BiT-v1-R50x1", {"channels": 5, "num_classes": 7, "stage_depths": (1,), "width_factor": 1}),
    (
        "Mixer-B/16",
        {name: VIT[name] for name in VIT if name != "num_heads"} | {"token_mlp_width": 9},
    ),
]


@pytest.mark.parametrize(("name", "options"), MODELS)
def test_the_options_that_shapes_show(name, options):
    complete = model_options(name, **options)
    _, shapes = abstract_parameters(name, complete)
    reading = Reading({name: np.empty(shape, "f4") for name, shape in shapes.items()}, {}, ())
    family = find_family(reading)
    shown = family.options(reading.parameters)
    assert family.options_class is type(complete)
    missing = {"image_size", "gelu", "norm_epsilon"} & shown.keys()
    assert not missing
    for option, value in shown.items():
        assert value == getattr(complete, option), option
    wanted = {key: value for key, value in options.items() if key != "image_size"}
    silent = {"positions"} if options.get("positions") == "none" else set()
    assert wanted.keys() - silent <= shown.keys()
    assert ("positions" in shown) == ("position_embedding" in shapes)
    if "class_token" in shapes:  # Which need not be what is pooled.
        assert "pooling" not in shown


def test_what_is_no_model():
    with pytest.raises(WeightsError, match=r"of its 3 tensors none .*; the first unknown .*'b'"):
        find_family(Reading({"a": np.zeros(1)}, {}, ("b", "c")))
    with pytest.raises(WeightsError, match=r"knows\.$"):
        find_family(Reading({}, {}, ()))
    kernel = {"embedding/kernel": np.zeros((4, 2, 5, 24))}
    with pytest.raises(WeightsError, match="no tensor in it becomes blocks/norm1/scale"):
        FAMILIES[-1].options(kernel)


def test_lengths_of_axes():
    parameters = {"a": np.zeros((2, 3))}
    assert (axis_length(parameters, "a", 1), axis_length(parameters, "b", 1)) == (3, 0)
    with pytest.raises(WeightsError, match=r"its a has shape \(2, 3\): too few axes"):
        axis_length(parameters, "a", 2)


@pytest.mark.parametrize("heads", [0, -2, 5, 2.0, "2", None, True])
def test_numbers_of_heads_that_cannot_be(heads):
    with pytest.raises(WeightsError, match=f"width 24 is no multiple of num_heads={heads!r}"):
        check_heads(heads, 24)
    check_heads(24, 24)


def test_heads_by_the_width_of_a_registered_model():
    assert [num_heads_of_width(width) for width in (192, 384, 1280)] == [3, 6, 16]
    with pytest.raises(WeightsError, match="a model of width 191 has: give num_heads="):
        num_heads_of_width(191)


@pytest.mark.parametrize(
    ("name", "changes", "registered"),
    [
        ("ViT-Ti/16", {"image_size": 32, "num_classes": 3, "gelu": "erf"}, "ViT-Ti/16"),
        ("ViT-Ti/16", {"patch_size": (4, 4)}, "ViT-Ti/4"),
        ("ViT-Ti/16", {"patch_size": (4, 2), "image_size": 8}, None),
        ("ViT-Ti/16", {"depth": 11}, None),
        ("R26+ViT-S/32", {}, "R26+ViT-S/32"),
        ("Mixer-B/16", {"mlp_width": 5}, None),
        ("BiT-R50x1", {"image_size": 32}, "BiT-R50x1"),
        ("R26+ViT-S/32", {"stem_depths": (1, 2)}, None),  # No ViT-S/1.
    ],
)
def test_registered_names(name, changes, registered):
    options = model_options(name, **changes)
    assert registered_name(options) == registered
    if registered is None:  # Any of the family: all options are complete.
        assert type(model_options(name_of(options))) is type(options)
    else:
        assert name_of(options) == registered


PAIR, LINE = (2, 3), (1, 6)  # Of as many patches.


@pytest.mark.parametrize(
    ("length", "choices", "given", "expected"),
    [
        (17, (0, 1), {}, (1, (4, 4))),
        (16, (0, 1), {}, (0, (4, 4))),
        (1, (0, 1), {}, (0, (1, 1))),
        (6, (0, 1), {"stated": PAIR}, (0, PAIR)),
        (7, (0, 1), {"stated": PAIR}, (1, PAIR)),
        (6, (0,), {"stated": PAIR, "hinted": LINE}, (0, PAIR)),
        (6, (0,), {"source_grid": LINE, "stated": PAIR}, (0, LINE)),
        (6, (0,), {"stated": (5, 5), "hinted": PAIR}, (0, PAIR)),
        # A square is likelier than the wanted image's grid, but not than what the file says.
        (16, (0,), {"hinted": (2, 8)}, (0, (4, 4))),
        (16, (0,), {"stated": (2, 8)}, (0, (2, 8))),
        # Of two counts of other tokens the one that leaves the known grid.
        (10, (0, 1), {"hinted": (3, 3)}, (1, (3, 3))),
        (9, (0, 5), {"stated": (2, 2)}, (5, (2, 2))),
        (9, (0, 5), {"hinted": (3, 3), "stated": (2, 2)}, (5, (2, 2))),
        (9, (0, 5), {"source_grid": [2, 2], "stated": (3, 3)}, (5, (2, 2))),
    ],
)
def test_grids(length, choices, given, expected):
    grids = {"source_grid": None, "stated": None, "hinted": None, **given}
    assert find_grid(length, choices, **grids) == expected


@pytest.mark.parametrize(
    ("length", "choices", "given", "message"),
    [
        (6, (0, 1), {}, "6 position embeddings is not known: give source_grid=(rows, columns)."),
        (9, (0, 5), {}, "9 position embeddings is not known"),  # Two fit.
        (16, (0,), {"source_grid": (3, 5)}, "source_grid=(rows, columns); (3, 5) does not fit."),
        # Who says it knows it, whatever else would fit.
        (16, (0,), {"source_grid": (3, 5), "stated": (2, 8)}, "(3, 5) does not fit."),
        (16, (0,), {"source_grid": (3, 5), "hinted": (2, 8)}, "(3, 5) does not fit."),
    ],
)
def test_grids_that_nothing_tells(length, choices, given, message):
    grids = {"source_grid": None, "stated": None, "hinted": None, **given}
    with pytest.raises(WeightsError, match=re.escape(message)):
        find_grid(length, choices, **grids)


def test_grids_of_relative_positions():
    none = {"source_grid": None, "stated": None, "hinted": None}
    table = num_offsets((3, 3)) + 3
    assert find_grid(table, (3,), **none, entries=num_offsets) == (3, (3, 3))
    with pytest.raises(WeightsError, match="10 rows of relative positions"):
        find_grid(10, (0,), **none, entries=num_offsets)


def test_squares():
    assert [square(count) for count in (0, 1, 8, 9, 10, -4)] == [
        None,
        (1, 1),
        None,
        (3, 3),
        *[None] * 2,
    ]
    assert square(25, num_offsets) == (3, 3)
    assert math.prod(square(10**6)) == 10**6
