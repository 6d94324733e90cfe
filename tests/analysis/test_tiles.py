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
    assert tiles.tile_size((1, 500)) == (128, 1)
    assert tiles.tile_size((30, 20)) == (85, 128)


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


def test_an_image_is_enlarged_by_its_pixels_and_made_smaller_smoothly():
    stripes = np.tile(np.array([0, 255], np.uint8), 50)[None, :, None].repeat(20, axis=0)
    assert set(np.unique(tiles.as_tile(stripes))) == {0, 255}
    larger = np.tile(stripes, (1, 2, 1))  # Its longer side is longer than a tile's.
    smaller = tiles.as_tile(larger)
    assert smaller.shape == (13, 128, 3)
    assert len(np.unique(smaller)) > 2
    assert (tiles.as_tile(np.full((4, 8, 3), [300, -5, 99.9])) == [255, 0, 99]).all()


def test_the_strongest_is_coloured_whatever_its_sign():
    picture = np.full((4, 8, 3), [30, 90, 180], np.uint8)  # Grey of it: 100.
    warm = tiles.coloured(picture, np.full((1, 2), 0.5))
    assert (warm == (0.25 * 100 + 0.75 * tiles.WARM).astype(np.uint8)).all()
    left, right = halves(tiles.coloured(picture, np.array([[0.5, -2.0]])))
    cold = (0.25 * 100 + 0.75 * tiles.COLD).astype(np.uint8)
    assert (right[:, -1] == cold).all()
    assert 110 < left[0, 0, 0] < 170


def test_a_frame_is_one_pixel_wide():
    tile = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    found = tiles.framed(tile)
    assert found.shape == tile.shape
    np.testing.assert_array_equal(found[1:-1, 1:-1], tile[1:-1, 1:-1])
    edge = np.ones((4, 5), bool)
    edge[1:-1, 1:-1] = False
    assert (found[edge] == tiles.GREY).all()


def test_shares_are_of_their_range():
    left, right = halves(tiles.lit(GREY, np.array([[0.75, 0.5]])))
    assert left[0, 0, 0] > 180 > 20 > right[0, -1, 0]
