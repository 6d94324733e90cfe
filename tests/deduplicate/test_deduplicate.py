import logging
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from vit_jax.config import default_config
from vit_jax.data.sources.exclusions import read_list
from vit_jax.data.sources.registry import open_source
from vit_jax.deduplicate import __main__ as deduplicate
from vit_jax.deduplicate.__main__ import main, split_origin
from vit_jax.deduplicate.fingerprints import SIZE
from vit_jax.errors import ConfigError


@pytest.fixture
def data(tmp_path):
    """A training folder with two images of each photograph, and a test folder that shares some."""
    china, flower = (
        Image.fromarray(load_sample_image(f"{name}.jpg")) for name in ("china", "flower")
    )
    width, height = china.size
    halves = [(0, 0, width // 2, height), (width // 2, 0, width, height)]
    for label, image in (("china", china), ("flower", flower)):
        for split in ("train", "test"):
            (tmp_path / split / label).mkdir(parents=True)
        for index, box in enumerate(halves):
            image.crop(box).save(tmp_path / "train" / label / f"{index}.png")
    china.crop(halves[0]).save(tmp_path / "test" / "china" / "7.bmp")
    left, _, right, bottom = halves[1]
    slightly = (left + 5, 5, right - 5, bottom - 5)
    flower.crop(slightly).resize((200, 260)).save(
        tmp_path / "test" / "flower" / "8.jpg", quality=70
    )
    return tmp_path


def run(data, *flags):
    return main([f"--source=folder:{data}", f"--output={data / 'out.txt'}", *flags])


def test_what_is_in_both_is_listed_and_left_out(data, capsys):
    assert run(data, f"--against=folder:{data}") == 0
    header, *lines = (data / "out.txt").read_text().splitlines()
    assert header.startswith(f"# python -m vit_jax.deduplicate --source=folder:{data} --output=")
    assert (
        sorted(lines)[0] == f"train/china/0.png\tsame pixels as test/china/7.bmp of folder:{data}"
    )
    name, _, reason = sorted(lines)[1].partition("\t")
    assert name == "train/flower/1.png"
    assert reason.endswith(f" of 64 bits from test/flower/8.jpg of folder:{data}")
    assert len(lines) == 2
    assert "2 of 4 training images are in" in capsys.readouterr().out
    config = default_config().data
    config.source, config.exclude = f"folder:{data}", str(data / "out.txt")
    left = open_source(config, "train", image_size=(1, 1), channels=3, num_classes=0, training=True)
    assert {left[index].name for index in range(len(left))} == {
        "train/china/1.png",
        "train/flower/0.png",
    }


def test_several_test_sets_and_the_closest_match(data):
    assert run(data, f"--against=folder:{data}@test", f"--against=folder:{data}@train[:100%]") == 0
    lines = (data / "out.txt").read_text().splitlines()[1:]
    assert len(lines) == 4
    assert all("same pixels as" in line for line in lines)
    assert sum(line.endswith("@train[:100%]") for line in lines) == 3


def test_only_the_same_hash_at_distance_0(data):
    assert run(data, f"--against=folder:{data}", "--perceptual_distance=0") == 0
    assert "train/china/0.png" in read_list(str(data / "out.txt"))


def test_unreadable_images_are_named_and_left_aside(data, caplog):
    (data / "train" / "china" / "bad.jpg").write_bytes(b"text")
    caplog.set_level(logging.WARNING, "vit_jax")
    logging.getLogger("vit_jax").addHandler(caplog.handler)
    assert run(data, f"--against=folder:{data}") == 1
    assert "Left aside: train/china/bad.jpg of folder:" in caplog.text
    found = read_list(str(data / "out.txt"))
    assert len(found) == 2
    assert "bad" not in str(found), "those after it keep their names"


def test_nothing_readable_is_an_error(data, capsys):
    for path in (data / "test").rglob("*.*"):
        path.write_bytes(b"")
    assert run(data, f"--against=folder:{data}") == 2
    assert f"folder:{data}: none of its 2 images can be read." in capsys.readouterr().err
    assert not (data / "out.txt").exists()


def test_other_sources(data):
    assert (
        main(
            [
                "--source=digits",
                "--against=digits",
                f"--output={data / 'o'}",
                "--perceptual_distance=0",
                "--split=train[:20]",
            ]
        )
        == 0
    )
    assert (data / "o").read_text().startswith("# python")
    list_ = deduplicate.parse_flags(["--source=a", "--against=b", "--output=memory://x/list"])
    assert list_.output == "memory://x/list", "a store's is no path"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("folder:/data", ("folder:/data", "")),
        ("tfds:cifar10:3.0.2@test[:10%]", ("tfds:cifar10:3.0.2", "test[:10%]")),
        ("folder:s3://me@store/photos", ("folder:s3://me@store/photos", "")),
        ("folder:/a@b/photos@val", ("folder:/a@b/photos", "val")),
    ],
)
def test_a_place_may_name_a_split(text, expected):
    assert split_origin(text) == expected


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--perceptual_distance=13"], "must be from 0 to 12"),
        (["--output=/no/list"], "--output=/no/list cannot be written: /no is no folder."),
        (["--output=."], " is a folder: name a file in it."),
        (["--against=folder:/missing"], "no such folder"),
        (["--against=digits@extra"], "no split 'extra'"),
    ],
)
def test_mistakes(data, flags, message, capsys):
    assert run(data, f"--against=folder:{data}", *flags) == 2
    assert message in capsys.readouterr().err


