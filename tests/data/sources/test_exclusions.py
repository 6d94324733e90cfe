import hashlib
import logging
import os
import struct
import uuid

import fsspec
import numpy as np
import pytest

from tests.states import mesh_of
from vit_jax.config import default_config
from vit_jax.data.dataset import open_dataset
from vit_jax.data.sources.exclusions import as_line, read_list
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import DataError
from vit_jax.training.experiment import make_experiment


def open_split(data, split="train", training=True):
    return open_source(
        data, split, image_size=(8, 8), channels=3, num_classes=10, training=training
    )


def names(source):
    return [source.name_of(index) for index in range(len(source))]


@pytest.fixture
def exclude(tmp_path, data):
    def exclude(content):
        path = tmp_path / "exclude.txt"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        data.exclude = str(path)
        return path

    return exclude


@pytest.fixture
def folder(tmp_path, data):
    """Class folders with three images each, all of them for training."""
    for label in ("cat", "dog"):
        for index in range(3):
            path = tmp_path / "data" / label / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"")
    data.source, data.held_out_fraction = f"folder:{tmp_path / 'data'}", 0.0


# ---------------------------------------------------------------------------- lists


def test_a_list_is_read_as_people_and_programs_write_it(exclude, data):
    exclude(
        b"\xef\xbb\xbf# found by hand\r\n\r\ncat/1.jpg\tequals val/9.jpg\r\n"
        b' spaces.jpg \n"quo\\"te"\ncat/\xff.jpg\n"\\udcff"\n"#3"'
    )
    assert read_list(data.exclude) == {
        "cat/1.jpg",
        " spaces.jpg ",
        'quo"te',
        "cat/\udcff.jpg",
        "\udcff",
        "#3",
    }


@pytest.mark.parametrize(
    "name", ["cat/1.jpg", " x ", "tab\t", "new\nline", '"', "#1", "a#", "\r", os.fsdecode(b"\xff")]
)
def test_what_is_written_is_read(exclude, data, name):
    line = as_line(name, "equals b.jpg")
    exclude(line.encode("utf-8", "surrogateescape"))
    assert line.endswith("\tequals b.jpg\n")
    assert read_list(data.exclude) == {name}


def test_a_remote_list(data):
    data.exclude = f"memory://{uuid.uuid4().hex}.txt"
    filesystem, path = fsspec.core.url_to_fs(data.exclude)
    filesystem.pipe_file(path, b"a\nb\n")
    assert read_list(data.exclude) == {"a", "b"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x89PNG\r\n\x1a\n\0\0", "is no text file; expected the name of an example"),
        (b'a\n"b', r"exclude\.txt:2: \"b is no JSON string"),
        (None, "no such file"),
    ],
)
def test_what_is_no_list_is_named(exclude, data, tmp_path, content, message):
    if content is None:
        data.exclude = str(tmp_path)
    else:
        exclude(content)
    with pytest.raises(DataError, match=rf"config\.data\.exclude=.*{message}"):
        read_list(data.exclude)


# ---------------------------------------------------------------------------- sources


def test_training_loses_what_is_in_the_list(folder, exclude, data, caplog):
    before = names(open_split(data))
    exclude("cat/1.jpg\ndog/0.jpg\ndog/7.jpg\n")
    with caplog.at_level(logging.INFO, "vit_jax"):
        after = names(open_split(data))
    assert after == [name for name in before if name not in ("cat/1.jpg", "dog/0.jpg")]
    assert "2 of 6 training examples are left out" in caplog.text
    assert (
        "1 of its 3 names are no training example's: dog/7.jpg. The first training example is "
        f"called {before[0]}"
    ) in caplog.text
    assert names(open_split(data, training=False)) == before


def test_a_class_that_loses_all_is_named_and_stays_a_class(folder, exclude, data, caplog):
    exclude("cat/0.jpg\ncat/1.jpg\ncat/2.jpg\n")
    source = open_split(data)
    assert "leaves no training example of 1 classes: cat" in caplog.text
    assert source.class_names == ("cat", "dog")
    assert {source[index].label for index in range(3)} == {1}


def test_a_list_that_leaves_nothing_is_refused(folder, exclude, data):
    exclude("\n".join(names(open_split(data))))
    with pytest.raises(DataError, match="leaves no training examples"):
        open_split(data)


@pytest.mark.parametrize("source", ["digits", "fake", "folder", "manifest"])
def test_every_source_has_names_without_reading(source, data, tmp_path, exclude, request):
    if source == "folder":
        request.getfixturevalue("folder")
    elif source == "manifest":
        (tmp_path / "list.csv").write_text("path,label\na.jpg,a\nb.jpg,b\nc.jpg,b\n")
        data.source = f"manifest:{tmp_path / 'list.csv'}"
        data.held_out_fraction = 0.0
    else:
        data.source = source
    before = names(open_split(data))
    exclude(before[1])
    assert names(open_split(data)) == before[:1] + before[2:]
    # Slices keep their places: what is left out is left out of them.
    assert names(open_split(data, "train[1:3]")) == before[2:3]


