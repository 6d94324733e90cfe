"""Which images are in which shard, what they need, and what is told of them; nothing is written."""

import argparse

import numpy as np
import pytest

from vit_jax import storage
from vit_jax.data.sources.examples import Example
from vit_jax.errors import ConfigError, DataError
from vit_jax.prepare import __main__ as prepare
from vit_jax.prepare import shards
from vit_jax.prepare.__main__ import Estimate
from vit_jax.prepare.images import Rewriting
from vit_jax.prepare.shards import (
    Making,
    Part,
    Record,
    Sample,
    _label_file,
    make_shard,
    read_record,
    shuffled,
)

SOURCE = range(23)


@pytest.mark.parametrize(
    ("size", "count", "last"), [(5, 5, range(20, 23)), (23, 1, range(23)), (24, 1, range(23))]
)
def test_the_parts_of_a_split(size, count, last):
    part = Part("train", SOURCE, size)
    assert part.num_shards == count
    covered = [position for number in range(count) for position in part.positions(number)]
    assert covered == [*SOURCE]
    assert part.positions(count - 1) == last
    assert part.shard_name(count - 1) == f"train-{count - 1:05}-of-{count:05}.tar"


def test_the_order_is_one_shuffle_of_all():
    whole = shuffled(SOURCE, range(23))
    assert sorted(whole) == [*SOURCE] != whole.tolist()
    np.testing.assert_array_equal(shuffled(SOURCE, range(7, 12)), whole[7:12])


@pytest.mark.parametrize(("length", "size"), [(0, 512), (1, 1024), (512, 1024), (513, 1536)])
def test_the_bytes_of_a_tar_file(length, size):
    assert Sample(0, "x", {".jpg": bytes(length)}).num_bytes == size
    assert Sample(0, "x", {".jpg": bytes(length), ".cls": b"1"}).num_bytes == size + 1024


def test_labels():
    assert _label_file(Example(b"", np.int64(7), "x")) == {".cls": b"7"}
    several = Example(b"", np.array([0, 1, 0, 1], np.float32), "x")
    assert _label_file(several) == {".json": b'{"label": [1, 3]}'}


def test_how_many_images_are_in_a_shard():
    found = [prepare.shard_size(Estimate(size, 1.0), 2) for size in (2**20, 2**20 + 1, 3e6)]
    assert found == [2, 1, 1]  # Never none.


def flags(**changes):
    values = {"shorter_side": 256, "format": "webp", "quality": 80, "shard_mib": 5}
    return argparse.Namespace(**{**values, "on_error": "skip", **changes})


def test_what_shards_depend_on(tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "digest_of", lambda source: source)
    plan = prepare.describe_plan(flags(), {"train": "d1", "val": "d2"})
    values = {"shorter_side": 256, "format": "webp", "quality": 80, "shard_mib": 5}
    assert plan == {"splits": {"train": "d1", "val": "d2"}, **values, "on_error": "skip"}
    assert prepare.read_plan(str(tmp_path), plan) == {}
    source = type("Named", (list,), {"class_names": ("b", "a")})([1, 2, 3])
    prepare.begin(str(tmp_path), plan, [Part("train", source, 2), Part("val", source, 3)])
    assert prepare.read_plan(str(tmp_path), plan) == {"train": 2, "val": 3}
    assert (tmp_path / "classes.json").read_text() == '[\n "b",\n "a"\n]'
    others = {"shorter_side": 255, "quality": 81, "splits": {"train": "d1"}, "on_error": "raise"}
    for key, value in {**others, "format": "", "shard_mib": 4}.items():
        with pytest.raises(DataError, match=f"made otherwise: {key} differ"):
            prepare.read_plan(str(tmp_path), {**plan, key: value})
    (tmp_path / "prepare.json").write_text('{"shard_sizes": {"train": 2}, "quality": 80}')
    with pytest.raises(
        DataError, match=f"{tmp_path} holds .*: format, on_error, shard_mib, shorter_"
    ):
        prepare.read_plan(str(tmp_path), plan)
    for content in ("", "{}", "[]", "null"):
        (tmp_path / "prepare.json").write_text(content)
        with pytest.raises(DataError, match=r"prepare\.json cannot be read"):
            prepare.read_plan(str(tmp_path), plan)


