"""Files of values are turned, limited and scaled as is asked, as pictures are."""

import io
import struct
import zlib

import cv2
import numpy as np
import pytest
from PIL import Image

from tests.data.pictures import encode, encode_npy, encode_tiff, random_image
from vit_jax.data.images import tiff
from vit_jax.data.images.picture import Decoding, decode, open_picture
from vit_jax.errors import DataError

DEEP = np.arange(6 * 4, dtype=np.uint16).reshape(6, 4) * 1000


def turned(orientation=6):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_grey_of_sixteen_bits_is_turned(dtype):
    content = encode(Image.fromarray(DEEP), exif=turned())
    plain = encode(Image.fromarray(DEEP))
    how = Decoding(value_range=(0.0, 65535.0), dtype=dtype)
    found, expected = (decode(each, 1, how) for each in (content, plain))
    np.testing.assert_array_equal(found, np.rot90(expected, -1))


@pytest.mark.parametrize(
    ("told", "upright"),
    [
        (6, lambda values: np.rot90(values, -1)),
        (8, np.rot90),
        (1, np.array),
        (9, np.array),  # It means nothing.
        (0, np.array),
    ],
)
def test_a_tiff_of_values_is_turned(told, upright):
    values = random_image(3, 5, 2)
    content = encode_tiff(values)
    # The number of rows in a strip is no news to a file of one: its tag becomes the orientation.
    entry = struct.pack("<HHII", 278, 4, 1, 3)
    assert content.count(entry) == 1
    content = content.replace(entry, struct.pack("<HHII", 274, 4, 1, told))
    np.testing.assert_array_equal(decode(content, 2), upright(values))


def test_the_limit_is_that_of_files_of_values_too():
    values = np.zeros((500, 500, 2), np.float64)
    how = Decoding(value_range=(0.0, 1.0), dtype="float32", max_bytes=values.nbytes)
    few = Decoding(value_range=(0.0, 1.0), dtype="float32", max_bytes=values.nbytes - 1)
    for content in (encode_npy(values), encode_tiff(values)):
        assert decode(content, 2, how).shape == (500, 500, 2)
        with pytest.raises(DataError, match="max_image_gib"):
            decode(content, 2, few)
    grey = encode(random_image(500, 500, 1))
    with pytest.raises(DataError, match="max_image_gib"):
        decode(grey, 1, Decoding(value_range=(0.0, 1.0), max_bytes=10**5))


def test_twelve_bits_of_arrays_and_of_pictures_in_memory():
    values = np.array([[0, 2048, 4095, 5000]], np.uint16)
    how = Decoding(bit_depth=12)
    expected = [0, 128, 255, 255]
    assert decode(values[..., None], 1, how)[0, :, 0].tolist() == expected
    picture = open_picture(Image.fromarray(values), 1, how)
    assert np.asarray(picture)[0].tolist() == expected


def test_shortcuts_are_taken_where_they_may_be():
    content = encode(random_image(), "JPEG")
    assert [open_picture(content, 3, Decoding(fast=fast)).fast for fast in (True, False)] == [
        *(True, False),
    ]


