"""Rows of batches: damaged examples, many fetched at once, several classes."""

import dataclasses
import io
import itertools

import numpy as np
import pytest
from PIL import Image

from tests.data.example_sources import Numbered, loading
from vit_jax.data.images.transforms import train_transform
from vit_jax.data.loading.chunks import Skipping
from vit_jax.data.loading.order import Order
from vit_jax.data.loading.pipeline import host_batches
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import DataError


def identity(image):
    return image


def identity_of_two(image, rng):
    return image


def png(value):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 4), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path, data):
    """Ten images in two classes, one of them truncated."""
    for index in range(10):
        path = tmp_path / "train" / ("cat" if index < 5 else "dog") / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(index))
    data.source, data.train_crop, data.held_out_fraction = f"folder:{tmp_path}", "resize", 0.0
    (tmp_path / "train" / "dog" / "7.png").write_bytes(png(7)[:-20])
    return open_source(data, "train", image_size=(4, 4), channels=1, num_classes=0)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_corrupt_file_is_named(folder, data, num_workers):
    transform = train_transform(data, (4, 4), 1)
    examples = loading(folder, transform, batch_size=8, seed=0, num_workers=num_workers)
    iterator = host_batches(examples, np.arange(8), start=1)
    order = Order(10, 0).indices(np.arange(30))
    damaged = next(index for index in range(10) if folder.name_of(index).endswith("7.png"))
    position = 8 + int(np.flatnonzero(order[8:] == damaged)[0])
    where = rf"\(index {damaged}, position {position}, batch {position // 8}\)"
    with pytest.raises(DataError, match=rf"train/dog/7\.png {where}: cannot decode"):
        list(itertools.islice(iterator, 3))


def test_a_vanished_file_is_named(folder, data, tmp_path):
    (tmp_path / "train" / "dog" / "7.png").unlink()
    examples = loading(folder, train_transform(data, (4, 4), 1), batch_size=10, seed=0)
    iterator = host_batches(examples, np.arange(10))
    with pytest.raises(DataError, match=r"dog/7\.png"):
        next(iterator)


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_what_cannot_be_read_is_masked_where_asked(folder, data, num_workers, caplog):
    blank = Skipping(np.full((4, 4, 1), 200, np.uint8), 0)
    transform, options = train_transform(data, (4, 4), 1), {"num_workers": num_workers}
    examples = loading(folder, transform, 8, seed=0, skipping=blank, num_threads=3, **options)
    found = list(host_batches(examples, np.arange(8), stop=5))  # Four epochs of ten.
    whole = {key: np.concatenate([batch[key] for batch in found]) for key in found[0]}
    np.testing.assert_array_equal(whole["index"], Order(10, 0).indices(np.arange(40)))
    names = [folder[int(index)].name for index in whole["index"]]
    unread = np.array(names) == "train/dog/7.png"
    np.testing.assert_array_equal(whole["mask"], ~unread)
    assert unread.sum() == 4
    assert (whole["image"][unread] == 200).all()
    labels = np.array([folder[int(index)].label for index in whole["index"]])
    np.testing.assert_array_equal(whole["label"], np.where(unread, 0, labels))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 1, "once, though met four times"
    assert messages[0].startswith("Left out: train/dog/7.png: cannot decode the image")


def test_a_file_damaged_after_the_first_epoch_does_not_end_a_run(folder, data, tmp_path):
    skipping = Skipping.of(folder, (4, 4, 1), num_classes=2)
    transform = train_transform(data, (4, 4), 1)
    examples = loading(folder, transform, batch_size=5, seed=0, skipping=skipping)
    rows = host_batches(examples, np.arange(5), stop=200)
    found = list(itertools.islice(rows, 2))
    (tmp_path / "train" / "cat" / "3.png").write_bytes(b"")
    found += rows
    assert len(found) == 200
    masked = [
        {folder.name_of(index) for index in batch["index"][~batch["mask"]]} for batch in found
    ]
    assert set.union(*masked[:2]) == {"train/dog/7.png"}
    assert set.union(*masked[-2:]) == {"train/dog/7.png", "train/cat/3.png"}
    assert skipping.reported == {"train/dog/7.png", "train/cat/3.png"}


