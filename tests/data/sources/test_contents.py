"""What in a folder is data, and what is said of the rest."""

import io
import logging
import os
import tarfile

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.images.picture import decode
from vit_jax.data.picture_files import walk
from vit_jax.data.sources import contents
from vit_jax.data.sources.contents import IMAGE_EXTENSIONS, Walk, holds_run
from vit_jax.data.sources.registry import open_source
from vit_jax.data.sources.shards import find_shards

PIXELS = Image.fromarray(np.full((4, 5, 3), 90, np.uint8))


def write(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"no picture")
    return root


def names_in(data, root, split="train"):
    data.source, data.held_out_fraction = f"folder:{root}", 0.0
    source = open_source(data, split, image_size=(4, 4), channels=3, num_classes=0)
    return {source.name_of(index) for index in range(len(source))}


@pytest.mark.parametrize("extension", IMAGE_EXTENSIONS)
def test_every_format_is_found_and_decoded(tmp_path, data, extension):
    (tmp_path / "a").mkdir()
    write(tmp_path, "b/1.jpg")
    image = PIXELS.convert("RGBA") if extension == ".psd" else PIXELS
    if extension != ".psd":  # Pillow reads it, but cannot write one.
        image.save(tmp_path / "a" / f"1{extension.upper()}", contents_format(extension))
        assert decode((tmp_path / "a" / f"1{extension.upper()}").read_bytes(), 3).shape == (4, 5, 3)
    else:
        write(tmp_path, "a/1.PSD")
    assert names_in(data, tmp_path) == {f"a/1{extension.upper()}", "b/1.jpg"}


def contents_format(extension):
    return next(name for name, known in contents._EXTENSIONS.items() if extension in known)


def test_other_names_are_looked_into_and_the_rest_is_counted(tmp_path, data, caplog):
    write(tmp_path, "b/1.jpg", "b/1.txt", "b/2.txt", "b/x.heic", "b/README", "b/scan.raw2", "b/.x")
    (tmp_path / "a").mkdir()
    for name, kind in (("IMG_0001", "JPEG"), ("2.download", "PNG"), ("3.jpg_large", "WEBP")):
        PIXELS.save(tmp_path / "a" / name, kind)
    PIXELS.save(tmp_path / "a" / "thumbnail.txt", "PNG")
    write(tmp_path, "stray.jpg", "stray.txt", ".DS_Store", "Thumbs.db")
    with caplog.at_level(logging.INFO, "vit_jax"):
        found = names_in(data, tmp_path)
    assert found == {"a/IMG_0001", "a/2.download", "a/3.jpg_large", "b/1.jpg"}
    assert (
        f"{tmp_path}/: files that are no images, by extension: 3 .txt, 1 without, 1 .heic, 1 .raw2"
        in caplog.messages
    )
    assert (
        f"{tmp_path}/: images by their content, whatever their extension: 1 without, 1 .download, "
        "1 .jpg_large"
    ) in caplog.messages
    assert f"{tmp_path}/: 2 files beside the class folders are of no class" in caplog.messages


SYSTEM_FOLDERS = (
    *(
        "@eaDir",
        ".AppleDouble",
        "__MACOSX",
        "$RECYCLE.BIN",
        "#recycle",
        "System Volume Information",
    ),
    *("lost+found", "@Recycle", "#snapshot"),
)


@pytest.mark.parametrize("name", SYSTEM_FOLDERS)
def test_system_folders_are_no_data(tmp_path, data, name, caplog):
    root = write(tmp_path / "d", "a/1.jpg", "b/1.jpg", f"{name}/1.jpg", f"a/{name}/1.jpg/S.jpg")
    assert names_in(data, root) == {"a/1.jpg", "b/1.jpg"}
    assert not caplog.records
    assert sorted(walk(str(root))) == [f"{root}/a/1.jpg", f"{root}/b/1.jpg"]
    write(tmp_path / "tars", "train-0.tar", f"{name}/train-0.tar")
    assert list(find_shards(str(tmp_path / "tars"))[1].values()) == [
        [str(tmp_path / "tars" / "train-0.tar")]
    ]
    with tarfile.open(tmp_path / "tars" / "train-0.tar", "w") as file:
        for member in ("x/a/1.jpg", "x/b/1.jpg", f"x/{name}/1.jpg"):
            file.addfile(tarfile.TarInfo(member), io.BytesIO())
    data.source = f"tar:{tmp_path}/tars"
    source = open_source(data, "train", image_size=(4, 4), channels=3, num_classes=0)
    assert source.class_names == ("a", "b")


OUTPUTS = {
    "run": ("model.json", "config.json", "metrics.jsonl", "tensorboard/1.png"),
    "run that was just started": ("config.json", "compilation_cache/1", "index/x.npy", "1.png"),
    "export": ("model.json", "model.safetensors", "1.png"),
    "export of others": ("config.json", "model.safetensors", "1.png"),
}


@pytest.mark.parametrize("files", OUTPUTS.values(), ids=OUTPUTS)
@pytest.mark.parametrize("place", ["runs/1", "run", "a/run"])
@pytest.mark.parametrize("prefix", ["", "train/"])
def test_folders_that_hold_runs_are_no_data(tmp_path, data, files, place, prefix, caplog):
    write(tmp_path, *(f"{prefix}{label}/1.jpg" for label in "abcd"))
    write(tmp_path, *(f"{prefix}{place}/{name}" for name in files))
    assert names_in(data, tmp_path) == {f"{prefix}{label}/1.jpg" for label in "abcd"}
    message = f"folders that hold runs or exports, which are no data: {prefix}{place}"
    assert caplog.text.count(message) == 1


