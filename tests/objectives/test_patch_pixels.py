"""Patches of images that are not square, by hand."""

import numpy as np
import pytest

from vit_jax.errors import ConfigError
from vit_jax.models import model_options
from vit_jax.objectives.patch_pixels import (
    averaged,
    averaging,
    cut,
    join,
    pixels_of_a_patch,
    put,
    take,
)

IMAGES = np.arange(2 * 6 * 4 * 3).reshape(2, 6, 4, 3)


def test_patches_are_cut_row_by_row_and_joined_again():
    patches = np.asarray(cut(IMAGES, (3, 2)))
    assert patches.shape == (2, 6, 2, 2, 3)
    for number in range(6):
        row, column = divmod(number, 2)
        expected = IMAGES[:, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        np.testing.assert_array_equal(patches[:, number], expected)
    np.testing.assert_array_equal(join(patches, (3, 2)), IMAGES)
    tall = np.asarray(cut(IMAGES, (2, 4)))
    assert tall.shape == (2, 8, 3, 1, 3)
    np.testing.assert_array_equal(tall[:, 5], IMAGES[:, 3:, 1:2])
    np.testing.assert_array_equal(join(tall, (2, 4)), IMAGES)


def test_a_patch_has_the_pixels_of_the_image_over_the_grid():
    options = model_options("ViT-Ti/16", image_size=(32, 24), patch_size=(16, 4))
    assert pixels_of_a_patch(options) == (16, 4)
    hybrid = model_options("R+ViT-Ti/16", image_size=(64, 32), patch_size=(2, 1))
    assert pixels_of_a_patch(hybrid) == (8, 4)
    with pytest.raises(ConfigError, match="no multiple of the grid"):
        pixels_of_a_patch(model_options("R+ViT-Ti/16", image_size=(30, 32), patch_size=(1, 1)))


def test_means_are_of_the_parts_of_each_side():
    patch = np.random.default_rng(0).uniform(0, 255, (1, 1, 6, 4, 3))
    expected = patch.reshape(1, 1, 2, 3, 2, 2, 3).mean(axis=(3, 5))
    np.testing.assert_allclose(averaged(patch, 2), expected, rtol=1e-5)
    np.testing.assert_allclose(averaging(3, 2), [[2 / 3, 1 / 3, 0], [0, 1 / 3, 2 / 3]], rtol=1e-6)


def test_each_row_has_positions_of_its_own():
    values, positions = np.arange(8).reshape(2, 4), np.array([[3, 0], [1, 2]])
    np.testing.assert_array_equal(take(values, positions), [[3, 0], [5, 6]])
    found = put(values, positions, np.array([[90, 91], [92, 93]]))
    np.testing.assert_array_equal(found, [[91, 1, 2, 90], [4, 92, 93, 7]])
