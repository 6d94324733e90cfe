"""Splits under other names than train, validation and test, for every source that has names."""

import io
import logging
import tarfile

import pytest

from vit_jax.data.sources.registry import open_source
from vit_jax.data.sources.split_names import check_class_names, find_by_purpose
from vit_jax.errors import DataError


def write_folder(root, images):
    for image in images:
        path = root / image
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return f"folder:{root}"


def write_manifest(root, images):
    rows = [(name, *name.split("/")[:2]) for name in images]
    text = "".join(f"{name},{label},{split}\n" for name, split, label in rows)
    root.mkdir(exist_ok=True)
    (root / "list.csv").write_text(f"path,label,split\n{text}")
    return f"manifest:{root}/list.csv"


def write_tar(root, images):
    root.mkdir(exist_ok=True)
    for split in {name.split("/")[0] for name in images}:
        with tarfile.open(root / f"pets-{split}-0.tar", "w") as file:
            for name in images:
                if name.startswith(f"{split}/"):
                    file.addfile(tarfile.TarInfo(name.removeprefix(f"{split}/")), io.BytesIO())
    return f"tar:{root}"


KINDS = {"folder": write_folder, "manifest": write_manifest, "tar": write_tar}


def images_of(counts):
    """So many images of each of two classes in each split."""
    return [
        f"{split}/{label}/{index}.jpg"
        for split, count in counts.items()
        for label in ("cat", "dog")
        for index in range(count)
    ]


def open_split(data, split):
    return open_source(data, split, image_size=(4, 4), channels=3, num_classes=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("splits", "expected"),
    [
        ({"Training": 3, "Testing": 2}, {"train": 6, "": 4, "test": 4, "val": 4}),
        ({"Train": 3, "Test": 2}, {"train": 6, "": 4, "training": 6}),
        ({"train": 3, "valid": 2, "test": 1}, {"train": 6, "": 4, "validation": 4, "test": 2}),
        ({"train": 3, "valid": 2}, {"train": 6, "": 4, "test": 4}),
        ({"TRAINING": 3, "Eval": 2}, {"train": 6, "": 4, "train[:50%]": 3, "eval[:1]": 1}),
    ],
)
def test_splits_go_by_other_names(kind, splits, expected, tmp_path, data):
    data.source = KINDS[kind](tmp_path / "pets", images_of(splits))
    opened = {split: open_split(data, split) for split in expected}
    assert {split: len(source) for split, source in opened.items()} == expected
    assert {source.class_names for source in opened.values()} == {("cat", "dog")}


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_taken_for_what_is_said_with_counts(kind, tmp_path, data, caplog):
    data.source = KINDS[kind](tmp_path / "pets", images_of({"Training": 3, "Valid": 2}))
    written = str if kind == "folder" else str.lower
    with caplog.at_level(logging.INFO, "vit_jax"):
        open_split(data, "train")
        open_split(data, "")
    assert (
        f"{data.source}: split train ({written('Training')}): 6 images of 2 classes: cat 3, dog 3"
        in caplog.messages
    )
    assert (
        f"{data.source}: the evaluation split ({written('Valid')}): 4 images of 2 classes: "
        "cat 2, dog 2"
    ) in caplog.messages


@pytest.mark.parametrize("kind", ["folder", "manifest"])
def test_classes_that_are_splits_are_refused(kind, tmp_path, data):
    names = ("training_set", "test_set") if kind == "folder" else ("train", "test")
    if kind == "folder":
        data.source = write_folder(tmp_path, [f"{name}/{i}.jpg" for name in names for i in (1, 2)])
    else:
        (tmp_path / "list.csv").write_text("path,label\n1.jpg,train\n2.jpg,test\n")
        data.source, data.held_out_fraction = f"manifest:{tmp_path}/list.csv", 0.0
    with pytest.raises(DataError, match=r"the classes are .*, which look like splits"):
        open_split(data, "train")


def test_splits_within_one_tar_file_are_refused(tmp_path, data):
    with tarfile.open(tmp_path / "all.tar", "w") as file:
        for name in images_of({"Training": 2, "val": 1}):
            file.addfile(tarfile.TarInfo(f"pets/{name}"), io.BytesIO())
    data.source = f"tar:{tmp_path}"
    with pytest.raises(DataError, match=r"all\.tar: .* folders called Training and val.*tar file"):
        open_split(data, "train")


@pytest.mark.parametrize(
    "names",
    [
        *(
            ("seg_train", "seg_test"),
            ("trainset", "valset"),
            ("Train1", "test 2"),
            ("train", "eval"),
        ),
        *(("train_images", "testimages"), ("TrainData", "valdata"), ("trainimg", "test-imgs")),
        *(("trainsets", "testsets"), ("training", "testing"), ("valid", "trainimage")),
    ],
)
def test_names_that_look_like_splits(names):
    with pytest.raises(DataError, match=f"classes are {names[0]}, {names[1]}, which look like"):
        check_class_names(names, "here")


def test_some_classes_may_be_called_so(caplog):
    check_class_names(("bus", "train", "trainer", "contest"), "here")
    assert not caplog.records
    check_class_names(("bus", "train", "test tube"), "here")
    assert "here: the classes train, test tube look like splits" in caplog.text
    caplog.clear()
    check_class_names(("bus", "train", "training ship"), "here")
    assert not caplog.records, "both of one purpose"


def test_a_class_folder_taken_for_a_split_is_named(tmp_path, data):
    data.source = write_folder(tmp_path, ["train/1.jpg", "train/2.jpg", "bus/1.jpg", "car/1.jpg"])
    with pytest.raises(DataError, match=r"train/ is taken for a split.*if it is a class"):
        open_split(data, "train")


@pytest.mark.parametrize(
    ("names", "asked", "meant"),
    [
        (("val", "valid"), "validation", "val"),
        (("val", "valid"), "valid", "valid"),
        (("Test", "train"), "val", "Test"),
        (("Test", "train"), "extra", ""),
        (("test",), "train", ""),
        (("extra",), "val", ""),
        (("val", "validation"), "valid", "validation"),
        (("VALID", "Valid"), "validation", "VALID"),
    ],
)
def test_the_nearest_purpose_is_meant(names, asked, meant):
    assert find_by_purpose(names, asked) == meant
