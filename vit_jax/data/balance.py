"""How much each class counts in training, where classes differ in their number of images.

config.data.class_weights=balanced     in the loss: a weight for each class
config.data.sampling=balanced          in the order: how often its images come
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import ml_collections
import numpy as np

from vit_jax.data.loading.order import ClassOrder
from vit_jax.data.sources.examples import Source
from vit_jax.data.sources.label_reading import read_labels
from vit_jax.errors import ConfigError, DataError
from vit_jax.kinds import Kind, is_number, shown

BALANCED = "balanced"
# A class with n images comes in an epoch as often as n to this power says.
SAMPLINGS = {"natural": 1.0, "sqrt": 0.5, BALANCED: 0.0}

_MOST_LISTED = 20  # Classes; of more, the largest and the smallest.


def is_class_weights(value: Any) -> bool:
    """Whether `value` is "balanced", a tuple of numbers that are not all 0, or ""."""
    if isinstance(value, str):
        return value in ("", BALANCED)
    if not isinstance(value, tuple | list) or not value:
        return False
    return all(is_number(number) and number >= 0 for number in value) and any(value)


ClassWeights = Annotated[
    object,
    Kind(
        "balanced, a tuple with a number for each class, such as (1.0, 2.5), or ''",
        is_class_weights,
    ),
]


@dataclasses.dataclass(frozen=True)
class Balance:
    """How much each of the data's classes counts.

    Attributes:
        class_names: by label.
        counts: of their images, int64 [C].
        weights: of each class in the loss, [C]; empty: all are 1.
        draws: how often images of each class come in an epoch, int64 [C]; None: each image once.
        labels: of the images, int [N].
    """

    class_names: tuple[str, ...]
    counts: np.ndarray
    weights: tuple[float, ...] = ()
    draws: np.ndarray | None = None
    labels: np.ndarray = dataclasses.field(kw_only=True, repr=False)

    def order(self, seed: int) -> ClassOrder:
        """The order of an epoch in which classes come as `draws` says."""
        assert self.draws is not None
        return ClassOrder(
            len(self.labels),
            seed,
            members=np.argsort(self.labels, kind="stable"),
            sizes=self.counts,
            draws=self.draws,
        )

    def describe(self) -> list[str]:
        """A line for each class; of many, for the largest and the smallest."""
        by_size = np.argsort(-self.counts, kind="stable")
        if len(by_size) <= _MOST_LISTED:
            return [self._line(number) for number in range(len(by_size))]
        half = _MOST_LISTED // 2
        left = f"... and {len(by_size) - 2 * half:,} between these"
        return [*map(self._line, by_size[:half]), left, *map(self._line, by_size[-half:])]

    def _line(self, number: int) -> str:
        parts = [f"{self.class_names[number]}: {self.counts[number]:,} images"]
        if self.weights:
            parts.append(f"weight {self.weights[number]:.4g}")
        if self.draws is not None:
            parts.append(f"{self.draws[number]:,} draws an epoch")
        return ", ".join(parts)


def read_balance(data: ml_collections.ConfigDict, source: Source) -> Balance | None:
    """What `data.class_weights` and `data.sampling` ask for; None: nothing.

    Images that say their classes only when they are read, as TFDS's, are all read for that.

    Raises:
        ConfigError: they do not fit the data's classes, or each other.
        DataError: an image that has to be read for its class cannot be.
    """
    given, exponent = data.class_weights, SAMPLINGS[data.sampling]
    if not given and exponent == 1:
        return None
    key = f"config.data.class_weights={shown(given)}"
    if exponent != 1:
        key = f"config.data.sampling={data.sampling}"
        if data.shuffle != "global":
            raise ConfigError(
                f"{key} draws images one by one: it needs --config.data.shuffle=global."
            )
    if source.multi_label or source.numeric:
        raise ConfigError(f"{key} is for images with one class each; these have others.")
    labels = source.labels
    if not isinstance(labels, np.ndarray):
        location = f"{data.source} {data.data_dir}".strip()
        try:
            labels = read_labels(source, location, data.index_dir)
        except DataError as error:
            raise DataError(f"{key}: the class of each image is needed, and {error}.") from error
    names = source.class_names
    counts = np.bincount(labels, minlength=len(names))
    weights = balanced_weights(counts) if given == BALANCED else tuple(map(float, given or ()))
    if weights and len(weights) != len(names):
        raise ConfigError(
            f"{key} has {len(weights):,} weights; the data has {len(names):,} classes."
        )
    draws = None if exponent == 1 else share_out(len(source), counts, exponent)
    return Balance(names, counts, weights, draws, labels=labels)


def balanced_weights(counts: Sequence[int] | np.ndarray) -> tuple[float, ...]:
    """Weights by which each class has the same sum, and a mean image the weight 1.

    n / (C · n_c) for n images of C classes, of which class c has n_c; 0 for a class without any.
    """
    sizes = np.asarray(counts, np.float64)
    present = sizes > 0
    share = sizes.sum() / max(present.sum(), 1)
    return tuple(np.divide(share, sizes, out=np.zeros_like(sizes), where=present).tolist())


def share_out(total: int, counts: np.ndarray, exponent: float) -> np.ndarray:
    """`total` as whole parts in proportion to counts ** exponent, int64 [C]; none for a count of 0.

    The largest remainders are rounded up.
    """
    powers = np.where(counts > 0, np.float64(counts) ** exponent, 0)
    exact = total * powers / powers.sum()
    parts = np.floor(exact).astype(np.int64)
    largest = np.argsort(parts - exact, kind="stable")
    parts[largest[: total - parts.sum()]] += 1
    return parts
