"""Parts of a batch: which rows each has."""

import numpy as np

from vit_jax.training.gradients import in_order, interleaved


def test_micro_batches_take_rows_from_all_over_the_batch():
    """So that each of two devices, with four rows each, has two rows of both."""
    rows = np.arange(8)
    np.testing.assert_array_equal(interleaved(rows, 2), [[0, 2, 4, 6], [1, 3, 5, 7]])


def test_shares_are_neighbours():
    np.testing.assert_array_equal(in_order(np.arange(8), 2), [[0, 1, 2, 3], [4, 5, 6, 7]])
