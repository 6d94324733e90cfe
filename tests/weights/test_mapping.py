"""The tables' grammar, and their transforms against plain definitions."""

import re

import numpy as np
import pytest

from vit_jax.errors import WeightsError
from vit_jax.weights import huggingface_classes, npz, state_dict, timm_table
from vit_jax.weights.mapping import (
    CONVOLUTION,
    DENSE,
    GROUP_NORM,
    HEADS,
    HEADS_OUT,
    ONE_LONG,
    ONE_TOKEN,
    POINTWISE,
    POINTWISE_HEAD,
    VECTOR,
    Row,
    best_table,
    fill_name,
    fused_heads,
    match_name,
    read_table,
    renamed,
    table,
    to_float32,
    write_table,
)


def test_alternatives_are_written_out_in_pairs():
    rows = table(Row("norm{1,2}.{weight,bias}", "blocks/norm{a,b}/{scale,bias}"))
    assert [(row.theirs, row.ours[0]) for row in rows] == [
        ("norm1.weight", "blocks/norma/scale"),
        ("norm1.bias", "blocks/norma/bias"),
        ("norm2.weight", "blocks/normb/scale"),
        ("norm2.bias", "blocks/normb/bias"),
    ]


def test_placeholders_count_from_zero_or_have_two_digits():
    template = "stages.{stage-1}.unit{unit:02}.conv"
    assert match_name(template, "stages.0.unit03.conv") == {"stage": 1, "unit": 3}
    assert fill_name(template, {"stage": 1, "unit": 3}) == "stages.0.unit03.conv"
    assert match_name(template, "stages.0.unit03.conv.bias") is None
    assert fill_name("block{stage}/{layer}", {"stage": 2}) == "block2/{layer}"


TABLES = {
    **{f"npz {number}": rows for number, rows in enumerate(npz.TABLES)},
    **{f"timm {name}": getattr(timm_table, name) for name in ("VIT", "MIXER", "BIT", "READ")},
    **{kind.name: kind.rows for kind in huggingface_classes.CLASSES},
    "clip": state_dict.CLIP.rows,
    "torchvision": state_dict.TORCHVISION.rows,
}


@pytest.mark.parametrize("name", TABLES)
def test_each_row_reads_what_it_writes(name):
    """No row of a table hides another: every name in the file leads to the row's own parameters."""
    rows = TABLES[name]
    for row in rows:
        name = fill_name(row.theirs, {"layer": 11, "stage": 3, "unit": 10})
        first = next(other for other in rows if match_name(other.theirs, name) is not None)
        assert first.ours == row.ours


KINDS = {"kernel": "weight", "scale": "weight", "gamma": "weight", "beta": "bias"}
NUMBER = re.compile(
    r"(?:norm|conv|fc|gn|dense|linear_|l[ns]_?|gamma_|lambda_|layer_scale)([1-3])\b"
)


@pytest.mark.parametrize("name", TABLES)
def test_both_names_of_a_row_say_the_same(name):
    """A weight or a bias, and the first or the second of several, where both say it."""
    for row in TABLES[name]:
        number = NUMBER.search(row.theirs)
        for ours in row.ours:
            kinds = [re.split(r"[._/]", each)[-1] for each in (row.theirs, ours)]
            theirs, kind = (KINDS.get(each, each) for each in kinds)
            if kind in ("weight", "bias") and theirs in ("weight", "bias"):
                assert theirs == kind, row
            if number and (found := NUMBER.search(ours)):
                assert number[1] == found[1], row
            assert ("downsample" in row.theirs) <= ("projection" in ours), row
        parts = [ours.split("/")[-2] for ours in row.ours if len(row.ours) > 1]
        assert parts in ([], ["query", "key", "value"], ["key", "value"], ["gate", "dense1"]), row