def tiled(values, width, height, told=None):
    """An array [H, W, C] as an uncompressed TIFF file of tiles, which are `told` to have less bytes."""
    rows, columns = -(-values.shape[0] // height), -(-values.shape[1] // width)
    whole = np.zeros((rows * height, columns * width, values.shape[2]), values.dtype)
    whole[: values.shape[0], : values.shape[1]] = values
    strips = whole.reshape(rows, height, columns, width, -1).swapaxes(1, 2)
    parts = [tile.tobytes() for row in strips for tile in row]
    starts = [8 + sum(map(len, parts[:number])) for number in range(len(parts))]
    entries = {256: [values.shape[1]], 257: [values.shape[0]], 258: [16] * values.shape[2]}
    entries |= {259: [1], 262: [1], 277: [values.shape[2]], 284: [1], 322: [width], 323: [height]}
    entries |= {
        324: starts,
        325: [told or len(part) for part in parts],
        338: [0] * (values.shape[2] - 1),
    }
    start = 8 + sum(map(len, parts))
    after = start + 2 + 12 * len(entries) + 4
    directory, outside = struct.pack("<H", len(entries)), b""
    for tag, numbers in entries.items():
        packed = struct.pack(f"<{len(numbers)}I", *numbers)
        directory += struct.pack("<HHI", tag, 4, len(numbers))
        directory += packed if len(numbers) == 1 else struct.pack("<I", after + len(outside))
        outside += b"" if len(numbers) == 1 else packed
    head = b"II*\0" + struct.pack("<I", start)
    return head + b"".join(parts) + directory + struct.pack("<I", 0) + outside


def test_oblong_tiles():
    values = np.arange(40 * 20 * 2, dtype=np.uint16).reshape(20, 40, 2)
    how = Decoding(value_range=(0.0, 255.0), dtype="float32")
    content = tiled(values, width=16, height=32)
    np.testing.assert_array_equal(decode(content, 2, how), values)
    content = tiled(values, width=16, height=32, told=1)  # It is not asked where all is plain.
    last = struct.pack("<I", 8 + 2 * 16 * 32 * 4)
    assert content.count(last) == 1
    with pytest.raises(DataError, match="ends 2,038 bytes too early"):
        decode(content.replace(last, struct.pack("<I", len(content) - 10)), 2, how)


def test_colours_of_sixteen_bits_are_turned():
    colours = np.arange(6 * 4 * 3, dtype=np.uint16).reshape(6, 4, 3) * 500
    content = cv2.imencode(".png", colours)[1].tobytes()
    chunk = b"eXIf" + turned().tobytes().removeprefix(b"Exif\0\0")
    size, check = struct.pack(">I", len(chunk) - 4), struct.pack(">I", zlib.crc32(chunk))
    content = content[:33] + size + chunk + check + content[33:]  # Behind the header.
    how = Decoding(value_range=(0.0, 255.0), dtype="float32")
    np.testing.assert_array_equal(decode(content, 3, how), np.rot90(colours[..., ::-1], -1))


def test_values_of_either_order_of_bytes_and_of_a_large_tiff():
    large = {"format": "TIFF", "big_tiff": True}  # In the other order Pillow reads none.
    for values, how in (
        (DEEP, {"format": "TIFF"}),
        (DEEP, large),
        (DEEP.astype(">u2"), {"format": "TIFF"}),
    ):
        buffer = io.BytesIO()
        Image.fromarray(values).save(buffer, **how)
        assert buffer.getvalue()[:2] == (b"MM" if values.dtype.byteorder == ">" else b"II")
        layout = tiff.read_layout(buffer.getvalue())
        found = tiff.read_values(buffer.getvalue(), layout, 10**6)
        np.testing.assert_array_equal(found[..., 0], DEEP)


def test_values_of_twelve_bits_each_are_not_read_as_bytes():
    buffer = io.BytesIO()
    Image.fromarray(DEEP).save(buffer, "TIFF")
    content, entry = buffer.getvalue(), struct.pack("<HHII", 258, 3, 1, 16)  # BitsPerSample.
    assert content.count(entry) == 1
    assert tiff.read_layout(content).dtype == np.dtype("<u2")
    assert tiff.read_layout(content.replace(entry, struct.pack("<HHII", 258, 3, 1, 12))) is None


@pytest.mark.parametrize("lists", [[8, 16], [1, 2]])
def test_channels_of_several_kinds_are_not_read_as_one(lists):
    """Bits, or the kind of numbers, that differ between two channels."""
    content = encode_tiff(random_image(3, 5, 2))
    assert tiff.read_layout(content).channels == 2
    at = content.rindex(struct.pack("<II", *[lists[0]] * 2))  # The kinds come last.
    other = content[: at + 4] + struct.pack("<I", lists[1]) + content[at + 8 :]
    assert tiff.read_layout(other) is None


@pytest.mark.parametrize(
    ("tag", "value"),
    [(262, 0), (262, 3), (262, 5), (259, 6), (259, 7)],  # White is 0, palette, CMYK; JPEG.
)
def test_tiff_files_whose_values_are_not_what_they_say(tag, value):
    content = encode_tiff(random_image(3, 5, 1)[..., None])
    assert tiff.read_layout(content).channels == 1
    entry = struct.pack("<HHII", tag, 4, 1, 1)
    assert content.count(entry) == 1
    assert tiff.read_layout(content.replace(entry, struct.pack("<HHII", tag, 4, 1, value))) is None


def test_bits_of_more_values_than_there_are_are_not_looked_at():
    content = encode_tiff(random_image(3, 5, 3))
    entry = struct.pack("<HHII", 277, 4, 1, 3)
    two = content.replace(entry, struct.pack("<HHII", 277, 4, 1, 2))
    at = two.index(struct.pack("<III", 8, 8, 8))
    odd = two[: at + 8] + struct.pack("<I", 3) + two[at + 12 :]
    assert tiff.read_layout(odd).dtype == np.uint8
