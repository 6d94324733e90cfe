"""timm's RandAugment, AutoAugment and TrivialAugment, against their definitions on a photograph."""

import collections
import itertools

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from tests.data.pictures import photograph
from vit_jax.data.images.pillow_policies import (
    AUTOAUGMENT_VALUES,
    BICUBIC,
    NEAREST,
    OPERATIONS,
    RANDAUG_VALUES,
    TRIVIAL_VALUES,
    autoaugment,
    randaug_timm,
    trivial_augment,
)

IMAGE = photograph(40, 56)
PICTURE = Image.fromarray(IMAGE)
MEAN = (124, 116, 104)


def apply(name, value, geometry=BICUBIC, picture=PICTURE):
    return np.asarray(OPERATIONS[name](picture, value, geometry))


# ---------------------------------------------------------------------------- operations


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("Identity", None, IMAGE),
        ("Invert", None, 255 - IMAGE),
        ("Posterize", 8, IMAGE),
        ("Posterize", 3, IMAGE & 0b11100000),
        ("Posterize", 0, np.zeros_like(IMAGE)),
        ("Solarize", 256, IMAGE),
        ("Solarize", 100, np.where(IMAGE < 100, IMAGE, 255 - IMAGE)),
        ("SolarizeAdd", 0, IMAGE),
        ("SolarizeAdd", 99, np.where(IMAGE < 128, np.minimum(IMAGE.astype(int) + 99, 255), IMAGE)),
        ("AutoContrast", None, np.asarray(ImageOps.autocontrast(PICTURE))),
        ("Equalize", None, np.asarray(ImageOps.equalize(PICTURE))),
        ("Sharpness", 1.81, np.asarray(ImageEnhance.Sharpness(PICTURE).enhance(1.81))),
        *((name, 1.0, IMAGE) for name in ("Color", "Contrast", "Brightness", "Sharpness")),
        *((name, 0, IMAGE) for name in OPERATIONS if name.startswith(("Shear", "Transl", "Rot"))),
    ],
)
def test_an_operation_is_its_definition(name, value, expected):
    result = apply(name, value)
    assert result.dtype == np.uint8
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("factor", [0.1, 0.6, 1.4, 1.9])
def test_colours_are_blended_with_what_they_have_lost(factor):
    grey = np.asarray(PICTURE.convert("L")).astype(float)[..., np.newaxis]
    for name, lost in (("Brightness", 0), ("Contrast", round(grey.mean())), ("Color", grey)):
        expected = np.clip(lost + factor * (IMAGE.astype(float) - lost), 0, 255)
        assert np.abs(apply(name, factor) - expected).max() <= 1, name


@pytest.mark.parametrize(
    ("geometry", "outside"), [(BICUBIC, MEAN), (NEAREST, (0, 0, 0))], ids=["bicubic", "nearest"]
)
def test_geometry_moves_pixels_and_fills_the_rest(geometry, outside):
    expected = np.empty_like(IMAGE)
    expected[:] = outside
    expected[:, :46] = IMAGE[:, 10:]
    np.testing.assert_array_equal(apply("TranslateX", 10, geometry), expected)
    np.testing.assert_array_equal(apply("TranslateXRel", 10 / 56, geometry), expected)
    expected[:] = outside
    expected[10:] = IMAGE[:-10]
    np.testing.assert_array_equal(apply("TranslateY", -10, geometry), expected)
    np.testing.assert_array_equal(apply("TranslateYRel", -0.25, geometry), expected)
    square = Image.fromarray(IMAGE[:, :40])
    turned = apply("Rotate", 90, geometry, square)
    np.testing.assert_array_equal(turned, np.rot90(IMAGE[:, :40]))
    corner = apply("Rotate", 30, geometry, square)[0, 0]
    np.testing.assert_array_equal(corner, outside)


@pytest.mark.parametrize("level", [0.3, -0.27])
def test_shearing_moves_each_row_or_column_in_proportion(level):
    rows, columns = np.mgrid[:40, :56]
    for name, (y, x) in {
        "ShearX": (rows, np.floor(columns + 0.5 + level * (rows + 0.5)).astype(int)),
        "ShearY": (np.floor(rows + 0.5 + level * (columns + 0.5)).astype(int), columns),
    }.items():
        inside = (x >= 0) & (x < 56) & (y >= 0) & (y < 40)
        expected = np.where(inside[..., None], IMAGE[y.clip(0, 39), x.clip(0, 55)], 0)
        np.testing.assert_array_equal(apply(name, level, NEAREST), expected)