def test_heads_are_split_as_pytorch_splits_them():
    width, heads, rng = 6, 3, np.random.default_rng(0)
    weight, bias, x = rng.normal(size=(6, 6)), rng.normal(size=6), rng.normal(size=(5, width))
    expected = (x @ weight.T + bias).reshape(5, heads, 2)
    (kernel,), (flat_bias,) = HEADS.read(weight, heads), HEADS.read(bias, heads)
    np.testing.assert_allclose(np.einsum("nd,dhk->nhk", x, kernel) + flat_bias, expected)
    np.testing.assert_array_equal(HEADS.write(kernel), weight)
    np.testing.assert_array_equal(HEADS.write(flat_bias), bias)


def test_output_heads_are_merged_as_pytorch_merges_them():
    heads, rng = 3, np.random.default_rng(0)
    weight, x = rng.normal(size=(4, 6)), rng.normal(size=(5, heads, 2))
    (kernel,) = HEADS_OUT.read(weight, heads)
    expected = x.reshape(5, 6) @ weight.T
    np.testing.assert_allclose(np.einsum("nhk,hkd->nd", x, kernel), expected)
    np.testing.assert_array_equal(HEADS_OUT.write(kernel), weight)


def test_fused_projections_are_stacked_in_order():
    weight = np.random.default_rng(0).normal(size=(18, 6))
    parts = fused_heads(3).read(weight, 3)
    for index, part in enumerate(parts):
        np.testing.assert_array_equal(part, HEADS.read(weight[6 * index : 6 * index + 6], 3)[0])
    np.testing.assert_array_equal(fused_heads(3).write(*parts), weight)


def test_layers_are_stacked_in_numeric_order():
    rows = table(Row("layer.{layer}.w", "blocks/w"))
    tensors = {
        f"layer.{index}.w": np.full(2, index, np.float32) for index in (10, 2, 0, 1, *range(3, 10))
    }
    np.testing.assert_array_equal(read_table(rows, tensors).parameters["blocks/w"][:, 0], range(11))


def test_a_missing_or_odd_layer_is_named():
    rows = table(Row("layer.{layer}.{w,b}", "blocks/{w,b}"))
    tensors = {
        f"layer.{index}.{name}": np.ones(2, np.float32) for index in range(3) for name in "wb"
    }
    with pytest.raises(WeightsError, match=r"layer\.1\.b is missing, though there are 3 blocks"):
        read_table(rows, {key: value for key, value in tensors.items() if key != "layer.1.b"})
    with pytest.raises(WeightsError, match=r"layer\.2\.w has shape \(3,\).* \(2,\)"):
        read_table(rows, {**tensors, "layer.2.w": np.ones(3, np.float32)})


def test_unknown_names_are_returned_and_homeless_parameters_refused():
    rows = table(Row("w", "kernel", DENSE))
    reading = read_table(rows, {"w": np.ones((2, 3), np.float32), "other": np.ones(1, np.float32)})
    assert reading.parameters["kernel"].shape == (3, 2)
    assert reading.unknown == ("other",)
    assert reading.file_names == {"kernel": "w"}
    with pytest.raises(WeightsError, match="no tensor for registers"):
        write_table(
            rows,
            {"kernel": np.ones((3, 2), np.float32), "registers": np.ones(1, np.float32)},
            options=None,
        )


