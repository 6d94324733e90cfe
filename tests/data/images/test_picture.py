"""Reading image files of every kind."""

import io
import struct
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from PIL import Image, ImageFile

from tests.data.pictures import encode, random_image, smooth_image
from vit_jax.data.images.limits import Budget
from vit_jax.data.images.picture import Decoding, _warn_of_few_bits, decode
from vit_jax.errors import DataError


@pytest.mark.parametrize("file_format", ["PNG", "BMP", "GIF", "TIFF", "WEBP", "PPM"])
def test_lossless_formats(file_format):
    palette = Image.fromarray(random_image()).quantize(16)  # GIF holds no more.
    image = np.asarray(palette.convert("RGB"))
    options = {"lossless": True} if file_format == "WEBP" else {}
    content = encode(palette if file_format == "GIF" else image, file_format, **options)
    np.testing.assert_array_equal(decode(content, 3), image)


def test_formats_that_pillow_reads_and_does_not_write():
    image = random_image(5, 4)
    planes = image.transpose(2, 0, 1).tobytes()
    photoshop = b"8BPS" + struct.pack(">H6xHIIHH", 1, 3, 5, 4, 8, 3) + bytes(12 + 2) + planes
    rows = image[..., ::-1].tobytes()  # Blue first, in rows of an even number of bytes.
    sun = struct.pack(">8I", 0x59A66A95, 4, 5, 24, len(rows), 1, 0, 0) + rows
    for content in (photoshop, sun):
        np.testing.assert_array_equal(decode(content, 3), image)


def test_floats_in_memory_have_no_range_of_their_own():
    with pytest.raises(DataError, match="floating-point pixels have no agreed range: say which"):
        decode(Image.fromarray(np.float32([[0.5]])), 1)


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


@pytest.mark.parametrize("file_format", ["PNG", "TIFF", "PPM"])
@pytest.mark.parametrize("bits", [10, 12, 14])
def test_sixteen_bits_of_which_fewer_are_used(file_format, bits, caplog):
    white = 2**bits - 1
    ramp = np.linspace(0, white, 4096).astype(np.uint16).reshape(64, 64)
    content = encode(ramp, file_format)
    image = decode(content, 3, Decoding(bit_depth=bits))
    np.testing.assert_allclose(image[..., 1], ramp * (255 / white), atol=0.51)
    assert not caplog.records
    _warn_of_few_bits.cache_clear()
    for _ in range(2):
        assert decode(content, 1).max() == round(white / 257)
    (record,) = caplog.records
    assert f"no value above {white:,}" in record.getMessage()
    assert f"bit_depth, perhaps to {bits}" in record.getMessage()


def test_fewer_bits_of_colour_are_not_guessed():
    rows = 6 * (b"\0" + 5 * 6 * b"\x0f")
    content = make_png(6, 5, rows, bits=16)
    assert decode(content, 3).max() == 15
    with pytest.raises(DataError, match=r"not the 12 of bit_depth: convert it to 8 bits"):
        decode(content, 3, Decoding(bit_depth=12))
    assert decode(encode(random_image()), 3, Decoding(bit_depth=12)).max() > 200, "8 bits are 8"


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
        with pytest.raises(DataError, match=r"expected uint8|it has 2 channels"):
            decode(bad, 3)
    message = (
        r"an image array is float32 \[30, 40, 3\]; expected uint8 .* with 1 channels, or floats"
    )
    with pytest.raises(DataError, match=message):
        decode(image.astype(np.float32), 1)


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
        (b"\x89PNG\r\n\x1a\n", "it is a damaged PNG file"),
        (b"RIFF\0\0\0\0WEBPxxxx", "it is a damaged WebP file"),
        (b"\0\0\0\x18ftypheic\0\0\0\0", "it is a HEIC file: convert it"),
        (b"%PDF-1.7", "it is a PDF file: convert it"),
    ],
)
def test_not_an_image(content, reason):
    with pytest.raises(DataError, match=rf"cannot decode the image \({reason}"):
        decode(content, 3)


# ------------------------------------------------------------------------------------- memory


def chunk(kind: bytes, body: bytes) -> bytes:
    """One of the parts that a PNG file consists of."""
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def make_png(height, width, rows, *before, bits=8, colour=2, interlaced=False) -> bytes:
    """A PNG file with these rows, each with its filter byte first, and other chunks before them."""
    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, interlaced)
    chunks = (*before, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunks)


def claim(file_format: str, side: int) -> bytes:
    """A small file whose header says that it has side × side pixels."""
    palette = chunk(b"PLTE", bytes(range(6)))
    if file_format == "PNG":
        return make_png(side, side, bytes(1000))
    if file_format == "palette PNG":
        return make_png(side, side, bytes(1000), palette, bits=1, colour=3)
    content = encode(smooth_image(16, 16), file_format)
    sizes = {  # Where height and width are, or width and height, and how they are written.
        "JPEG": (content.find(b"\xff\xc0") + 5, ">HH"),
        "GIF": (6, "<HH"),
        "BMP": (18, "<ii"),
    }
    offset, layout = sizes[file_format]
    packed = struct.pack(layout, side, side)
    content = content[:offset] + packed + content[offset + len(packed) :]
    if file_format == "GIF":  # The frame says it too.
        content = content.replace(struct.pack("<HHHH", 0, 0, 16, 16), b"\0\0\0\0" + packed)
    return content


