"""Which option of a model may differ from the file's, and how: every one, by itself; no model is made."""

import dataclasses

import numpy as np
import pytest

from vit_jax.errors import WeightsError
from vit_jax.model_file import ModelFile, Preprocessing
from vit_jax.models import model_options
from vit_jax.models.hybrid import HybridOptions
from vit_jax.models.mixer import MixerOptions
from vit_jax.models.resnet import ResNetOptions
from vit_jax.weights.adapt import (
    Adaptation,
    Report,
    Row,
    fit_bias,
    fit_line,
    fit_positions,
    format_shape,
)
from vit_jax.weights.content import Weights
from vit_jax.weights.equivalence import HEAD, Form
from vit_jax.weights.resampling import resize_bias, resize_matrix, resize_positions

VIT = {
    **{"width": 24, "depth": 3, "mlp_width": 40, "num_heads": 2, "patch_size": (4, 2)},
    **{"image_size": (12, 8), "num_classes": 7},
}
HYBRID = {**VIT, "patch_size": 1, "image_size": 64, "stem_depths": (1,)}
MIXER = {name: VIT[name] for name in VIT if name != "num_heads"} | {"token_mlp_width": 9}
NAMES = {"ViT-Ti/16": VIT, "R26+ViT-S/32": HYBRID, "Mixer-B/16": MIXER, "BiT-R50x1": {}}
# Options that keep a file from being used, and another value of each.
FIXED = {
    **{"width": 48, "depth": 2, "mlp_width": 41, "num_heads": 3, "query_key_norm": True},
    **{"mlp": "swiglu", "mlp_norm": True, "attention_norm": True, "pre_norm": True},
    **{"final_norm": False, "token_mlp_width": 10, "stage_depths": (1, 2), "width_factor": 2.0},
    **{"preactivation": False, "stem_depths": (2,), "stem_width_factor": 0.5},
}
# Those that change what a model computes, though no shape of a parameter.
SILENT = {
    **{"gelu": "erf", "norm_epsilon": 1e-5, "group_norm_epsilon": 1e-4, "kernel_epsilon": 1e-4},
    **{"stem_group_norm_epsilon": 1e-4, "stem_kernel_epsilon": 1e-4, "pooling": "average"},
    **{"distillation_token": True, "norm_after_pooling": True, "pool_padding": "infinity"},
    **{"positions": "rotary_2d", "position_placement": "every_layer"},
    **{"relative_position_bias": "every_layer", "rotary_temperature": 50.0},
    **{"rotary_coordinates": "centred", "rotary_reference": 5},
}
# Those that need another head.
HEAD_OPTIONS = {"num_classes": 8, "representation_size": 11, "head_norm": "batch"}
# Those that a resize, a rewrite or nothing bridges, and those of training and of execution.
FREE = {
    *("image_size", "patch_size", "channels", "layer_scale", "qkv_bias", "class_token"),
    *("num_registers", "prefix_positions", "head_bias", "position_std", "kernel_std", "dtype"),
    *("dropout_rate", "attention_dropout_rate", "dropout_bits", "stochastic_depth_rate"),
    *("stochastic_depth_schedule", "patch_dropout_rate", "attention", "scan_unroll", "remat"),
    "matmul_precision",
}


def models_with(option):
    """A model for each family that has the option, and its options."""
    for name, options in NAMES.items():
        complete = model_options(name, **options)
        if option in {field.name for field in dataclasses.fields(complete)}:
            yield name, complete


def adaptation(name, there, here):
    weights = Weights("FILE", {}, ModelFile(name, dataclasses.asdict(there)))
    return Adaptation(weights=weights, options=here)


def test_every_option_is_of_one_kind():
    classes = {type(model_options(name, **options)) for name, options in NAMES.items()}
    assert classes >= {HybridOptions, MixerOptions, ResNetOptions}
    every = {field.name for each in classes for field in dataclasses.fields(each)}
    assert every == {*FIXED, *SILENT, *HEAD_OPTIONS, *FREE}
    assert len(every) == len(FIXED) + len(SILENT) + len(HEAD_OPTIONS) + len(FREE)


@pytest.mark.parametrize("option", FIXED)
def test_what_no_resize_bridges_is_refused(option):
    for name, there in models_with(option):
        here = dataclasses.replace(there, **{option: FIXED[option]})
        adaptation(name, there, there).check_architecture()
        theirs, ours = getattr(there, option), getattr(here, option)
        message = rf"FILE has {option}={theirs}, the model {option}={ours}: set model.{option}="
        for escaped in "()":
            message = message.replace(escaped, f"\\{escaped}")
        with pytest.raises(WeightsError, match=message):
            adaptation(name, there, here).check_architecture()


