"""Resizing regions of images, antialiased as Pillow does it, or not."""

import io
import math
import pathlib

import cv2
import numpy as np
import pytest
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image

from tests.data.pictures import encode, encode_npy, photograph, random_image
from vit_jax.data.images import resizing
from vit_jax.data.images.crops import inception_box
from vit_jax.data.images.jpeg import Jpeg
from vit_jax.data.images.picture import Decoding, open_picture
from vit_jax.data.images.resizing import resample, resizer
from vit_jax.data.images.transforms import eval_transform, preprocessing_of, train_transform
from vit_jax.errors import DataError


def pillow(image, size, box, interpolation):
    """A region (top, left, height, width) of an array, resized."""
    top, left, height, width = box
    resample = Image.Resampling[interpolation.upper()]
    region = (left, top, left + width, top + height)
    return np.asarray(Image.fromarray(image).resize(size[::-1], resample, box=region))


def difference(first, second):
    """The mean absolute difference, in grey levels."""
    return np.abs(first.astype(int) - second).mean()


def differences_from_pillow(image, size, interpolation, resize, num_crops):
    """Of inception crops of an image, encoded as JPEG: float [num_crops]."""
    content = encode(image, "JPEG", quality=90)
    decoded = np.asarray(Image.open(io.BytesIO(content)))
    rng = np.random.default_rng(0)
    boxes = [inception_box(rng, *image.shape[:2], 0.05, 1.0) for _ in range(num_crops)]
    return np.array(
        [
            difference(
                resize(open_picture(content, 3), size, box),
                pillow(decoded, size, box, interpolation),
            )
            for box in boxes
        ]
    )


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
def test_crops_of_photographs_are_pillows(data, name, interpolation):
    data.interpolation = interpolation
    image = load_sample_image(name)
    found = differences_from_pillow(image, (224, 224), interpolation, resizer(data), 40)
    assert found.mean() < 1
    assert found.max() < 3


@pytest.mark.parametrize("name", ["china.jpg", "flower.jpg"])
def test_fast_decoding_stays_within_a_grey_level(data, name):
    image = cv2.resize(load_sample_image(name), (800, 600), interpolation=cv2.INTER_AREA)
    content, rng = encode(image, "JPEG", quality=90), np.random.default_rng(0)
    exact, fast = (open_picture(content, 3, Decoding(fast=fast)) for fast in (False, True))
    boxes = [inception_box(rng, 600, 800, 0.05, 1.0) for _ in range(30)]
    resize = resizer(data)
    found = [
        difference(resize(fast, (224, 224), box), resize(exact, (224, 224), box)) for box in boxes
    ]
    assert 0 < np.mean(found) < 1
    assert max(found) < 3


@pytest.mark.slow
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("side", [96, 224])
def test_crops_of_many_photographs_are_pillows(data, interpolation, side):
    skimage = pytest.importorskip("skimage.data")
    names = ("astronaut", "cat", "coffee", "colorwheel", "hubble_deep_field", "retina", "rocket")
    images = [getattr(skimage, name)()[..., :3] for name in (*names, "immunohistochemistry")]
    images += [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    data.interpolation = interpolation
    size = (side, side)
    for image in images:
        found = differences_from_pillow(image, size, interpolation, resizer(data), 200)
        assert found.mean() < 1
        assert found.max() < 3


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(40, 50), (150, 161), (225, 300), (700, 450), (800, 3000)])
@pytest.mark.parametrize("channels", [1, 3])
def test_whole_jpegs_of_many_sizes_are_pillows(data, interpolation, shape, channels):
    data.interpolation, size = interpolation, (64, 80)
    image = cv2.resize(photograph(270, 360), shape[::-1], interpolation=cv2.INTER_CUBIC)
    content = encode(image if channels == 3 else image[..., 0], "JPEG", quality=95)
    decoded = np.asarray(Image.open(io.BytesIO(content)))
    expected = pillow(decoded, size, (0, 0, *shape), interpolation).reshape(*size, channels)
    resized = resizer(data)(open_picture(content, channels), size)
    assert (resized.shape, resized.dtype) == (expected.shape, np.uint8)
    assert difference(resized, expected) < 1.5


