import io
import json
import signal
import subprocess
import sys
import tarfile
import time
import types
import uuid

import fsspec
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from tests.data.pictures import encode_npy
from tests.runs import ROOT
from vit_jax import storage
from vit_jax.config import default_config
from vit_jax.data.images.picture import decode
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import ConfigError, DataError
from vit_jax.prepare import __main__ as prepare
from vit_jax.prepare.images import Rewriting

CHINA = load_sample_image("china.jpg")[:160, :240]


def jpeg(pixels, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=95, **options)
    return file.getvalue()


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    """Two splits of two classes, JPEG of several sizes, of which a PNG is grey."""
    root = tmp_path_factory.mktemp("photographs")
    for split, count in (("train", 12), ("val", 3)):
        for label, name in enumerate(("night jar", "owl")):
            folder = root / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = np.roll(CHINA, 10 * number + label, axis=1)[: 160 - number]
                (folder / f"{number}.jpg").write_bytes(jpeg(pixels))
    Image.fromarray(CHINA[..., 0]).save(root / "train" / "owl" / "grey.png")
    return root


def run(*flags):
    return prepare.run(list(map(str, flags)))


def contents(folder):
    """All files of a folder, by their names in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def opened(source, split="train", index_dir=""):
    data = default_config().data
    data.update(source=source, index_dir=index_dir, held_out_fraction=0.0)
    return open_source(data, split, image_size=(8, 8), channels=3, num_classes=0)


def test_images_as_they_are(photographs, tmp_path, capsys):
    """The tar source reads every image with its class, in a mixed order, and Python's tarfile, too."""
    folder = tmp_path / "shards"
    assert run(f"--source=folder:{photographs}", f"--output={folder}", "--num_workers=1") == 0
    assert "31 images of 2 classes in 2 shards" in capsys.readouterr().out
    written, original = opened(f"tar:{folder}"), opened(f"folder:{photographs}")
    assert written.class_names == original.class_names == ("night jar", "owl")
    read = [written[index] for index in range(len(written))]
    expected = [original[index] for index in range(len(original))]
    assert sorted(each[:2] for each in read) == sorted(each[:2] for each in expected)
    assert [each.image for each in read] != [each.image for each in expected]
    assert len(opened(f"tar:{folder}", "")) == 6
    with tarfile.open(folder / "train-00000-of-00001.tar") as archive:
        names = archive.getnames()
    assert names[:2] == ["00000000.jpg", "00000000.cls"]
    record = json.loads((folder / "records" / "train-00000-of-00001.tar.json").read_text())
    assert sorted(record["names"]) == sorted(example.name for example in expected)
    listed = json.loads((folder / "shards.json").read_text())["shardlist"]
    assert [(each["url"], each["nsamples"]) for each in listed] == [
        ("train-00000-of-00001.tar", 25),
        ("val-00000-of-00001.tar", 6),
    ]


@pytest.fixture(scope="module")
def resized(photographs, tmp_path_factory):
    """Resized shards of a few images each, by one process; with the flags that made them."""
    folder = tmp_path_factory.mktemp("resized")
    prepare_small(photographs, folder, "--num_workers=1")
    return folder


def prepare_small(photographs, folder, *flags, size=8):
    """Shards of 8 images, whatever these need."""
    original, prepare.shard_size = prepare.shard_size, lambda needs, mib: size
    try:
        source = f"--source=folder:{photographs}"
        return run(source, f"--output={folder}", "--shorter_side=64", *flags)
    finally:
        prepare.shard_size = original


def test_resized_images(photographs, resized):
    written = opened(f"tar:{resized}")
    pictures = [decode(written[index].image, 3) for index in range(len(written))]
    assert {min(picture.shape[:2]) for picture in pictures} == {64}
    record = json.loads((resized / "records" / "train-00000-of-00004.tar.json").read_text())
    first = Image.open(photographs / record["names"][0]).convert("RGB")
    expected = first.resize(pictures[0].shape[1::-1], Image.Resampling.BICUBIC)
    # JPEG's quality 90 and the filter, which is nearly Pillow's.
    assert np.abs(pictures[0] - np.asarray(expected, float)).mean() < 3


@pytest.mark.slow  # Two processes that import what they need.
def test_two_workers_write_the_same_bytes(photographs, resized, tmp_path):
    prepare_small(photographs, tmp_path / "two", "--num_workers=2")
    assert contents(tmp_path / "two") == contents(resized)


def test_what_is_finished_stays_and_the_rest_has_the_same_bytes(photographs, resized, tmp_path):
    """Killed between a shard and its record, and before the list of shards."""
    folder = tmp_path / "again"
    prepare_small(photographs, folder, "--num_workers=1")
    kept = folder / "train-00001-of-00004.tar"
    inode = kept.stat().st_ino
    for name in (
        "train-00002-of-00004.tar",
        "shards.json",
        "records/train-00000-of-00004.tar.json",
    ):
        (folder / name).unlink()
    (folder / "train-00003-of-00004.tar").write_bytes(b"half of it")
    # What images need is measured anew, and may differ: shards are as large as those before.
    assert prepare_small(photographs, folder, "--num_workers=1", size=5) == 0
    assert contents(folder) == contents(resized)
    assert kept.stat().st_ino == inode