@pytest.mark.parametrize("option", SILENT)
def test_what_changes_the_function_is_said(option):
    for name, there in models_with(option):
        here = dataclasses.replace(there, **{option: SILENT[option]})
        found = adaptation(name, there, here)
        found.check_architecture()
        theirs, ours = getattr(there, option), getattr(here, option)
        said = f"Note: the weights are for {option}={theirs!r}; the model has {option}={ours!r}."
        assert list(found.notes(Form({}, there))) == [said]
        assert list(found.notes(Form({}, here))) == []  # It was rewritten.


@pytest.mark.parametrize("option", HEAD_OPTIONS)
def test_another_head_starts_fresh(option):
    for name, there in models_with(option):
        here = dataclasses.replace(there, **{option: HEAD_OPTIONS[option]})
        found, no_layer = adaptation(name, there, here), np.array([False])
        form = Form({HEAD: np.zeros(1), "norm/scale": np.zeros(1)}, there)
        assert found.why_fresh(form, HEAD, no_layer) == (
            f"{option}={getattr(there, option)} in the file"
        )
        assert found.why_fresh(form, "norm/scale", no_layer) == ""
        assert found.why_fresh(form, "x", no_layer) == "not in the file"
        assert found.why_fresh(form._replace(added={"x": 0}), "x", no_layer) == "", "made here"
        assert found.why_fresh(form._replace(options=here), HEAD, no_layer) == ""


@pytest.mark.parametrize("family", NAMES)
def test_another_family_is_named(family):
    there = model_options(family, **NAMES[family])
    here = model_options("Mixer-B/16" if family == "ViT-Ti/16" else "ViT-Ti/16")
    words = {"ViT-Ti/16": "ViT", "R26+ViT-S/32": "Hybrid", "Mixer-B/16": "Mixer"}
    theirs, ours = words.get(family, "ResNet"), "Mixer" if family == "ViT-Ti/16" else "ViT"
    with pytest.raises(WeightsError, match=f"FILE holds a {theirs}, not a {ours}"):
        adaptation(family, there, here).check_architecture()


def test_a_report_counts_and_shows_shapes():
    rows = [
        *[Row("loaded", f"l{i}", (2, 3), (2, 3)) for i in range(5)],
        *[Row("rewritten", f"w{i}", (), ()) for i in range(4)],
        *[Row("resized", f"z{i}", (4,), (5,), "4 → 5") for i in range(3)],
        *[Row("fresh", f"f{i}", None, (7,)) for i in range(2)],
        Row("skipped", "s", (8,), None, "unknown"),
    ]
    text = str(Report("FILE", tuple(rows), ("Note.",)))
    head, *_, last = text.splitlines()
    expected = "5 loaded, 4 rewritten, 3 resized, 2 fresh, 1 skipped"
    assert (head, last) == (f"Weights from FILE: {expected}.", "Note.")
    cells = [line.split() for line in text.splitlines()]
    assert ["rewritten", "w0", "scalar", "scalar"] in cells
    assert ["fresh", "f0", "–", "7"] in cells
    assert ["skipped", "s", "8", "–", "unknown"] in cells
    assert [format_shape(shape) for shape in (None, (), (5,), (12, 768))] == [
        *("–", "scalar", "5", "12×768")
    ]


def options(**changes):
    return model_options("ViT-Ti/16", **{**VIT, **changes})


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


TOKENS = {"distillation_token": True, "num_registers": 2}


@pytest.mark.parametrize(
    ("there", "here", "rows"),
    [
        ({}, TOKENS, [0, None, None, None]),
        (TOKENS, {}, [0]),
        (TOKENS, {"num_registers": 1}, [0, 2]),
        (TOKENS, {"num_registers": 3, "pooling": "average"}, [2, 3, None]),
        (TOKENS, {"distillation_token": True}, [0, 1]),
        (TOKENS, {"prefix_positions": False, **TOKENS}, []),
        ({"prefix_positions": False}, TOKENS, [None] * 4),
    ],
)
def test_rows_of_positions_follow_their_tokens(there, here, rows):
    """The class token's is the first, then that of the distillation token, then the registers'."""
    there, here = options(**there), options(**here)
    had = there.num_prefix_tokens * there.prefix_positions
    table = random(1, had + 12, 24)
    found, note = fit_positions(table, there, here, "bicubic_torch")
    np.testing.assert_array_equal(found[:, len(rows) :], table[:, had:])
    for row, source in enumerate(rows):
        expected = np.zeros(24) if source is None else table[0, source]
        np.testing.assert_array_equal(found[0, row], expected)
    assert note == f"rows before the patches {had} → {len(rows)}"