@pytest.mark.parametrize("size", [7, 8, 9, 31])
def test_skipping_never_moves_another_example(size, caplog):
    """Evaluation counts all the others once, whatever the last batch holds."""

    class Gaps(Numbered):
        def __getitem__(self, index):
            if index in (0, size - 1):
                raise DataError(f"numbered/{index}: a gap")
            return super().__getitem__(index)

    blank = Skipping(np.zeros((1, 1, 1), np.uint8), 0)
    examples = loading(Gaps(size), identity, 8, seed=None, skipping=blank, num_threads=3)
    found = list(host_batches(examples, np.arange(8)))
    counted = np.concatenate([batch["index"][batch["mask"]] for batch in found])
    np.testing.assert_array_equal(counted, np.arange(1, size - 1))
    images = np.concatenate([batch["image"][batch["mask"]] for batch in found]).ravel()
    np.testing.assert_array_equal(images, np.arange(1, size - 1))
    assert caplog.messages[0] == "Left out: numbered/0: a gap", "the name once"
    assert blank.reported == {"numbered/0", f"numbered/{size - 1}"}


def test_a_source_may_fetch_many_at_once():
    @dataclasses.dataclass(frozen=True)
    class Remote(Numbered):
        asked: list

        def fetch(self, indices):
            self.asked.append(indices)
            return [DataError("lost") if index == 5 else self[index] for index in indices]

    source = Remote(64, [])
    blank = Skipping(np.zeros((1, 1, 1), np.uint8), 0)
    failing = loading(source, identity_of_two, batch_size=64, seed=0, block=32, num_threads=2)
    skipping = dataclasses.replace(failing, skipping=blank)
    (found,) = host_batches(skipping, np.arange(64), stop=1)
    np.testing.assert_array_equal(
        found["image"].ravel(), np.where(found["mask"], found["index"], 0)
    )
    assert found["index"][~found["mask"]].tolist() == [5]
    assert len(source.asked) == 2
    for indices in source.asked:
        assert len(set(indices)) == 32
        assert np.ptp(np.sort((np.array(indices) - indices[0]) % 64)) < 64
    with pytest.raises(DataError, match=r"Cannot read numbered/5 \(.*lost\. .*on_error=skip"):
        list(host_batches(failing, np.arange(64), stop=1))


def test_targets_of_several_classes_are_rows():
    class Targets(Numbered):
        def __getitem__(self, index):
            example = super().__getitem__(index)
            return example._replace(label=np.array([index % 2, 1], np.uint8))

    (batch,) = host_batches(loading(Targets(8), identity, 8, seed=None), np.arange(8))
    assert batch["label"].dtype == np.float32
    assert batch["label"].tolist() == [[index % 2, 1] for index in range(8)]


@pytest.mark.parametrize("kind", ["several", "numbers"])
@pytest.mark.parametrize("num_rows", [2, 8])  # Of two rows, neither can be read.
def test_what_stands_for_an_example_of_several_classes_or_numbers_has_none(num_rows, kind):
    class Targets(Numbered):
        multi_label, numeric = kind == "several", kind == "numbers"

        def __getitem__(self, index):
            if index < 2:
                raise DataError("a gap")
            return super().__getitem__(index)._replace(label=np.ones(2, np.float32))

    source = Targets(num_rows)
    skipping = Skipping.of(source, (1, 1, 1), num_classes=2)
    examples = loading(source, identity, num_rows, seed=None, skipping=skipping)
    (batch,) = host_batches(examples, np.arange(num_rows))
    np.testing.assert_array_equal(batch["label"], np.repeat(batch["mask"][:, None], 2, axis=1))
    assert batch["mask"].tolist() == [index >= 2 for index in range(num_rows)]
