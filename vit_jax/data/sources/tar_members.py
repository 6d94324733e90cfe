"""The members of a tar file, by their headers: ustar, GNU's long names and pax; nothing is extracted.

Python's `tarfile` would do, but takes twice as long, and it neither notices a missing end mark nor
data after one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from vit_jax.data.sources.record_index import Forward
from vit_jax.errors import DataError

_BLOCK = 512
_LONGEST_NAME = 1 << 20
_FILES, _LINKS = (b"0", b"\0", b"7"), (b"1", b"2")
_LONG_NAME, _PAX, _NO_MEMBERS = b"L", (b"x", b"X"), (b"L", b"K", b"g", b"x", b"X")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


class Member(NamedTuple):
    """One member: its header begins at `start`, its content lies from `content` to `stop`."""

    name: str
    is_file: bool
    is_link: bool
    start: int
    content: int
    stop: int


def members(file: Forward) -> Iterator[Member]:
    """All members, in the order of the file.

    Raises:
        DataError: the file is compressed, no tar file, damaged or cut short; with the byte.
    """
    position, has_ended = 0, False
    while position < file.size:
        block = file.read(position, min(position + _BLOCK, file.size))
        if not any(block):  # The end, unless several tar files were joined.
            position, has_ended = position + _BLOCK, True
            continue
        if position == 0:
            _refuse_compressed(block, file.path)
        file.require(position, position + _BLOCK, "the header")
        try:
            member = read_member(file.read, position)
        except ValueError as error:
            raise DataError(f"{file.path} {_damage(position)} ({error}).") from error
        file.require(member.start, member.stop, repr(member.name))
        yield member
        position, has_ended = _padded(member.stop), False
    if not has_ended:
        raise DataError(
            f"{file.path} is cut short: it has {file.size:,} bytes and lacks the empty block that "
            "ends a tar file; copy it or write it again."
        )


def _damage(position: int) -> str:
    return f"is damaged at byte {position:,}" if position else "is no tar file"


def _refuse_compressed(block: bytes, path: str) -> None:
    for mark, program in _COMPRESSED.items():
        if block.startswith(mark):
            raise DataError(
                f"{path} is compressed ({program}), so nothing in it can be read without all that "
                f"lies before. Unpack it once: {program} -d FILE (images hardly shrink anyway)."
            )


def read_member(read: Callable[[int, int], bytes], start: int) -> Member:
    """The member whose header, or the first of whose headers, begins at `start`.

    Args:
        read: the bytes of the tar file, from and to a byte.
        start: a byte.

    Raises:
        ValueError: there is no header.
    """
    long_name, pax, position = None, {}, start
    while True:
        header = read(position, position + _BLOCK)
        _verify(header)
        kind, size = header[156:157], _number(header[124:136])
        content = position + _BLOCK
        if kind not in _NO_MEMBERS:
            break
        if size > _LONGEST_NAME:
            raise ValueError(f"a name of {size:,} bytes")
        text = read(content, content + size)
        if kind == _LONG_NAME:
            long_name = text.rstrip(b"\0")
        elif kind in _PAX:
            pax = _pax_records(text)
        position = _padded(content + size)
    size = int(pax.get(b"size", size))
    if size < 0:
        raise ValueError(f"a size of {size:,} bytes")
    raw_name = pax.get(b"path") or long_name or _short_name(header)
    name = raw_name.decode("utf-8", "surrogateescape")
    return Member(
        name.removeprefix("./"),
        kind in _FILES and not name.endswith("/"),  # The oldest tars mark folders so.
        kind in _LINKS,
        start,
        content,
        content + size,
    )


def _verify(header: bytes) -> None:
    """Raises ValueError unless the checksum is right; in it, its own field counts as blanks."""
    if len(header) < _BLOCK:
        raise ValueError("a header that ends early")
    if sum(header) - sum(header[148:156]) + 8 * ord(" ") != _number(header[148:156]):
        raise ValueError("the header's checksum is wrong")


def _number(field: bytes) -> int:
    """Octal digits or, with the first bit set, a binary number."""
    if field[0] & 0x80:
        return int.from_bytes(field, "big") - (0x80 << 8 * (len(field) - 1))
    digits = field.strip(b" \0") or b"0"
    try:
        return int(digits, 8)
    except ValueError:
        raise ValueError(f"{digits!r} where a number should be") from None


def _short_name(header: bytes) -> bytes:
    name, prefix = (field.partition(b"\0")[0] for field in (header[:100], header[345:500]))
    is_posix = header[257:263] == b"ustar\0"  # GNU has times where POSIX has the prefix.
    return prefix + b"/" + name if is_posix and prefix else name


def _pax_records(text: bytes) -> dict[bytes, bytes]:
    """Keys and values of lines "LENGTH KEY=VALUE"; a value may hold anything."""
    records = {}
    while text.strip(b"\0"):
        digits, _, rest = text.partition(b" ")
        length = int(digits)
        if not len(digits) < length <= len(text):
            raise ValueError(f"a pax record of {length:,} bytes")
        key, _, value = rest[: length - len(digits) - 2].partition(b"=")
        records[key] = value
        text = text[length:]
    return records


def _padded(position: int) -> int:
    return -(-position // _BLOCK) * _BLOCK