def test_layouts_of_convolutions_and_vectors():
    weight = np.random.default_rng(0).normal(size=(2, 3, 4, 5))  # Out, in, height, width.
    (kernel,) = CONVOLUTION.read(weight, 0)
    assert kernel.shape == (4, 5, 3, 2)
    assert kernel[1, 2, 0, 1] == weight[1, 0, 1, 2]
    np.testing.assert_array_equal(CONVOLUTION.write(kernel), weight)
    for transform in (CONVOLUTION, POINTWISE, POINTWISE_HEAD):
        assert transform.read(weight[0, 0, 0], 0)[0].shape == transform.write(np.ones(5)).shape
    (dense,) = POINTWISE.read(weight[:1, :1], 0)
    np.testing.assert_array_equal(dense, weight[0, 0])
    np.testing.assert_array_equal(POINTWISE.write(dense), weight[:1, :1])
    (head,) = POINTWISE_HEAD.read(weight[:, :, :1, :1], 0)  # PyTorch's 1x1 convolution.
    np.testing.assert_array_equal(head, weight[:, :, 0, 0].T)
    np.testing.assert_array_equal(POINTWISE_HEAD.write(head), weight[:, :, :1, :1])
    row = np.arange(3.0).reshape(1, 1, 1, 3)
    for transform, shape in ((ONE_LONG, (1, 2, 3)), (ONE_TOKEN, (1, 1, 3))):
        flat = weight[0, :2, 0, :3] if transform is ONE_LONG else weight[0, 0, 0, :3]
        assert transform.read(flat, 0)[0].shape == shape
        np.testing.assert_array_equal(transform.write(*transform.read(flat, 0)), flat)
    for transform in (VECTOR, GROUP_NORM):
        np.testing.assert_array_equal(transform.read(row, 0)[0], row[0, 0, 0])
    assert VECTOR.write(np.ones(3)).shape == (3,)
    np.testing.assert_array_equal(GROUP_NORM.write(row[0, 0, 0]), row)


def test_numbers_of_four_digits():
    assert match_name("layer.{layer}.w", "layer.1234.w") == {"layer": 1234}
    assert match_name("layer.{layer}.w", "layer.12345.w") is None


def test_what_is_read_is_float32():
    halves = np.array([1.5, -2.0], np.float16)
    assert to_float32(halves).dtype == np.float32
    assert to_float32(np.array([1.5])).dtype == np.float32
    counts, others = np.array([3]), np.zeros(2, "V3")
    assert to_float32(counts) is counts
    assert to_float32(others) is others  # Two bytes alone are bfloat16.
    bits = np.array([0x3FC0, 0xC000], np.uint16).view("V2")
    np.testing.assert_array_equal(to_float32(bits), [1.5, -2.0])
    assert np.isinf(to_float32(np.array([1e300]))).all()


def test_two_names_of_one_parameter():
    rows = table(Row("first.{layer}", "p"), Row("second.{layer}", "p"))
    one = np.ones(2, np.float32)
    with pytest.raises(WeightsError, match=r"^second\.0 and first\.0 are the same parameter"):
        read_table(rows, {"second.0": one, "first.0": one})
    assert read_table(rows, {"second.0": one, "first.1": one}).parameters["p"].shape == (2, 2)
    with pytest.raises(WeightsError, match=r"^a and b are the same parameter: remove one"):
        renamed([("a", "x", one), ("c", "y", one), ("b", "x", one)])


def test_shapes_that_cannot_be():
    rows = table(Row("w", "kernel", HEADS))
    with pytest.raises(
        WeightsError, match=r"w has the impossible shape \(5, 2\) with 3 attention h"
    ):
        read_table(rows, {"w": np.ones((5, 2), np.float32)}, num_heads=3)
    plain = table(Row("w", "kernel", POINTWISE_HEAD))
    with pytest.raises(WeightsError, match=r"w has the impossible shape \(0, 2\)\.$"):
        read_table(plain, {"w": np.ones((0, 2), np.float32)})
    with pytest.raises(WeightsError, match="w holds int64 values"):
        read_table(rows, {"w": np.ones((6, 2), np.int64)}, num_heads=3)
    layers = table(Row("layer.{layer}.w", "blocks/w", ONE_LONG))
    with pytest.raises(WeightsError, match=r"^layer\.7\.w holds bool values, not floating-point"):
        read_table(layers, {"layer.7.w": np.ones(2, bool)})
    with pytest.raises(WeightsError, match=r"^layer\.7\.w has the impossible shape \(\)\.$"):
        read_table(layers, {"layer.7.w": np.ones((), np.float32)})


def test_of_tables_that_know_equally_much_the_first_is_taken():
    first, second = table(Row("a", "x"), Row("b", "y")), table(Row("a", "z"), Row("c", "y"))
    assert best_table((first, second), ["a", "d"]) is first
    assert best_table((second, first), ["a", "d"]) is second
    assert best_table((first, second), ["a", "c"]) is second
