"""The tables' grammar, and their transforms against plain definitions."""

import numpy as np
import pytest

from vit_jax.errors import WeightsError
from vit_jax.weights import huggingface_classes, npz, state_dict, timm_table
from vit_jax.weights.mapping import (
    DENSE,
    HEADS,
    HEADS_OUT,
    Row,
    fill_name,
    fused_heads,
    match_name,
    read_table,
    table,
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
