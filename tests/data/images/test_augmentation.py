"""Colour jitter, 3-Augment, random erasing; and what every augmentation has to keep to."""

import collections
import types

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from tests.data.example_sources import loading
from tests.data.pictures import photograph
from vit_jax.data.images import augmentation
from vit_jax.data.images.augmentation import (
    AUGMENTATIONS,
    color_jitter,
    random_erasing,
    three_augment,
)
from vit_jax.data.images.transforms import train_transform
from vit_jax.data.loading.pipeline import host_batches
from vit_jax.data.sources.examples import Example, Source
from vit_jax.errors import ConfigError
from vit_jax.grammar import parse

IMAGE = photograph(48, 64)
PICTURE = Image.fromarray(IMAGE)
CHAIN = "randaug_tf | randaug_timm | three_augment | autoaugment | trivial_augment | color_jitter(hue=0.1) | random_erasing(1)"


# ---------------------------------------------------------------------------- colours


def test_color_jitter_of_nothing_is_the_identity():
    for seed in range(5):
        rng = np.random.default_rng(seed)
        np.testing.assert_array_equal(color_jitter(IMAGE, rng, 0, 0, 0, 0), IMAGE)


@pytest.mark.parametrize(
    ("arguments", "enhancer", "lowest"),
    [
        ({"brightness": 0.4}, ImageEnhance.Brightness, 0.6),
        ({"contrast": 0.4}, ImageEnhance.Contrast, 0.6),
        ({"saturation": 0.4}, ImageEnhance.Color, 0.6),
        ({"brightness": 1.5}, ImageEnhance.Brightness, 0.0),
    ],
)
def test_each_factor_is_uniform_about_one(arguments, enhancer, lowest):
    arguments = {"brightness": 0, "contrast": 0, "saturation": 0, **arguments}
    highest = 1 + max(arguments.values())
    factors, part = np.linspace(lowest, highest, 100), IMAGE[::4, ::4]
    enhanced = (enhancer(Image.fromarray(part)).enhance(factor) for factor in factors)
    images = np.stack([np.asarray(image) for image in enhanced])
    found = []
    for seed in range(200):
        image = color_jitter(part, np.random.default_rng(seed), **arguments)
        distances = np.abs(images - image.astype(float)).mean((1, 2, 3))
        assert distances.min() < 1.5
        found.append(factors[distances.argmin()])
    quantiles = np.quantile(found, [0, 0.25, 0.5, 0.75, 1])
    expected = np.linspace(lowest, highest, 5)
    np.testing.assert_allclose(quantiles, expected, atol=0.12 * (highest - lowest))


def test_the_order_of_the_changes_is_random(monkeypatch):
    """Each of the 24 is as frequent: greying before or after a brightening is not the same."""
    order = []
    for name in ("Brightness", "Contrast", "Color"):

        def enhancer(picture, name=name):
            return types.SimpleNamespace(enhance=lambda factor: order.append(name) or picture)

        monkeypatch.setattr(augmentation.ImageEnhance, name, enhancer)
    monkeypatch.setattr(
        augmentation, "_turn_hue", lambda picture, turn: order.append("hue") or picture
    )
    rng, counts = np.random.default_rng(0), collections.Counter()
    for _ in range(24 * 50):
        color_jitter(IMAGE[:1, :1], rng, 0.4, 0.4, 0.4, 0.1)
        counts[tuple(order)] += 1
        order.clear()
    assert len(counts) == 24
    assert max(abs(count - 50) for count in counts.values()) < 5 * np.sqrt(50)


def test_the_hue_turns_and_grey_has_none():
    red = np.zeros((2, 2, 3), np.uint8)
    red[..., 0] = 200
    hues = []
    for seed in range(200):
        image = color_jitter(red, np.random.default_rng(seed), 0, 0, 0, 0.5)
        hue, saturation, value = np.asarray(Image.fromarray(image).convert("HSV"))[0, 0]
        assert (saturation, value) == (255, 200)
        hues.append((int(hue) + 128) % 256 - 128)
    assert np.std(hues) == pytest.approx(128 / np.sqrt(3), rel=0.1)
    grey = red[..., :1]
    np.testing.assert_array_equal(color_jitter(grey, np.random.default_rng(0), 0, 0, 0, 0.5), grey)


def test_three_augment_greys_solarises_or_blurs():
    grey = np.repeat(np.asarray(PICTURE.convert("L"))[..., np.newaxis], 3, axis=2)
    solarized = np.where(IMAGE < 128, IMAGE, 255 - IMAGE)
    blurs = [
        np.asarray(PICTURE.filter(ImageFilter.GaussianBlur(radius)))
        for radius in np.linspace(0.1, 2, 80).tolist()
    ]
    counts, radii = {"grey": 0, "solarized": 0, "blurred": 0}, []
    for seed in range(300):
        image = three_augment(IMAGE, np.random.default_rng(seed), jitter=0)
        if np.array_equal(image, grey):
            counts["grey"] += 1
        elif np.array_equal(image, solarized):
            counts["solarized"] += 1
        else:
            distances = [np.abs(image.astype(int) - blur).mean() for blur in blurs]
            assert min(distances) < 0.5
            radii.append(np.linspace(0.1, 2, 80)[np.argmin(distances)])
            counts["blurred"] += 1
    assert min(counts.values()) > 70
    assert max(radii) > 1.9
    assert abs(np.median(radii) - 1.05) < 0.25


