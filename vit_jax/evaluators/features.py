"""Features of frozen models: computed once for each split, and shared by all that fit to them."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from vit_jax.data.evaluation_data import EvaluationData, Split
from vit_jax.devices import sharding
from vit_jax.errors import DataError, NonFiniteLossError
from vit_jax.models.base import PRE_LOGITS
from vit_jax.network import Network

Array = np.ndarray
CHUNK_ROWS = 4096  # Images at once, wherever features are gone through on the host.


class Features(NamedTuple):
    """Representations before the head, and the classes of their source; each image once, in order.

    Every process has all of them: 4 bytes a number, 3.9 GB for ImageNet's 1.28 million at width 768.
    """

    values: Array  # float32 [N, R]
    labels: Array  # int32 [N]


class Extracted(NamedTuple):
    """The features of a split, and how many of its images could not be read."""

    features: Features
    skipped: int


class FeatureStore:
    """Computes features of splits; those of one set of parameters are kept for the next caller."""

    def __init__(self, network: Network, data: EvaluationData):
        def compute(params: dict, images: jax.Array) -> jax.Array:
            return network.outputs(params, images)[PRE_LOGITS]

        # All features in every process, for what is fitted there.
        everywhere = sharding.replicated(network.mesh)
        self._compute = jax.jit(compute, out_shardings=everywhere)
        self._gather = jax.jit(lambda rows: rows, out_shardings=everywhere)
        self._data = data
        self._known: dict[tuple[str, str, bool], Extracted] = {}
        self._owners: list[weakref.ref[jax.Array]] = []  # The parameters whose they are.

    def open(self, source: str, split: str, *, training: bool) -> Callable[[dict], Extracted]:
        """Opens a split with its source's own classes; features follow, by parameters.

        Args:
          source, split: as `EvaluationData.open` takes them.
          training: whether protocols fit to it, so that it is opened as for training.

        Raises UserError if it cannot be used, DataError if its images have several classes.
        """
        opened = self._data.open(source, split, own_classes=True, training=training)
        if opened.source.multi_label or opened.source.numeric:
            raise DataError(
                f"{source or self._data.config.source}: few-shot evaluation, k-NN and the linear "
                "probe need images with one class each, and these have several, or numbers: evaluate "
                "them by classification or regression."
            )

        def features_of(params: dict) -> Extracted:
            self._forget_others(params)
            key = (source, split, training)
            if key not in self._known:
                self._known[key] = self._extract(params, opened)
            return self._known[key]

        return features_of

    def _forget_others(self, params: dict) -> None:
        """Drops the features of other parameters, now, and of these once they are gone."""
        leaves = jax.tree.leaves(params)
        if len(leaves) == len(self._owners) and all(
            owner() is leaf for owner, leaf in zip(self._owners, leaves, strict=True)
        ):
            return
        self._known.clear()
        forget = self._known.clear
        self._owners = [weakref.ref(leaf, lambda _: forget()) for leaf in leaves]

    def _extract(self, params: dict, split: Split) -> Extracted:
        values, labels, count = None, np.empty(len(split), np.int32), 0

        def take(pending: tuple[jax.Array, dict[str, jax.Array]] | None) -> None:
            nonlocal values, count
            if pending is None:
                return
            rows, small = jax.device_get(pending)
            kept = rows[small["mask"]]
            if not np.isfinite(kept).all():
                raise NonFiniteLossError(
                    "the model's features are not finite numbers: it has diverged, or its weights "
                    "are damaged."
                )
            if values is None:
                values = np.empty((len(split), rows.shape[1]), np.float32)
            values[count : count + len(kept)] = kept
            labels[count : count + len(kept)] = small["label"][small["mask"]]
            count += len(kept)

        pending = None  # Read one batch late, so that the device never waits for the host.
        with contextlib.closing(split.batches()) as batches:
            for batch in batches:
                small = self._gather({name: batch[name] for name in ("label", "mask")})
                latest = self._compute(params, batch["image"]), small
                take(pending)
                pending = latest
        take(pending)
        split.count_skipped(count)
        if values is None or not count:
            raise DataError(f"{split.data.config.source}: none of the images can be read.")
        return Extracted(Features(values[:count], labels[:count]), len(split) - count)
