"""Reading ahead from stores: threads that wait for answers, beside those that decode."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor

from vit_jax.data.sources.examples import Example
from vit_jax.errors import DataError

# A store answers after up to a fifth of a second, in which a core decodes up to 300 images of 256 pixels: ten
# chunks of 32.
_CHUNKS_PER_CORE, _MOST_CHUNKS = 16, 64
_MOST_BYTES = 256 * 2**20  # Of encoded images that lie ready.
_UNMEASURED = 2  # Chunks ahead while their size is not known.
_CLOSED = "The batches that this was read for have been closed."

Fetched = list[Example | Exception]


def chunks_ahead(num_cores: int) -> int:
    """The chunks that may be on their way from a store, for so many cores that decode."""
    return min(_CHUNKS_PER_CORE * max(1, num_cores), _MOST_CHUNKS)


class ReadAhead:
    """The examples of the chunks that come next, which are read before they are asked for.

    Each is asked for once, and about in order. Up to `most` are on their way or lie ready, fewer where
    they would be more than 256 MiB. A copy for a worker process begins anew.
    """

    def __init__(self, most: int, stride: int, stop: int):
        """For the chunks k, k + `stride`, … before `stop`, whichever k is asked for first."""
        self._arguments = most, stride, stop
        self._most, self._stride, self._stop = most, stride, stop
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(most, thread_name_prefix="read_ahead")
        self._reading: dict[int, Future[Fetched]] = {}
        self._next: int | None = None  # The first that nobody has begun to read.
        self._sizes: collections.deque[int] = collections.deque(maxlen=most)  # Of those last taken.
        self._closed = False

    def take(self, chunk: int, read: Callable[[int], Fetched]) -> Fetched:
        """The examples of a chunk; `read` is given its number, and those of the next ones.

        Raises what `read` raises, and DataError once this is closed.
        """
        with self._lock:
            self._begin(chunk, read)
            reading = self._reading.pop(chunk, None)
        try:
            examples = read(chunk) if reading is None else reading.result()
        except CancelledError as error:
            raise DataError(_CLOSED) from error
        with self._lock:
            self._sizes.append(sum(map(_size, examples)))
            self._begin(chunk, read)
        return examples

    def _begin(self, chunk: int, read: Callable[[int], Fetched]) -> None:
        """Has this chunk read if it is new, and as many of the next ones as are wanted."""
        if self._closed:
            raise DataError(_CLOSED)
        following = chunk if self._next is None else self._next
        while following < self._stop and (following <= chunk or len(self._reading) < self._limit()):
            self._reading[following] = self._threads.submit(read, following)
            following += self._stride
        self._next = following

    def _limit(self) -> int:
        """The chunks that may lie ready, by the largest of those that were taken last."""
        if not self._sizes:
            return min(self._most, _UNMEASURED)
        return max(1, min(self._most, _MOST_BYTES // max(1, *self._sizes)))

    def close(self) -> None:
        """Reads no more, and drops what lies ready; what is on its way is left to end."""
        with self._lock:
            self._closed = True
            self._threads.shutdown(wait=False, cancel_futures=True)
            self._reading.clear()

    def __reduce__(self) -> tuple[type[ReadAhead], tuple[int, int, int]]:
        return ReadAhead, self._arguments


def _size(example: Example | Exception) -> int:
    """Bytes of memory, of the image alone."""
    if not isinstance(example, Example):
        return 0
    return len(example.image) if isinstance(example.image, bytes) else example.image.nbytes
