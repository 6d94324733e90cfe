"""Files with any number of channels, with whole numbers of any size, and with floats."""

import io

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encode, encode_npy, encode_tiff, random_image
from vit_jax.data.images.picture import (
    Decoding,
    _warn_of_few_bits,
    decode,
    open_picture,
    size_in_memory,
)
from vit_jax.data.images.transforms import eval_transform, preprocessing_of, train_transform
from vit_jax.errors import ConfigError, DataError
from vit_jax.model_file import Preprocessing


def values_of(dtype, channels, height=7, width=5):
    """Numbers from all over the type's range, or floats around 0."""
    rng = np.random.default_rng(channels)
    if np.dtype(dtype).kind == "f":
        return rng.normal(0, 1000, (height, width, channels)).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, (height, width, channels), dtype, endpoint=True)


def mapped(values, low, high):
    return (values.astype(np.float64) - low) / (high - low) * 255


@pytest.mark.parametrize("channels", [2, 4, 5, 8])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32", "float64"])
def test_tiff_and_npy_hold_the_values_that_were_written(dtype, channels):
    values = values_of(dtype, channels)
    how = Decoding(value_range=(-1000.0, 3000.0), dtype="float32")
    files = [encode_tiff(values, *how) for how in ((1, 1), (8, 1), (1, 2), (8, 2))]
    for content in (*files, encode_npy(values), encode_npy(np.asfortranarray(values))):
        pixels = decode(content, channels, how)
        assert pixels.dtype == np.float32
        np.testing.assert_allclose(pixels, mapped(values, -1000, 3000), rtol=1e-6, atol=1e-5)


def tagged(values, byte_order="<", **options):
    """A TIFF file that libtiff writes, by OpenCV."""
    flags = [
        cv2.IMWRITE_TIFF_COMPRESSION,
        options["compression"],
        cv2.IMWRITE_TIFF_PREDICTOR,
        options["predictor"],
    ]
    return cv2.imencode(".tiff", values[..., ::-1], flags)[1].tobytes()


@pytest.mark.parametrize("mode", ["F", "I;16", "RGB"])
def test_a_tiff_file_cut_short_is_told_though_its_header_comes_first(mode):
    picture = Image.fromarray(random_image(20, 30, 3 if mode == "RGB" else 1))
    content = encode(picture.convert(mode), "TIFF")
    assert (
        int.from_bytes(content[4:8], "little") == 8
    )  # Where the header stands: all of it is left.
    how, channels = Decoding(value_range=(0.0, 255.0)), 3
    assert decode(content, channels, how).shape == (20, 30, 3)
    for missing in (1, 300):
        with pytest.raises(DataError, match="cannot decode the image"):
            decode(content[:-missing], channels, how)


@pytest.mark.parametrize("compression", [1, 5, 8, 32946, 32773])
@pytest.mark.parametrize("predictor", [1, 2, 3])
def test_compressions_and_predictors_of_libtiff(compression, predictor):
    values = values_of("float32", 3, 37, 19)
    if predictor == 2:
        values = values_of("uint16", 3, 37, 19)
    content = tagged(values, compression=compression, predictor=predictor)
    pixels = decode(content, 3, Decoding(value_range=(-500.0, 500.0), dtype="float32"))
    np.testing.assert_allclose(pixels, mapped(values, -500, 500), rtol=1e-6, atol=1e-4)


def test_sixteen_bits_of_colour_are_kept_as_floats():
    values = values_of("uint16", 4)
    for channels in (3, 4):
        part = np.ascontiguousarray(values[..., :channels])
        content = cv2.imencode(".png", part[..., [2, 1, 0, 3][:channels]])[1].tobytes()
        pixels = decode(content, channels, Decoding(dtype="float32"))
        np.testing.assert_allclose(pixels, part / 257, rtol=1e-6)
    grey = Image.fromarray(values[..., 0])
    pixels = decode(encode(grey), 1, Decoding(bit_depth=12, dtype="float32"))
    np.testing.assert_allclose(pixels[..., 0], values[..., 0] / 4095 * 255, rtol=1e-6)