def test_a_great_reduction_is_left_to_pillow(data):
    content = encode(photograph(270, 360), "JPEG", quality=95)
    decoded = np.asarray(Image.open(io.BytesIO(content)))
    for size in ((2, 2), (180, 12), (9, 240)):  # Of one side is enough.
        resized = resizer(data)(open_picture(content, 3), size)
        expected = pillow(decoded, size, (0, 0, 270, 360), "bilinear")
        np.testing.assert_array_equal(resized, expected)


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_are_of_the_upright_image(data, antialias, orientation):
    data.antialias = antialias
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encode(photograph(200, 270), "JPEG", quality=95, exif=exif)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    box, size = (11, 17, 160, 170), (32, 30)
    if antialias:
        expected = pillow(upright, size, box, "bilinear")
    else:
        expected = cv2.resize(upright[11:171, 17:187], size[::-1])
    resized = resizer(data)(open_picture(content, 3), size, box)
    assert difference(resized, expected) < (1 if antialias else 0.01)


def test_a_box_keeps_its_place_after_scaled_decoding(data):
    # Decoded to an eighth: a box moved by a pixel of the file moves by an eighth of a decoded one.
    slope = (np.arange(256)[:, np.newaxis, np.newaxis] + np.zeros((256, 3))).astype(np.uint8)
    image = open_picture(encode(slope, "JPEG", quality=100), 3)
    means = [resizer(data)(image, (13, 13), (top, 8, 169, 169)).mean() for top in range(40, 72)]
    centers = np.arange(40, 72) + 84
    assert np.abs(means - centers).max() <= 1.5
    assert np.ptp(means - centers) <= 1


@pytest.mark.parametrize(
    ("box_side", "fast", "factor"),
    [
        *((224, False, 1), (671, False, 1), (672, False, 2), (1343, False, 2), (1344, False, 4)),
        *((2688, False, 8), (559, True, 1), (560, True, 2), (1119, True, 2), (1120, True, 4)),
    ],
)
def test_large_boxes_are_decoded_to_a_fraction(data, monkeypatch, box_side, fast, factor):
    factors = []
    decode = Jpeg.decode
    monkeypatch.setattr(
        Jpeg,
        "decode",
        lambda jpeg, *args, **kw: factors.append(args[0]) or decode(jpeg, *args, **kw),
    )
    content = encode(np.zeros((2720, 2730, 3), np.uint8), "JPEG")
    picture = open_picture(content, 3, Decoding(fast=fast))
    resized = resizer(data)(picture, (224, 224), (5, 6, box_side, box_side + 9))
    assert factors == [factor]
    assert (resized.shape, resized.max()) == ((224, 224, 3), 0)


@pytest.mark.parametrize("antialias", [True, False])
def test_damaged_jpegs_are_named_or_read_as_pillow_reads_them(data, antialias):
    data.antialias = antialias
    content = encode(photograph(), "JPEG")
    for size in ((32, 32), (96, 128)):
        with pytest.raises(DataError, match=r"cannot decode the image \(image file is truncated"):
            resizer(data)(open_picture(content[:-60], 3), size)
    garbled = content[:2000] + 25 * b"\xff\xd0" + content[2050:]
    decoded = np.asarray(Image.open(io.BytesIO(garbled)))
    resized = resizer(data)(open_picture(garbled, 3), (32, 32))
    if antialias:
        expected = pillow(decoded, (32, 32), (0, 0, 96, 128), "bilinear")
    else:
        expected = cv2.resize(decoded, (32, 32))
    assert difference(resized, expected) < 1


def test_without_antialiasing_a_jpeg_is_decoded_cut_and_sampled(data):
    data.antialias = False
    content = encode(photograph(), "JPEG")
    decoded = np.asarray(Image.open(io.BytesIO(content)))
    resized = resizer(data)(open_picture(content, 3), (20, 16), (7, 9, 50, 61))
    np.testing.assert_array_equal(resized, cv2.resize(decoded[7:57, 9:70], (16, 20)))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_resample_takes_fractions_of_pixels(interpolation):
    image = photograph(200, 200)
    for box in ((10.25, 20.5, 100.5, 90.125), (0.5, 0.5, 199.5, 199.5), (3.875, 0, 64, 200)):
        resized = resample(image, (64, 60), box, interpolation)
        expected = pillow(image, (64, 60), box, interpolation)
        assert resized.shape == expected.shape
        assert difference(resized, expected) < 1.5


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 50), (3, 2), (17, 40)])
def test_resample_of_tiny_images(interpolation, shape):
    for channels in (1, 3):
        image = np.full((*shape, channels), 77, np.uint8)
        resized = resample(image, (16, 12), (0, 0, *shape), interpolation)
        assert (resized.shape, resized.min(), resized.max()) == ((16, 12, channels), 77, 77)


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_each_axis_has_a_filter_of_its_own(interpolation):
    """Noise along one axis alone: filtered by the other's, it would be sampled."""
    line = random_image(1, 180, 1)[0]
    stripes = np.broadcast_to(line[:, None, None], (180, 30, 3))
    for image, size in ((stripes, (30, 30)), (stripes.swapaxes(0, 1), (30, 30))):
        image = np.ascontiguousarray(image)
        resized = resample(image, size, (0, 0, *image.shape[:2]), interpolation)
        expected = pillow(image, size, (0, 0, *image.shape[:2]), interpolation)
        assert difference(resized, expected) < 3


