import gzip
import pickle
import struct
import subprocess
import sys
import types

import numpy as np
import pytest

from vit_jax.data.sources.arrays import read_idx
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import ConfigError, DataError


def open_split(data, split="train", num_classes=0, image_size=(6, 4), channels=3):
    return open_source(
        data, split, image_size=image_size, channels=channels, num_classes=num_classes
    )


# ---------------------------------------------------------------------------- digits


def test_digits_are_scikit_learns(data):
    datasets = pytest.importorskip("sklearn.datasets")
    data.source = "digits"
    expected_images, expected_labels = datasets.load_digits(return_X_y=True)
    expected = sorted(
        (np.round(image * 255 / 16).astype(np.uint8).tobytes(), label)
        for image, label in zip(expected_images, expected_labels, strict=True)
    )
    found = sorted(
        (example.image.tobytes(), example.label)
        for split in ("train", "test")
        for example in map(open_split(data, split).__getitem__, range(len(open_split(data, split))))
    )
    assert found == expected


def test_digits_split_is_stratified_and_fixed(data):
    data.source = "digits"
    train, test = open_split(data), open_split(data, "")
    assert (len(train), len(test)) == (1437, 360)
    assert test[0].image.shape == (8, 8, 1)
    assert test.class_names == tuple("0123456789")
    totals = np.bincount(np.concatenate([train.labels, test.labels]))
    assert np.abs(np.bincount(test.labels) - totals * 360 / 1797).max() < 1
    # A checksum of the test labels in their order: no later version may draw another split.
    assert int((test.labels * np.arange(1, 361)).sum()) == 298658


def test_digits_say_what_to_install(data, monkeypatch):
    data.source = "digits"
    for spec in (None, types.SimpleNamespace(origin=None)):
        monkeypatch.setattr("importlib.util.find_spec", lambda name, spec=spec: spec)
        with pytest.raises(DataError, match="reads scikit-learn's file: install scikit-learn"):
            open_split(data)


def test_digits_do_not_import_scikit_learn():
    program = (
        "import sys; from vit_jax.config import default_config;"
        "from vit_jax.data.sources.registry import open_source;"
        "data = default_config().data; data.source = 'digits';"
        "open_source(data, 'train', image_size=(8, 8), channels=1, num_classes=0);"
        "assert 'sklearn' not in sys.modules and 'tensorflow_datasets' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# ---------------------------------------------------------------------------- idx


def write_idx(path, array):
    content = struct.pack(f">BBBB{array.ndim}i", 0, 0, 8, array.ndim, *array.shape)
    content += array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)


@pytest.fixture
def idx(tmp_path, data):
    images = np.arange(5 * 3 * 2).reshape(5, 3, 2)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "train-labels-idx1-ubyte.gz", np.array([0, 3, 1, 2, 0]))
    write_idx(tmp_path / "t10k-images-idx3-ubyte", images[:2] + 100)
    write_idx(tmp_path / "t10k-labels-idx1-ubyte", np.array([1, 2]))
    data.source = f"idx:{tmp_path}"
    return tmp_path


def test_idx(idx, data):
    train, test = open_split(data), open_split(data, "")
    assert (len(train), len(test)) == (5, 2)
    np.testing.assert_array_equal(train[1].image[..., 0], [[6, 7], [8, 9], [10, 11]])
    assert train[1][1:] == (3, "train/1")
    np.testing.assert_array_equal(test[0].image[..., 0], [[100, 101], [102, 103], [104, 105]])
    # The test split's greatest label is 2; the classes are the training split's all the same.
    assert train.class_names == test.class_names == ("0", "1", "2", "3")


def test_idx_of_colour_images(idx, data):
    (idx / "train-images-idx3-ubyte.gz").unlink()
    write_idx(idx / "train-images-idx4-ubyte", np.zeros((5, 3, 2, 3)))
    assert open_split(data)[0].image.shape == (3, 2, 3)


def test_idx_labels_beyond_the_model(idx, data):
    with pytest.raises(DataError, match=r"train-labels.* label 3, beyond the 2 classes"):
        open_split(data, num_classes=2)


def test_the_least_label_beyond_the_classes(idx, data):
    assert len(open_split(data, num_classes=4).class_names) == 4
    with pytest.raises(DataError, match="label 3, beyond the 3 classes"):
        open_split(data, num_classes=3)


