"""What is held out of data without a split for evaluation."""

import collections

import numpy as np
import pytest

from tests.data.sources.test_split_names import open_split, write_folder
from vit_jax.config import default_config, validate
from vit_jax.data.sources.examples import LabelSets
from vit_jax.data.sources.holding_out import Pool, held_out, is_fold, lowest_hashes
from vit_jax.data.sources.splits import uniform_hash
from vit_jax.errors import ConfigError


def pool_of(sizes):
    """So many images of each class, called 0/0, 0/1, ..., in another order."""
    names = [f"{label}/{index}" for label, size in enumerate(sizes) for index in range(size)]
    names.sort(key=lambda name: uniform_hash(f"shuffled {name}"))
    labels = np.array([int(name.split("/")[0]) for name in names], np.int32)
    hashes = np.array([uniform_hash(name) for name in names])
    return names, Pool(hashes, labels, [f"class {label}" for label in range(len(sizes))])


def names_held_out(sizes, data):
    names, pool = pool_of(sizes)
    return {name for name, chosen in zip(names, held_out(pool, data), strict=True) if chosen}


@pytest.mark.parametrize(("fraction", "expected"), [(0.1, 1), (0.2, 1), (0.5, 2), (0.9, 2)])
def test_forty_classes_of_three_images(data, fraction, expected):
    """alteryx/evalml 760, turicreate 1342: each class has images on both sides."""
    data.held_out_fraction = fraction
    chosen = names_held_out([3] * 40, data)
    assert collections.Counter(name.split("/")[0] for name in chosen) == {
        str(label): expected for label in range(40)
    }


@pytest.mark.parametrize("fraction", [0.0, 1e-6, 0.1, 0.25, 0.5, 0.9])
def test_of_each_class_those_with_the_lowest_hashes(data, fraction):
    data.held_out_fraction = fraction
    sizes = [*range(14), 100]
    expected = set()
    for label, size in enumerate(sizes):
        names = sorted((f"{label}/{index}" for index in range(size)), key=uniform_hash)
        count = max(1, round(fraction * size)) if size > 1 and fraction else 0
        expected |= set(names[: min(count, max(size - 1, 0))])
    assert names_held_out(sizes, data) == expected


@pytest.mark.parametrize("fraction", [0.05, 0.1, 1 / 3, 0.5, 0.9])
@pytest.mark.parametrize("fold", ["", "1/5", "2/5", "5/5"])
def test_an_added_image_moves_at_most_one_other_at_each_bound(data, fraction, fold):
    data.held_out_fraction, data.fold = fraction, fold
    most = 2 if fold == "2/5" else 1
    for size in range(2, 40):
        added, before, after = (
            f"1/{size}",
            *(names_held_out([7, count], data) for count in (size, size + 1)),
        )
        assert len((before ^ after) - {added}) <= most
        assert {name for name in before if name[0] == "0"} == {
            name for name in after if name[0] == "0"
        }


@pytest.mark.parametrize("holding_out", ["stratified", "hash"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_every_image_is_in_one_fold(data, holding_out, count):
    data.holding_out, folds = holding_out, []
    sizes = [10, 3, 2, 17] + [3] * 20
    for number in range(1, count + 1):
        data.fold = f"{number}/{count}"
        folds.append(names_held_out(sizes, data))
        assert folds[-1]
    assert sum(map(len, folds)) == len(set.union(*folds)) == sum(sizes)
    if holding_out == "stratified":
        for label, size in enumerate(sizes):
            parts = [sum(name.split("/")[0] == str(label) for name in fold) for fold in folds]
            assert set(parts) <= {size // count, -(-size // count)}


def test_small_classes_spread_over_the_folds(data):
    """Where each began at the first fold, those of two images would all fall into the same two."""
    sizes = []
    for number in range(1, 6):
        data.fold = f"{number}/5"
        sizes.append(len(names_held_out([2] * 200, data)))
    assert sum(sizes) == 400
    assert max(abs(size - 80) for size in sizes) < 4 * (400 * 0.2 * 0.8) ** 0.5


def test_a_fold_by_hash_begins_with_its_lower_bound(data):
    data.holding_out, found = "hash", []
    pool = Pool(np.array([0.0, 0.25, 0.5, 0.75]), np.zeros(4, np.int32), ["a"])
    for number in range(1, 5):
        data.fold = f"{number}/4"
        found.append(np.flatnonzero(held_out(pool, data)).tolist())
    assert found == [[0], [1], [2], [3]]


def test_the_only_image_of_a_class_is_in_no_fold(data):
    for number in (1, 2):
        data.fold = f"{number}/2"
        assert not {name for name in names_held_out([1, 1, 4], data) if name[0] != "2"}


def test_by_hash_never_changes(data):
    """A resumed run must hold out what the version that it was started with did."""
    hashes = np.array([uniform_hash(name) for name in ("cat/1.jpg", "élève.jpg", "\udcff.jpg")])
    np.testing.assert_allclose(hashes, [0.195336203962, 0.502204249355, 0.930946102122], rtol=1e-11)
    assert lowest_hashes(hashes, 0.2).tolist() == [True, False, False]
    assert lowest_hashes(hashes, 0.01).tolist() == [True, False, False], "so that there is one"
    data.holding_out = "hash"
    pool = Pool(hashes, np.array([0, 1, 1]), ("a", "b"))
    for fraction, expected in ((0.6, [True, True, False]), (0.0, [False] * 3)):
        data.held_out_fraction = fraction
        assert held_out(pool, data).tolist() == expected


def test_images_of_several_classes_are_held_out_by_hash(data):
    data.held_out_fraction = 0.5
    sets = LabelSets(np.array([0, 1, 0]), np.array([1, 2, 3]), 2)
    chosen = held_out(Pool(np.array([0.4, 0.6, 0.1]), sets, ("a", "b")), data)
    assert chosen.tolist() == [True, False, True]


def test_a_fold_of_a_folder(tmp_path, data, caplog):
    caplog.set_level("INFO", "vit_jax")
    data.source = write_folder(tmp_path, [f"{label}/{i}.jpg" for label in "ab" for i in range(6)])
    data.fold = "2/3"
    train, validation = (open_split(data, split) for split in ("train", ""))
    assert np.bincount(train.labels).tolist() == [4, 4]
    assert np.bincount(validation.labels).tolist() == [2, 2]
    assert "4 of its 12 images are held out for it, fold 2/3 (stratified)." in caplog.text
    data.update(fold="", held_out_fraction=0.25, holding_out="hash")
    open_split(data, "")
    assert "images are held out for it, a fraction of 0.25 (hash)." in caplog.text


@pytest.mark.parametrize("fold", ["", "1/2", "2/2", "1/5", "5/5", "9999/9999"])
def test_what_is_a_fold(fold):
    assert is_fold(fold)


@pytest.mark.parametrize(
    "fold", ["0/5", "6/5", "1/1", "1", "a/b", "-1/5", "1/5/2", "1/99999", 0.2, 0, None, ()]
)
def test_what_is_no_fold(fold):
    assert not is_fold(fold)
    if isinstance(fold, str):
        config = default_config()
        config.total_steps, config.data.fold = 1, fold
        with pytest.raises(ConfigError, match=r"config\.data\.fold=.*must be k/K"):
            validate(config)
