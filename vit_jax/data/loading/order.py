"""The order of examples and their random numbers: pure functions of the seed and the position."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

_DRAWN = 1 << 16  # The largest permutation that is drawn whole.
_DRAWN_OF_A_CLASS = (
    1 << 11
)  # The same where a batch asks for many: what takes as long as the other way.


@dataclasses.dataclass(frozen=True)
class Order:
    """The order of examples: a pure function of (seed, epoch), in O(1) memory.

    With a seed, position p is example π(p mod n), where epoch p // n has its own permutation π.
    With `block` above 1, π moves runs of so many neighbours as they are: they lie at neighbouring
    positions, in an order of the epoch's own. Where the runs begin differs by epoch too.
    Without a seed, positions are examples; those from n on are padding and repeat the last example.
    """

    num_examples: int
    seed: int | None
    block: int = 1

    def indices(self, positions: np.ndarray) -> np.ndarray:
        """Maps positions int64 [R] to source indices int64 [R]."""
        if self.seed is None:
            return np.minimum(positions, self.num_examples - 1)
        epochs, offsets = np.divmod(positions, self.num_examples)
        indices = np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            rows = epochs == epoch
            indices[rows] = self._of_epoch(offsets[rows], (self.seed, epoch))
        return indices

    def _of_epoch(self, offsets: np.ndarray, key: tuple[int, int]) -> np.ndarray:
        size = self.num_examples
        if self.block == 1 or size <= self.block:
            return permute(offsets, size, key)
        runs, inner = np.divmod(offsets, self.block)
        count = size // self.block
        whole = runs < count  # What is left is too short for a run, and comes last.
        moved = np.where(whole, permute(np.where(whole, runs, 0), count, key), runs) * self.block
        within = np.where(whole, permute(inner, self.block, (*key, 1)), inner)
        first = np.random.SeedSequence((*key, 2)).generate_state(1, np.uint64)[0] % np.uint64(size)
        return (moved + within + np.int64(first)) % size


@dataclasses.dataclass(frozen=True, eq=False)
class ClassOrder(Order):
    """An order in which each class comes as often in an epoch as `draws` says, in sum `num_examples`.

    The epoch's permutation mixes the draws of all classes. The draws of a class go through its own
    images, in epochs of their own: none comes again before all others of its class have come.

    Attributes:
        members: the examples, class by class, int64 [N].
        sizes: how many each class has, [C].
        draws: how many of an epoch's positions each class has, int64 [C].
    """

    members: np.ndarray = dataclasses.field(kw_only=True)
    sizes: np.ndarray = dataclasses.field(kw_only=True)
    draws: np.ndarray = dataclasses.field(kw_only=True)

    def indices(self, positions: np.ndarray) -> np.ndarray:
        """See `Order.indices`; there is always a seed."""
        numbers = super().indices(positions)  # Of draws, class by class.
        ends = np.cumsum(self.draws)
        classes = np.searchsorted(ends, numbers, side="right")
        epochs = positions // self.num_examples
        turns = epochs * self.draws[classes] + numbers - (ends - self.draws)[classes]
        rounds, within = np.divmod(turns, self.sizes[classes])
        chosen = np.empty_like(numbers)
        for label, number in np.unique(np.stack([classes, rounds]), axis=1).T.tolist():
            rows = (classes == label) & (rounds == number)
            size, key = int(self.sizes[label]), (self.seed or 0, number, label, 3)
            chosen[rows] = permute(within[rows], size, key, drawn=_DRAWN_OF_A_CLASS)
        return self.members[(np.cumsum(self.sizes) - self.sizes)[classes] + chosen]


def permute(
    values: np.ndarray, size: int, seed: tuple[int, ...], *, drawn: int = _DRAWN
) -> np.ndarray:
    """Maps `values` in [0, size), size < 2**48, by a random permutation of that range.

    A small range's permutation, up to `drawn`, is drawn once and cached. For a large one, a Feistel network
    permutes just enough bits, again and again until the value falls inside the range. (Grain's
    `index_shuffle` does so at all sizes, and takes milliseconds a value at small ones.)
    """
    if size <= drawn:
        return _small_permutation(size, seed)[values]
    bits = (size - 1).bit_length()
    low_bits = bits // 2
    masks = [np.uint64((1 << width) - 1) for width in (bits - low_bits, low_bits)]
    result = values.astype(np.uint64)
    outside = np.arange(len(values))
    while len(outside):
        halves = [result[outside] >> np.uint64(low_bits), result[outside] & masks[1]]
        for number, (factor, summand) in enumerate(_round_keys(seed)):
            # Multiply-add-shift: a strongly universal hash of the other half.
            hashed = (halves[1 - number % 2] * factor + summand) >> np.uint64(40)
            halves[number % 2] ^= hashed & masks[number % 2]
        result[outside] = halves[0] << np.uint64(low_bits) | halves[1]
        outside = outside[result[outside] >= size]
    return result.astype(np.int64)


@functools.lru_cache(maxsize=8)
def _small_permutation(size: int, seed: tuple[int, ...]) -> np.ndarray:
    # Raw bits: NumPy promises never to change them, as it may `Generator.permutation`.
    return np.argsort(np.random.Philox(np.random.SeedSequence(seed)).random_raw(size))


@functools.lru_cache(maxsize=8)
def _round_keys(seed: tuple[int, ...]) -> np.ndarray:
    return np.random.SeedSequence(seed).generate_state(16, np.uint64).reshape(8, 2)


class RowGenerator:
    """One NumPy Generator, moved to the stream of any position: 4 µs against 30 for a new one."""

    def __init__(self, seed: int):
        self._bits = np.random.Philox(key=seed)
        self._state = self._bits.state
        self._generator = np.random.Generator(self._bits)

    def at(self, position: int) -> np.random.Generator:
        """The generator of this position, until the next call."""
        # Philox is counter-based: this counter leaves 2^128 draws between two positions.
        self._state["state"]["counter"] = np.array([0, 0, position, 0], np.uint64)
        self._bits.state = self._state
        return self._generator
