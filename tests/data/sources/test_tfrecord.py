import io
import struct

import numpy as np
import pytest
from tensorboardX.record_writer import RecordWriter
from tensorboardX.record_writer import masked_crc32c as reference_crc32c

from vit_jax.data.sources import tfrecord
from vit_jax.data.sources.record_index import Forward
from vit_jax.data.sources.records import Records
from vit_jax.errors import DataError

PAYLOADS = [b"first", b"", bytes(range(256)) * 40]


def framed(*payloads):
    """The records as `tensorboardX`, which is another implementation, writes them."""
    file = io.BytesIO()
    writer = RecordWriter.__new__(RecordWriter)
    writer._writer = file
    for payload in payloads:
        writer.write(payload)
    return file.getvalue()


@pytest.fixture
def shard(tmp_path):
    """Writes a shard and scans it."""

    def scan(content):
        path = tmp_path / "x.tfrecord"
        path.write_bytes(content)
        return str(path), tfrecord.scan(Forward(str(path), len(content)))

    return scan


@pytest.mark.parametrize("data", [b"", b"123456789", bytes(8), b"\xff" * 100])
def test_checksum(data):
    assert tfrecord.masked_crc32c(data) == reference_crc32c(data)


def test_records_are_found(shard):
    path, arrays = shard(framed(*PAYLOADS))
    assert arrays["start"].dtype == np.int64
    assert arrays["length"].tolist() == [21, 16, 10256]
    assert list(Records([path], [arrays], tfrecord.data_of).fetch([2, 0, 1])) == [
        PAYLOADS[2],
        PAYLOADS[0],
        PAYLOADS[1],
    ]


def test_an_empty_file_holds_no_records(shard):
    assert len(shard(b"")[1]["start"]) == 0


def header(length):
    packed = struct.pack("<Q", length)
    return packed + struct.pack("<I", reference_crc32c(packed))


DAMAGED = {
    "cut in the data": (
        framed(*PAYLOADS)[:-7],
        r"cut short.*record at byte 37 would end at byte 1",
    ),
    "cut in a header": (
        framed(b"a") + b"\1\0\0",
        r"cut short.*header at byte 17 would end at .*29",
    ),
    "a text": (b"path,label\ncat.jpg,3\n", r"no TFRecord file; it begins with b'path,label"),
    "a short text": (b"nothing", r"cut short or damaged.* byte 0 would .* the file has 7 bytes"),
    "compressed": (b"\x1f\x8b" + bytes(30), r"compressed TFRecord files cannot be read at random"),
    "a hostile length": (header(2**60), r"cut short or damaged: the record at byte 0 would end at"),
    "an impossible length": (header(2**64 - 8) + bytes(99), r"cut short or damaged"),
    "a flipped bit": (
        framed(b"a") + b"\1" + bytes(40),
        r"record at byte 17 is damaged \(its length",
    ),
}


def test_flipped_bits_of_the_data_are_told_when_it_is_read(shard):
    content = framed(*PAYLOADS)
    path, arrays = shard(content)
    for position in (12, 16, len(content) - 5, len(content) - 1):  # Data and its checksum.
        flipped = bytearray(content)
        flipped[position] ^= 1
        shard(bytes(flipped))
        found = list(Records([path], [arrays], tfrecord.data_of).fetch([0, 1, 2]))
        (damaged,) = [number for number, each in enumerate(found) if each != PAYLOADS[number]]
        start = arrays["start"][damaged]
        assert f"{path}, byte {start:,}: the record is damaged" in str(found[damaged])
        assert "changed" not in str(found[damaged])


@pytest.mark.parametrize("name", DAMAGED)
def test_damage(shard, name):
    content, message = DAMAGED[name]
    with pytest.raises(DataError, match=message) as caught:
        shard(content)
    assert "x.tfrecord" in str(caught.value)


def test_a_record_that_is_no_longer_there(shard):
    path, arrays = shard(framed(*PAYLOADS))
    with open(path, "r+b") as file:
        file.write(bytes(30))
    first, _, third = Records([path], [arrays], tfrecord.data_of).fetch([0, 1, 2])
    assert "x.tfrecord, byte 0: there is no such record" in str(first)
    assert "changed since it was indexed" in str(first)
    assert third == PAYLOADS[2]
