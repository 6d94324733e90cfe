"""Images as a few bytes each: equal for the same pixels, near each other for the same picture.

A perceptual hash has 64 bits: which of the 8 × 8 lowest frequencies of the grey picture at 32 × 32
pixels, in the cosine transform, are above their median (the pHash of Zauner, "Implementation and
benchmarking of perceptual image hash functions", 2010). Cropping moves all of them, so an image has
one for the whole picture and one for each of a few margins cut off: of a picture and a slight crop of
it, one whole is near some part of the other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import cv2
import numpy as np

MARGINS = (0.0, 0.025, 0.05)  # Cut off at each side, in shares of it.
SIZE = 1 + len(MARGINS)  # Numbers of 64 bits in a fingerprint.

_BAND = np.uint64((1 << 16) - 1)
_PAIRS = 1 << 22  # Compared at once, which bounds the memory.


def fingerprint(image: np.ndarray) -> np.ndarray:
    """Hashes of an image uint8 [H, W, 3]: uint64 [`SIZE`], of its pixels, then the perceptual ones."""
    digest = hashlib.blake2b(repr(image.shape).encode(), digest_size=8)
    digest.update(np.ascontiguousarray(image).data)
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)
    perceptual = [perceptual_hash(_without_margin(grey, margin)) for margin in MARGINS]
    return np.array([int.from_bytes(digest.digest(), "big"), *perceptual], np.uint64)


def _without_margin(image: np.ndarray, margin: float) -> np.ndarray:
    rows, columns = (round(side * margin) for side in image.shape)
    return image[rows : image.shape[0] - rows, columns : image.shape[1] - columns]


def perceptual_hash(grey: np.ndarray) -> int:
    """64 bits that tell what is in an image uint8 [H, W] as a whole, whatever its size."""
    small = cv2.resize(grey, (32, 32), interpolation=cv2.INTER_AREA).astype(np.float32)
    frequencies = cv2.dct(small)[:8, :8]
    bits = np.packbits(frequencies > np.median(frequencies))
    return int.from_bytes(bits.tobytes(), "big")


def same(fingerprints: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each of `fingerprints` [N, SIZE] the first of `others` with its pixels: int64 [N]; -1: none."""
    values, first = np.unique(others[:, 0], return_index=True)
    indices = np.searchsorted(values, fingerprints[:, 0]).clip(max=len(values) - 1)
    return np.where(values[indices] == fingerprints[:, 0], first[indices], -1)


def nearest(
    fingerprints: np.ndarray, others: np.ndarray, limit: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each of `fingerprints` the one of `others` that looks most like it, if any does.

    Args:
        fingerprints: uint64 [N, SIZE].
        others: uint64 [M, SIZE].
        limit: how many bits of a perceptual hash may differ, from 0 on.

    Returns:
        The index in `others`, int64 [N], -1 for none; and the bits that differ, uint8 [N].
    """
    indices = np.full(len(fingerprints), -1, np.int64)
    distances = np.full(len(fingerprints), 255, np.uint8)
    whole = 1  # After the hash of the pixels; one of two crops is always a whole picture.
    columns = [(whole, column) for column in range(whole, SIZE)]
    columns += [(column, whole) for column in range(whole + 1, SIZE)]
    for mine, theirs in columns:
        hashes, back = np.unique(fingerprints[:, mine], return_inverse=True)
        values, first = np.unique(others[:, theirs], return_index=True)
        found, bits = _nearest(hashes, values, limit)
        better = bits[back] < distances
        indices[better] = first[found[back]][better]
        distances[better] = bits[back][better]
    return indices, distances


def _nearest(hashes: np.ndarray, others: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """The index of the nearest of `others` [M] for each of `hashes` [N], and its distance or 255."""
    indices = np.zeros(len(hashes), np.int64)
    distances = np.full(len(hashes), 255, np.uint8)
    for mine, theirs in _candidates(hashes, others, limit):
        bits = np.bitwise_count(hashes[mine] ^ others[theirs])
        near = bits <= np.minimum(limit, distances[mine])
        mine, theirs, bits = mine[near], theirs[near], bits[near]
        # Of several assigned to one index the last one stays: the nearest, and the first of these.
        order = np.lexsort((-theirs, -bits.astype(np.int64)))
        better = order[bits[order] < distances[mine[order]]]
        indices[mine[better]] = theirs[better]
        distances[mine[better]] = bits[better]
    return indices, distances


def _candidates(
    hashes: np.ndarray, others: np.ndarray, limit: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Pairs of indices, among them all pairs of hashes that differ in at most `limit` bits.

    Of four bands of 16 bits, such hashes differ in at most `limit` // 4 bits of one. So those are
    compared that have a band in common once so many of its bits are flipped.
    """
    for band in range(4):
        mine, theirs = (((values >> np.uint64(16 * band)) & _BAND) for values in (hashes, others))
        mine, order = mine.astype(np.int64), np.argsort(theirs, kind="stable")
        starts = np.searchsorted(theirs[order], np.arange((1 << 16) + 1))
        for flips in _flips(limit // 4):
            first = starts[mine ^ flips]
            counts = starts[(mine ^ flips) + 1] - first
            ends = np.cumsum(counts)
            total = int(counts.sum())
            for begin in range(0, total, _PAIRS):
                pairs = np.arange(begin, min(begin + _PAIRS, total))
                rows = np.searchsorted(ends, pairs, "right")
                yield rows, order[first[rows] + pairs - (ends[rows] - counts[rows])]


def _flips(most: int) -> list[int]:
    """All numbers of 16 bits that have at most `most` ones."""
    return [bits for bits in range(1 << 16) if bits.bit_count() <= most]
