import io
import pickle
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from vit_jax.data.transforms import decode, eval_transform, inception_crop_box, train_transform
from vit_jax.errors import ConfigError, DataError


def encode(image, file_format="PNG", **options):
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(
        file, file_format, **options
    )
    return file.getvalue()


def random_image(height=30, width=40, channels=3, seed=0):
    shape = (height, width, channels) if channels > 1 else (height, width)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def smooth_image(height, width):
    rows, columns = np.mgrid[:height, :width]
    planes = [rows * 255 // height, columns * 255 // width, (rows + columns) % 256]
    return np.stack(planes, -1).astype(np.uint8)


# ---------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_lossless_formats(file_format):
    palette = Image.fromarray(random_image()).quantize(16)  # GIF holds no more.
    image = np.asarray(palette.convert("RGB"))
    options = {"lossless": True} if file_format == "WEBP" else {}
    content = encode(palette if file_format == "GIF" else image, file_format, **options)
    np.testing.assert_array_equal(decode(content, 3), image)


def test_jpeg():
    content = encode(smooth_image(32, 48), "JPEG", quality=95)
    expected = cv2.cvtColor(cv2.imdecode(np.frombuffer(content, np.uint8), -1), cv2.COLOR_BGR2RGB)
    assert np.abs(decode(content, 3).astype(int) - expected).max() <= 2


def test_grey():
    image = random_image(channels=1)
    for content in (encode(image), encode(image, "JPEG", quality=100)):
        rgb, grey = decode(content, 3), decode(content, 1)
        assert (rgb.shape, grey.shape) == ((30, 40, 3), (30, 40, 1))
        np.testing.assert_array_equal(rgb, np.repeat(grey, 3, axis=2))
    np.testing.assert_array_equal(decode(encode(image), 1)[..., 0], image)


def test_colour_to_grey_is_luminance():
    image = random_image()
    expected = image @ np.array([0.299, 0.587, 0.114])
    for grey in (decode(encode(image), 1), decode(image, 1)):
        assert np.abs(grey[..., 0] - expected).max() < 1


def test_one_bit():
    image = random_image(channels=1) > 127
    expected = np.where(image, 255, 0)
    np.testing.assert_array_equal(decode(encode(Image.fromarray(image)), 1)[..., 0], expected)


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_are_scaled_not_clipped(file_format):
    ramp = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    image = decode(encode(ramp, file_format), 3)
    np.testing.assert_allclose(image[..., 0], ramp / 257, atol=0.51)
    np.testing.assert_array_equal(image[..., 0], image[..., 2])


def test_transparency_lies_over_white():
    rgba = np.zeros((2, 2, 4), np.uint8)
    rgba[0] = [255, 0, 0, 255]
    rgba[1] = [255, 0, 0, 0]
    expected = np.array([[[255, 0, 0]] * 2, [[255, 255, 255]] * 2])
    np.testing.assert_array_equal(decode(encode(rgba), 3), expected)
    grey_alpha = Image.fromarray(rgba).convert("LA")
    np.testing.assert_array_equal(decode(encode(grey_alpha), 1)[1], [[255], [255]])
    palette = Image.fromarray(np.array([[0, 1]], np.uint8))
    palette.putpalette([10, 20, 30, 40, 50, 60])
    content = encode(palette, transparency=1)
    np.testing.assert_array_equal(decode(content, 3), [[[10, 20, 30], [255, 255, 255]]])


def test_cmyk():
    # Pillow writes CMYK as Adobe does, inverted, and with Adobe's marker.
    image = Image.new("CMYK", (16, 16), (0, 128, 255, 10))
    content = encode(image, "JPEG", quality=100)
    assert b"Adobe" in content
    np.testing.assert_allclose(decode(content, 3)[8, 8], (245, 122, 0), atol=3)
    np.testing.assert_array_equal(decode(encode(image, "TIFF"), 3)[8, 8], (245, 122, 0))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "TIFF"])
def test_exif_orientation(orientation, file_format):
    upright = smooth_image(16, 24)
    # How a camera stores an upright scene for each value of the tag.
    stored = {
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: np.rot90(upright, 2).transpose(1, 0, 2),
        8: np.rot90(upright, 3),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"quality": 100, "subsampling": 0} if file_format == "JPEG" else {}
    image = decode(encode(np.ascontiguousarray(stored), file_format, exif=exif, **options), 3)
    assert image.shape == upright.shape
    assert np.abs(image.astype(int) - upright).mean() < 2


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_malformed_exif_is_ignored():
    content = encode(smooth_image(8, 8), "JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\xff")
    assert decode(content, 3).shape == (8, 8, 3)


