"""Reading image files of every kind."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encode, random_image, smooth_image
from vit_jax.data.images.picture import decode
from vit_jax.errors import DataError


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


@pytest.mark.parametrize("file_format", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "JPEG", "PPM"])
def test_formats_are_told_by_content(file_format, tmp_path):
    image = smooth_image(20, 30)
    path = tmp_path / "x.jpg"  # Whatever it holds.
    path.write_bytes(encode(image, file_format))
    assert np.abs(decode(path.read_bytes(), 3).astype(int) - image).mean() < 6


def test_progressive_jpeg():
    content = encode(smooth_image(32, 48), "JPEG", quality=95, progressive=True)
    assert b"\xff\xc2" in content
    np.testing.assert_array_equal(decode(content, 3), np.asarray(Image.open(io.BytesIO(content))))


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
    # A file without the marker is taken for Adobe's too, which is what most are.
    at = content.index(b"\xff\xee")
    plain = content[:at] + content[at + 2 + int.from_bytes(content[at + 2 : at + 4]) :]
    np.testing.assert_allclose(decode(plain, 3)[8, 8], (245, 122, 0), atol=3)


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


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (b"\0" * 100, "its content is of no known format"),
        (b"<html></html>", "its content is of no known format"),
        (b"\x89PNG\r\n\x1a\n", ""),
    ],
)
def test_not_an_image(content, reason):
    with pytest.raises(DataError, match=rf"cannot decode the image \({reason}"):
        decode(content, 3)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG"])
def test_implausible_size_is_refused_without_allocating(file_format):
    def chunk(kind, body):
        checksum = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b""))
    if file_format == "JPEG":
        jpeg = encode(smooth_image(16, 16), "JPEG")
        at = jpeg.index(b"\xff\xc0") + 5
        content = jpeg[:at] + struct.pack(">HH", 60_000, 60_000) + jpeg[at + 4 :]
    with pytest.raises(DataError, match="3600000000 pixels"):
        decode(content, 3)