PARTS = [Part("train", range(10), 4), Part("val", range(6), 6)]
NEEDS = {"train": Estimate(3e9, 40.0), "val": Estimate(5e8, 100.0)}


def test_what_is_said_before(caplog):
    caplog.set_level("INFO")
    prepare.describe(PARTS, NEEDS, 4, 2)
    assert caplog.messages == [
        "train: 10 images in 3 shards of 4, about 30 GB.",
        "val: 6 images in 1 shards of 6, about 3 GB.",
        # 1,000 seconds in all, a quarter of which is left, for two processes.
        "4 of 16 images are left to write: about 2m05s with 2 processes on cores of their own.",
    ]


def test_the_room_on_the_disk(tmp_path, monkeypatch):
    """Of shards that are wanted: 2 of 3 GB and 6 of half a GB."""
    asked, free = [], iter([9e9, 9e9 - 1])

    def usage(path):
        asked.append(path)
        return argparse.Namespace(free=next(free))

    monkeypatch.setattr(prepare.shutil, "disk_usage", usage)
    arguments = (str(tmp_path / "a" / "b"), PARTS, NEEDS, [(0, 2), (1, 0)])
    prepare.check_space(*arguments)
    with pytest.raises(DataError, match=r"needs about 9.0 GB more, and the disk has 9.0 GB"):
        prepare.check_space(*arguments)
    assert asked == [str(tmp_path)] * 2
    prepare.check_space("memory://x", PARTS, NEEDS, [(0, 2)])


def test_the_way_is_told_every_ten_seconds(monkeypatch, caplog):
    caplog.set_level("INFO")
    times = iter([100.0, 105.0, 112.0, 122.0, 123.0])
    monkeypatch.setattr(prepare.time, "monotonic", lambda: next(times))
    records = [Record(f"s{n}", 10, 1, {}) for n in range(3)] + [Record("s3", 9, 1, {"x": "why"})]
    assert prepare.follow(iter(records), 60) == records
    assert caplog.messages == [
        "20 of 60 images (33.3 %), 2 images/s, 24s left.",
        "Left out: x: why",
        "40 of 60 images (66.7 %), 2 images/s, 12s left.",
    ]


def test_the_end(tmp_path, capsys, caplog):
    source = type("Named", (list,), {"class_names": ("b", "a", "c")})([1])
    records = [Record("b.tar", 1000, 2_000_000, {"y": "why"}), Record("a.tar", 500, 10**9, {})]
    assert prepare.finish(str(tmp_path), [Part("train", source, 1)], records) == 1
    assert "1,500 images of 3 classes in 2 shards, 1 GB." in capsys.readouterr().out
    told = f"1 images were left out, as they cannot be read: {tmp_path}/shards.json has their"
    assert told in caplog.text
    listed = prepare.json.loads((tmp_path / "shards.json").read_text())
    assert listed == {
        "wids_version": 1,
        "shardlist": [
            {"url": "a.tar", "nsamples": 500, "filesize": 10**9},
            {"url": "b.tar", "nsamples": 1000, "filesize": 2_000_000},
        ],
        "unreadable": {"y": "why"},
    }
    assert prepare.finish(str(tmp_path), [Part("train", source, 1)], records[1:]) == 0