def test_a_run_trains_without_and_evaluates_with_what_is_in_the_list(exclude, data):
    config = default_config()
    config.model.channels = 1
    config.data.source = "digits"
    config.data.train_split, config.data.eval_split = "train[:100]", "train[:100]"
    exclude("train/3\ntrain/200\n")
    config.data.exclude = data.exclude
    config.data.max_eval_examples = 7
    dataset = open_dataset(config)
    assert dataset.num_examples == len(dataset.source) == 99
    config.model.update(name="ViT-Ti/2", image_size=8)
    config.total_steps = 1
    experiment = make_experiment(config, mesh_of(1), dataset)
    assert len(experiment.setting(config.data).data.open()) == 7


# ---------------------------------------------------------------------------- caps


@pytest.mark.parametrize("limit", [1, 50, 1437, 5000])
def test_a_cap_keeps_the_order_of_the_source_and_grows(data, limit):
    data.source = "digits"
    everything = names(open_split(data))
    data.max_train_examples = limit
    source = open_split(data)
    chosen = names(source)
    assert len(chosen) == min(limit, 1437)
    assert chosen == [name for name in everything if name in set(chosen)]
    data.max_train_examples = limit + 10
    assert set(chosen) <= set(names(open_split(data)))
    assert len(open_split(data, "test", training=False)) == 360


@pytest.fixture
def sorted_by_class(data, tmp_path):
    """`idx` files of 100 images of each of ten classes, one class after another, in both splits."""
    labels = np.repeat(np.arange(10, dtype=np.uint8), 100)
    for prefix in ("train", "t10k"):
        for name, array in (
            ("images-idx3", np.zeros((1000, 1, 1), np.uint8)),
            ("labels-idx1", labels),
        ):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            (tmp_path / f"{prefix}-{name}-ubyte").write_bytes(header + array.tobytes())
    data.source = f"idx:{tmp_path}"
    return labels


def lowest_hashes(members, limit):
    """Of names, those with the lowest BLAKE2b digests, in the order of `members`."""
    digests = {name: hashlib.blake2b(name.encode(), digest_size=8).digest() for name in members}
    kept = set(sorted(members, key=digests.get)[:limit])
    return [name for name in members if name in kept]


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(
    ("part", "start", "stop"),
    [("{}", 0, 1000), ("{}[:500]", 0, 500), ("{}[50%:]", 500, 1000), ("{0}[:200]+{0}[700:]", 0, 0)],
)
def test_a_cap_is_a_fair_sample_of_each_slice(sorted_by_class, data, training, part, start, stop):
    split, limit = ("train" if training else "test"), 100
    within = [*range(200), *range(700, 1000)] if not stop else list(range(start, stop))
    data.max_train_examples, data.max_eval_examples = (limit, 7) if training else (7, limit)
    source = open_split(data, part.format(split), training=training)
    expected = lowest_hashes([f"{split}/{index}" for index in within], limit)
    assert names(source) == expected
    counts = np.bincount([source[index].label for index in range(limit)], minlength=10)
    sizes = np.bincount(sorted_by_class[within], minlength=10)
    # Drawn without replacement, the count of a class is hypergeometric.
    share = sizes / len(within)
    variance = limit * share * (1 - share) * (len(within) - limit) / (len(within) - 1)
    assert (np.abs(counts - limit * share) <= 4 * np.sqrt(variance)).all()


def test_a_cap_counts_what_is_left_after_the_exclusions(sorted_by_class, exclude, data):
    everything = [f"train/{index}" for index in range(1000)]
    gone = lowest_hashes(everything, 10)
    exclude("\n".join(gone))
    data.max_train_examples = 50
    left = [name for name in everything if name not in gone]
    assert names(open_split(data)) == lowest_hashes(left, 50)


def test_a_folder_gives_its_first_images(folder, exclude, data):
    everything = names(open_split(data))
    exclude(everything[0])
    data.max_train_examples = 2
    assert names(open_split(data)) == everything[1:3]


def test_numbers_to_predict_have_no_classes_to_lose(tmp_path, exclude, data, caplog):
    (tmp_path / "list.csv").write_text("path,target\na.jpg,1.5\nb.jpg,2.5\nc.jpg,0.5\n")
    data.source, data.held_out_fraction = f"manifest:{tmp_path}/list.csv", 0.0
    everything = names(open_split(data))
    exclude(everything[1])
    assert names(open_split(data)) == [everything[0], everything[2]]
    assert not caplog.records