@pytest.mark.parametrize(
    ("geometry", "resample", "fill", "grey"),
    [(BICUBIC, Image.Resampling.BICUBIC, MEAN, 117), (NEAREST, Image.Resampling.NEAREST, 0, 0)],
)
def test_what_lies_between_pixels_and_outside_of_them(geometry, resample, fill, grey):
    luminance = PICTURE.convert("L")
    for picture, outside in ((PICTURE, fill), (luminance, grey)):
        found = apply("Rotate", 17, geometry, picture)
        expected = picture.rotate(17, resample=resample, fillcolor=outside)
        np.testing.assert_array_equal(found, np.asarray(expected))


# ---------------------------------------------------------------------------- values

ENHANCEMENTS = ("Color", "Contrast", "Brightness", "Sharpness")


@pytest.mark.parametrize(
    ("values", "name", "at_zero", "at_half", "at_one"),
    [
        (RANDAUG_VALUES, "Rotate", 0, 15, 30),
        (RANDAUG_VALUES, "Posterize", 4, 2, 0),
        (RANDAUG_VALUES, "Solarize", 256, 128, 0),
        (RANDAUG_VALUES, "SolarizeAdd", 0, 55, 110),
        *((RANDAUG_VALUES, name, 1, 1.45, 1.9) for name in ENHANCEMENTS),
        *((RANDAUG_VALUES, name, 0, 0.15, 0.3) for name in ("ShearX", "ShearY")),
        *((RANDAUG_VALUES, name, 0, 0.225, 0.45) for name in ("TranslateXRel", "TranslateYRel")),
        (AUTOAUGMENT_VALUES, "Rotate", 0, 15, 30),
        (AUTOAUGMENT_VALUES, "Posterize", 4, 6, 8),
        (AUTOAUGMENT_VALUES, "Solarize", 0, 128, 256),
        *((AUTOAUGMENT_VALUES, n, 0.1, 1, 1.9) for n in ("Color", "Contrast", "Sharpness")),
        (AUTOAUGMENT_VALUES, "ShearX", 0, 0.15, 0.3),
        (TRIVIAL_VALUES, "Rotate", 0, 67.5, 135),
        (TRIVIAL_VALUES, "Posterize", 8, 5, 2),
        (TRIVIAL_VALUES, "Solarize", 255, 127.5, 0),
        *((TRIVIAL_VALUES, name, 1, 1.495, 1.99) for name in ENHANCEMENTS),
        *((TRIVIAL_VALUES, name, 0, 0.495, 0.99) for name in ("ShearX", "ShearY")),
        *((TRIVIAL_VALUES, name, 0, 16, 32) for name in ("TranslateX", "TranslateY")),
    ],
)
def test_values_of_magnitudes(values, name, at_zero, at_half, at_one):
    drawn = [values[name](magnitude, 1) for magnitude in (0, 0.5, 1)]
    np.testing.assert_allclose(drawn, [at_zero, at_half, at_one], rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "name", "magnitude", "expected"),
    [
        (RANDAUG_VALUES, "Posterize", 0.9, 1),  # 3.6 is cut to 3.
        (RANDAUG_VALUES, "Solarize", 0.99, 3),
        (RANDAUG_VALUES, "SolarizeAdd", 0.95, 104),
        (AUTOAUGMENT_VALUES, "Posterize", 0.7, 6),
        (AUTOAUGMENT_VALUES, "Solarize", 0.7, 179),
        (TRIVIAL_VALUES, "Posterize", 0.3, 6),  # 1.8 is rounded to 2.
        (TRIVIAL_VALUES, "TranslateX", 0.9, 28),  # 28.8 is cut.
        (TRIVIAL_VALUES, "Solarize", 0.3, 178.5),
    ],
)
def test_whole_numbers_are_cut_or_rounded(values, name, magnitude, expected):
    assert values[name](magnitude, 1) == pytest.approx(expected)
    if name == "TranslateX":
        assert values[name](magnitude, -1) == -expected


