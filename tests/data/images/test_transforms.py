"""From an image file to the array that a batch holds, in training and evaluation."""

import dataclasses
import pickle
import subprocess
import sys
import tracemalloc

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encode, random_image, smooth_image
from vit_jax.data.images.picture import Decoding
from vit_jax.data.images.randaugment_tf import randaug_tf
from vit_jax.data.images.transforms import (
    describe_training,
    eval_transform,
    mirrored,
    preprocessing_of,
    train_transform,
)
from vit_jax.errors import ConfigError, DataError
from vit_jax.model_file import Preprocessing


@pytest.mark.slow
def test_a_hundred_megapixels(data):
    content = encode(Image.new("RGB", (12_000, 9_000), (10, 20, 30)), compress_level=1)
    image = eval_transform(preprocessing_of(data), (32, 32), 3)(content)
    assert (image == (10, 20, 30)).all()


def pillow(image, size, resample, box=None):
    return np.asarray(Image.fromarray(image).resize(size[::-1], resample, box=box))


def test_how_large_an_image_may_be(data):
    data.max_image_gib = 1e-6
    train = train_transform(data, (8, 8), 3)
    evaluate = eval_transform(preprocessing_of(data), (8, 8), 3, data.max_image_gib)
    with pytest.raises(DataError, match="raise max_image_gib=1e-06"):
        train(encode(smooth_image(20, 20)), np.random.default_rng(0))
    with pytest.raises(DataError, match="raise max_image_gib=1e-06"):
        evaluate(encode(smooth_image(20, 20), "JPEG"))


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_eval_resize_is_pillows(data, interpolation, encoded):
    image = random_image(60, 90)
    data.eval_crop, data.interpolation = "resize", interpolation
    resized = eval_transform(preprocessing_of(data), (24, 32), 3)(
        encode(image) if encoded else image
    )
    expected = pillow(image, (24, 32), Image.Resampling[interpolation.upper()])
    np.testing.assert_array_equal(resized, expected)


def test_antialiasing_averages_and_its_absence_samples(data):
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    data.eval_crop = "resize"
    averaged = eval_transform(preprocessing_of(data), (16, 16), 3)(stripes)[:, 1:-1].astype(int)
    assert np.abs(averaged - 127.5).max() < 3
    data.antialias = False
    image = random_image(64, 64)
    sampled = eval_transform(preprocessing_of(data), (16, 16), 3)(image)
    # Half-pixel centres at a factor of 4 fall between pixels 1 and 2 of each 4.
    blocks = image.reshape(16, 4, 16, 4, 3)[:, 1:3, :, 1:3].astype(float)
    assert np.abs(sampled - blocks.mean((1, 3))).max() <= 1


@pytest.mark.parametrize(("height", "width"), [(60, 91), (91, 60), (40, 40), (20, 33)])
@pytest.mark.parametrize("antialias", [True, False])
def test_eval_center(data, height, width, antialias):
    data.eval_crop, data.eval_resize, data.antialias = "center", 40, antialias
    image = smooth_image(height, width)
    cropped = eval_transform(preprocessing_of(data), (32, 30), 3)(image)
    scale = 40 / min(height, width)
    size = (round(height * scale), round(width * scale))
    if antialias:
        whole = pillow(image, size, Image.Resampling.BILINEAR)
    else:
        whole = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)
    top, left = (size[0] - 32) // 2, (size[1] - 30) // 2
    np.testing.assert_array_equal(cropped, whole[top : top + 32, left : left + 30])