def test_idx_missing_files(idx, data):
    (idx / "train-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DataError, match="No file train-labels-idx1-ubyte"):
        open_split(data)
    data.source = f"idx:{idx / 'elsewhere'}"
    with pytest.raises(DataError, match=r"No IDX files in .*elsewhere: expected train-images"):
        open_split(data)


def test_idx_counts_differ(idx, data):
    write_idx(idx / "train-labels-idx1-ubyte.gz", np.zeros(4))
    with pytest.raises(DataError, match=r"shape \(5, 3, 2\) and .*labels.* \(4,\)"):
        open_split(data)


PACKED, PLAIN = "train-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte"


@pytest.mark.parametrize(
    ("file", "damaged", "told"),
    [
        (PACKED, lambda whole: whole[:-12], r"cannot be read \(Compressed file ended"),
        (
            PACKED,
            lambda whole: whole[:10] + b"\xff" * 40,
            r"cannot be read \(Error -3 while decompressing",
        ),
        (PACKED, lambda whole: b"<html>Not found</html>", r"cannot be read \(Not a gzipped file"),
        (PLAIN, lambda whole: whole[:-1], r"promises shape \(2, 3, 2\), but 11 values follow"),
        (PLAIN, lambda whole: whole + b"\0", r"promises shape \(2, 3, 2\), but 13 values follow"),
        (PLAIN, lambda whole: b"\0\0\x0d" + whole[3:], "it starts with 0x00000d03, expected"),
        (PLAIN, lambda whole: b"", "it starts with 0x, expected"),
        (
            PLAIN,
            lambda whole: struct.pack(">4B3i", 0, 0, 8, 3, 20, 0, 4),
            r"promises shape \(20, 0, 4\), but 0 values follow",
        ),
        (
            PLAIN,
            lambda whole: b"\0\0\x08\xff" + bytes(4 * 255),
            "it starts with 0x000008ff, expected",
        ),
    ],
    ids=[
        *("truncated gzip", "damaged gzip", "no gzip", "too short", "too long", "other magic"),
        *("empty", "no rows", "too many dimensions"),
    ],
)
def test_a_damaged_idx_file_is_named_with_what_is_wrong(idx, file, damaged, told):
    path = idx / file
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(DataError, match=f"{path}: .*{told}"):
        read_idx(path)


# ---------------------------------------------------------------------------- fake


def test_fake(data):
    data.source = "fake"
    data.num_train_examples, data.num_eval_examples = 2100, 7
    train, test = (open_split(data, split, num_classes=10) for split in ("train", ""))
    assert (len(train), len(test), len(train.class_names)) == (2100, 7, 10)
    example = train[12]
    assert (example.image.shape, example.image.dtype) == ((6, 4, 3), np.uint8)
    assert example[1:] == (2, "fake/12")
    np.testing.assert_array_equal(example.image, open_split(data, num_classes=10)[12].image)
    images = {source[index].image.tobytes() for source in (train, test) for index in range(7)}
    assert len(images) == 14
    assert (train[0].image != train[7 * 256].image).any(), "nothing repeats after 1,792 images"


def test_fake_default_sizes_and_parts(data):
    data.source = "fake"
    assert len(open_split(data, num_classes=2)) == 1024
    assert len(open_split(data, "", num_classes=2)) == 64
    assert len(open_split(data, "train[:25%]", num_classes=2)) == 256


def test_fake_has_the_size_of_the_configured_part(data):
    data.source, data.train_split, data.num_train_examples = "fake", "train[:98%]", 980
    data.eval_split, data.num_eval_examples = "train[98%:]", 20
    assert len(open_split(data, data.train_split, num_classes=2)) == 980
    assert len(open_split(data, data.eval_split, num_classes=2)) == 20


def test_fake_has_slices_where_no_size_is_configured(data):
    data.source, data.train_split, data.eval_split = "fake", "train[:75%]", "train[80%:]"
    assert len(open_split(data, data.train_split, num_classes=2)) == 768
    assert len(open_split(data, data.eval_split, num_classes=2)) == 1024 - 819
    data.eval_split, data.num_eval_examples = "", 9
    assert len(open_split(data, "", num_classes=2)) == 9


def test_fake_images_of_a_class_do_not_repeat_soon(data):
    data.source, data.num_classes = "fake", 2
    data.num_train_examples = 2000
    source = open_split(data)
    assert source.class_names == ("0", "1")
    assert (source[0].image != source[7 * 256].image).any()


def test_fake_needs_classes(data):
    data.source = "fake"
    with pytest.raises(ConfigError, match=r"model\.num_classes"):
        open_split(data)


@pytest.mark.parametrize("source", ["digits", "fake", "idx"])
def test_sources_are_picklable(source, data, request):
    if source == "idx":
        request.getfixturevalue("idx")
    else:
        data.source = source
    opened = open_split(data, "train[1:]", num_classes=10)
    copy = pickle.loads(pickle.dumps(opened))
    assert len(copy) == len(opened)
    np.testing.assert_array_equal(copy[3].image, opened[3].image)


def test_idx_of_colours_and_with_dots_in_their_names(tmp_path, data):
    """As some copies of MNIST and of sets made like it are."""
    images = np.arange(4 * 3 * 2 * 3, dtype=np.uint8).reshape(4, 3, 2, 3)
    write_idx(tmp_path / "train-images.idx4-ubyte", images)
    write_idx(tmp_path / "train-labels.idx1-ubyte", np.array([0, 1, 1, 0]))
    data.source = f"idx:{tmp_path}"
    np.testing.assert_array_equal(open_split(data)[2].image, images[2])
    write_idx(tmp_path / "train-images.idx4-ubyte", images[..., None])
    with pytest.raises(DataError, match="it starts with 0x00000805, expected"):
        open_split(data)
