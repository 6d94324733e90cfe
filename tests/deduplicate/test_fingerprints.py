import io

import cv2
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from tests.data.pictures import encode
from vit_jax.data.images import area as resizing
from vit_jax.data.images.picture import decode
from vit_jax.deduplicate.fingerprints import MARGINS, SIZE, fingerprint, nearest, same

DISTANCE = 6


def photographs():
    """Both of scikit-learn's photographs, whole and as four quarters of each."""
    for name in ("china.jpg", "flower.jpg"):
        image = load_sample_image(name)
        rows, columns = image.shape[0] // 2, image.shape[1] // 2
        yield image
        for top in (0, rows):
            for left in (0, columns):
                yield np.ascontiguousarray(image[top : top + rows, left : left + columns])


def recoded(image, **options):
    file = io.BytesIO()
    Image.fromarray(image).save(file, **options)
    return decode(file.getvalue(), channels=3)


def resized(image, width, height):
    return np.asarray(Image.fromarray(image).resize((width, height)))


def cropped(image, share):
    rows, columns = round(image.shape[0] * share), round(image.shape[1] * share)
    return np.ascontiguousarray(image[rows:-rows, columns:-columns])


CHANGES = {
    "jpeg": lambda image: recoded(image, format="JPEG", quality=50),
    "webp": lambda image: recoded(image, format="WEBP", quality=60),
    "half": lambda image: resized(image, image.shape[1] // 2, image.shape[0] // 2),
    "square": lambda image: resized(image, 224, 224),
    "brighter": lambda image: np.clip(image * 1.1 + 5.0, 0, 255).astype(np.uint8),
    "cropped by 2 %": lambda image: cropped(image, 0.02),
    "cropped by 5 %": lambda image: cropped(image, 0.05),
    "cropped and small": lambda image: resized(cropped(image, 0.04), 128, 96),
}


@pytest.fixture(scope="module")
def originals():
    return np.stack([fingerprint(image) for image in photographs()])


@pytest.mark.parametrize("change", CHANGES)
def test_changed_photographs_are_near_their_own_and_no_other(change, originals):
    changed = np.stack([fingerprint(CHANGES[change](image)) for image in photographs()])
    assert (same(changed, originals) == -1).all()
    for mine, theirs in ((changed, originals), (originals, changed)):
        places, bits = nearest(mine, theirs, DISTANCE)
        assert places.tolist() == list(range(10))
        assert bits.max() <= DISTANCE


def test_different_photographs_are_far_apart(originals):
    hashes = originals[:, 1:]
    bits = np.bitwise_count(hashes[:, None, :, None] ^ hashes[None, :, None, :]).min((2, 3))
    assert bits[~np.eye(len(bits), dtype=bool)].min() > 2 * DISTANCE


def test_the_same_pixels_are_found_in_any_format():
    image = next(photographs())
    stored = [decode(encode(image, form), channels=3) for form in ("PNG", "BMP", "TIFF")]
    changed = image.copy()
    changed[7, 9, 1] ^= 1
    prints = np.stack([fingerprint(each) for each in (changed, *stored)])
    assert same(fingerprint(image)[np.newaxis], prints).tolist() == [1]
    assert same(prints[:1], prints[1:]).tolist() == [-1]
    # The same bytes in another shape are other pixels.
    turned = np.ascontiguousarray(image.reshape(image.shape[1], image.shape[0], 3))
    assert fingerprint(turned)[0] != fingerprint(image)[0]


@pytest.mark.parametrize("shape", [(1, 1, 3), (1, 900, 3), (8, 8, 3), (7, 3, 3)])
def test_images_of_any_size(shape):
    assert fingerprint(np.full(shape, 200, np.uint8)).shape == (SIZE,)


@pytest.mark.parametrize("limit", [0, 3, 6, 12])
def test_the_nearest_equals_comparing_all_pairs(limit):
    generator = np.random.default_rng(0)
    mine = generator.integers(0, 1 << 63, (90, SIZE), np.uint64)
    theirs = generator.integers(0, 1 << 63, (60, SIZE), np.uint64)
    for index in range(60):  # Up to 19 bits from one of the same row, in columns that count.
        columns = (1, 1 + index % len(MARGINS))
        flipped = generator.choice(64, index % 20, replace=False)
        ours, their = columns if index % 2 else columns[::-1]
        theirs[index, their] = mine[index, ours] ^ np.uint64(sum(1 << int(bit) for bit in flipped))
    theirs[59] = theirs[0]  # Of two alike the first is taken.
    expected = np.full((90, 60), 255)
    for ours in range(1, SIZE):
        for their in range(1, SIZE):
            if min(ours, their) == 1:
                bits = np.bitwise_count(mine[:, None, ours] ^ theirs[None, :, their])
                expected = np.minimum(expected, bits)
    near = expected.min(1) <= limit
    places, bits = nearest(mine, theirs, limit)
    np.testing.assert_array_equal(places, np.where(near, expected.argmin(1), -1))
    np.testing.assert_array_equal(bits, np.where(near, expected.min(1), 255))
    assert near.sum() >= 3


def test_a_hash_is_of_the_lowest_frequencies_of_the_grey_picture():
    """By the transform's definition; each margin is cut off the rows and the columns by their own."""
    generator = np.random.default_rng(3)
    image = cv2.resize(generator.integers(0, 256, (9, 7, 3), np.uint8), (160, 320))  # 320 rows.
    grey = image @ np.array([0.299, 0.587, 0.114])
    cosines = np.cos(np.pi * np.outer(np.arange(8), 2 * np.arange(32) + 1) / 64)
    cosines[0] /= np.sqrt(2)
    found = fingerprint(image)[1:]
    for number, (rows, columns) in enumerate([(0, 0), (8, 4), (16, 8)]):
        part = grey[rows : 320 - rows, columns : 160 - columns]
        small = resizing.resize_by_area(part[..., np.newaxis].astype(np.float32), (32, 32))[..., 0]
        frequencies = cosines @ small @ cosines.T
        expected = (frequencies > np.median(frequencies)).ravel()
        bits = np.unpackbits(np.array([found[number]], ">u8").view(np.uint8))
        assert (bits != expected).sum() <= 2  # Its pixels are rounded on the way.


def test_the_ends_of_hashes():
    """One colour has no frequency but the lowest; and a hash may be all ones."""
    plain = fingerprint(np.full((40, 30, 3), 90, np.uint8))
    assert set(plain[1:].tolist()) == {1 << 63}
    ones = np.full((1, SIZE), (1 << 64) - 1, np.uint64)
    others = np.array([[0] * SIZE, [(1 << 64) - 6] * SIZE], np.uint64)
    places, bits = nearest(ones, others, 4)
    assert (places.tolist(), bits.tolist()) == ([1], [2])
