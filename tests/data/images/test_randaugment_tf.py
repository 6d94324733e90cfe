"""RandAugment in TensorFlow's form, against values that TensorFlow computed."""

import numpy as np
import pytest

from tests.runs import GOLDEN
from vit_jax.data.images.randaugment_tf import OPERATIONS, cutout, randaug_tf

FILE = np.load(GOLDEN / "randaug_tf.npz")
IMAGE = FILE["image"]


@pytest.mark.parametrize("key", [key for key in FILE.files if key != "image"])
def test_every_operation_is_tensorflows_pixel_for_pixel(key):
    name, magnitude, *sign = key.split("/")
    operation = OPERATIONS[name]
    argument = operation.argument(int(magnitude) / 10, np.random.default_rng(0))
    if sign:
        argument = abs(argument) if sign == ["+"] else -abs(argument)
    result = operation.apply(IMAGE, argument)
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, FILE[key])


def test_there_is_a_value_for_every_operation_but_the_random_cutout():
    assert {key.split("/")[0] for key in FILE.files} - {"image"} == set(OPERATIONS) - {"Cutout"}
    assert len(OPERATIONS) == 16


@pytest.mark.parametrize(
    ("square", "rows", "columns"),  # Of an image of 64×75, about (share * 64, share * 75).
    [
        ((10, 0.5, 0.4), slice(22, 42), slice(20, 40)),
        ((10, 0.0, 0.99), slice(0, 10), slice(64, 75)),
        ((0, 0.5, 0.5), slice(0), slice(0)),
        ((200, 0.5, 0.5), slice(None), slice(None)),
    ],
)
def test_cutout_greys_a_square(square, rows, columns):
    expected = IMAGE.copy()
    expected[rows, columns] = 128
    np.testing.assert_array_equal(cutout(IMAGE, square), expected)


def test_signs_are_random_and_cutouts_lie_anywhere():
    rng = np.random.default_rng(0)
    for name, greatest in (("Rotate", 30), ("ShearX", 0.3), ("TranslateY", 100)):
        drawn = [OPERATIONS[name].argument(0.5, rng) for _ in range(400)]
        assert {abs(value) for value in drawn} == {greatest / 2}
        assert 150 < sum(value > 0 for value in drawn) < 250
    squares = [OPERATIONS["Cutout"].argument(1.5, rng) for _ in range(400)]
    assert {half for half, *_ in squares} == {60}
    places = np.array([place for _, *place in squares])
    np.testing.assert_allclose(
        np.quantile(places, [0.1, 0.5, 0.9], axis=0).mean(1), [0.1, 0.5, 0.9], atol=0.05
    )


def test_layers_apply_operations_one_after_another():
    """Follows the generator: a choice of 16, then the operation's own draws, for each layer."""
    seen = set()
    for seed in range(200):
        rng, expected = np.random.default_rng(seed), IMAGE
        for _ in range(3):
            name = list(OPERATIONS)[rng.integers(16)]
            seen.add(name)
            argument = OPERATIONS[name].argument(1.5, rng)
            expected = OPERATIONS[name].apply(expected, argument)
        result = randaug_tf(IMAGE, np.random.default_rng(seed), layers=3, magnitude=15)
        np.testing.assert_array_equal(result, expected)
    assert seen == set(OPERATIONS)


def test_no_layers_leave_the_image_and_magnitude_zero_does_not():
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(randaug_tf(IMAGE, rng, layers=0), IMAGE)
    assert any((randaug_tf(IMAGE, rng, magnitude=0) != IMAGE).any() for _ in range(5))


@pytest.mark.parametrize("name", OPERATIONS)
@pytest.mark.parametrize("shape", [(1, 1, 3), (2, 5, 1), (9, 7, 1), (9, 7, 3)])
def test_any_size_and_grey_images(name, shape):
    image = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    for magnitude in (0, 1, 2.5):
        argument = OPERATIONS[name].argument(magnitude, np.random.default_rng(1))
        result = OPERATIONS[name].apply(image, argument)
        assert (result.shape, result.dtype) == (shape, np.uint8)
        # A mirrored view, as the flip makes, and a read-only array, as a decoder does.
        view = image[:, ::-1]
        view.flags.writeable = False
        expected = OPERATIONS[name].apply(np.ascontiguousarray(view), argument)
        np.testing.assert_array_equal(OPERATIONS[name].apply(view, argument), expected)


def test_grey_equals_colour_with_equal_channels_but_for_contrasts_and_colours_rounding():
    grey = np.random.default_rng(0).integers(0, 256, (20, 24, 1), np.uint8)
    for name, operation in OPERATIONS.items():
        argument = operation.argument(0.7, np.random.default_rng(0))
        of_colour = operation.apply(np.repeat(grey, 3, axis=2), argument)
        of_grey = operation.apply(grey, argument).astype(int)
        assert np.abs(of_colour - of_grey).max() <= (1 if name == "Color" else 0), name


def test_sharpness_of_three_pixels_and_contrast_of_a_large_image():
    image = np.random.default_rng(0).integers(0, 256, (3, 3, 1), np.uint8)
    smooth = (
        image.astype(float).sum() + 4 * float(image[1, 1, 0])
    ) / 13  # The centre counts 5 times.
    found = OPERATIONS["Sharpness"].apply(image, 0.0)
    assert abs(int(found[1, 1, 0]) - smooth) <= 1
    border = np.ones((3, 3), bool)
    border[1, 1] = False
    np.testing.assert_array_equal(found[border], image[border])
    large = np.zeros((300, 300, 1), np.uint8)  # 300² / 256 is more than white.
    assert (OPERATIONS["Contrast"].apply(large, 0.0) == 255).all()
    assert (OPERATIONS["Contrast"].apply(large[:200, :160], 0.0) == 125).all()
