import itertools

import numpy as np
import pytest

from vit_jax.data.loading.order import Order, RowGenerator, permute


@pytest.mark.parametrize("size", [1, 2, 7, 1000, 65_536, 65_537, 100_003])
def test_each_epoch_is_its_own_permutation(size):
    order = Order(size, seed=3)
    epochs = [order.indices(np.arange(epoch * size, (epoch + 1) * size)) for epoch in range(3)]
    for indices in epochs:
        np.testing.assert_array_equal(np.sort(indices), np.arange(size))
    if size > 2:
        assert not any(np.array_equal(*pair) for pair in itertools.combinations(epochs, 2))


def test_seeds_and_epochs_are_unrelated():
    size = 100
    epoch = np.arange(size)
    first = Order(size, seed=0).indices(epoch + size)
    assert not np.array_equal(first, Order(size, seed=1).indices(epoch))


def test_any_position_may_be_asked_for():
    order = Order(100_003, seed=0)
    whole = order.indices(np.arange(250_000))
    scattered = np.random.default_rng(0).integers(0, 250_000, 100)
    np.testing.assert_array_equal(order.indices(scattered), whole[scattered])


def test_order_never_changes():
    """A resumed run must see the order of the version that it was started with."""
    positions = np.array([0, 1, 2, 99, 1_000_000])
    small, large = (Order(size, seed=0).indices(positions) for size in (60_000, 1_281_167))
    assert small.tolist() == [18634, 19031, 31749, 57770, 45691]
    assert large.tolist() == [324545, 1225250, 624962, 231524, 193227]
    blocks = Order(1000, seed=0, block=32).indices(np.arange(5))
    assert blocks.tolist() == [714, 717, 726, 734, 718]
    even = Order(128, seed=0, block=32).indices(np.arange(0, 128, 16))
    assert even.tolist() == [2, 11, 98, 107, 34, 43, 66, 75]
    drawn = np.random.Philox(np.random.SeedSequence((0, 0))).random_raw(65_536)
    whole = Order(65_536, seed=0).indices(np.arange(65_536))
    np.testing.assert_array_equal(whole, np.argsort(drawn), "the largest that is drawn")
    runs = Order(32, seed=0, block=32).indices(np.arange(32))
    np.testing.assert_array_equal(runs, Order(32, seed=0).indices(np.arange(32)))


@pytest.mark.parametrize("size", [3, 100_000])
def test_permutations_are_uniform(size):
    # Where two neighbours land, over 2,000 seeds; five standard deviations of a fair die.
    landed = np.array([permute(np.array([1, 2]), size, (seed,)) for seed in range(2000)])
    for values in (landed[:, 0], (landed[:, 1] - landed[:, 0]) % size):
        counts = np.bincount(values * 3 // size, minlength=3)
        sides = np.count_nonzero(counts)
        assert np.abs(counts[counts > 0] - 2000 / sides).max() < 5 * (2000 / 4) ** 0.5
    assert len(np.unique(landed[:, 0])) >= min(size, 1900)


@pytest.mark.parametrize("size", [300_000_000, 2**32 + 1])
def test_huge_datasets_take_no_memory(size):
    values = np.random.default_rng(0).integers(0, size, 10_000)
    permuted = permute(values, size, (0, 0))
    assert permuted.min() >= 0
    assert permuted.max() < size
    assert len(np.unique(permuted)) == len(np.unique(values))
    assert abs(permuted.mean() / size - 0.5) < 0.02
    assert abs(np.corrcoef(values, permuted)[0, 1]) < 0.05


def test_without_a_seed_positions_are_examples_and_padding_the_last():
    assert Order(5, None).indices(np.arange(8)).tolist() == [0, 1, 2, 3, 4, 4, 4, 4]


# ---------------------------------------------------------------------------- blocks


@pytest.mark.parametrize("size", [1, 5, 31, 32, 33, 64, 1000, 100_003])
def test_blocks_are_permutations_too(size):
    order = Order(size, seed=3, block=32)
    epochs = [order.indices(np.arange(epoch * size, (epoch + 1) * size)) for epoch in range(3)]
    for indices in epochs:
        np.testing.assert_array_equal(np.sort(indices), np.arange(size))
    if size > 32:
        assert not any(np.array_equal(*pair) for pair in itertools.combinations(epochs, 2))


def test_blocks_keep_neighbours_together_in_an_order_of_the_epochs_own():
    size, block = 10_000, 32
    order = Order(size, seed=0, block=block)
    first, second = (order.indices(np.arange(size) + epoch * size) for epoch in range(2))
    for indices in (first, second):
        runs = indices[: size // block * block].reshape(-1, block)
        distance = (runs - runs.min(axis=1, keepdims=True)) % size
        inside = np.sort(distance, axis=1) == np.arange(block)
        assert inside.all(axis=1).sum() >= len(runs) - 1, "one may span the end"
        assert (np.diff(indices) == 1).mean() < 0.1, "mixed within a block"
        assert abs(np.corrcoef(runs[:-1, 0], runs[1:, 0])[0, 1]) < 0.2, "blocks are shuffled"
    starts = [np.min(one[:block]) % block for one in (first, second)]
    assert starts[0] != starts[1], "blocks begin elsewhere in each epoch"
    np.testing.assert_array_equal(order.indices(np.array([7, 12_345])), [first[7], second[2345]])


# ---------------------------------------------------------------------------- random numbers


def test_the_generator_is_numpys_philox():
    generator = RowGenerator(5)
    generator.at(3).random(10)
    generator.at(4).integers(7, dtype=np.uint32)  # Leaves half a word behind.
    fresh = np.random.Generator(np.random.Philox(key=5, counter=[0, 0, 9, 0]))
    again = generator.at(9)
    assert again.random() == fresh.random()
    assert again.integers(7, dtype=np.uint32) == fresh.integers(7, dtype=np.uint32)