def test_the_first_frame_of_an_animation():
    frames = [Image.new("RGB", (4, 4), color) for color in ("red", "blue")]
    content = encode(frames[0], "GIF", save_all=True, append_images=frames[1:])
    np.testing.assert_array_equal(decode(content, 3)[0, 0], (255, 0, 0))


def test_arrays():
    image = random_image()
    assert decode(image, 3) is image
    grey = image[..., :1]
    np.testing.assert_array_equal(decode(grey, 3), np.repeat(grey, 3, axis=2))
    for bad in (image.astype(np.float32), image[..., 0], image[..., :2]):
        with pytest.raises(DataError, match="expected uint8"):
            decode(bad, 3)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "BMP", "GIF"])
def test_truncated(file_format):
    content = encode(random_image(), file_format)
    with pytest.raises(DataError, match="cannot decode"):
        decode(content[: len(content) * 2 // 3], 3)


@pytest.mark.parametrize("content", [b"", b"\0" * 100, b"<html></html>", b"\x89PNG\r\n\x1a\n"])
def test_not_an_image(content):
    with pytest.raises(DataError, match="cannot decode"):
        decode(content, 3)


def test_implausible_size_is_refused_without_allocating():
    def chunk(kind, body):
        checksum = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))
    with pytest.raises(DataError, match="3600000000 pixels"):
        decode(content, 3)


def test_other_channel_counts_are_refused(data):
    for build in (train_transform, eval_transform):
        with pytest.raises(ConfigError, match="1 or 3 channels, not 4"):
            build(data, (8, 8), 4)


@pytest.mark.slow
def test_a_hundred_megapixels(data):
    content = encode(Image.new("RGB", (12_000, 9_000), (10, 20, 30)), compress_level=1)
    image = eval_transform(data, (32, 32), 3)(content)
    assert (image == (10, 20, 30)).all()


# ---------------------------------------------------------------------------- inception crop


def areas(height, width, area_range, count=20_000):
    rng = np.random.default_rng(0)
    boxes = np.array([inception_crop_box(rng, height, width, area_range) for _ in range(count)])
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 0] + boxes[:, 2] <= height).all()
    assert (boxes[:, 1] + boxes[:, 3] <= width).all()
    return boxes


def test_inception_crop_has_tensorflows_distribution():
    boxes = areas(375, 500, (0.05, 1.0))
    share = boxes[:, 2] * boxes[:, 3] / (500 * 375)
    expected = [0.083, 0.150, 0.300, 0.502, 0.667]  # TensorFlow's, not torchvision's (mean 0.413).
    assert np.abs(np.quantile(share, [0.1, 0.25, 0.5, 0.75, 0.9]) - expected).max() < 0.01
    assert abs(share.mean() - 0.342) < 0.01
    assert share.min() >= 0.05
    ratio = boxes[:, 3] / boxes[:, 2]
    # Rounding moves the ratio of the smallest crops, some 84 rows high, by under 1 %.
    assert ratio.min() > 0.74
    assert ratio.max() < 1.35
    # The ratio is uniform, so its mean is the interval's middle.
    assert abs(ratio.mean() - (3 / 4 + 4 / 3) / 2) < 0.01


def test_inception_crop_positions_cover_the_room():
    boxes = areas(100, 100, (0.25, 0.3), 5_000)
    room = 100 - boxes[:, 2]
    assert abs((boxes[:, 0] / room).mean() - 0.5) < 0.02
    assert boxes[:, 0].min() == 0


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 500), (500, 1), (2, 3), (8, 8)])
def test_inception_crop_of_extreme_shapes(height, width):
    areas(height, width, (0.05, 1.0), 200)


def test_inception_crop_falls_back_to_the_whole_image():
    rng = np.random.default_rng(0)
    assert inception_crop_box(rng, 10, 1000, (0.9, 1.0)) == (0, 0, 10, 1000)


# ---------------------------------------------------------------------------- transforms


def pillow(image, size, resample, box=None):
    return np.asarray(Image.fromarray(image).resize(size[::-1], resample, box=box))