def test_progress_is_logged(data, monkeypatch, caplog):
    monkeypatch.setattr(deduplicate, "LOG_SECONDS", -1)
    logging.getLogger("vit_jax").addHandler(caplog.handler)
    run(data, f"--against=folder:{data}")
    assert f"folder:{data}@train: 4 of 4 images." in caplog.text


def test_fingerprints_do_not_depend_on_threads(data):
    config = default_config().data
    config.source = f"folder:{data}"
    source = open_source(config, "train", image_size=(1, 1), channels=3, num_classes=0)
    first, second = (deduplicate.read_fingerprints("x", source).fingerprints for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_flags_and_their_limits(tmp_path):
    flags = ["--source=digits", "--against=a", "--against=b", f"--output={tmp_path}/out"]
    found = vars(deduplicate.parse_flags(flags))
    assert found == {
        **{"source": "digits", "split": "train", "against": ["a", "b"], "data_dir": ""},
        **{"output": f"{tmp_path}/out", "perceptual_distance": 6, "max_image_gib": None},
    }
    for bits in (0, 12):
        found = deduplicate.parse_flags([*flags, f"--perceptual_distance={bits}"])
        assert found.perceptual_distance == bits
    for bits in (-1, 13):
        with pytest.raises(ConfigError, match=f"distance={bits}: must be from 0 to 12"):
            deduplicate.parse_flags([*flags, f"--perceptual_distance={bits}"])


def test_of_several_matches_the_same_pixels_then_the_fewest_bits_then_the_first():
    """Rows are a hash of pixels and one of each margin; names tell the index."""

    def images(origin, *rows):
        source = SimpleNamespace(name_of=lambda index: f"{index}.png")
        prints = np.array([[pixels, *[look] * (SIZE - 1)] for pixels, look in rows], np.uint64)
        return deduplicate.Images(origin, source, np.arange(len(rows)) * 10, prints)

    examples = images("E", (1, 0b0), (2, 0b1111 << 40), (3, 0b1 << 60), (4, 0xFFFF << 20))
    first = images("A", (9, 0b11), (8, 0b111 << 40), (7, 0b1 << 60))
    second = images("B", (1, 0xFFFFFF << 30), (6, 0b1111 << 40), (5, 0b1 << 60))
    found = deduplicate.find_matches(examples, [first, second], 6)
    told = {index: (match.name, match.bits) for index, match in found.items()}
    assert told == {0: ("0.png of B", -1), 1: ("10.png of B", 0), 2: ("20.png of A", 0)}


def test_sources_and_pictures_are_read_as_the_flags_say(data, monkeypatch):
    opened = []

    def open_source(config, split, **options):
        opened.append((config.source, config.data_dir, split))
        return SimpleNamespace(name_of=str)

    limits = []

    def read(origin, source, how):
        limits.append(how.max_bytes)
        return deduplicate.Images(origin, [1], np.zeros(1, int), np.zeros((1, SIZE), np.uint64))

    monkeypatch.setattr(deduplicate, "open_source", open_source)
    monkeypatch.setattr(deduplicate, "read_fingerprints", read)
    monkeypatch.setattr(deduplicate, "find_matches", lambda *given: {})
    flags = ["--split=train[:5]", "--against=tfds:x@dev", "--data_dir=D"]
    assert run(data, *flags, "--max_image_gib=0.25") == run(data, *flags) == 0
    assert opened == 2 * [(f"folder:{data}", "D", "train[:5]"), ("tfds:x", "D", "dev")]
    assert limits == [2**28] * 2 + [2**30] * 2


def test_names_that_are_not_utf8_are_written_as_they_are(tmp_path):
    source = SimpleNamespace(name_of=lambda index: "caf\udce9.jpg")
    images = deduplicate.Images("x", source, np.arange(3), np.zeros((3, SIZE), np.uint64))
    path = str(tmp_path / "list")
    matches = {2: deduplicate.Match("b of y", 5), 0: deduplicate.Match("a of y", -1)}
    deduplicate.write_list(path, "the command", images, matches)
    assert (tmp_path / "list").read_bytes().splitlines() == [
        b"# the command",
        b"caf\xe9.jpg\tsame pixels as a of y",
        b"caf\xe9.jpg\t5 of 64 bits from b of y",
    ]


def test_what_a_test_set_cannot_give_is_told_by_the_exit_code(data, monkeypatch, capsys):
    (data / "test" / "china" / "bad.png").write_bytes(b"text")
    assert run(data, f"--against=folder:{data}") == 1
    (data / "test" / "china" / "bad.png").unlink()
    decode = deduplicate.decode

    def refuse(image, *given):
        if len(image) == len((data / "test" / "flower" / "8.jpg").read_bytes()):
            raise OSError("no pixels")
        return decode(image, *given)

    monkeypatch.setattr(deduplicate, "decode", refuse)
    assert run(data, f"--against=folder:{data}") == 1
    told = f"Left aside: test/flower/8.jpg of folder:{data}: no pixels"
    assert told in capsys.readouterr().err


def test_a_list_that_cannot_be_written(data, monkeypatch, capsys):
    def refuse(path, content):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(deduplicate.storage, "write", refuse)
    assert run(data, f"--against=folder:{data}") == 2
    told = f"--output={data}/out.txt cannot be written: No space left on device."
    assert told in capsys.readouterr().err