@pytest.mark.parametrize(
    ("values", "count", "signed"),
    [(RANDAUG_VALUES, 15, 9), (AUTOAUGMENT_VALUES, 10, 2), (TRIVIAL_VALUES, 14, 9)],
)
def test_signs_turn_about_the_value_that_changes_nothing(values, count, signed):
    assert len(values) == count
    turned = 0
    for name, value in values.items():
        if value(0.5, 1) != value(0.5, -1):
            turned += 1
            neutral = 1 if name in ENHANCEMENTS else 0
            assert value(0.5, 1) - neutral == pytest.approx(neutral - value(0.5, -1))
    assert turned == signed


@pytest.mark.parametrize("values", [RANDAUG_VALUES, TRIVIAL_VALUES])
def test_magnitude_zero_is_the_identity_where_effects_increase_from_nothing(values):
    changes = {"AutoContrast", "Equalize", "Invert"}  # At any magnitude.
    changes |= {"Posterize"} if values is RANDAUG_VALUES else {"Solarize"}  # 4 bits; 255 of 256.
    for name, value in values.items():
        if name not in changes:
            np.testing.assert_array_equal(apply(name, value(0, 1)), IMAGE, err_msg=name)


# ---------------------------------------------------------------------------- policies


def outcomes(values, magnitudes, geometry):
    """Every image that one operation can make, as bytes, by its name."""
    return {
        name: {
            apply(name, value(magnitude, sign), geometry).tobytes()
            for magnitude in magnitudes
            for sign in (1, -1)
        }
        for name, value in values.items()
    }


def drawn(policy, count):
    return [policy(IMAGE, np.random.default_rng(seed)).tobytes() for seed in range(count)]


def test_randaug_timm_applies_one_of_its_operations_with_the_probability():
    possible = outcomes(RANDAUG_VALUES, [0.9], BICUBIC)

    def one_layer(image, rng, probability=1.0):
        return randaug_timm(image, rng, 1, 9, 0, probability)

    found = drawn(one_layer, 300)
    assert set(found) == set.union(*possible.values())
    half = drawn(lambda image, rng: one_layer(image, rng, 0.5), 400)
    assert 150 < half.count(IMAGE.tobytes()) < 250
    for nothing in ({"layers": 0}, {"probability": 0.0}):
        assert (randaug_timm(IMAGE, np.random.default_rng(0), **nothing) == IMAGE).all()


def test_randaug_timm_draws_magnitudes_up_to_ten(monkeypatch):
    magnitudes = []
    record = dict.fromkeys(RANDAUG_VALUES, lambda magnitude, sign: magnitudes.append(magnitude))
    monkeypatch.setattr("vit_jax.data.images.pillow_policies.RANDAUG_VALUES", record)
    monkeypatch.setattr(
        "vit_jax.data.images.pillow_policies._apply",
        lambda image, name, values, m, *_: (values[name](m, 1), image)[1],
    )
    rng = np.random.default_rng(0)
    for _ in range(1_000):
        randaug_timm(IMAGE, rng, probability=1.0)
    assert len(magnitudes) == 2_000
    assert np.mean(magnitudes) == pytest.approx(0.9, abs=0.005)
    assert np.std(magnitudes) == pytest.approx(0.05, abs=0.005)
    assert max(magnitudes) == 1
    assert np.mean(np.equal(magnitudes, 1)) == pytest.approx(0.0228, abs=0.01)  # Two deviations.


# AutoAugment's policy for ImageNet as 1805.09501 prints it, copied from the paper's appendix: each
# operation's probability and, of those that have one, its magnitude.
TABLE_9 = """
Posterize 0.4 8, Rotate 0.6 9; Solarize 0.6 5, AutoContrast 0.6; Equalize 0.8, Equalize 0.6;
Posterize 0.6 7, Posterize 0.6 6; Equalize 0.4, Solarize 0.2 4; Equalize 0.4, Rotate 0.8 8;
Solarize 0.6 3, Equalize 0.6; Posterize 0.8 5, Equalize 1.0; Rotate 0.2 3, Solarize 0.6 8;
Equalize 0.6, Posterize 0.4 6; Rotate 0.8 8, Color 0.4 0; Rotate 0.4 9, Equalize 0.6;
Equalize 0.0, Equalize 0.8; Invert 0.6, Equalize 1.0; Color 0.6 4, Contrast 1.0 8;
Rotate 0.8 8, Color 1.0 2; Color 0.8 8, Solarize 0.8 7; Sharpness 0.4 7, Invert 0.6;
ShearX 0.6 5, Equalize 1.0; Color 0.4 0, Equalize 0.6; Equalize 0.4, Solarize 0.2 4;
Solarize 0.6 5, AutoContrast 0.6; Invert 0.6, Equalize 1.0; Color 0.6 4, Contrast 1.0 8;
Equalize 0.8, Equalize 0.6
"""