def test_a_range_cuts_and_rounds_to_eight_bits_and_keeps_floats_as_they_are():
    values = np.float32([[-1, 0, 0.1, 1, 2]])
    pixels = decode(encode_npy(values), 1, Decoding(value_range=(0.0, 1.0)))
    np.testing.assert_array_equal(pixels[0, :, 0], [0, 0, 26, 255, 255])
    floats = decode(encode_npy(values), 1, Decoding(value_range=(0.0, 1.0), dtype="float32"))
    np.testing.assert_allclose(floats[0, :, 0], values[0] * 255, rtol=1e-6)
    picture = random_image()
    darker = decode(encode(picture), 3, Decoding(value_range=(0.0, 127.5)))
    np.testing.assert_array_equal(darker, np.minimum(picture.astype(int) * 2, 255))


def test_transparency_is_a_fourth_channel_where_four_are_wanted():
    rgba = random_image(channels=4)
    np.testing.assert_array_equal(decode(encode(rgba), 4), rgba)


def test_a_picture_in_memory_is_mapped_as_its_file(tmp_path):
    values = values_of("float32", 5)
    how = Decoding(value_range=(-3000.0, 3000.0), dtype="float32")
    np.testing.assert_array_equal(
        open_picture(values, 5, how), open_picture(encode_tiff(values), 5, how)
    )
    grey = Image.fromarray(values[..., 0])
    np.testing.assert_array_equal(
        open_picture(grey, 1, how)[..., 0], open_picture(values, 5, how)[..., 0]
    )


NAN = np.full((2, 2, 5), np.nan, np.float32)
VERSION_3 = io.BytesIO()
np.lib.format.write_array(VERSION_3, np.zeros((2, 2)), version=(3, 0))


