"""Resizing against scipy, JAX and the properties that define it."""

import jax
import numpy as np
import pytest
import scipy.ndimage

from tests.published import GOLDEN
from vit_jax.errors import WeightsError
from vit_jax.weights.resampling import (
    BILINEAR_CORNER,
    resize_bias,
    resize_channels,
    resize_matrix,
    resize_patches,
    resize_positions,
)

GRIDS = [((14, 14), (24, 24)), ((14, 14), (8, 8)), ((14, 20), (10, 16)), ((14, 14), (7, 28))]


def random(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize(("old", "new"), [(7, 12), (14, 24), (14, 7), (4, 9)])
def test_positions_are_resized_as_the_reference_does(old, new):
    with np.load(GOLDEN / "posemb_resize.npz") as file:
        table, expected = file[f"in_{old}_{new}"], file[f"out_{old}_{new}"]
    resized = resize_positions(table, (old, old), (new, new))
    np.testing.assert_allclose(resized, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("old", "new"), GRIDS)
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_any_grid_equals_scipys_zoom(old, new, prefix):
    table = random(1, prefix + old[0] * old[1], 8)
    resized = resize_positions(table, old, new)
    zoom = (new[0] / old[0], new[1] / old[1], 1)
    expected = scipy.ndimage.zoom(table[0, prefix:].reshape(*old, 8), zoom, order=1)
    np.testing.assert_array_equal(resized[:, :prefix], table[:, :prefix])
    np.testing.assert_allclose(resized[0, prefix:].reshape(*new, 8), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "kind", "antialias"), [("bilinear", "linear", False), ("bicubic", "cubic", True)]
)
@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_peers_resizes_equal_jaxs(method, kind, antialias, old, new):
    table = random(1, 1 + old[0] * old[1], 8)
    resized = resize_positions(table, old, new, method)
    expected = jax.image.resize(table[0, 1:].reshape(*old, 8), (*new, 8), kind, antialias=antialias)
    np.testing.assert_allclose(resized[0, 1:].reshape(*new, 8), expected, rtol=0, atol=1e-5)


def test_stacked_tables_are_resized_one_by_one():
    tables = random(3, 1, 17, 8)
    resized = resize_positions(tables, (4, 4), (5, 6))
    for table, expected in zip(tables, resized, strict=True):
        np.testing.assert_allclose(
            resize_positions(table, (4, 4), (5, 6)), expected, rtol=0, atol=1e-6
        )


def test_the_same_grid_leaves_the_table_alone():
    table = random(1, 17, 8)
    assert resize_positions(table, (4, 4), (4, 4)) is table


def test_one_point_and_unknown_methods():
    np.testing.assert_array_equal(resize_matrix(5, 1, "bilinear_corner"), [[1, 0, 0, 0, 0]])
    np.testing.assert_array_equal(resize_matrix(1, 3, "bilinear_corner"), np.ones((3, 1)))
    with pytest.raises(WeightsError, match="'nearest': must be one of auto, bilinear_corner"):
        resize_matrix(5, 3, "nearest")


@pytest.mark.parametrize("new", [(16, 16), (16, 8), (12, 20)])
def test_larger_patches_give_the_same_tokens_of_resized_patches(new):
    """Equation 3 of FlexiViT: <x, w> = <resize(x), resized w> for every patch x."""
    kernel, patch = random(8, 8, 3, 4), random(8, 8, 3)
    larger = jax.image.resize(patch, (*new, 3), "linear", antialias=False)
    tokens = np.einsum("pqc,pqcd->d", patch, kernel)
    resized = np.einsum("pqc,pqcd->d", larger, resize_patches(kernel, new))
    np.testing.assert_allclose(resized, tokens, rtol=0, atol=2e-5)


def test_smaller_patches_are_the_least_squares_solution():
    kernel = random(8, 8, 1, 1)
    matrix = np.asarray(
        jax.image.resize(np.eye(64).reshape(64, 8, 8), (64, 4, 4), "linear", antialias=False)
    ).reshape(64, 16)
    expected = np.linalg.lstsq(matrix, kernel.reshape(64), rcond=None)[0]
    np.testing.assert_allclose(
        resize_patches(kernel, (4, 4)).reshape(16), expected, rtol=0, atol=1e-5
    )


def test_a_gray_picture_gives_the_tokens_of_its_rgb_copy():
    kernel, gray = random(4, 4, 3, 5), random(4, 4, 1)
    tokens = np.einsum("pqc,pqcd->d", np.repeat(gray, 3, axis=-1), kernel)
    summed = np.einsum("pqc,pqcd->d", gray, resize_channels(kernel, 1))
    np.testing.assert_allclose(summed, tokens, rtol=0, atol=1e-5)


def test_more_channels_repeat_the_old_ones():
    kernel = random(4, 4, 3, 5)
    two = kernel[:, :, :2]
    np.testing.assert_array_equal(resize_channels(two, 1)[:, :, 0], two.sum(axis=2))
    resized = resize_channels(kernel, 5)
    assert resized.shape == (4, 4, 5, 5)
    np.testing.assert_allclose(resized[:, :, 3], kernel[:, :, 0] * 3 / 5, rtol=1e-6)


def test_cubic_resize_without_antialiasing_equals_torchs():
    """Recorded from torch.nn.functional.interpolate(mode="bicubic"), torch 2.13.0."""
    with np.load(GOLDEN / "posemb_bicubic_torch.npz") as file:
        for key in file:
            if key.startswith("in_"):
                rows, columns, *new = map(int, key.split("_")[1:])
                resized = resize_positions(file[key], (rows, columns), tuple(new), "bicubic_torch")
                expected = file[key.replace("in_", "out_")]
                np.testing.assert_allclose(resized, expected, rtol=0, atol=1e-5)


def test_an_oblong_bias_keeps_its_other_rows_behind_the_offsets():
    table = random(3 * 5 + 3, 2)  # Of 2 x 3 patches.
    resized = resize_bias(table, (2, 3), (4, 3), BILINEAR_CORNER)
    np.testing.assert_array_equal(resized[-3:], table[-3:])
    expected = resize_positions(table[:-3], (3, 5), (7, 5))
    np.testing.assert_allclose(resized[:-3], expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        resize_bias(table[:-3], (2, 3), (4, 3), BILINEAR_CORNER), expected, rtol=0, atol=1e-6
    )
