"""Images that stay decoded in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import numpy as np

from vit_jax.data.images.picture import STANDARD, Decoding, decode_for_later
from vit_jax.data.sources.examples import Example, Labels, Source
from vit_jax.data.sources.views import View
from vit_jax.errors import DataError


class Cached(View):
    """A source whose images are decoded whole, and kept up to a limit.

    What is full stays as it is: in a shuffled order no image is likelier to come next than another.
    Each process has its own; a copy for a worker process begins empty.
    """

    def __init__(self, source: Source, channels: int, limit_gib: float, how: Decoding = STANDARD):
        """Wraps `source`, for images of so many channels, to hold up to `limit_gib` × 2**30 bytes.

        They are decoded as `how` says.
        """
        super().__init__(source)
        self._arguments = source, channels, limit_gib, how
        self._channels, self._how = channels, how
        self._free = int(limit_gib * 2**30)
        self._held: dict[int, Example] = {}
        self._lock = threading.Lock()

    @property
    def labels(self) -> Labels | None:
        """The source's own."""
        return self.source.labels

    def fetch(self, indices: Sequence[int]) -> Iterator[Example | Exception]:
        """Several examples; see `Source`."""
        held = {index: self._held.get(index) for index in indices}
        fresh = iter(self.source.fetch([index for index in indices if held[index] is None]))
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
            image = decode_for_later(example.image, self._channels, self._how)
        except DataError as error:
            raise DataError(f"{example.name}: {error}") from error
        example = example._replace(image=image)  # type: ignore[arg-type]
        size = image.nbytes
        with self._lock:
            if index not in self._held and size <= self._free:
                self._free -= size
                self._held[index] = example
        return example

    def __reduce__(self) -> tuple[type[Cached], tuple[Source, int, float, Decoding]]:
        return Cached, self._arguments
