"""PNG files, as far as Pillow leaves them to us: metadata that it stumbles over, and missing rows."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

SIGNATURE = b"\x89PNG\r\n\x1a\n"

_METADATA = (b"tEXt", b"zTXt", b"iTXt", b"iCCP")
_HEADER = struct.Struct(">IIBBBBB")  # width, height, bits, colour, three methods
_BANDS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # By the header's colour.
# Of Adam7's passes: the first column and row, and the steps between them.
_PASSES = (
    *((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4)),
    *((0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)),
)
_WHOLE = ((0, 0, 1, 1),)
_PART = 1 << 20  # Bytes that are decompressed at once.


def without_metadata(content: bytes) -> bytes:
    """The file without its texts and colour profile, which say nothing of the pixels."""
    if not content.startswith(SIGNATURE):
        return content
    kept = [content[start:stop] for kind, start, stop in _chunks(content) if kind not in _METADATA]
    return SIGNATURE + b"".join(kept)


def missing_bytes(content: bytes) -> int:
    """How many bytes of the rows are not there, of those that the header calls for."""
    chunks = {kind: (start, stop) for kind, start, stop in _chunks(content)}
    at = chunks[b"IHDR"][0] + 8
    width, height, bits, colour, *_, interlaced = _HEADER.unpack_from(content, at)
    expected = 0
    for left, top, across, down in _PASSES if interlaced else _WHOLE:
        columns, rows = -(-(width - left) // across), -(-(height - top) // down)
        if columns > 0 and rows > 0:
            expected += rows * (1 + -(-columns * bits * _BANDS[colour] // 8))
    return max(0, expected - sum(_decompressed(content, expected)))


def _decompressed(content: bytes, most: int) -> Iterator[int]:
    """The lengths of the parts that the rows decompress to, up to `most` bytes in all."""
    stream, total = zlib.decompressobj(), 0
    for kind, start, stop in _chunks(content):
        data = content[start + 8 : stop - 4] if kind == b"IDAT" else b""
        while data and total < most:
            part = len(stream.decompress(data, _PART))
            total, data = total + part, stream.unconsumed_tail
            yield part


def _chunks(content: bytes) -> Iterator[tuple[bytes, int, int]]:
    """The kind of each chunk, and where it starts and stops."""
    start = len(SIGNATURE)
    while start + 8 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, start)
        stop = start + length + 12
        yield kind, start, min(stop, len(content))
        start = stop