@pytest.mark.parametrize(
    ("content", "channels", "how", "message"),
    [
        (encode_tiff(values_of("uint8", 5)), 3, Decoding(), "it has 5 channels, and the model expects 3"),
        (encode_tiff(values_of("uint8", 5), 1, 2), 1, Decoding(), "it has 5 channels"),
        (encode_tiff(values_of("uint8", 2)), 1, Decoding(), "it has 2 channels"),
        (encode(random_image()), 5, Decoding(), "it has 3 channels, and the model expects 5"),
        (encode(random_image(channels=1)), 5, Decoding(), "it has 1 channels"),
        (encode_tiff(values_of("float32", 5)), 5, Decoding(), "floats|no agreed range"),
        (encode_npy(values_of("int16", 1)), 1, Decoding(), "int16, which have no agreed range"),
        (encode_npy(NAN), 5, Decoding(value_range=(0.0, 1.0)), "20 of its 20 values are not finite"),
        (encode_npy(np.zeros(4)), 1, Decoding(), r"float64 \[4\]; expected numbers"),
        (encode_npy(np.zeros((2, 2), complex)), 1, Decoding(), "complex128"),
        (encode_npy(np.zeros((0, 4, 3), np.uint8)), 3, Decoding(), r"with uint8 \[0, 4, 3\]; expected"),
        (encode_npy(np.zeros((1, 2, 3, 1))), 1, Decoding(), r"float64 \[1, 2, 3, 1\]; expected"),
        (VERSION_3.getvalue(), 1, Decoding(), "version 3"),
        (encode_npy(values_of("uint16", 5))[:-9], 5, Decoding(), "image .it ends 9 bytes too early"),
        (encode_tiff(values_of("uint8", 5))[:40], 5, Decoding(), "damaged TIFF file"),
        (encode_tiff(values_of("uint16", 5))[:8] + bytes(900), 5, Decoding(), "damaged TIFF file"),
        (encode_tiff(values_of("uint8", 5)), 5, Decoding(max_bytes=100), "more than it may take"),
        (encode_npy(values_of("uint8", 5)), 5, Decoding(max_bytes=100), "5×7 pixels.* more than it may"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(content, channels, how, message):
    with pytest.raises(DataError, match=message):
        decode(content, channels, how)


def test_pickles_are_not_run():
    file = io.BytesIO()
    np.save(file, np.array([[print]], object), allow_pickle=True)
    with pytest.raises(DataError, match="object"):
        decode(file.getvalue(), 1)


def test_memory_is_told_before_decoding():
    values = values_of("float64", 8)
    assert size_in_memory(encode_tiff(values, 8)) == values.nbytes
    assert size_in_memory(encode_npy(values)) >= values.nbytes
    for file_format in ("JPEG", "PNG"):
        assert size_in_memory(encode(random_image(20, 30), file_format)) == 20 * 30 * 4
    assert size_in_memory(b"nothing") == size_in_memory(values) == 0


@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_both_headers_of_npy_files(version):
    file, values = io.BytesIO(), values_of("uint8", 3)
    np.lib.format.write_array(file, values, version=version)
    np.testing.assert_array_equal(decode(file.getvalue(), 3), values)


def test_grey_of_sixteen_bits_in_other_formats_keeps_its_values():
    ramp = np.arange(0, 65536, 64, dtype=np.uint16).reshape(32, 32)
    pixels = decode(encode(ramp, "PPM"), 1, Decoding(dtype="float32"))
    np.testing.assert_allclose(pixels[..., 0], ramp / 257, rtol=1e-6)


def test_values_within_a_range_that_is_given_are_not_suspected(caplog):
    _warn_of_few_bits.cache_clear()
    values = np.arange(1000, dtype=np.uint16).reshape(20, 50, 1)
    decode(encode_npy(values), 1, Decoding(value_range=(0.0, 1000.0)))
    decode(encode_npy(values), 1, Decoding(bit_depth=10))
    assert not caplog.records
    decode(encode_npy(values), 1)
    assert "no value above 1,023" in caplog.text


# ---------------------------------------------------------------------------------- transforms


@pytest.mark.parametrize("antialias", [True, False])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_each_channel_is_resized_as_if_it_were_alone(data, antialias, interpolation):
    values = values_of("uint8", 5, 40, 30)
    data.update(antialias=antialias, interpolation=interpolation)
    of_five = eval_transform(preprocessing_of(data), (9, 8), 5)(encode_tiff(values))
    of_one = eval_transform(preprocessing_of(data), (9, 8), 1)
    for channel in range(5):
        alone = of_one(np.ascontiguousarray(values[..., [channel]]))
        np.testing.assert_array_equal(of_five[..., [channel]], alone)


def test_floats_keep_what_eight_bits_lose(data):
    values = np.linspace(0.4999, 0.5001, 64, dtype=np.float32).reshape(8, 8, 1)
    how = Preprocessing(value_range=(0.0, 1.0), dtype="float32")
    pixels = eval_transform(how, (4, 4), 1)(encode_npy(values))
    assert (pixels.dtype, len(np.unique(pixels))) == (np.float32, 16)
    np.testing.assert_allclose(pixels.mean(), 127.5, rtol=1e-5)


CROPS = ("inception", "random_resized", "simple_random", "resize_small_crop(12)", "pad(2)")


@pytest.mark.parametrize("crop", CROPS)
def test_training_crops_of_any_channels(data, crop):
    data.update(train_crop=crop, dtype="float32", augmentation="random_erasing(1.0)")
    data.value_range = (-4000.0, 4000.0)
    transform = train_transform(data, (8, 8), 5)
    image = transform(encode_tiff(values_of("float32", 5, 20, 16)), np.random.default_rng(0))
    assert (image.shape, image.dtype) == ((8, 8, 5), np.float32)


@pytest.mark.parametrize("name", ["color_jitter", "three_augment", "randaug_tf", "autoaugment"])
@pytest.mark.parametrize(("channels", "dtype"), [(5, "uint8"), (3, "float32")])
def test_augmentations_of_colours_refuse_other_pixels(data, name, channels, dtype):
    data.update(augmentation=f"{name} | random_erasing", dtype=dtype)
    with pytest.raises(ConfigError, match=f"{name} is for grey and RGB of 8 bits"):
        train_transform(data, (8, 8), channels)


@pytest.mark.parametrize("channels", [3, 4])
def test_sixteen_bits_of_colour_in_a_tiff_file_are_a_picture(channels):
    """Of which Pillow reads eight, and lays what is transparent over white."""
    values = np.full((4, 6, channels), 0x40FF, np.uint16)
    values[..., 3:] = 0xFFFF
    content = cv2.imencode(".tiff", values)[1].tobytes()
    np.testing.assert_array_equal(decode(content, 3), np.full((4, 6, 3), 0x40))