def test_positions_of_another_grid_and_other_tokens():
    there, here = options(), options(image_size=(16, 10), num_registers=1)
    table = random(1, 1 + 12, 24)
    found, note = fit_positions(table, there, here, "bicubic_torch")
    assert note == "grid 3×4 → 4×5, bicubic_torch, rows before the patches 1 → 2"
    expected = resize_positions(table, (3, 4), (4, 5), "bicubic_torch")
    np.testing.assert_array_equal(found[:, 2:], expected[:, 1:])
    np.testing.assert_array_equal(found[:, 0], table[:, 0])
    assert fit_positions(table, there, options(), "bicubic_torch") == (table, "")
    larger = options(image_size=(24, 16), patch_size=(8, 4))  # In as many patches.
    assert fit_positions(table, there, larger, "bicubic_torch") == (table, "")


BIAS = {"relative_position_bias": "every_layer"}


def test_a_bias_of_another_grid_and_without_other_tokens():
    there, here = options(**BIAS), options(**BIAS, image_size=(16, 10), pooling="average")
    table = random(3, 5 * 7 + 3, 2)
    found, note = fit_bias(table, there, here, "geometric")
    assert note == "grid 3×4 → 4×5, geometric, rows of the tokens before the patches 3 → 0"
    resized = resize_bias(table, (3, 4), (4, 5), "geometric")
    np.testing.assert_array_equal(found, resized[:, : 7 * 9])
    back, note = fit_bias(found, here, there, "geometric")
    assert note.endswith("rows of the tokens before the patches 0 → 3")
    assert back.shape == table.shape
    assert not back[:, -3:].any()
    assert fit_bias(table, there, there, "geometric") == (table, "")
    larger = options(**BIAS, image_size=(24, 16), patch_size=(8, 4))  # In as many patches.
    assert fit_bias(table, there, larger, "geometric") == (table, "")


def test_a_line_of_positions():
    line = random(2, 3, 12)
    found, note = fit_line(line, 3, 5, "bilinear_corner")
    np.testing.assert_array_equal(found, resize_matrix(3, 5, "bilinear_corner") @ line)
    assert note == "3 → 5, bilinear_corner"
    assert fit_line(line, 3, 3, "bilinear_corner") == (line, "")


@pytest.mark.parametrize(("channels", "mean", "count"), [(3, (0.1, 0.2, 0.3), 0), (1, (0.5,), 1)])
def test_a_standardised_root_is_another_with_other_channels(channels, mean, count):
    """And pixels of other channels are others if each had a mean of its own."""
    there = model_options("BiT-R50x1")
    here = dataclasses.replace(there, channels=channels)
    for own, more in ((mean, 0), ((0.1, 0.2, 0.3), int(channels != 3))):
        file = ModelFile("BiT-R50x1", dataclasses.asdict(there), Preprocessing(mean=own))
        weights = Weights("x", {"trunk/conv_root/kernel": np.zeros(1)}, file)
        notes = list(Adaptation(weights=weights, options=here).notes(Form({}, here)))
        assert len(notes) == count + more
        assert all("fine-tune the model" in note for note in notes)
        assert not count or f"with {channels} of them" in notes[0]


def test_a_parameter_may_be_rewritten_and_then_resized():
    there, here = options(), options(image_size=(16, 10))
    table = random(1, 1 + 12, 24)
    weights = Weights("FILE", {"position_embedding": table + 1}, ModelFile("ViT-Ti/16", VIT))
    form = Form({"position_embedding": table}, there, changes={"position_embedding": "folded"})
    array, row = Adaptation(weights=weights, options=here, position_resize="bicubic_torch").adapt(
        form, "position_embedding", (1, 1 + 20, 24), None
    )
    assert row == (
        *("resized", "position_embedding", (1, 13, 24), (1, 21, 24)),
        "folded, grid 3×4 → 4×5, bicubic_torch",
    )
    np.testing.assert_array_equal(array, resize_positions(table, (3, 4), (4, 5), "bicubic_torch"))
    with pytest.raises(
        WeightsError,
        match=r"FILE: position_embedding has shape \(1, 21, 24\), but the model's is \(1, 3\)\. "
        "Leave it out with init_skip='position_embedding'",
    ):
        Adaptation(weights=weights, options=here).adapt(form, "position_embedding", (1, 3), None)


def test_what_was_assumed_and_remarked_comes_first():
    here = dataclasses.replace(options(), gelu="erf", norm_epsilon=1e-3)
    weights = Weights("x", {}, ModelFile("ViT-Ti/16", dataclasses.asdict(options())))
    weights = dataclasses.replace(weights, assumed=("A", "B"), remarks=("one", "two"))
    first, *rest = Adaptation(weights=weights, options=here).notes(Form({}, options()))
    assert first == "Assumed, as nothing says it: A, B."
    assert rest == [
        *("Note: one.", "Note: two."),
        "Note: the weights are for gelu='tanh'; the model has gelu='erf'.",
        "Note: the weights are for norm_epsilon=1e-06; the model has norm_epsilon=0.001.",
    ]