def test_kernels_are_pillows_and_opencvs():
    """Keys' cubics: of Pillow with a = -1/2, of OpenCV with -3/4."""
    pillows, _, opencvs, _ = resizing._KERNELS["bicubic"]
    places = np.array([0, 0.5, 1, 1.5, 2])
    np.testing.assert_allclose(pillows(places), [1, 0.5625, 0, -0.0625, 0])
    np.testing.assert_allclose(opencvs(places), [1, 0.59375, 0, -0.09375, 0])


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_filters_keep_the_mean(interpolation):
    for ratio in (1, 1.03125, 1.5, 2, 2.71875, 8):
        for shift in (-0.5, 0, 0.125):
            taps = resizing._taps(ratio, shift, interpolation)
            assert (taps.sum(), len(taps) % 2) == (1, 1)
            assert (taps * 256 == np.round(taps * 256)).all()
    assert resizing._taps(1, 0, "bilinear").tolist() == [1]  # OpenCV's interpolation is Pillow's.
    assert resizing._taps(2, 0, "bilinear").tolist() == [0.25, 0.5, 0.25]


def test_other_pictures_are_resized_by_pillow(data):
    image = random_image(60, 90)
    box = (5, 7, 40, 60)
    for picture in (image, open_picture(encode(image), 3)):
        expected = pillow(image, (24, 32), box, "bilinear")
        np.testing.assert_array_equal(resizer(data)(picture, (24, 32), box), expected)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_raw_pixels_are_resized_as_those_of_a_jpeg(data, interpolation, channels):
    data.interpolation = interpolation
    image = np.ascontiguousarray(load_sample_image("china.jpg")[:256, :341, 3 - channels :])
    raw, box = open_picture(encode_npy(image), channels), (10, 20, 240, 300)
    found = resizer(data)(raw, (224, 224), box)
    np.testing.assert_array_equal(found, resample(image, (224, 224), box, interpolation))
    data.antialias = False
    flag = {"bilinear": cv2.INTER_LINEAR, "bicubic": cv2.INTER_CUBIC}[interpolation]
    sampled = cv2.resize(image[10:250, 20:320], (224, 224), interpolation=flag)
    np.testing.assert_array_equal(
        resizer(data)(raw, (224, 224), box), sampled.reshape(224, 224, channels)
    )


def test_great_reductions_of_raw_pixels_are_left_to_pillow(data):
    image = np.ascontiguousarray(load_sample_image("china.jpg")[:425, :425])
    found = resizer(data)(open_picture(encode_npy(image), 3), (50, 50))
    np.testing.assert_array_equal(found, pillow(image, (50, 50), (0, 0, 425, 425), "bilinear"))


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_the_filter_sees_what_lies_beyond_a_box(interpolation):
    """On each side of it, as Pillow's does."""
    image = np.full((90, 100, 3), 255, np.uint8)
    image[20:60, 30:80] = 0
    found = resample(image, (10, 10), (20, 30, 40, 50), interpolation)
    expected = pillow(image, (10, 10), (20, 30, 40, 50), interpolation)
    for edge in (np.s_[0], np.s_[-1], np.s_[:, 0], np.s_[:, -1]):
        assert expected[edge].min() > 15
        assert np.abs(found[edge].astype(int) - expected[edge]).max() < 10


