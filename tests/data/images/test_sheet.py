"""Sheets of pictures, pixel by pixel."""

import numpy as np
import pytest

from tests.data.pictures import random_image
from vit_jax.data.images import sheet


def test_small_images_are_enlarged_in_whole_steps_over_their_lines():
    """The longer side, 5, by 20: to 96 pixels at least."""
    images = np.stack([random_image(3, 5, seed=seed) for seed in range(3)])
    drawn = sheet.draw(images, [["a", "b"], [], ["c"]])
    height, width = 60 + 2 * 14, 100 + 2
    assert drawn.shape == (2 * height, 2 * width, 3)
    for number, (row, column) in enumerate([(0, 0), (0, 1), (1, 0)]):
        tile = drawn[row * height :, column * width :][:height, :width]
        whole = images[number].repeat(20, 0).repeat(20, 1)
        np.testing.assert_array_equal(tile[1:59, 1:-1], whole[:58])
        assert (tile[0] == 255).all()
        below = [(tile[top : top + 14] < 128).any() for top in (62, 76)]
        assert below == [[True, True], [False, False], [True, False]][number]
    assert (drawn[height:, width:] == 0).all(), "there is no fourth"


@pytest.mark.parametrize(("shape", "expected"), [((200, 300), (128, 192)), ((192, 96), (192, 96))])
def test_large_images_are_made_smaller_and_others_are_left(shape, expected):
    drawn = sheet.draw(np.full((1, *shape, 1), 77, np.uint8), [[]])
    assert drawn.shape == (expected[0], expected[1] + 2, 3)
    assert (drawn[1:, 1:-1] == 77).all()


def test_grids_are_nearly_square_and_read_row_by_row():
    images = np.arange(1, 8, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 1, 1), np.uint8)
    grid = sheet.image_grid(images)[..., 0]
    assert grid[::2].tolist() == grid[1::2].tolist() == [[1, 2, 3], [4, 5, 6], [7, 0, 0]]
    assert sheet.image_grid(images[:2]).shape == (2, 2, 1)
    assert sheet.image_grid(images[:6])[::2, :, 0].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_pixels_of_any_channels():
    values = np.float32([-3, 0.6, 254.4, 300, 9])
    for channels, shown in ((1, [0]), (2, [0]), (3, [0, 1, 254]), (5, [0, 1, 254])):
        found = sheet.as_pixels(values[None, None, None, :channels])
        assert (found.dtype, found.ravel().tolist()) == (np.uint8, shown)
