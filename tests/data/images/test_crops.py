"""Crops of training images: their distributions, and their pixels."""

import types

import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import random_image
from vit_jax.data.images import crops, resizing
from vit_jax.data.images.crops import CROPS, inception_box, random_resized_box
from vit_jax.data.images.resizing import resizer
from vit_jax.errors import ConfigError
from vit_jax.grammar import parse


def crop(data, text, image, size, seed=0):
    """Applies the crop named by `text`."""
    (operation,) = parse(text, CROPS, "config.data.train_crop")
    return operation(image, np.random.default_rng(seed), size, resizer(data))


def boxes_of(draw, height, width, area_range, count=20_000):
    """Many boxes, int [count, 4]; all lie in the image."""
    rng = np.random.default_rng(0)
    boxes = np.array([draw(rng, height, width, *area_range) for _ in range(count)])
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + boxes[:, 2] <= height).all()
    assert (boxes[:, 1] + boxes[:, 3] <= width).all()
    return boxes


# ---------------------------------------------------------------------------- boxes


def test_the_inception_box_has_tensorflows_distribution():
    boxes = boxes_of(inception_box, 375, 500, (0.05, 1.0))
    share = boxes[:, 2] * boxes[:, 3] / (500 * 375)
    expected = [0.083, 0.150, 0.300, 0.502, 0.667]
    assert np.abs(np.quantile(share, [0.1, 0.25, 0.5, 0.75, 0.9]) - expected).max() < 0.01
    assert abs(share.mean() - 0.342) < 0.01
    assert share.min() >= 0.05
    ratio = boxes[:, 3] / boxes[:, 2]
    # Rounding moves the ratio of the smallest crops, some 84 rows high, by under 1 %.
    assert ratio.min() > 0.74
    assert ratio.max() < 1.35
    # The ratio is uniform, so its mean is the interval's middle.
    assert abs(ratio.mean() - (3 / 4 + 4 / 3) / 2) < 0.01


def test_every_height_that_the_areas_admit_is_drawn():
    """Of square boxes of a quarter to the whole of a square: the least and the greatest too."""
    rng = np.random.default_rng(0)
    squares = types.SimpleNamespace(uniform=lambda low, high: 1.0, integers=rng.integers)
    heights = [inception_box(squares, 100, 100, 0.25, 1.0)[2] for _ in range(51 * 20)]
    assert set(heights) == set(range(50, 101))


def test_the_random_resized_box_has_torchvisions_distribution():
    boxes = boxes_of(random_resized_box, 375, 500, (0.05, 1.0))
    share = boxes[:, 2] * boxes[:, 3] / (500 * 375)
    # By the definition, vectorised: area uniform, ratio log-uniform, the first draw that fits.
    rng = np.random.default_rng(1)
    area = rng.uniform(0.05, 1, 400_000) * 500 * 375
    ratio = np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3), area.size))
    fits = (np.sqrt(area * ratio) <= 500.5) & (np.sqrt(area / ratio) <= 375.5)
    quantiles = [0.1, 0.25, 0.5, 0.75, 0.9]
    expected = np.quantile(area[fits] / (500 * 375), quantiles)
    assert np.abs(np.quantile(share, quantiles) - expected).max() < 0.01
    assert abs(share.mean() - 0.413) < 0.01
    ratios = boxes[:, 3] / boxes[:, 2]
    assert 0.74 < ratios.min() < ratios.max() < 1.35


@pytest.mark.parametrize(
    ("draw", "scale"), [(inception_box, lambda ratio: ratio), (random_resized_box, np.log)]
)
def test_ratios_are_uniform_and_torchvisions_in_their_logarithm(draw, scale):
    """In a square so large that every draw fits and rounding is nothing; 4 standard errors."""
    boxes = boxes_of(draw, 4000, 4000, (0.2, 0.3))
    places = scale(boxes[:, 3] / boxes[:, 2])
    low, high = scale(3 / 4), scale(4 / 3)
    shares = (places - low) / (high - low)
    for share in (0.25, 0.5, 0.75):
        error = np.sqrt(share * (1 - share) / len(shares))
        assert abs((shares < share).mean() - share) < 4 * error + 1e-3


@pytest.mark.parametrize("draw", [inception_box, random_resized_box])
def test_boxes_lie_anywhere(draw):
    boxes = boxes_of(draw, 100, 100, (0.25, 0.3), 5_000)
    for side in (0, 1):
        room = 100 - boxes[:, 2 + side]
        assert abs((boxes[:, side] / room).mean() - 0.5) < 0.02
        assert boxes[:, side].min() == 0
        reached = (boxes[:, side] == room).any()
        assert reached == (draw is random_resized_box), "TensorFlow never draws the last offset"


