"""TFRecord files: a record is 8 bytes of length, 4 of checksum, the data, 4 of the data's checksum.

The length's checksum is verified when a file is scanned, the data's whenever a record is read.
"""

from __future__ import annotations

import struct

import google_crc32c

from vit_jax.data.sources.record_index import Arrays, Forward, extents
from vit_jax.data.sources.records import CHANGED
from vit_jax.errors import DataError

_HEADER, _FOOTER = 12, 4
_GZIP = b"\x1f\x8b"


def scan(file: Forward) -> Arrays:
    """Finds each record, with its header and footer.

    Raises:
        DataError: the file is no TFRecord file, damaged or cut short; with the byte.
    """
    starts, stops, position = [], [], 0
    while position < file.size:
        file.require(position, position + _HEADER, "the record's header")
        header = file.read(position, position + _HEADER)
        length = _length(header)
        if length is None:
            raise DataError(f"{file.path}: {_damage(header, position)}")
        stop = position + _HEADER + length + _FOOTER
        file.require(position, stop, "the record")
        starts.append(position)
        stops.append(stop)
        position = stop
    return extents(starts, stops, file.path)


def _damage(header: bytes, position: int) -> str:
    if position:
        return f"the record at byte {position:,} is damaged (its length's checksum is wrong)."
    if header.startswith(_GZIP):
        return "compressed TFRecord files cannot be read at random; write them uncompressed."
    return f"this is no TFRecord file; it begins with {header!r}."


def data_of(record: bytes) -> bytes:
    """The data of a record that `scan` found; raises DataError if it is none, or damaged."""
    if _length(record[:_HEADER]) != len(record) - _HEADER - _FOOTER:
        raise DataError(f"there is no such record: {CHANGED}")
    data = record[_HEADER:-_FOOTER]
    if masked_crc32c(data) != int.from_bytes(record[-_FOOTER:], "little"):
        raise DataError("the record is damaged (its data's checksum is wrong): copy the file again")
    return data


def _length(header: bytes) -> int | None:
    """The length that a header of 12 bytes says; None if its checksum is wrong."""
    length, checksum = struct.unpack("<QI", header)
    return length if checksum == masked_crc32c(header[:8]) else None


def masked_crc32c(data: bytes) -> int:
    """The checksum of TFRecord files: CRC-32C, rotated right by 15 bits, plus a constant."""
    crc = google_crc32c.value(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