@pytest.mark.parametrize("encoded", [False, True])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_eval_resize_is_pillows(data, interpolation, encoded):
    image = random_image(60, 90)
    data.eval_crop, data.interpolation = "resize", interpolation
    resized = eval_transform(data, (24, 32), 3)(encode(image) if encoded else image)
    expected = pillow(image, (24, 32), Image.Resampling[interpolation.upper()])
    np.testing.assert_array_equal(resized, expected)


def test_antialiasing_averages_and_its_absence_samples(data):
    stripes = np.zeros((64, 64, 3), np.uint8)
    stripes[:, ::2] = 255
    data.eval_crop = "resize"
    averaged = eval_transform(data, (16, 16), 3)(stripes)[:, 1:-1].astype(int)
    assert np.abs(averaged - 127.5).max() < 3
    data.antialias = False
    image = random_image(64, 64)
    sampled = eval_transform(data, (16, 16), 3)(image)
    # Half-pixel centres at a factor of 4 fall between pixels 1 and 2 of each 4.
    blocks = image.reshape(16, 4, 16, 4, 3)[:, 1:3, :, 1:3].astype(float)
    assert np.abs(sampled - blocks.mean((1, 3))).max() <= 1


@pytest.mark.parametrize(("height", "width"), [(60, 91), (91, 60), (40, 40), (20, 33)])
@pytest.mark.parametrize("antialias", [True, False])
def test_eval_center(data, height, width, antialias):
    data.eval_crop, data.eval_resize, data.antialias = "center", 40, antialias
    image = smooth_image(height, width)
    cropped = eval_transform(data, (32, 30), 3)(image)
    scale = 40 / min(height, width)
    size = (round(height * scale), round(width * scale))
    if antialias:
        whole = pillow(image, size, Image.Resampling.BILINEAR)
    else:
        whole = cv2.resize(image, size[::-1], interpolation=cv2.INTER_LINEAR)
    top, left = (size[0] - 32) // 2, (size[1] - 30) // 2
    np.testing.assert_array_equal(cropped, whole[top : top + 32, left : left + 30])


def test_eval_center_larger_than_the_image_is_refused(data):
    data.eval_crop, data.eval_resize = "center", 256
    with pytest.raises(ConfigError, match=r"eval_resize=256 is smaller than the 384×384"):
        eval_transform(data, (384, 384), 3)


@pytest.mark.parametrize("crop", ["resize", "pad"])
def test_an_image_of_the_right_size_is_untouched(data, crop):
    data.train_crop, data.flip, data.train_crop_padding = crop, False, 0
    image = random_image(16, 24)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(train_transform(data, (16, 24), 3)(image, rng), image)
    np.testing.assert_array_equal(eval_transform(data, (16, 24), 3)(image), image)


def test_train_inception_is_a_pillow_resize_of_the_box(data):
    data.train_crop, data.flip = "inception", False
    image = random_image(60, 90)
    transform = train_transform(data, (24, 32), 3)
    for seed in range(5):
        top, left, height, width = inception_crop_box(
            np.random.default_rng(seed), 60, 90, data.train_crop_area
        )
        box = (left, top, left + width, top + height)
        expected = pillow(image, (24, 32), Image.Resampling.BILINEAR, box)
        cropped = transform(encode(image), np.random.default_rng(seed))
        np.testing.assert_array_equal(cropped, expected)


def test_train_pad_shifts_over_black(data):
    data.train_crop, data.train_crop_padding, data.flip = "pad", 2, False
    image = np.arange(1, 21, dtype=np.uint8).reshape(4, 5, 1)
    padded = np.pad(image, ((2, 2), (2, 2), (0, 0)))
    possible = {
        padded[top : top + 4, left : left + 5].tobytes() for top in range(5) for left in range(5)
    }
    transform, rng = train_transform(data, (4, 5), 1), np.random.default_rng(0)
    assert {transform(image, rng).tobytes() for _ in range(500)} == possible


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
            assert eval_transform(data, size, channels)(image).shape == (6, 7, channels)
            data.antialias = not data.antialias


def test_transforms_are_picklable(data):
    image = random_image()
    for build, arguments in ((train_transform, (np.random.default_rng(0),)), (eval_transform, ())):
        transform = pickle.loads(pickle.dumps(build(data, (8, 8), 3)))
        assert transform(image, *arguments).shape == (8, 8, 3)