@pytest.mark.parametrize("draw", [inception_box, random_resized_box])
@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 500), (500, 1), (2, 3), (8, 8)])
def test_boxes_of_extreme_shapes(draw, height, width):
    assert (boxes_of(draw, height, width, (0.05, 1.0), 200)[:, 2:] > 0).all()


def test_what_is_taken_when_no_draw_fits():
    rng = np.random.default_rng(0)
    assert inception_box(rng, 10, 1000, (0.9), 1.0) == (0, 0, 10, 1000)
    # torchvision: the largest central box of an admissible ratio.
    assert random_resized_box(rng, 12, 1000, 0.9, 1.0) == (0, 492, 12, 16)
    assert random_resized_box(rng, 1000, 12, 0.9, 1.0) == (492, 0, 16, 12)
    for draw, count in ((inception_box, 100), (random_resized_box, 2 * 10)):
        draws = []
        counting = types.SimpleNamespace(
            uniform=lambda *ends, draws=draws: draws.append(ends) or rng.uniform(*ends),
            integers=rng.integers,
        )
        draw(counting, 10, 1000, 0.9, 1.0)
        assert len(draws) == count


# ---------------------------------------------------------------------------- crops


@pytest.mark.parametrize(
    ("text", "draw", "area_range"),
    [
        ("inception", inception_box, (0.05, 1.0)),
        ("inception(0.2, 0.5)", inception_box, (0.2, 0.5)),
        ("random_resized", random_resized_box, (0.08, 1.0)),
        ("random_resized(min_area=0.3)", random_resized_box, (0.3, 1.0)),
    ],
)
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_drawn_box_is_resized_as_pillow_does(data, text, draw, area_range, interpolation):
    data.interpolation = interpolation
    image = random_image(60, 90)
    for seed in range(5):
        top, left, height, width = draw(np.random.default_rng(seed), 60, 90, *area_range)
        box = (left, top, left + width, top + height)
        resample = Image.Resampling[interpolation.upper()]
        expected = np.asarray(Image.fromarray(image).resize((32, 24), resample, box=box))
        np.testing.assert_array_equal(crop(data, text, image, (24, 32), seed), expected)


def windows(array, size):
    """Every part of the given size, as bytes."""
    rows, columns = array.shape[0] - size[0] + 1, array.shape[1] - size[1] + 1
    return {
        array[top : top + size[0], left : left + size[1]].tobytes()
        for top in range(rows)
        for left in range(columns)
    }


@pytest.mark.parametrize(
    ("text", "padding", "mode"),
    [
        ("pad(2)", 2, "constant"),
        ("simple_random(2)", 2, "reflect"),
        ("simple_random(0)", 0, "reflect"),
    ],
)
def test_bordered_crops_are_cut_anywhere(data, text, padding, mode):
    image = np.arange(1, 21, dtype=np.uint8).reshape(4, 5, 1)
    padded = np.pad(image, ((padding, padding), (padding, padding), (0, 0)), mode)
    drawn = {crop(data, text, image, (4, 5), seed).tobytes() for seed in range(400)}
    assert drawn == windows(padded, (4, 5))


@pytest.mark.parametrize(
    ("text", "shape", "resized"),  # To 6×6.
    [
        ("resize_crop(8)", (20, 30), (8, 8)),
        ("resize_small_crop(8)", (20, 30), (8, 12)),
        ("resize_small_crop(8)", (30, 19), (13, 8)),  # 12.6 rounded, as Big Vision does.
        ("simple_random(0)", (20, 31), (6, 9)),  # 9.3
        ("simple_random(0)", (29, 20), (8, 6)),  # 8.7 rounded down, as torchvision does.
    ],
)
def test_resized_crops_are_cut_anywhere(data, text, shape, resized):
    image = random_image(*shape)
    whole = np.asarray(Image.fromarray(image).resize(resized[::-1], Image.Resampling.BILINEAR))
    drawn = {crop(data, text, image, (6, 6), seed).tobytes() for seed in range(300)}
    assert drawn == windows(whole, (6, 6))


@pytest.mark.parametrize(
    ("sides", "size", "expected"),
    [
        ((375, 500), (224, 224), (224, 298)),
        ((500, 375), (224, 224), (298, 224)),
        ((10, 10), (224, 224), (224, 224)),
        ((100, 100), (32, 64), (64, 64)),
        ((10, 1000), (32, 64), (32, 3200)),
    ],
)
def test_simple_random_covers_the_models_size(sides, size, expected):
    assert crops._covering(sides, size) == expected