def outcomes_of_table_9():
    """What is applied, as (operation, magnitude or None) in order -> its probability."""
    expected = collections.Counter()
    sub_policies = [
        [operation.split() for operation in text.split(",")] for text in TABLE_9.split(";")
    ]
    assert len(sub_policies) == 25
    for pair in sub_policies:
        for chosen in itertools.product((False, True), repeat=2):
            share, applied = 1 / 25, []
            for (name, probability, *magnitude), is_on in zip(pair, chosen, strict=True):
                share *= float(probability) if is_on else 1 - float(probability)
                if is_on:
                    applied.append((name, int(magnitude[0]) if magnitude else None))
            expected[tuple(applied)] += share
    return +expected  # Without what never happens.


def test_autoaugment_draws_from_the_papers_table(monkeypatch):
    expected, applied = outcomes_of_table_9(), []
    without_magnitude = ("AutoContrast", "Equalize", "Invert")

    def record(image, name, values, magnitude, rng, geometry):
        assert (values, geometry) == (AUTOAUGMENT_VALUES, BICUBIC)
        level = None if name in without_magnitude else magnitude * 10
        applied.append((name, level))
        return image

    monkeypatch.setattr("vit_jax.data.images.pillow_policies._apply", record)
    rng, found, count = np.random.default_rng(0), collections.Counter(), 30_000
    for _ in range(count):
        applied.clear()
        autoaugment(IMAGE[:1, :1], rng)
        found[tuple(applied)] += 1
    assert set(found) == set(expected)
    for outcome, share in expected.items():
        deviation = (count * share * (1 - share)) ** 0.5
        assert abs(found[outcome] - count * share) < 4.5 * deviation, outcome


def test_autoaugment_applies_what_it_draws():
    """Both operations of a pair, one after the other, at their values, with either sign."""
    possible = {IMAGE.tobytes()}
    for outcome in outcomes_of_table_9():
        for signs in itertools.product((1, -1), repeat=2):
            picture = PICTURE
            for (name, level), sign in zip(outcome, signs, strict=False):
                value = AUTOAUGMENT_VALUES[name]((level or 0) / 10, sign)
                picture = OPERATIONS[name](picture, value, BICUBIC)
            possible.add(np.asarray(picture).tobytes())
    found = set(drawn(autoaugment, 300))
    assert found <= possible
    assert len(found) > 40


def test_trivial_augment_applies_one_operation_at_one_of_31_magnitudes():
    magnitudes = [step / 30 for step in range(31)]
    possible = outcomes(TRIVIAL_VALUES, magnitudes, NEAREST)
    found = drawn(trivial_augment, 500)
    assert set(found) <= set.union(*possible.values())
    for name, images in possible.items():
        assert images & set(found), name
    unchanged = sum(image == IMAGE.tobytes() for image in found)
    assert 500 / 14 * 0.5 < unchanged < 500 * 5 / 14  # Identity, and others at magnitude 0.


def test_trivial_augment_draws_each_magnitude_and_sign(monkeypatch):
    seen = set()
    record = dict.fromkeys(TRIVIAL_VALUES, lambda *value: seen.add(value))
    monkeypatch.setattr("vit_jax.data.images.pillow_policies.TRIVIAL_VALUES", record)
    nothing = dict.fromkeys(OPERATIONS, lambda image, value, how: image)
    monkeypatch.setattr("vit_jax.data.images.pillow_policies.OPERATIONS", nothing)
    rng = np.random.default_rng(0)
    for _ in range(1_000):
        trivial_augment(IMAGE[:1, :1], rng)
    assert seen == {(step / 30, sign) for step in range(31) for sign in (1, -1)}