@pytest.mark.parametrize("file_format", ["PNG", "palette PNG", "JPEG", "GIF", "BMP"])
@pytest.mark.parametrize("side", [12_000, 60_000])
def test_a_small_file_of_many_pixels_is_refused_unread(file_format, side, monkeypatch):
    content = claim(file_format, side)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    told = rf"{side:,}×{side:,} pixels, {side**2 / 2**28:.2f} GiB: .*raise max_image_gib=1:"
    with pytest.raises(DataError, match=rf"file of {len(content):,} bytes with {told}"):
        decode(content, 3)


def test_an_animation_of_a_small_file_is_refused_unread(monkeypatch):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    content = encode(frames[0], "WEBP", save_all=True, append_images=frames[1:])
    at = content.index(b"VP8X") + 12  # The width less 1 and the height less 1, 24 bits each.
    content = content[:at] + 2 * (11_999).to_bytes(3, "little") + content[at + 6 :]
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(DataError, match="12,000×12,000 pixels"):
        decode(content, 3)


@pytest.mark.parametrize("file_format", ["PNG", "JPEG", "WEBP", "TIFF"])
def test_the_limit_counts_bytes_decoded_and_may_be_raised(file_format):
    flat = encode(np.zeros((1000, 1000, 3), np.uint8), file_format)
    noise = encode(random_image(1000, 1000), file_format, quality=90)
    decoded = 4 * 1000 * 1000
    for content in (flat, noise):
        assert decode(content, 3, Decoding(8 * decoded)).shape == (1000, 1000, 3)
        with pytest.raises(DataError, match="max_image_gib"):
            decode(content, 3, Decoding(decoded - 1))
    assert decode(noise, 3, Decoding(decoded)).shape == (1000, 1000, 3)


@pytest.mark.parametrize("colour", [0, 2, 3, 4, 6])
@pytest.mark.parametrize("share", [0.5, 0.999])
def test_a_png_without_its_last_rows_is_truncated(colour, share):
    bands, palette = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour], chunk(b"PLTE", bytes(range(250, 256)))
    rows = 40 * (b"\0" + 30 * bands * b"\1")
    before = [palette] if colour == 3 else []
    whole = make_png(40, 30, rows, *before, colour=colour)
    assert decode(whole, 3).shape == (40, 30, 3)
    with pytest.raises(DataError, match="truncated"):
        decode(make_png(40, 30, rows[: int(share * len(rows))], *before, colour=colour), 3)


def test_an_interlaced_png_without_its_last_pass_is_truncated():
    # Adam7's passes of 8×8 pixels have these many rows and columns.
    passes = ((1, 1), (1, 1), (1, 2), (2, 2), (2, 4), (4, 4), (4, 8))
    rows = [height * (b"\0" + width * b"\7") for height, width in passes]
    whole = decode(make_png(8, 8, b"".join(rows), colour=0, interlaced=True), 1)
    np.testing.assert_array_equal(whole, np.full((8, 8, 1), 7))
    for left in range(7):
        with pytest.raises(DataError, match="truncated"):
            decode(make_png(8, 8, b"".join(rows[:left]), colour=0, interlaced=True), 1)


@pytest.mark.parametrize("bits", [1, 2, 4, 8, 16])
def test_a_black_picture_is_not_truncated(bits):
    rows = 21 * bytes(1 + -(-13 * bits // 8))
    np.testing.assert_array_equal(decode(make_png(21, 13, rows, bits=bits, colour=0), 1), 0)


def test_threads_share_a_budget():
    budget, held, seen = Budget(10), [0], []

    def use(amount):
        with budget.reserve(amount):
            held[0] += min(amount, 10)
            seen.append(held[0])
            time.sleep(0.001)
            held[0] -= min(amount, 10)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, [3, 4, 100, 5, 6, 1, 0, 10, 9] * 4))
    assert max(seen) <= 10
    assert len(seen) == 36


# ----------------------------------------------------------------------------------- metadata


@pytest.mark.parametrize("kind", [b"tEXt", b"zTXt", b"iTXt", b"iCCP"])
def test_pixels_decide_whatever_a_png_says_besides(kind):
    image = random_image(6, 5)
    rows = b"".join(b"\0" + row.tobytes() for row in image)
    large = (2 << 20) * b" "  # Pillow decompresses no more than 1 MiB, and reads 64 MiB.
    bodies = {
        b"tEXt": b"Comment\0" + 33 * large,
        b"zTXt": b"Comment\0\0" + zlib.compress(large, 1),
        b"iTXt": b"Comment\0\1\0\0\0" + zlib.compress(large, 1),
        b"iCCP": b"sRGB\0\0" + zlib.compress(large, 1),
    }
    np.testing.assert_array_equal(decode(make_png(6, 5, rows, chunk(kind, bodies[kind])), 3), image)
    damaged = chunk(kind, b"\0\0\1" + 20 * b"\xff")
    np.testing.assert_array_equal(decode(make_png(6, 5, rows, damaged), 3), image)


@pytest.mark.parametrize("file_format", ["JPEG", "WEBP", "TIFF", "GIF"])
def test_pixels_decide_in_other_formats_too(file_format):
    image = smooth_image(16, 16)
    odd = {  # A profile, a comment and tags that mean nothing.
        "JPEG": {"icc_profile": b"\xff" * 200_000, "comment": b"\xff" * 60_000},
        "WEBP": {"icc_profile": b"\xff" * 200_000, "xmp": b"<" * 200_000, "lossless": True},
        "TIFF": {"icc_profile": b"\xff" * 200_000, "description": "x" * 200_000},
        "GIF": {"comment": b"\xff" * 200_000},
    }[file_format]
    np.testing.assert_array_equal(
        decode(encode(image, file_format, **odd), 3),
        decode(encode(image, file_format, lossless=True), 3),
    )
