import dataclasses
import itertools
import pickle

import numpy as np
import pytest
from PIL import Image

from tests import tiny
from tests.data.pictures import encode, encode_npy, photograph, random_image
from vit_jax.data.dataset import open_dataset
from vit_jax.data.images.picture import decode, decode_for_later
from vit_jax.data.images.transforms import eval_transform, preprocessing_of, train_transform
from vit_jax.data.loading.cache import Cached
from vit_jax.data.sources.arrays import Arrays
from vit_jax.data.sources.examples import Example, Source
from vit_jax.errors import DataError

IMAGES = [random_image(10, 20, seed=seed) for seed in range(5)]
GIB = 2**30


@dataclasses.dataclass(frozen=True)
class Files(Source):
    """Images of 600 bytes each, as PNG files; counts how often one is read."""

    reads: itertools.count = dataclasses.field(default_factory=itertools.count)
    class_names = ("a", "b")

    def __len__(self):
        return len(IMAGES) + 1

    def __getitem__(self, index):
        next(self.reads)
        content = encode(IMAGES[index]) if index < len(IMAGES) else b"no image"
        return Example(content, index % 2, f"{index}.png")


def test_images_are_decoded_once():
    source = Files()
    cached = Cached(source, 3, 1.0)
    for _ in range(3):
        for index, image in enumerate(IMAGES):
            example = cached[index]
            np.testing.assert_array_equal(example.image, image)
            assert example[1:] == (index % 2, f"{index}.png")
    assert next(source.reads) == len(IMAGES)
    assert len(cached) == len(source)
    assert cached.class_names == ("a", "b")


def test_no_more_is_held_than_allowed():
    source = Files()
    cached = Cached(source, 3, 2 * 600 / GIB)
    for _ in range(3):
        for index in range(len(IMAGES)):
            np.testing.assert_array_equal(cached[index].image, IMAGES[index])
    assert next(source.reads) == 2 + 3 * 3, "two are held, three are read each time"


def test_an_image_that_is_asked_for_twice_at_once_takes_its_room_once():
    source = Files()
    cached = Cached(source, 3, 2 * 600 / GIB)
    read = [next(source.reads) for _ in map(list, (cached.fetch([0, 0]), cached.fetch([1])))]
    list(cached.fetch([0, 1]))
    assert next(source.reads) == read[-1] + 1, "both are held"


def test_what_cannot_be_decoded_is_named():
    with pytest.raises(DataError, match=r"5\.png: cannot decode"):
        Cached(Files(), 3, 1.0)[5]


def test_arrays_are_held_already():
    source = Arrays("train", np.stack(IMAGES), np.arange(5), tuple("abcde"))
    cached = Cached(source, 3, 1.0)
    assert np.shares_memory(cached[1].image, source.images)


def test_a_copy_for_a_worker_begins_empty():
    cached = Cached(Arrays("train", np.stack(IMAGES), np.arange(5), tuple("abcde")), 3, 1.0)
    copy = pickle.loads(pickle.dumps(cached))
    np.testing.assert_array_equal(copy[2].image, IMAGES[2])


def test_many_at_once_are_held_too():
    source = Files()
    cached = Cached(source, 3, 1.0)
    for _ in range(2):
        *read, last = cached.fetch([3, 0, 5])
        for example, index in zip(read, (3, 0), strict=True):
            np.testing.assert_array_equal(example.image, IMAGES[index])
        assert isinstance(last, DataError)
    assert next(source.reads) == 2 + 2, "what cannot be decoded is tried again"


@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("antialias", [True, False])
def test_crops_are_the_same_as_from_files(data, antialias, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = encode(photograph(150, 200), "JPEG", exif=exif)

    class File(Files):
        def __getitem__(self, index):
            return Example(content, 0, "photograph.jpg")

    data.antialias = antialias
    transform, cached = train_transform(data, (96, 96), 3), Cached(File(), 3, 1.0)
    for seed in range(10):
        found = transform(cached[0].image, np.random.default_rng(seed))
        expected = transform(content, np.random.default_rng(seed))
        np.testing.assert_array_equal(found, expected)


def test_great_reductions_of_what_is_held_are_pillows(data):
    content = encode(photograph(300, 400), "JPEG")
    whole = eval_transform(preprocessing_of(data), (16, 16), 3)
    np.testing.assert_allclose(
        whole(decode_for_later(content, 3)), whole(decode(content, 3)), rtol=0, atol=0
    )


def test_what_is_held_is_decoded_as_the_config_says(tmp_path):
    """12 bits of grey in 16, and no more memory than allowed; in a worker's copy, too."""
    ramp = np.arange(4096, dtype=np.uint16).reshape(64, 64)
    for name in ("train/a", "train/b", "val/a"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "0.png").write_bytes(encode(ramp))
    config = tiny.get_config()
    config.data.update(source=f"folder:{tmp_path}", bit_depth=12, cache_gib=1.0)
    source = open_dataset(config).source
    for each in (source, pickle.loads(pickle.dumps(source))):
        np.testing.assert_allclose(each[0].image[..., 0], ramp * (255 / 4095), atol=0.51)
    config.data.max_image_gib = 1000 / GIB
    with pytest.raises(DataError, match=r"0\.png: .*more than it may take"):
        open_dataset(config).source[0]


def test_raw_pixels_are_resized_as_from_their_file(data):
    content = encode_npy(photograph(60, 80))
    transform = train_transform(data, (24, 24), 3)
    held = decode_for_later(content, 3)
    for seed in range(4):
        from_file = transform(content, np.random.default_rng(seed))
        np.testing.assert_array_equal(transform(held, np.random.default_rng(seed)), from_file)
