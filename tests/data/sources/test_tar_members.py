import io
import itertools
import tarfile

import pytest

from vit_jax.data.sources import tar_members
from vit_jax.data.sources.record_index import Forward
from vit_jax.data.sources.tar_members import members
from vit_jax.errors import DataError

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


def packed(contents, **options):
    """A tar file as Python's `tarfile` writes it."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", **options) as archive:
        for name, content in contents.items():
            if isinstance(content, tarfile.TarInfo):
                archive.addfile(content)
                continue
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture
def walk(tmp_path):
    """Writes a tar file and walks through it."""

    def walk(content):
        path = tmp_path / "x.tar"
        path.write_bytes(content)
        return list(members(Forward(str(path), len(content))))

    return walk


CONTENTS = {
    "a.jpg": b"first",
    "folder/empty.cls": b"",
    "folder/ähre 1.jpg": bytes(1024),
    "n01440764/" + "long" * 20 + ".jpg": b"x" * 700,
    "short/" * 17 + "y.png": b"needs a prefix",
}


@pytest.mark.parametrize("name", FORMATS)
def test_members(walk, name):
    content = packed(CONTENTS, format=FORMATS[name])
    found = walk(content)
    assert [member.name for member in found] == list(CONTENTS)
    assert [content[member.content : member.stop] for member in found] == list(CONTENTS.values())
    assert all(member.is_file for member in found)
    assert found[0].start == 0
    for before, member in itertools.pairwise(found):
        assert member.start == before.stop + -before.stop % 512


@pytest.mark.parametrize("name", ["gnu", "pax"])
def test_names_of_any_length(walk, name):
    long = "/".join(["é" * 100] * 5) + ".jpg"
    (member,) = walk(packed({long: b"content"}, format=FORMATS[name]))
    assert member.name == long
    assert member.start == 0
    assert member.content > 1000


def test_names_that_are_not_utf8(walk):
    content = packed({"é.jpg": b"x"}, format=tarfile.GNU_FORMAT, encoding="latin-1")
    assert walk(content)[0].name == "\udce9.jpg"


def test_global_pax_headers_and_times(walk):
    content = packed(
        {"a.jpg": b"x"}, format=tarfile.PAX_FORMAT, pax_headers={"comment": "path=other"}
    )
    assert walk(content)[0].name == "a.jpg"


def entry(name, kind, **attributes):
    member = tarfile.TarInfo(name)
    member.type = kind
    for key, value in attributes.items():
        setattr(member, key, value)
    return member


def test_what_is_no_file(walk):
    found = walk(
        packed(
            {
                "dir": entry("dir", tarfile.DIRTYPE),
                "soft": entry("soft", tarfile.SYMTYPE, linkname="a.jpg"),
                "hard": entry("hard", tarfile.LNKTYPE, linkname="a.jpg"),
                "pipe": entry("pipe", tarfile.FIFOTYPE),
                "./a.jpg": b"x",
            }
        )
    )
    assert [member.is_file for member in found] == [False] * 4 + [True]
    assert [member.is_link for member in found] == [False, True, True, False, False]
    assert found[-1].name == "a.jpg"


def test_joined_files(walk):
    content = packed({"a": b"1"}) + packed({"b": b"2"})
    assert [member.name for member in walk(content)] == ["a", "b"]


def test_the_oldest_format(walk):
    content = bytearray(packed({"a.jpg": b"1", "folder/": b""}))
    for at in (0, 1024):
        content[at + 257 : at + 512] = bytes(255)
        content[at + 156 : at + 157] = b"\0"
        checksum = sum(content[at : at + 512]) - sum(content[at + 148 : at + 156]) + 256
        content[at + 148 : at + 156] = b"%06o\0 " % checksum
    assert [member.is_file for member in walk(bytes(content))] == [True, False]


def with_size(field):
    """A header that says so, with a right checksum."""
    header = bytearray(packed({"a.jpg": b"1"}))
    header[124:136] = field
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + sum(header[156:512]) + 256)
    return bytes(header)


def test_sizes_that_are_binary_numbers(walk):
    (member,) = walk(with_size(b"\x80" + (1).to_bytes(11, "big")))
    assert (member.name, member.stop - member.content) == ("a.jpg", 1)


PLAIN = packed({"a.jpg": b"1" * 600, "b.jpg": b"2"})
DAMAGED = {
    "nothing": (b"", r"cut short: it has 0 bytes and lacks the empty block"),
    "a text": (
        b"path,label\n" * 100,
        r"x.tar is no tar file \(b'label.*' where a number should be",
    ),
    "a short text": (b"path", r"cut short or damaged: the header at byte 0"),
    "cut in a header": (
        PLAIN[: 1536 + 100],
        r"cut short.*header at byte 1,536 would end at .*2,048",
    ),
    "cut in the content": (PLAIN[:700], r"cut short or damaged: 'a.jpg' at byte 0 .* byte 1,112"),
    "cut between": (PLAIN[:1536], r"cut short: it has 1,536 bytes and lacks the empty block"),
    "a flipped bit": (
        PLAIN[:1540] + b"!" + PLAIN[1541:],
        r"damaged at byte 1,536 .*checksum is wrong",
    ),
    "a hostile size": (with_size(b"\x80" + bytes(2) + b"\x10" + bytes(8)), r"cut short or damaged"),
    "a negative size": (with_size(b"\xff" * 12), r"cut short or damaged|a size of"),
    "a signed size": (with_size(b"-0000000012\0"), r"a size of -10 bytes"),
    "no size": (with_size(b"abcdefghijkl"), r"is no tar file \(b'abc.*' where a number"),
    "a long name": (
        packed({"x" * 2_000_000: b""}, format=tarfile.GNU_FORMAT),
        r"no tar file \(a name of 2,000,001 bytes",
    ),
    "gzip": (b"\x1f\x8b" + bytes(600), r"compressed \(gzip\).*Unpack it once: gzip -d"),
    "zstd": (b"\x28\xb5\x2f\xfd" + bytes(600), r"compressed \(zstd\).*Unpack it once: zstd -d"),
    "bzip2": (b"BZh91AY" + bytes(600), r"compressed \(bzip2\).*Unpack it once: bzip2 -d"),
    "xz": (b"\xfd7zXZ\0" + bytes(600), r"compressed \(xz\).*Unpack it once: xz -d"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage(walk, name):
    content, message = DAMAGED[name]
    with pytest.raises(DataError, match=message) as caught:
        walk(content)
    assert "x.tar" in str(caught.value)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (b"99 path=x\n", "a pax record of 99 bytes"),
        (b"0 path=x\n", "a pax record of 0 bytes"),
        (b"x", "invalid literal"),
        (b"-5 path=x\n", "a pax record of -5 bytes"),
    ],
)
def test_damaged_pax_headers(walk, record, reason):
    content = bytearray(packed({"é": b""}, format=tarfile.PAX_FORMAT))
    content[512:1024] = record.ljust(512, b"\1")
    with pytest.raises(DataError, match=rf"x.tar is no tar file \({reason}"):
        walk(bytes(content))


def test_how_long_a_name_may_be(walk, monkeypatch):
    """With the byte that ends it."""
    content = packed({"x" * 150: b""}, format=tarfile.GNU_FORMAT)
    monkeypatch.setattr(tar_members, "_LONGEST_NAME", 151)
    assert len(walk(content)[0].name) == 150
    monkeypatch.setattr(tar_members, "_LONGEST_NAME", 150)
    with pytest.raises(DataError, match="a name of 151 bytes"):
        walk(content)


def test_a_size_in_a_pax_header_comes_before_the_headers_own(walk):
    """So tar writes files of more than 8 GiB."""
    member = entry("a.jpg", tarfile.REGTYPE, size=5, pax_headers={"size": "5"})
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member, io.BytesIO(b"12345"))
    content = bytearray(file.getvalue())
    content[1024 + 124 : 1024 + 136] = b"00000000001\0"
    header = content[1024:1536]
    checksum = sum(header) - sum(header[148:156]) + 256
    content[1024 + 148 : 1024 + 156] = b"%06o\0 " % checksum
    (found,) = walk(bytes(content))
    assert (found.name, found.stop - found.content) == ("a.jpg", 5)


def test_what_stands_where_a_prefix_would_is_none_in_gnus_format(walk):
    """There are times."""
    content = bytearray(packed({"a.jpg": b"1"}, format=tarfile.GNU_FORMAT))
    content[345:357] = b"14537605302\0"
    content[148:156] = b"%06o\0 " % (sum(content[:148]) + sum(content[156:512]) + 256)
    assert walk(bytes(content))[0].name == "a.jpg"
