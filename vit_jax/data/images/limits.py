"""How much memory a picture may take: told by its header, before anything is decoded."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from vit_jax.errors import DataError

MAX_IMAGE_GIB = 1.0  # The default of `config.data.max_image_gib`: 268 megapixels.

_BYTES_PER_PIXEL = 4  # Of Pillow's images, but for grey ones.
# What one byte of a sound file decodes to, at most: of JPEG a block of 16×16 pixels with every
# coefficient 0 takes three quarters of a byte; deflate, in PNG, ends at 1032 bytes for one; others
# code an empty row in a bit.
_DECODED_PER_BYTE = {"JPEG": 2_000, "MPO": 2_000, "PNG": 2_000}
_DECODED_PER_BYTE_OF_OTHERS = 6_000
_FREE_SHARE = 8  # So much smaller a picture is allowed whatever the size of its file.


def decoded_bytes(height: int, width: int) -> int:
    """The bytes that a picture of this size takes in memory."""
    return height * width * _BYTES_PER_PIXEL


def check_size(
    kind: str,
    height: int,
    width: int,
    file_bytes: int,
    max_bytes: int,
    pixel_bytes: int = _BYTES_PER_PIXEL,
) -> None:
    """Raises DataError for a picture that is too large, or far too large for its file.

    Args:
        kind: the format, as Pillow calls it.
        height, width: as the header says.
        file_bytes: the size of the file.
        max_bytes: that the decoded picture may take. An eighth of it is allowed to any file, more
            only to files that are large enough to hold such a picture.
        pixel_bytes: that a decoded pixel takes, where it is more than Pillow's.
    """
    decoded = height * width * max(pixel_bytes, _BYTES_PER_PIXEL)
    per_byte = _DECODED_PER_BYTE.get(kind, _DECODED_PER_BYTE_OF_OTHERS)
    if decoded <= max_bytes // _FREE_SHARE or decoded <= min(max_bytes, per_byte * file_bytes):
        return
    raise DataError(
        f"cannot decode the image (a {kind} file of {file_bytes:,} bytes with {width:,}×{height:,} "
        f"pixels, {decoded / 2**30:.2f} GiB: more than it may take; if it is a picture, raise "
        f"max_image_gib={max_bytes / 2**30:.2g}: of a run config.data.max_image_gib, of other "
        "commands --max_image_gib)"
    )


class Budget:
    """Memory that threads share: each waits until there is room for its picture."""

    def __init__(self, total: int):
        self._total = self._free = total
        self._changed = threading.Condition()

    @contextlib.contextmanager
    def reserve(self, amount: int) -> Iterator[None]:
        """Room for `amount` bytes within; one alone may take all that there is."""
        amount = min(amount, self._total)
        with self._changed:
            self._changed.wait_for(lambda: amount <= self._free)
            self._free -= amount
        try:
            yield
        finally:
            with self._changed:
                self._free += amount
                self._changed.notify_all()
