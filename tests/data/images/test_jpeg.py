"""JPEG files: their headers, and their pixels in whole or in part."""

import io

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.data.pictures import encode, photograph
from vit_jax.data.images.jpeg import FACTORS, open_jpeg, upright


def with_orientation(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def patched(content, marker, replacement):
    """The file with another byte in place of the frame header's marker 0xC0."""
    at = content.index(b"\xff" + marker)
    return content[: at + 1] + replacement + content[at + 2 :]


KINDS = {
    "4:4:4": {"subsampling": "4:4:4"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:2:0": {"subsampling": "4:2:0"},
    "progressive": {"progressive": True},
    "restart markers": {"restart_marker_blocks": 3},
    "rows of restart markers": {"restart_marker_rows": 1},
    "optimised": {"optimize": True},
    "RGB": {"keep_rgb": True},
}


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("shape", [(96, 128), (95, 121), (9, 9), (1, 3), (3, 1)])
def test_the_whole_image_is_pillows(options, shape):
    content = encode(photograph(*shape), "JPEG", quality=90, **options)
    image = open_jpeg(content, 3)
    assert (image.size, image.orientation) == (shape, 1)
    np.testing.assert_array_equal(image.decode(), np.asarray(Image.open(io.BytesIO(content))))


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("factor", FACTORS)
def test_rows_that_are_not_needed_are_left_out(options, factor):
    content = encode(photograph(250, 60), "JPEG", quality=90, **options)
    image = open_jpeg(content, 3)
    whole = image.decode(factor)
    heights = set()
    for last_row in range(5, 250, 7):
        part = image.decode(factor, last_row)
        needed = min(-(-(last_row + 1) // factor), len(whole))
        assert needed <= len(part) <= len(whole)
        np.testing.assert_array_equal(part[:needed], whole[:needed])
        heights.add(len(part))
    # What is coded in several scans is decoded whole.
    assert len(heights) == (1 if "progressive" in options else 7)


@pytest.mark.parametrize("factor", [2, 4, 8])
@pytest.mark.parametrize("shape", [(200, 300), (201, 291)])
def test_a_fraction_of_the_size_is_pillows_draft(factor, shape):
    content = encode(photograph(*shape), "JPEG", quality=90)
    draft = Image.open(io.BytesIO(content))
    draft.draft("RGB", (shape[1] // factor, shape[0] // factor))
    np.testing.assert_array_equal(open_jpeg(content, 3).decode(factor), np.asarray(draft))


@pytest.mark.parametrize("channels", [1, 3])
def test_grey(channels):
    content = encode(photograph()[..., 0], "JPEG", quality=90)
    expected = np.asarray(Image.open(io.BytesIO(content)))[..., np.newaxis]
    decoded = open_jpeg(content, channels).decode()
    np.testing.assert_array_equal(decoded, np.repeat(expected, channels, axis=2))


@pytest.mark.parametrize("orientation", range(1, 9))
def test_boxes_and_pixels_are_turned_alike(orientation):
    content = encode(photograph(40, 60), "JPEG", exif=with_orientation(orientation))
    image = open_jpeg(content, 3)
    expected = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    assert image.size == expected.shape[:2]
    stored = image.decode()
    np.testing.assert_array_equal(upright(stored, image.orientation), expected)
    for top, left, height, width in ((0, 0, *image.size), (3, 5, 20, 11)):
        row, column, rows, columns = image.stored_box((top, left, height, width))
        part = stored[row : row + rows, column : column + columns]
        box = expected[top : top + height, left : left + width]
        np.testing.assert_array_equal(upright(part, image.orientation), box)


def test_orientation_in_xmp_only():
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    assert open_jpeg(encode(photograph(), "JPEG", xmp=xmp), 3).orientation == 6


@pytest.mark.parametrize("orientation", [0, 9, 300])
def test_an_orientation_that_means_nothing_is_upright(orientation):
    content = encode(photograph(), "JPEG", exif=with_orientation(orientation))
    assert open_jpeg(content, 3).orientation == 1


def test_fast_decoding_repeats_colours_of_lower_resolution():
    content = encode(photograph(), "JPEG", subsampling="4:2:0")
    exact, fast = (open_jpeg(content, 3, fast=fast).decode() for fast in (False, True))
    difference = np.abs(exact.astype(int) - fast)
    assert 0 < difference.mean() < 3


def test_decoded_pixels_are_divided_no_more():
    jpeg = open_jpeg(encode(photograph(40, 60), "JPEG"), 3)
    assert (jpeg.factors, jpeg.decoded().factors) == ((8, 4, 2, 1), (1,))
    assert jpeg.nbytes == len(jpeg.content)
    assert jpeg.decoded().nbytes == 40 * 60 * 3


def test_what_is_left_to_pillow():
    content = encode(photograph(), "JPEG")
    cmyk = encode(Image.fromarray(photograph()).convert("CMYK"), "JPEG")
    twelve_bits = content[:162] + b"\x0c" + content[163:]
    arithmetic, lossless = patched(content, b"\xc0", b"\xc9"), patched(content, b"\xc0", b"\xc3")
    for file in (b"", b"\xff\xd8", encode(photograph()), content[:100], content[:160], cmyk):
        assert open_jpeg(file, 3) is None
    for file in (twelve_bits, arithmetic, lossless, b"\xff\xd8" + bytes(1000)):
        assert open_jpeg(file, 3) is None
    assert open_jpeg(content, 1) is None  # Pillow's grey of a colour image.
    assert open_jpeg(content, 3) is not None


def test_damage_is_an_error():
    content = encode(photograph(), "JPEG")
    garbled = content[:2000] + 25 * b"\xff\xd0" + content[2050:]
    for file, reason in ((content[:-60], "Premature end"), (garbled, "Corrupt JPEG data")):
        with pytest.raises(ValueError, match=reason):
            open_jpeg(file, 3).decode()
    # Without its end it is suspected to be truncated, and decoded whole.
    with pytest.raises(ValueError, match="Premature end"):
        open_jpeg(content[:-60], 3).decode(1, last_row=5)