def test_three_augment_jitters_then():
    """A greyed image stays grey under the jitter; its brightness varies."""
    means = []
    for seed in range(60):
        if np.ptp(image := three_augment(IMAGE, np.random.default_rng(seed)), axis=2).max() == 0:
            means.append(image.mean())
    assert len(means) > 8
    assert np.std(means) > 5


def test_three_augment_leaves_the_hue():
    red = np.zeros((4, 4, 3), np.uint8)
    red[..., 0] = np.linspace(80, 200, 16).reshape(4, 4)
    for seed in range(40):
        image = three_augment(red, np.random.default_rng(seed))
        np.testing.assert_array_equal(image[..., 1], image[..., 2])
        assert (image[..., 0] >= image[..., 1]).all()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("color_jitter", (0.4, 0.4, 0.4, 0.0)),
        ("three_augment", (0.3,)),  # DeiT-III's.
        ("random_erasing", (0.25, "pixel")),  # timm's.
        ("randaug_tf", (2, 10.0)),
        ("randaug_timm", (2, 9.0, 0.5, 0.5)),
    ],
)
def test_arguments_that_are_not_given_are_those_of_the_papers(name, arguments):
    augment = AUGMENTATIONS[name]
    for seed in range(12):
        plain = augment(IMAGE, np.random.default_rng(seed))
        np.testing.assert_array_equal(
            augment(IMAGE, np.random.default_rng(seed), *arguments), plain
        )


@pytest.mark.parametrize(("turn", "hue"), [(0.25, 63), (-0.25, 193), (0.5, 127), (0.101, 25)])
def test_a_turn_of_the_hue_is_a_share_of_the_circle(turn, hue):
    picture = Image.merge("HSV", [Image.new("L", (2, 2), level) for level in (0, 255, 200)])
    found = augmentation._turn_hue(picture.convert("RGB"), turn)
    levels = (hue, 255, 200)
    expected = Image.merge("HSV", [Image.new("L", (2, 2), level) for level in levels])
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected.convert("RGB")))


# ---------------------------------------------------------------------------- erasing


def test_erasing_happens_with_the_probability():
    count = sum(
        random_erasing(IMAGE, np.random.default_rng(seed), 0.25) is not IMAGE for seed in range(400)
    )
    assert 70 < count < 130
    assert random_erasing(IMAGE, np.random.default_rng(0), 0) is IMAGE


def erased_boxes(mode):
    """(height, width, pixels) of what is erased from a white image of 100×140."""
    white = np.full((100, 140, 3), 255, np.uint8)
    for seed in range(300):
        image = random_erasing(white, np.random.default_rng(seed), 1.0, mode)
        assert (white == 255).all()
        rows, columns = ((image != 255).any((axis, 2)).nonzero()[0] for axis in (1, 0))
        yield image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]


def test_a_rectangle_is_erased_anywhere():
    """From the first row and column to the last; and the rows are not as many as the columns."""
    white, ends = np.full((12, 20, 1), 255, np.uint8), []
    for seed in range(400):
        image = random_erasing(white, np.random.default_rng(seed), 1.0, "const")[..., 0]
        assert set(image[image != 255].tolist()) <= {117}, "the luminance of the mean colour"
        rows, columns = ((image != 255).any(axis).nonzero()[0] for axis in (1, 0))
        ends.append((rows.min(), rows.max(), columns.min(), columns.max()))
    lowest, highest = np.min(ends, axis=0), np.max(ends, axis=0)
    assert (lowest[[0, 2]] == 0).all()
    assert highest[[1, 3]].tolist() == [11, 19]


def test_noise_of_one_deviation_is_a_deviation_from_the_mean_in_each_channel():
    rng = types.SimpleNamespace(
        random=lambda: 0.0,
        uniform=lambda low, high: low,
        integers=lambda stop: 0,
        standard_normal=np.ones,
    )
    for channels, expected in ((3, (182, 173, 161)), (1, (174,))):
        image = np.zeros((40, 50, channels), np.uint8)
        found = random_erasing(image, rng, 1.0)
        assert tuple(found[0, 0]) == expected
        rows, columns = ((found[..., 0] > 0).any(axis).sum() for axis in (1, 0))
        assert (rows, columns) == (3, 12), "the roots of 40 * 0.3 and of 40 / 0.3"


def test_erasing_in_other_channels_than_three_is_by_the_luminance():
    floats = np.zeros((40, 50, 5), np.float32)
    image = random_erasing(floats, np.random.default_rng(3), 1.0, "const")
    assert np.unique(image).tolist() == [0, 117]
    noise = [random_erasing(floats - 1, np.random.default_rng(seed), 1.0) for seed in range(40)]
    noise = np.concatenate([image[image >= 0] for image in noise])
    low, high = np.quantile(noise, [0.1587, 0.8413])
    assert (high - low) / 2 == pytest.approx(57.4, abs=1.5)
    assert np.median(noise) == pytest.approx(117, abs=2)