def test_reductions_of_eight_times_are_our_filters(data, monkeypatch):
    """Of what is left after decoding to an eighth; Pillow makes greater ones."""
    asked, made = [], resizing.resample
    monkeypatch.setattr(
        resizing, "resample", lambda *given: asked.append(given[1:3]) or made(*given)
    )
    content = encode(photograph(200, 320), "JPEG")
    raw = open_picture(encode_npy(photograph(200, 320)), 3)
    for picture, factor in ((open_picture(content, 3), 64), (raw, 8)):
        for side, count in ((192, 1), (193, 0)):
            size = (4, 192 // factor)
            resizer(data)(picture, size, (0, 5, 2 * factor, side))
            assert len(asked) == count
            asked.clear()


# ---------------------------------------------------------------------------- the references'


def photographs():
    """Ten photographs, uint8 [H, W, 3], and an inception crop of each: (top, left, height, width)."""
    rng = np.random.default_rng(5)
    images = [load_sample_image(name) for name in ("china.jpg", "flower.jpg")]
    files = sorted((pathlib.Path(__file__).parent / "photographs").glob("*.jpg"))
    images += [np.asarray(Image.open(file)) for file in files]
    assert len(images) == 10
    for image in images:
        yield image, inception_box(rng, *image.shape[:2], 0.05, 1.0)


def sampled(part, size):
    """tf.image.resize(method="bilinear", antialias=False): at half-pixel centres, float64."""
    axes = []
    for old, new in zip(part.shape, size, strict=False):
        position = (np.arange(new) + 0.5) * old / new - 0.5
        lower = np.floor(position)
        ends = np.clip([lower, lower + 1], 0, old - 1).astype(int)
        axes.append((ends, position - lower))
    (rows, down), (columns, across) = axes
    part = part.astype(float)
    part = part[rows[0]] * (1 - down)[:, None, None] + part[rows[1]] * down[:, None, None]
    left, right = part[:, columns[0]], part[:, columns[1]]
    return left * (1 - across)[:, None] + right * across[:, None]


def test_crops_without_antialiasing_are_the_references(data):
    """Big Vision's and vision_transformer's, which cut and keep fractions, to 1 grey level."""
    data.antialias = False
    resize = resizer(data)
    for image, (top, left, height, width) in photographs():
        found = resize(image, (224, 192), (top, left, height, width)).astype(float)
        expected = sampled(image[top : top + height, left : left + width], (224, 192))
        assert abs(found - expected).max() < 1
        assert abs(found - np.floor(expected)).max() <= 1


def area(part, size):
    """The mean over each pixel's preimage, by its definition, one pixel after the other."""
    (height, width), result = part.shape[:2], np.zeros((*size, part.shape[2]))
    for row in range(size[0]):
        for column in range(size[1]):
            total = weight = 0
            top, bottom = row * height / size[0], (row + 1) * height / size[0]
            left, right = column * width / size[1], (column + 1) * width / size[1]
            for y in range(int(top), min(height, math.ceil(bottom))):
                for x in range(int(left), min(width, math.ceil(right))):
                    share = min(bottom, y + 1) - max(top, y)
                    share *= min(right, x + 1) - max(left, x)
                    total, weight = total + share * part[y, x].astype(float), weight + share
            result[row, column] = total / weight
    return result


@pytest.mark.parametrize(
    "size", [(20, 27), (48, 64), (37, 64), (60, 80), (110, 140), (20, 140), (110, 27), (96, 64)]
)
def test_by_area_each_pixel_is_the_mean_over_its_preimage(data, size):
    """Of shrinking, where OpenCV's INTER_AREA is the same, and of growing, where it is not."""
    data.interpolation = "area"
    image = photograph(60, 80)
    found = resizer(data)(image, size)
    assert found.shape == (*size, 3)
    assert found.dtype == np.uint8
    np.testing.assert_allclose(found, area(image, size), rtol=0, atol=0.51)
    opencv = cv2.resize(image, size[::-1], interpolation=cv2.INTER_AREA)
    if size[0] <= 60 and size[1] <= 80:
        assert np.abs(found.astype(int) - opencv).max() <= 1


def test_areas_of_boxes_and_of_one_channel(data):
    data.interpolation, data.antialias = "area", False  # Which says nothing here.
    image = random_image(30, 40, 1)[..., np.newaxis]
    for size in ((7, 9), (50, 9)):
        found = resizer(data)(image, size, (3, 5, 20, 30))
        np.testing.assert_allclose(found, area(image[3:23, 5:35], size), rtol=0, atol=0.51)


def test_evaluation_may_resize_by_area_and_training_not(data):
    data.eval_interpolation, data.eval_crop, data.eval_resize = "area", "center", 32
    image = photograph(60, 80)
    found = eval_transform(preprocessing_of(data), (28, 28), 3)(encode(image))
    assert preprocessing_of(data).interpolation == "area"
    np.testing.assert_allclose(found, area(image, (32, 43))[2:30, 7:35], rtol=0, atol=0.51)
    data.train_crop, data.flip = "resize", False
    trained = train_transform(data, (32, 32), 3)(encode(image), np.random.default_rng(0))
    np.testing.assert_array_equal(trained, pillow(image, (32, 32), (0, 0, 60, 80), "bilinear"))