@pytest.mark.parametrize("shape", [(6, 600), (600, 6)])
def test_the_centre_of_a_strip_is_that_of_the_whole(data, shape):
    data.eval_crop, data.eval_resize = "center", 8
    image = random_image(*shape)
    found = eval_transform(preprocessing_of(data), (8, 8), 3)(image)
    whole = pillow(image, (8 * shape[0] // 6, 8 * shape[1] // 6), Image.Resampling.BILINEAR)
    top, left = ((side - 8) // 2 for side in whole.shape[:2])
    assert np.abs(found.astype(int) - whole[top : top + 8, left : left + 8]).max() <= 1


@pytest.mark.parametrize("text", ["center", "simple_random", "resize_small_crop(224)"])
def test_a_strip_fills_no_memory(data, text):
    """At the model's width, 20,000 × 2 pixels would be 1.4 GiB."""
    image = np.full((2, 20_000, 3), 77, np.uint8)
    tracemalloc.start()
    if text == "center":
        data.eval_crop = "center"
        result = eval_transform(preprocessing_of(data), (224, 224), 3)(image)
    else:
        data.train_crop = text
        result = train_transform(data, (224, 224), 3)(image, np.random.default_rng(0))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert (result == 77).all()
    assert peak < 30e6


def test_eval_center_larger_than_the_image_is_refused(data):
    data.eval_crop, data.eval_resize = "center", 256
    for size in ((224, 384), (384, 224)):
        message = f"eval_resize=256 is smaller than the {size[0]}×{size[1]} pixels"
        with pytest.raises(ConfigError, match=message):
            eval_transform(preprocessing_of(data), size, 3)
    eval_transform(preprocessing_of(data), (224, 256), 3)


def test_images_that_would_fill_the_memory_are_refused(data):
    data.max_image_gib = 20 * 30 * 3 / 2**30
    assert train_transform(data, (20, 30), 3)
    with pytest.raises(ConfigError, match=r"\(20, 31\) with 3 channels: .* 1.73e-06 GiB, .*=1.67"):
        train_transform(data, (20, 31), 3)


def test_files_are_read_as_the_config_says(data):
    data.update(bit_depth=12, value_range=(1.0, 9.0), dtype="float32", max_image_gib=0.25)
    how = Decoding(2**28, 12, (1.0, 9.0), "float32")
    assert train_transform(data, (8, 8), 3).keywords["how"] == how
    preprocessing = preprocessing_of(data)
    assert eval_transform(preprocessing, (8, 8), 3, 0.25).keywords["how"] == how
    unlimited = dataclasses.replace(how, max_bytes=2**30)
    assert eval_transform(preprocessing, (8, 8), 3).keywords["how"] == unlimited


@pytest.mark.parametrize("crop", ["resize", "pad(0)", "simple_random(0)"])
def test_an_image_of_the_right_size_is_untouched(data, crop):
    data.train_crop, data.flip = crop, False
    image = random_image(16, 24)
    rng = np.random.default_rng(0)
    for _ in range(8):
        np.testing.assert_array_equal(train_transform(data, (16, 24), 3)(image, rng), image)
    np.testing.assert_array_equal(eval_transform(preprocessing_of(data), (16, 24), 3)(image), image)


def test_train_flip_mirrors_half(data):
    data.train_crop = "resize"
    image = random_image(6, 6)
    transform, rng = train_transform(data, (6, 6), 3), np.random.default_rng(0)
    flipped = [np.array_equal(transform(image, rng), image[:, ::-1]) for _ in range(400)]
    assert 150 < sum(flipped) < 250


def test_channels(data):
    rng = np.random.default_rng(0)
    for image in (random_image(9, 9), random_image(9, 9, 1)[..., None]):
        for channels in (1, 3):
            size = (6, 7)
            assert train_transform(data, size, channels)(image, rng).shape == (6, 7, channels)
            assert eval_transform(preprocessing_of(data), size, channels)(image).shape == (
                6,
                7,
                channels,
            )
            data.antialias = not data.antialias


def test_transforms_are_picklable(data):
    image = random_image()
    for build, how, arguments in (
        (train_transform, data, (np.random.default_rng(0),)),
        (eval_transform, preprocessing_of(data), ()),
    ):
        transform = pickle.loads(pickle.dumps(build(how, (8, 8), 3)))
        assert transform(image, *arguments).shape == (8, 8, 3)


def test_training_crops_then_mirrors_then_augments(data):
    data.train_crop, data.augmentation = "resize", "randaug_tf(1, 5) | randaug_tf(1, 15)"
    image, rng = random_image(12, 10), np.random.default_rng(3)
    expected = image[:, ::-1] if rng.random() < 0.5 else image
    for magnitude in (5, 15):
        expected = randaug_tf(expected, rng, layers=1, magnitude=magnitude)
    transform = train_transform(data, (12, 10), 3)
    np.testing.assert_array_equal(transform(image, np.random.default_rng(3)), expected)


def test_training_is_described_in_words(data):
    data.train_crop, data.augmentation = "inception(0.2)", "randaug_tf(magnitude=15)"
    crop, flip, augmentation = describe_training(data)
    assert crop.startswith("inception(min_area=0.2, max_area=1.0): TensorFlow's random box")
    assert flip.startswith("flip: ")
    assert augmentation.startswith(
        "randaug_tf(layers=2, magnitude=15): RandAugment as in TensorFlow"
    )
    data.flip, data.augmentation, data.repeated_augmentation = False, "", 2
    assert describe_training(data) == [crop, "repeated 2 times in a batch, each time anew"]


def test_what_cannot_work_is_refused_when_the_transform_is_built(data):
    data.train_crop = "resize_crop(16)"
    with pytest.raises(ConfigError, match="side=16 is smaller than the 32×32"):
        train_transform(data, (32, 32), 3)
    for crop in ("", "pad | resize"):
        data.train_crop = crop
        with pytest.raises(ConfigError, match=r"train_crop='.*: must be one of inception, random"):
            train_transform(data, (32, 32), 3)
    data.train_crop, data.augmentation = "pad", "nothing"
    with pytest.raises(ConfigError, match=r"config\.data\.augmentation"):
        train_transform(data, (32, 32), 3)


PEAK_OF_A_PROCESS = """
import io, resource, sys
import numpy as np
from PIL import Image
from vit_jax import config
from vit_jax.data.images.transforms import eval_transform, preprocessing_of

data = config.default_config().data
transform = eval_transform(preprocessing_of(data), (32, 32), 3)
file = io.BytesIO()
Image.new("RGB", (64, 48), "red").save(file, "PNG")
transform(file.getvalue())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(2):
    transform(open(sys.argv[1], "rb").read())
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("file_format", "limit"), [("PNG", 900), ("JPEG", 100)])
def test_the_memory_of_a_hundred_megapixels_is_bounded(file_format, limit, tmp_path):
    path = tmp_path / "large.bin"
    path.write_bytes(encode(Image.new("RGB", (12_000, 9_000), (10, 20, 30)), file_format))
    command = [sys.executable, "-c", PEAK_OF_A_PROCESS, str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(result.stdout) < limit  # MiB. Pillow's pixels take four bytes each, 412 MiB.


@pytest.mark.parametrize(
    ("dtype", "channels"),
    [("uint8", 1), ("uint8", 3), ("float32", 5), ("uint8", 128), ("uint8", 129), ("float32", 224)],
)
def test_mirrored_is_the_image_from_right_to_left(dtype, channels):
    image = np.random.default_rng(0).uniform(0, 255, (5, 7, channels)).astype(dtype)
    found = mirrored(image)
    np.testing.assert_array_equal(found, image[:, ::-1])
    assert found.dtype == image.dtype
    assert found.flags.c_contiguous


def test_fast_decoding_is_of_training_alone(data):
    data.decode = "fast"
    assert train_transform(data, (8, 8), 3).keywords["how"].fast
    assert not eval_transform(preprocessing_of(data), (8, 8), 3).keywords["how"].fast


def test_what_is_said_of_a_runs_images_is_what_its_config_says(data):
    data.update(mean=(0.1, 0.2), std=(0.3,), eval_crop="center", eval_resize=99, antialias=False)
    data.update(interpolation="bicubic", bit_depth=12, value_range=(1.0, 9.0), dtype="float32")
    expected = Preprocessing((0.1, 0.2), (0.3,), "center", 99, "bicubic", False)
    expected = dataclasses.replace(expected, bit_depth=12, value_range=(1.0, 9.0), dtype="float32")
    assert preprocessing_of(data) == expected
    data.eval_interpolation = "area"
    assert preprocessing_of(data) == dataclasses.replace(expected, interpolation="area")
    made = train_transform(data, (8, 12), 1).keywords
    assert (made["channels"], made["size"], made["flip"]) == (1, (8, 12), True)
    made = eval_transform(
        dataclasses.replace(expected, rounding="torchvision"), (8, 12), 1
    ).keywords
    assert (made["channels"], made["size"], made["smaller_side"]) == (1, (8, 12), 99)
    assert made["rounding"] == "torchvision"
    made = eval_transform(
        dataclasses.replace(expected, crop="resize", resize=1), (8, 12), 1
    ).keywords
    assert made["smaller_side"] is None


@pytest.mark.parametrize(
    ("dtype", "channels", "is_for"), [("uint8", 1, True), ("uint8", 3, True), ("uint8", 2, False)]
)
def test_augmentations_are_for_grey_and_rgb(data, dtype, channels, is_for):
    data.update(dtype=dtype, augmentation="color_jitter")
    if is_for:
        assert train_transform(data, (8, 8), channels)
        return
    with pytest.raises(
        ConfigError, match=r"RGB of 8 bits, not for 2 channels of uint8 .* random_er"
    ):
        train_transform(data, (8, 8), channels)
