"""Changes by chance: of bytes, of JSON, of files in folders. All from a `random.Random`."""

import json
import pathlib
import random
import struct
from collections.abc import Callable
from typing import Any

NUMBERS = (0, 1, 2, 3, 127, 128, 255, 256, 32767, 32768, 65535, 65536, 2**31 - 1, 2**32 - 1)
LARGEST = {1: 2**8 - 1, 2: 2**16 - 1, 4: 2**32 - 1}
PACKED = tuple(f"{order}{letter}" for order in "<>" for letter in "BHI")
HEADER = 256  # Bytes, in which most formats say what the rest means.
# Where JSON, a table or a command line has another value.
VALUES = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        7,
        1.5,
        -0.5,
        10**9,
        10**30,
        1e308,
        float("nan"),
        float("inf"),
    ),
    *(
        "",
        " ",
        "x",
        "x" * 5000,
        "../../x",
        "/dev/null",
        "a\0b",
        "\x1b[2J",
        "ähre",
        "\ud800",
        "{}",
        "1",
    ),
    *([], [0], [1, 2], [[]], ["a", "a"], list(range(100)), {}, {"a": 1}, {"": []}),
)


def flip_bits(content: bytes, rng: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def write_number(content: bytes, rng: random.Random) -> bytes:
    """Sizes, counts and offsets are numbers of one, two or four bytes."""
    form = rng.choice(PACKED)
    size = struct.calcsize(form)
    number = struct.pack(form, min(rng.choice(NUMBERS), LARGEST[size]))
    start = rng.randrange(min(len(content), rng.choice((HEADER, len(content)))))
    return content[:start] + number + content[start + size :]


def truncate(content: bytes, rng: random.Random) -> bytes:
    return content[: rng.randrange(len(content))]


def _part(content: bytes, rng: random.Random) -> tuple[int, int]:
    start = rng.randrange(len(content))
    return start, min(len(content), start + rng.choice((1, 4, 16, 64, 1024)))


def cut(content: bytes, rng: random.Random) -> bytes:
    start, stop = _part(content, rng)
    return content[:start] + content[stop:]


def repeat(content: bytes, rng: random.Random) -> bytes:
    start, stop = _part(content, rng)
    return content[:stop] + content[start:stop] * rng.choice((1, 2, 50)) + content[stop:]


def zero(content: bytes, rng: random.Random) -> bytes:
    start, stop = _part(content, rng)
    return content[:start] + bytes(stop - start) + content[stop:]


def insert_noise(content: bytes, rng: random.Random) -> bytes:
    start, stop = _part(content, rng)
    return content[:start] + rng.randbytes(stop - start) + content[start:]


def append_noise(content: bytes, rng: random.Random) -> bytes:
    return content + rng.randbytes(rng.choice((1, 16, 1024)))


Mutation = Callable[[bytes, random.Random], bytes]
MUTATIONS: tuple[Mutation, ...] = (
    *(flip_bits, flip_bits, write_number, write_number, truncate, cut, repeat, zero),
    *(insert_noise, append_noise),
)


def mutate(content: bytes, rng: random.Random) -> tuple[bytes, Mutation]:
    """The bytes with one change, sometimes several of a kind; and the kind."""
    kind = rng.choice(MUTATIONS)
    for _ in range(rng.choice((1, 1, 1, 2, 5))):
        content = kind(content, rng) if content else content
    return content, kind


def mutate_json(value: Any, rng: random.Random) -> Any:
    """A JSON value with one part replaced, removed or renamed."""
    if isinstance(value, dict) and value and rng.random() < 0.9:
        key = rng.choice(list(value))
        others = {name: each for name, each in value.items() if name != key}
        match rng.randrange(8):
            case 0:
                return others
            case 1:
                return {**others, rng.choice(("", "x", key * 2, key.upper())): value[key]}
        return {**value, key: mutate_json(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.7:
        index = rng.randrange(len(value))
        return [*value[:index], mutate_json(value[index], rng), *value[index + 1 :]]
    return rng.choice(VALUES)


def mutate_file(path: pathlib.Path, rng: random.Random) -> Mutation | None:
    """Changes a file's bytes, or what its JSON says; the kind of change of bytes."""
    content = path.read_bytes()
    if path.suffix == ".json" and rng.random() < 0.7:
        path.write_text(json.dumps(mutate_json(json.loads(content), rng)))
        return None
    if path.suffix == ".safetensors" and rng.random() < 0.4:
        path.write_bytes(_with_other_header(content, rng))
        return None
    changed, kind = mutate(content, rng)
    path.write_bytes(changed)
    return kind


def _with_other_header(content: bytes, rng: random.Random) -> bytes:
    """A `.safetensors` file: 8 bytes of length, JSON of that length, the tensors."""
    stop = 8 + struct.unpack_from("<Q", content)[0]
    header = json.dumps(mutate_json(json.loads(content[8:stop]), rng)).encode()
    return struct.pack("<Q", len(header)) + header + content[stop:]