def test_other_flags_do_not_mix_with_what_is_there(photographs, resized):
    with pytest.raises(DataError, match="made otherwise: format, quality differ"):
        prepare_small(photographs, resized, "--quality=50", "--format=webp")


def test_a_dry_run_writes_nothing(photographs, tmp_path, caplog):
    caplog.set_level("INFO")
    source = f"--source=folder:{photographs}"
    assert run(source, f"--output={tmp_path / 'none'}", "--dry_run", "--num_workers=3") == 0
    assert not (tmp_path / "none").exists()
    assert "train: 25 images in 1 shards" in caplog.text
    assert "31 of 31 images are left to write: about" in caplog.text
    assert "with 3 processes" in caplog.text


def test_a_disk_that_is_too_small(photographs, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare.shutil, "disk_usage", lambda path: types.SimpleNamespace(free=1000))
    with pytest.raises(DataError, match=r"GB more, and the disk has 0\.0 GB left"):
        run(f"--source=folder:{photographs}", f"--output={tmp_path / 'full'}")
    assert not (tmp_path / "full").exists()


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_an_image_that_cannot_be_read(photographs, tmp_path, on_error):
    for label in ("a", "b"):
        (tmp_path / "photos" / "train" / label).mkdir(parents=True)
        for number in range(3):
            path = tmp_path / "photos" / "train" / label / f"{number}.jpg"
            path.write_bytes(jpeg(CHINA[number:]))
    cut = tmp_path / "photos" / "train" / "b" / "1.jpg"
    cut.write_bytes(cut.read_bytes()[:2000])
    flags = (f"--source=folder:{tmp_path / 'photos'}", f"--output={tmp_path / 'shards'}")
    flags += ("--num_workers=1", f"--on_error={on_error}", "--config.data.held_out_fraction=0")
    if on_error == "raise":
        with pytest.raises(
            DataError, match=r"^train: train/b/1\.jpg cannot be read: .*--on_error=skip"
        ):
            run(*flags)
        return
    assert run(*flags) == 1
    unreadable = json.loads((tmp_path / "shards" / "shards.json").read_text())["unreadable"]
    assert list(unreadable) == ["train/b/1.jpg"]
    assert unreadable["train/b/1.jpg"].startswith("cannot decode the image (")
    assert len(opened(f"tar:{tmp_path / 'shards'}")) == 5


@pytest.mark.parametrize(
    ("name", "mark"),
    [("jpeg", b"\xff\xd8"), ("webp", b"RIFF"), ("png", b"\x89PNG"), ("raw", b"\x93NUMPY")],
)
@pytest.mark.parametrize("grey", [False, True])
def test_formats(name, mark, grey):
    pixels = CHINA[..., :1] if grey else CHINA
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if grey else pixels).save(file, "PNG")
    written = Rewriting(80, name)(file.getvalue())
    assert written.content.startswith(mark)
    if name in ("jpeg", "png"):  # WebP has no grey.
        assert Image.open(io.BytesIO(written.content)).mode == ("L" if grey else "RGB")
    decoded = decode(written.content, pixels.shape[2])
    assert decoded.shape == (80, 120, pixels.shape[2])
    expected = Image.fromarray(pixels.squeeze()).resize((120, 80), Image.Resampling.BICUBIC)
    assert np.abs(decoded.squeeze() - np.asarray(expected, float)).mean() < 4


def test_what_an_image_keeps():
    """Small JPEGs stay as they are, EXIF turns what is written anew, arrays become PNG."""
    small = jpeg(CHINA[:50])
    for side in (64, 50, 200, 240):  # Of 50 rows and 240 columns none is to be less.
        assert Rewriting(side, "jpeg")(small) == (small, ".jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    turned = Rewriting(64)(jpeg(CHINA, exif=exif))
    assert decode(turned.content, 3).shape == (96, 64, 3)
    array = Rewriting()(CHINA)
    assert array.extension == ".png"
    assert (decode(array.content, 3) == CHINA).all()
    assert Rewriting()(CHINA[..., :1]).extension == ".png"
    values = np.zeros((4, 4, 7), np.float32)
    assert Rewriting()(values).extension == ".npy"
    raw = encode_npy(CHINA)
    assert Rewriting(0, "raw")(raw) == Rewriting()(raw) == (raw, ".npy")
    assert decode(Rewriting(32, "raw")(raw).content, 3).shape == (32, 48, 3)
    with pytest.raises(DataError, match="of no known format"):
        Rewriting()(b"not an image")


def test_raw_pixels_in_shards_by_url(photographs):
    root = f"memory://{uuid.uuid4().hex}"
    source = f"--source=folder:{photographs}"
    assert (
        run(source, f"--output={root}", "--shorter_side=32", "--format=raw", "--num_workers=1") == 0
    )
    example = opened(f"tar:{root}")[0]
    assert example.image.startswith(b"\x93NUMPY")
    assert min(decode(example.image, 3).shape[:2]) == 32
    assert fsspec.core.url_to_fs(root)[0].exists(storage.join(root, "shards.json"))


def test_several_labels(tmp_path):
    for name in ("a", "b"):
        (tmp_path / f"{name}.png").write_bytes(Rewriting()(CHINA).content)
    lines = [{"path": "a.png", "labels": ["x", "y"]}, {"path": "b.png", "labels": []}]
    (tmp_path / "list.jsonl").write_text("\n".join(map(json.dumps, lines)))
    flags = (f"--source=manifest:{tmp_path / 'list.jsonl'}", f"--output={tmp_path / 'shards'}")
    run(*flags, "--num_workers=1", "--config.data.held_out_fraction=0")
    source = opened(f"tar:{tmp_path / 'shards'}")
    assert source.multi_label
    assert sorted(source[index].label.tolist() for index in (0, 1)) == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--quality=101"], "--quality=101"),
        (["--config.batch_size=3"], r"--config\.batch_size=3: only --config\.data\.KEY"),
        (["--split=tset"], "--split=tset: .* has only train, val"),
        (["--config.data.decode=slow"], r"config\.data\.decode=.*must be"),
        (["--config.model.image_size=3"], r"--config\.model\.image_size=3: only --config"),
    ],
)
def test_mistakes(photographs, tmp_path, flags, message):
    with pytest.raises(ConfigError, match=message):
        run(f"--source=folder:{photographs}", f"--output={tmp_path / 'x'}", *flags)


