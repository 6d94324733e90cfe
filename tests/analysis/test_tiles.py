"""Tiles: sizes, and that brightness and colour stand where the values are."""

import numpy as np

from vit_jax.analysis import tiles

GREY = np.full((4, 8, 1), 200, np.uint8)
LEFT = np.array([[1.0, 0.0]])


def halves(tile):
    middle = tile.shape[1] // 2
    return tile[:, : middle // 2], tile[:, -middle // 2 :]


def test_a_tile_keeps_the_image_s_shape():
    assert tiles.as_tile(GREY).shape == (64, 128, 3)
    assert tiles.as_tile(np.zeros((500, 250, 3))).shape == (128, 64, 3)
    assert (tiles.as_tile(GREY) == 200).all()


def test_shares_are_brightness():
    left, right = halves(tiles.lit(GREY, LEFT))
    assert left.mean() > 150 > 50 > right.mean()
    assert (tiles.lit(GREY, np.ones((1, 2))) == 0).all()  # No patch more than another.


def test_signs_are_colours():
    left, right = halves(tiles.coloured(GREY, np.array([[1.0, -1.0]])))
    assert left[..., 0].mean() > left[..., 2].mean() + 50  # Warm: red over blue.
    assert right[..., 2].mean() > right[..., 0].mean() + 50
    np.testing.assert_array_equal(tiles.coloured(GREY, np.zeros((1, 2))), tiles.as_tile(GREY))


def test_patches_are_as_large_as_the_image():
    colors = np.array([[[1.0, 0, 0], [0, 0, 1.0]]])
    tile = tiles.patches_as_tile(GREY, colors)
    assert tile.shape == (64, 128, 3)
    assert (tile[:, :64] == [255, 0, 0]).all()


def test_rows_are_filled_up_with_white():
    black = np.zeros((2, 3, 3), np.uint8)
    sheet = tiles.in_rows([black] * 3, columns=2)
    assert sheet.shape == (2 + tiles.GAP + 2, 3 + 3 * tiles.GAP + 3, 3)
    assert (sheet[-2:, -3:] == 255).all()
    assert (sheet[:2, :3] == 0).all()
    assert tiles.side_by_side([black, black]).shape == (2, 6 + tiles.GAP, 3)
