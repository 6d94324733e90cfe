"""Copies of an image in a batch: far apart, each with random numbers of its own."""

import itertools

import numpy as np
import pytest

from tests.data.example_sources import Numbered, loading
from tests.data.loading.test_pipeline import assert_same, with_noise
from vit_jax.data.loading.chunks import num_distinct_rows
from vit_jax.data.loading.order import Order
from vit_jax.data.loading.pipeline import host_batches


def take(count, *, batch_size=16, copies=3, start=0, num_threads=2, rows=None):
    rows = np.arange(batch_size) if rows is None else rows
    options = {"copies": copies, "num_threads": num_threads}
    loaded = host_batches(loading(Numbered(200), with_noise, batch_size, 5, **options), rows, start)
    result = list(itertools.islice(loaded, count))
    loaded.close()
    return result


def test_one_copy_is_the_plain_order():
    for batch, rows in zip(take(4, copies=1), np.arange(64).reshape(4, 16), strict=True):
        np.testing.assert_array_equal(batch["index"], Order(200, 5).indices(rows))


def test_each_image_stands_so_often_in_a_batch_and_the_next_has_others():
    seen = []
    for batch in take(10, batch_size=15):
        _, counts = np.unique(batch["index"], return_counts=True)
        assert counts.tolist() == [3] * 5
        seen += batch["index"][:5].tolist()
        np.testing.assert_array_equal(batch["index"], np.tile(batch["index"][:5], 3))
        np.testing.assert_array_equal(batch["label"], batch["index"] % 2)
    assert seen == Order(200, 5).indices(np.arange(50)).tolist()


def test_copies_are_augmented_differently():
    noise = np.concatenate([batch["image"][:, 0, 1:, 0] for batch in take(8, batch_size=15)])
    assert len(np.unique(noise, axis=0)) == 8 * 15


@pytest.mark.parametrize("copies", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("batch_size", [2, 3, 4, 5, 7, 8, 9, 10, 13, 16, 2048])
def test_no_row_has_its_neighbours_image(batch_size, copies):
    distinct = num_distinct_rows(batch_size, copies)
    assert -(-batch_size // copies) <= distinct <= batch_size
    held = np.arange(batch_size) % distinct
    assert (held != np.roll(held, 1)).all()
    assert np.bincount(held).max() <= copies


def test_copies_are_as_many_as_can_be():
    assert num_distinct_rows(15, 3) == 5
    assert num_distinct_rows(2048, 3) == 683  # 682 copied twice more, one once more.
    assert num_distinct_rows(7, 3) == 4  # With 3, the first and the last row would be the same.
    assert num_distinct_rows(1, 3) == 1


def test_a_resumed_run_and_other_layouts_see_the_same():
    whole = take(6)
    assert_same(take(3, start=3, num_threads=1), whole[3:])
    for rows in (np.arange(8), np.arange(8, 16), np.array([3, 9, 14])):
        part = take(2, rows=rows)
        assert_same(part, [{key: batch[key][rows] for key in batch} for batch in whole[:2]])