@pytest.mark.slow  # Two processes that import JAX, and their workers.
@pytest.mark.parametrize("num_workers", [1, 2])
def test_killed_and_started_again(photographs, tmp_path, num_workers):
    """SIGKILL at the first finished shard; the workers end, too, and the rest has the same bytes."""
    whole, folder = tmp_path / "whole", tmp_path / "killed"
    many = tmp_path / "many"
    for label in ("a", "b"):
        (many / "train" / label).mkdir(parents=True)
        for number in range(700):
            path = many / "train" / label / f"{number}.jpg"
            path.write_bytes(jpeg(np.roll(CHINA, number, axis=1)))
    flags = (f"--source=folder:{many}", "--shorter_side=128", "--shard_mib=1")
    flags += ("--config.data.held_out_fraction=0",)
    run(*flags, f"--output={whole}", "--num_workers=1")
    command = [sys.executable, "-m", "vit_jax.prepare", *flags, f"--output={folder}"]
    process = subprocess.Popen([*command, f"--num_workers={num_workers}"], cwd=ROOT)
    while not list((folder / "records").glob("*.json")) and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "shards.json").exists()
    run(*flags, f"--output={folder}", "--num_workers=1")
    found = {name: content for name, content in contents(folder).items() if ".tmp" not in name}
    assert found == contents(whole)


def test_webdataset_reads_the_shards(resized):
    """Its own reader gives the same pairs."""
    webdataset = pytest.importorskip("webdataset")
    urls = sorted(map(str, resized.glob("train-*.tar")))
    pairs = list(webdataset.WebDataset(urls, shardshuffle=False).to_tuple("jpg", "cls"))
    source = opened(f"tar:{resized}")
    read = [source[index] for index in range(len(source))]
    assert [(image, int(label)) for image, label in pairs] == [example[:2] for example in read]


@pytest.mark.parametrize("name", ["jpeg", "webp"])
def test_the_quality_is_the_encoders(name):
    pixels = load_sample_image("flower.jpg")[:96, :128]
    sizes = [len(Rewriting(0, name, quality)(pixels).content) for quality in (40, 90, 98)]
    assert sizes[0] < 0.7 * sizes[1]
    assert sizes[1] < 0.7 * sizes[2]


def test_one_split_of_several_may_be_written(photographs, tmp_path):
    folder = tmp_path / "some"
    source, one = f"--source=folder:{photographs}", "--num_workers=1"
    assert run(source, f"--output={folder}", "--split=val", one) == 0
    assert sorted(path.name for path in folder.glob("*.tar")) == ["val-00000-of-00001.tar"]


def test_what_a_config_leaves_out_of_training_is_left_out_of_training_alone(photographs):
    overrides = ["data.train_split=train[:20]", "data.max_train_examples=7"]
    config = prepare.read_config(f"folder:{photographs}", overrides)
    found = prepare.open_splits(config, None)
    assert {name: len(source) for name, source in found.items()} == {"train": 7, "val": 6}
    whole = opened(f"folder:{photographs}")
    first = {whole.name_of(index) for index in range(20)}
    assert {found["train"].name_of(index) for index in range(7)} <= first


def test_splits_that_shards_cannot_be_called_by_are_left_out(photographs, tmp_path, caplog):
    for name in ("train", "val"):
        (tmp_path / name).symlink_to(photographs / name)
    (tmp_path / "extra").symlink_to(photographs / "val")
    config = prepare.read_config(f"folder:{tmp_path}", [])
    assert list(prepare.open_splits(config, None)) == ["train", "val"]
    assert "Left out, as tar shards have no such splits: extra; take one as another" in caplog.text
    assert list(prepare.open_splits(config, ["val"])) == ["val"]