@pytest.mark.parametrize("text", ["simple_random(0)", "resize_small_crop(6)"])
def test_strips_are_cut_anywhere(data, text):
    strip = np.tile(np.linspace(0, 255, 1200).astype(np.uint8)[:, None, None], (1, 3, 3))
    means = [crop(data, text, strip, (6, 6), seed).mean() for seed in range(200)]
    assert min(means) < 10
    assert max(means) > 245
    assert abs(np.mean(means) - 127.5) < 20


def test_the_part_of_a_strip_that_is_resized():
    """(top, left, height, width) of a strip's middle, a quarter from its top or its left end."""
    short, box = resizing.without_excess((20, 400), (100, 2000), (6, 8), lambda: 0.25)
    assert (short, box) == ((100, 1600), (0, 20, 20, 320))
    short, box = resizing.without_excess((500, 4), (3000, 24), (30, 12), lambda: 0.25)
    assert (short, box) == ((480, 24), (105, 0, 80, 4))
    whole = resizing.without_excess((48, 2), (480, 20), (30, 12), lambda: pytest.fail("drawn"))
    assert whole == ((480, 20), (0, 0, 48, 2))


def test_borders_are_of_four_pixels_unless_said():
    for name in ("pad", "simple_random"):
        named, plain = parse(f"{name}(4)", CROPS, ""), parse(name, CROPS, "")
        assert named[0].describe() == plain[0].describe()


@pytest.mark.parametrize("name", CROPS)
def test_every_crop_takes_any_image_to_the_models_size(data, name):
    text = f"{name}(16)" if name.startswith("resize_") else name
    for channels in (1, 3):
        for shape in ((1, 1), (3, 40), (16, 12), (50, 50)):
            image = np.full((*shape, channels), 77, np.uint8)
            result = crop(data, text, image, (16, 12))
            assert (result.shape, result.dtype) == ((16, 12, channels), np.uint8)
            assert name == "pad" or (result == 77).all()


@pytest.mark.parametrize("text", ["inception(0.3, 0.3)", "random_resized(1, 1)", "resize_crop(6)"])
def test_bounds_may_be_equal(data, text):
    assert crop(data, text, random_image(), (6, 6)).shape == (6, 6, 3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("inception(0.5, 0.2)", r"min_area=0.5, max_area=0.2: must be 0 < min_area <= max_area"),
        ("random_resized(0)", r"min_area=0, max_area=1.0"),
        ("resize_crop(5)", "side=5 is smaller than the 6×6 pixels"),
        ("resize_small_crop(0)", "side=0 is smaller than"),
        ("resize_crop", "missing a required argument: 'side'"),
    ],
)
def test_impossible_crops_are_named(data, text, message):
    with pytest.raises(ConfigError, match=message):
        crop(data, text, random_image(), (6, 6))


@pytest.mark.parametrize("crop", ["inception", "random_resized"])
def test_boxes_have_the_areas_that_are_asked_for(crop):
    """Both ends of the range: of a hundred boxes some come near each, none lies beyond."""
    image, rng, areas = np.zeros((100, 120, 3), np.uint8), np.random.default_rng(0), []

    def resize(image, size, box):
        areas.append(box[2] * box[3] / (100 * 120))

    for _ in range(100):
        CROPS[crop](image, rng, (8, 8), resize, min_area=0.2, max_area=0.3)
    assert 0.19 < min(areas) < 0.21
    assert 0.29 < max(areas) < 0.31


def test_sides_and_areas_at_their_limits():
    """A side as large as what is cut leaves nothing to cut; an area of 0 is none."""
    image, rng = random_image(9, 13), np.random.default_rng(0)

    def resize(image, size, *box):
        return np.zeros((*size, 3), np.uint8)

    for crop in ("resize_crop", "resize_small_crop"):
        assert CROPS[crop](image, rng, (6, 8), resize, side=8).shape == (6, 8, 3)
        with pytest.raises(ConfigError, match="side=7 is smaller than the 6×8 pixels"):
            CROPS[crop](image, rng, (6, 8), resize, side=7)
    for crop in ("inception", "random_resized"):
        with pytest.raises(ConfigError, match="0 < min_area <= max_area"):
            CROPS[crop](image, rng, (6, 8), resize, min_area=0.0)
        CROPS[crop](image, rng, (6, 8), resize, min_area=0.5, max_area=0.5)
