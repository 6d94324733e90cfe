"""Images that stay decoded in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from vit_jax.data.images.jpeg import Jpeg
from vit_jax.data.images.limits import MAX_IMAGE_GIB
from vit_jax.data.images.picture import decode_for_later
from vit_jax.data.sources.examples import Example, Source, fetch, has_label_sets
from vit_jax.errors import DataError


class Cached:
    """A source whose images are decoded whole, and kept up to a limit.

    What is full stays as it is: in a shuffled order no image is likelier to come next than another.
    Each process has its own; a copy for a worker process begins empty.
    """

    def __init__(
        self, source: Source, channels: int, limit_gib: float, max_image_gib: float = MAX_IMAGE_GIB
    ):
        """Wraps `source`, for images of so many channels, to hold up to `limit_gib` × 2**30 bytes.

        One that takes more than `max_image_gib` is an error.
        """
        self._arguments = source, channels, limit_gib, max_image_gib
        self._source, self._channels = source, channels
        self._max_bytes = int(max_image_gib * 2**30)
        self._free = int(limit_gib * 2**30)
        self._held: dict[int, Example] = {}
        self._lock = threading.Lock()
        self.class_names = source.class_names

    def __len__(self) -> int:
        return len(self._source)

    @property
    def multi_label(self) -> bool:
        """As the source says."""
        return has_label_sets(self._source)

    def name_of(self, index: int) -> str:
        """The example's name."""
        return self._source.name_of(index)

    def __getitem__(self, index: int) -> Example:
        held = self._held.get(index)
        return self._keep(index, self._source[index]) if held is None else held

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | Exception]:
        """Several examples; see `examples.fetch`."""
        held = {index: self._held.get(index) for index in indices}
        fresh = fetch(self._source, [index for index in indices if held[index] is None])
        for index in indices:
            if held[index] is not None:
                yield held[index]
                continue
            example = next(fresh)
            try:
                yield self._keep(index, example) if isinstance(example, Example) else example
            except DataError as error:
                yield error

    def _keep(self, index: int, example: Example) -> Example:
        """The example with its image decoded; held from now on, if there is room."""
        if isinstance(example.image, np.ndarray):
            return example  # It is in memory already.
        try:
            image = decode_for_later(example.image, self._channels, self._max_bytes)
        except DataError as error:
            raise DataError(f"{example.name}: {error}") from error
        example = example._replace(image=image)
        size = (image.pixels if isinstance(image, Jpeg) else image).nbytes
        with self._lock:
            if index not in self._held and size <= self._free:
                self._free -= size
                self._held[index] = example
        return example

    def __reduce__(self) -> tuple[type[Cached], tuple[Source, int, float, float]]:
        return Cached, self._arguments