def test_an_erased_rectangle_has_imagenets_mean_colour_and_timms_shape():
    shares, ratios = [], []
    for box in erased_boxes("const"):
        assert (box == (124, 116, 104)).all()
        shares.append(box[..., 0].size / 14_000)
        ratios.append(box.shape[0] / box.shape[1])
    # Wide or high rectangles of a large area do not fit, so areas are not quite uniform.
    assert 0.018 < min(shares) < 0.05
    assert 0.3 < max(shares) < 0.34
    assert 0.28 < min(ratios) < 0.4
    assert 2.2 < max(ratios) < 3.5
    assert abs(np.median(np.log(ratios))) < 0.2


def test_erasing_noise_has_imagenets_mean_and_deviation():
    noise = np.concatenate([box.reshape(-1, 3) for box in erased_boxes("pixel")]).astype(float)
    np.testing.assert_allclose(np.median(noise, axis=0), (124, 116, 104), atol=1)
    # Inside 0 … 255 it is normal: one deviation to each side holds 68.3 %.
    low, high = np.quantile(noise, [0.1587, 0.8413], axis=0)
    np.testing.assert_allclose((high - low) / 2, (58.4, 57.1, 57.4), atol=1.5)
    # Its channels have nothing to do with each other: four standard errors of a correlation.
    correlations = np.corrcoef(noise.T)[np.triu_indices(3, 1)]
    assert np.abs(correlations).max() < 4 / np.sqrt(len(noise))


# ---------------------------------------------------------------------------- every augmentation


def chain_of(text):
    operations = parse(text, AUGMENTATIONS, "config.data.augmentation")

    def apply(image, seed):
        rng = np.random.default_rng(seed)
        for operation in operations:
            image = operation(image, rng)
        return image

    return apply


def test_the_chain_of_these_tests_names_every_augmentation():
    names = [
        operation.name for operation in parse(CHAIN, AUGMENTATIONS, "config.data.augmentation")
    ]
    assert sorted(names) == sorted(AUGMENTATIONS)


@pytest.mark.parametrize("name", AUGMENTATIONS)
@pytest.mark.parametrize("channels", [1, 3])
def test_the_same_image_and_seed_give_the_same_uint8(name, channels):
    augment = chain_of(name)
    image = IMAGE[..., :channels]
    before = image.copy()
    results = [augment(image, seed) for seed in range(40)]
    for seed, result in enumerate(results):
        assert (result.shape, result.dtype) == (image.shape, np.uint8)
        np.testing.assert_array_equal(augment(image, seed), result)
        # A mirrored view, as the flip makes, and a read-only array, as a decoder does.
        view = image[:, ::-1]
        view.flags.writeable = False
        np.testing.assert_array_equal(augment(view, seed), augment(view.copy(), seed))
    assert len({result.tobytes() for result in results}) > 5
    np.testing.assert_array_equal(image, before)


class Photographs(Source):
    """Twelve parts of a photograph."""

    class_names = ("temple",)

    def __len__(self):
        return 12

    def __getitem__(self, index):
        return Example(photograph()[index : index + 40, index : index + 40], 0, str(index))


@pytest.mark.parametrize(
    "layout",
    [{"num_threads": 4}, pytest.param({"num_workers": 2}, marks=pytest.mark.slow)],
)
def test_threads_and_worker_processes_give_the_same_images(data, layout):
    data.augmentation = CHAIN
    transform = train_transform(data, (32, 32), 3)
    loaded = []
    for layout_ in ({"num_threads": 1}, layout):
        examples = loading(Photographs(), transform, batch_size=8, seed=3, **layout_)
        iterator = host_batches(examples, np.arange(8), stop=3)
        loaded.append(np.concatenate([batch["image"] for batch in iterator]))
    np.testing.assert_array_equal(*loaded)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "random_erasing(mode='noise')",
            "mode of random_erasing must be one of pixel, const, not 'noise'",
        ),
        ("color_jitter(hue=0.6)", "hue of color_jitter must be a number from 0 to 0.5, not 0.6"),
        ("randaug_tf(layers=1.5)", "layers of randaug_tf must be a whole number"),
        ("randaug_timm(probability=2)", "probability of randaug_timm must be a number from 0 to 1"),
        ("trivial_augment(31)", "too many positional arguments"),
        ("three_augmnt", "the nearest: three_augment"),
    ],
)
def test_impossible_augmentations_are_named(text, message):
    with pytest.raises(ConfigError, match=message):
        parse(text, AUGMENTATIONS, "config.data.augmentation")


def test_an_erased_rectangle_never_spans_the_image():
    """As in timm: of a narrow one it leaves a row at least."""
    image, rng = np.full((3, 60, 1), 7, np.uint8), np.random.default_rng(0)
    erased = [
        random_erasing(image, rng, probability=1.0, mode="const") != image for _ in range(200)
    ]
    rows = [int(each[..., 0].sum(0).max()) for each in erased]
    assert max(rows) == 2