def test_a_record_stands_for_a_shard_that_is_there(tmp_path, monkeypatch):
    """It is written after the shard, and counts only while that has as many bytes."""
    image = np.full((4, 6, 3), 7, np.uint8)
    examples = [Example(image, number, f"x/{number}.png") for number in (3, 1)]
    source = type("Listed", (list,), {"fetch": lambda self, at: [self[n] for n in at]})(examples)
    making = Making([Part("train", source, 1)], str(tmp_path), Rewriting(), skip=False)
    write = storage.write
    monkeypatch.setattr(storage, "write", lambda path, content: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        make_shard(making, making.parts[0], 1)
    assert list(tmp_path.iterdir()) == []
    written = []
    monkeypatch.setattr(
        storage, "write", lambda path, content: (written.append(str(path)), write(path, content))
    )
    made = make_shard(making, making.parts[0], 1)
    name = "train-00001-of-00002.tar"
    assert written == [f"{tmp_path}/{name}", f"{tmp_path}/records/{name}.json"]
    assert (made.name, made.num_images) == (name, 1)
    assert made.num_bytes == (tmp_path / name).stat().st_size
    assert read_record(str(tmp_path), name) == made
    with open(tmp_path / name, "ab") as shard:
        shard.write(b"x")
    assert read_record(str(tmp_path), name) is None
    (tmp_path / name).unlink()
    assert read_record(str(tmp_path), name) is None


@pytest.mark.parametrize("content", ["", "[", "[]", "{}", '{"name": "x", "num_images": 1}'])
def test_what_is_no_record(tmp_path, content):
    (tmp_path / "records").mkdir()
    (tmp_path / "records" / "a.tar.json").write_text(content)
    (tmp_path / "a.tar").write_bytes(b"")
    assert read_record(str(tmp_path), "a.tar") is None


def test_flags_and_their_defaults():
    given, overrides = prepare.parse_flags(
        ["--source=digits", "--output=x", "--config.data.exclude=a", "--quality=100"]
    )
    assert overrides == ["data.exclude=a"]
    assert vars(given) == {
        **{"source": "digits", "output": "x", "split": None, "num_workers": None},
        **{"shard_mib": 128, "dry_run": False, "shorter_side": 0, "format": "", "quality": 100},
        "on_error": "raise",
    }
    assert prepare.parse_flags(["--source=a", "--output=b"])[0].quality == 90
    for flag, message in {
        "--quality=101": "--quality=101: must be from 1 to 100",
        "--quality=0": "--quality",
        "--format=gif": "--format.*'gif'",
        "--on_error=stop": "--on_error.*'stop'",
        "--num_workers=0": "--num_workers",
        "--shard_mib=0": "--shard_mib",
        "--shorter_side=0": "--shorter_side",
    }.items():
        with pytest.raises(ConfigError, match=message):
            prepare.parse_flags(["--source=a", "--output=b", flag])
    for name in ("jpeg", "webp", "png", "raw"):
        assert (
            prepare.parse_flags(["--source=a", "--output=b", f"--format={name}"])[0].format == name
        )


def test_without_a_plan_nothing_counts_as_finished(tmp_path, monkeypatch):
    """Records of another plan may lie there."""
    records = {name: Record(name, 1, 2, {}) for name in ("train-00001-of-00003.tar",)}
    monkeypatch.setattr(prepare, "read_record", lambda folder, name: records.get(name))
    wanted = [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert prepare.find_finished("x", PARTS, started=False) == ([], wanted)
    wanted.remove((0, 1))
    assert prepare.find_finished("x", PARTS, started=True) == ([*records.values()], wanted)


def test_a_worker_ends_with_its_parent_and_at_once_by_an_interrupt(monkeypatch):
    called = []
    monkeypatch.setattr(shards.signal, "signal", lambda *given: called.append(given))
    monkeypatch.setattr(shards, "end_with_parent", lambda: called.append("ends"))
    monkeypatch.setattr(shards, "_making", ["before"])
    monkeypatch.setattr(shards, "make_shard", lambda *given: given)
    making = Making(PARTS, "x", Rewriting(), skip=False)
    shards._begin(making)
    assert called == [(shards.signal.SIGINT, shards.signal.SIG_DFL), "ends"]
    assert shards._make_in_worker(1, 0) == (making, PARTS[1], 0)


def test_what_an_image_needs_is_by_those_that_can_be_read(monkeypatch):
    now = [10.0]
    monkeypatch.setattr(prepare.time, "perf_counter", lambda: now[0])

    class Half(list):
        def name_of(self, index):
            return f"x/{index}"

    made = {0: Sample(0, "", {".jpg": bytes(100)}), 2: Sample(2, "", {".jpg": bytes(600)})}

    def samples(source, positions, rewriting):
        assert positions == range(min(64, len(source)))
        now[0] += 4
        return [made.get(position, ("x", OSError())) for position in positions]

    monkeypatch.setattr(prepare, "samples", samples)
    assert prepare.estimate(Half(range(8)), None) == Estimate((1024 + 1536) / 2, 4 / 8)
    made.clear()
    first = shuffled(range(100), range(1))[0]
    message = f"None of 64 images can be read, the first is x/{first}"
    with pytest.raises(DataError, match=message):
        prepare.estimate(Half(range(100)), None)