@pytest.mark.parametrize("split", ["", "test"])
def test_a_run_beside_split_folders_is_no_split(tmp_path, data, split, caplog):
    write(tmp_path, *(f"{part}/{label}/1.jpg" for part in ("train", "val") for label in "ab"))
    write(tmp_path, "test-1/model.json", "test-1/1.png")
    assert names_in(data, tmp_path, split) == {"val/a/1.jpg", "val/b/1.jpg"}
    assert "no data: test-1" in caplog.text


@pytest.mark.parametrize("files", [("config.json", "1.jpg"), ("notes.json", "checkpoints/1.jpg")])
def test_a_class_may_hold_files_called_almost_so(tmp_path, files):
    write(tmp_path, *(f"a/{name}" for name in files))
    assert len(list(Walk(str(tmp_path)).images_below("a"))) == 1
    assert not holds_run(files)


def test_what_a_run_writes_does_not_make_the_list_outdated(tmp_path, data, caplog):
    root = write(tmp_path / "d", "a/1.jpg", "b/1.jpg", "runs/1/model.json")
    data.index_dir = str(tmp_path / "index")
    settle(root)
    names_in(data, root)
    write(root, "runs/1/checkpoints/1")
    with caplog.at_level(logging.INFO, "vit_jax"):
        names_in(data, root)
    assert "listed" not in caplog.text


def test_what_is_no_image_in_a_tar_file_is_counted(tmp_path, data, caplog):
    names = ("./a/1.jpg", "../b/2.ppm", "b/3.heic", "b/4.heic", "b/README", "a/.5.jpg", ".c/6.jpg")
    with tarfile.open(tmp_path / "0.tar", "w") as file:
        for name in names:
            file.addfile(tarfile.TarInfo(name), io.BytesIO())
    data.source = f"tar:{tmp_path}"
    data.held_out_fraction = 0.0
    assert len(open_source(data, "train", image_size=(4, 4), channels=3, num_classes=0)) == 2
    assert (
        f"{tmp_path}/0.tar: files that are no images, by extension: 2 .heic, 1 without"
        in caplog.messages
    )


@pytest.mark.parametrize(
    ("mode", "kind", "expected"),
    [
        ("1", "PNG", (".png", True)),
        ("L", "JPEG", (".jpg", True)),
        ("P", "GIF", (".gif", False)),
        ("RGB", "TIFF", (".tif", False)),
        ("I;16", "PNG", (".png", False)),
    ],
)
def test_headers(mode, kind, expected):
    file = io.BytesIO()
    image = Image.new(mode, (4, 3))
    image.save(file, kind)
    assert contents.read_header(file.getvalue()) == expected
    assert contents.read_header(b"nothing") is None


def test_links_to_pipes_are_not_opened(tmp_path, data):
    root = write(tmp_path / "d", "a/1.jpg", "b/1.jpg")
    os.mkfifo(tmp_path / "pipe")
    (root / "a" / "link").symlink_to(tmp_path / "pipe")
    (root / "b" / "broken").symlink_to(tmp_path / "nowhere")
    assert names_in(data, root) == {"a/1.jpg", "b/1.jpg"}


def settle(root):
    for folder, _, _ in os.walk(root):
        os.utime(folder, (1e9, 1e9))


def test_capital_letters_of_a_name_do_not_matter():
    assert contents.is_image("a.JPG")
    assert contents.is_array("a.NPY")
    assert not contents.is_array("._a.npy"), "of another system"


def test_all_runs_are_named(tmp_path, caplog):
    write(tmp_path, "a/1/model.json", "a/2/model.json", "a/3.jpg")
    walk = Walk(str(tmp_path))
    assert list(walk.images_below("a")) == ["a/3.jpg"]
    walk.report("HERE")
    (message,) = caplog.messages
    assert message.startswith("HERE: folders that hold runs or exports, which are no data: ")
    assert sorted(message.rpartition(": ")[2].split(", ")) == ["a/1", "a/2"]


@pytest.mark.parametrize(
    "beside",
    ["checkpoints", "metrics.jsonl", "compilation_cache", "pytorch_model.bin", "x.safetensors"],
)
def test_what_makes_a_folder_with_a_config_a_run(beside):
    assert holds_run({"config.json", beside})
    assert not holds_run({"other.json", beside})
    assert holds_run({"model.json"})


@pytest.mark.parametrize(
    "name",
    [
        *(".x", "@eaDir", "#recycle", "#snapshot", "@Recycle", "@Recently-Snapshot", "@tmp"),
        *("@sharebin", "$RECYCLE.BIN", "RECYCLER", "System Volume Information", "Thumbs.db"),
        *("desktop.ini", "__MACOSX", "Network Trash Folder", "Temporary Items", "lost+found"),
        "__pycache__",
    ],
)
def test_what_systems_keep_for_themselves(name):
    assert contents.is_system(name)
    assert contents.is_system(name.upper())
    assert not contents.is_system(f"my {name}")


@pytest.mark.parametrize(
    "extension",
    [
        *(".txt", ".json", ".jsonl", ".csv", ".tsv", ".xml", ".yaml", ".yml", ".md", ".html"),
        *(".cls", ".npy", ".npz", ".mat", ".pkl", ".pt", ".zip", ".tar", ".gz", ".mp4", ".avi"),
        *(".pdf", ".py"),
    ],
)
def test_what_lies_beside_pictures_in_large_numbers_is_not_opened(tmp_path, extension):
    """Not even where it is one."""
    (tmp_path / "a").mkdir()
    for name in (f"1{extension}", "1.other", "1.jpg"):
        PIXELS.save(tmp_path / "a" / name, "PNG")
    walk = Walk(str(tmp_path))
    assert sorted(walk.images_below("a")) == ["a/1.jpg", "a/1.other"]
    assert (dict(walk.ignored), dict(walk.by_content)) == ({extension: 1}, {".other": 1})
