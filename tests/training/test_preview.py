"""The picture of the first batch."""

import jax
import numpy as np
import pytest

from tests.states import mesh_of
from vit_jax.data.images.sheet import LINE_HEIGHT, draw, image_grid
from vit_jax.devices import sharding
from vit_jax.objectives.base import Labels, Objective
from vit_jax.objectives.classification import Classification
from vit_jax.objectives.mixing import Mixing, mixed_images, pair
from vit_jax.training.preview import (
    NUM_IMAGES,
    make_preview,
)

NAMES = ("cat", "dog", "élève", "猫")


def tiles_of(picture, height, width, lines=1):
    """The images in a picture, [N, height, width, 3], without their captions."""
    tall, wide = height + lines * LINE_HEIGHT, width + 2
    rows, columns = picture.shape[0] // tall, picture.shape[1] // wide
    assert picture.shape == (rows * tall, columns * wide, 3)
    tiles = picture.reshape(rows, tall, columns, wide, 3).swapaxes(1, 2)
    return tiles.reshape(-1, tall, wide, 3)[:, 1 : height + 1, 1:-1]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ([0, 1, 0, 0], ["dog"]),
        ([0.3, 0, 0, 0.7], ["70% 猫", "30% cat"]),
        ([0, 0, 0.5, 0.5], ["50% élève", "50% 猫"]),
        ([0, 0, 0, 0], []),
    ],
)
def test_a_caption_names_the_classes(target, expected):
    assert Objective({}, None, Labels(NAMES, 4)).captions(np.float32([target])) == [expected]


def test_without_names_a_caption_has_the_index():
    objective = Objective({}, None, Labels((), 3))
    assert (
        objective.captions(np.float32([[0, 0, 1]])) == objective.captions(np.int32([2])) == [["2"]]
    )


@pytest.mark.parametrize(
    ("size", "shown"), [((8, 8), (96, 96)), ((112, 150), (112, 150)), ((384, 192), (192, 96))]
)
def test_images_are_shown_at_a_size_to_be_seen(size, shown):
    images = np.full((5, *size, 3), 77, np.uint8)
    tiles = tiles_of(draw(images, [["cat"]] * 5), *shown)
    assert len(tiles) == 6
    assert (tiles[:5] == 77).all()


def test_small_images_keep_their_pixels_and_any_name_can_be_drawn():
    images = np.random.default_rng(0).integers(0, 256, (4, 24, 24, 1), np.uint8)
    picture = draw(images, [["cat"], ["50% élève", "50% 猫"], [], ["dog"]])
    tiles = tiles_of(picture, 96, 96, lines=2)
    np.testing.assert_array_equal(tiles[:, ::4, ::4, :1], images)
    # Dark text stands under the first image, none under the third.
    beneath = picture.reshape(2, 96 + 2 * LINE_HEIGHT, 2, 98, 3).swapaxes(1, 2)[:, :, 98:]
    assert (beneath[0, 0] < 128).any()
    assert (beneath[1, 0] > 128).all()


def test_image_grid_goes_row_by_row():
    images = np.arange(1, 6, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 3, 1), np.uint8)
    grid = image_grid(images)
    assert grid.shape == (4, 9, 1)
    np.testing.assert_array_equal(grid[::2, ::3, 0], [[1, 2, 3], [4, 5, 0]])


@pytest.mark.parametrize("alpha", [0.0, 0.8])
def test_the_picture_shows_what_the_step_learns_from(alpha):
    options, mesh = Classification.Options(mixing=Mixing(mixup_alpha=alpha)), mesh_of(8)
    objective = Classification(options, network=None, labels=Labels(NAMES, 4))
    batch = {
        "image": np.random.default_rng(0).integers(0, 256, (48, 96, 96, 3), np.uint8),
        "label": np.arange(48, dtype=np.int32) % 4,
        "mask": np.ones(48, bool),
    }
    batch = jax.device_put(batch, sharding.batch_sharding(mesh))
    picture = make_preview(objective, 5, mesh)(batch, 7)
    mix = jax.jit(lambda batch: mixed_images(pair(batch, 6, 5, options.mixing)))
    expected = np.rint(mix(batch))
    tiles = tiles_of(picture, 96, 96, lines=2 if alpha else 1)
    assert len(tiles) == NUM_IMAGES
    assert np.abs(tiles - expected[:NUM_IMAGES]).max() <= 1
