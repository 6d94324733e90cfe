import logging

import numpy as np
import pytest
from PIL import Image

from vit_jax.data.images.picture import decode
from vit_jax.data.sources.listing import natural_order
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import DataError


def write_images(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())


def write_class(folder, label, count=2):
    write_images(folder, *(f"{label}/{index}.jpg" for index in range(count)))


def open_split(data, folder, split="train", num_classes=0):
    data.source = f"folder:{folder}"
    return open_source(data, split, image_size=(4, 4), channels=3, num_classes=num_classes)


def names(source):
    return [source[index].name for index in range(len(source))]


# ---------------------------------------------------------------------------- layouts


@pytest.mark.parametrize("evaluation", ["val", "validation", "test"])
def test_split_folders_and_their_synonyms(tmp_path, data, evaluation):
    write_images(tmp_path, "train/cat/1.jpg", "train/cat/2.jpg", "train/dog/1.jpg")
    write_images(tmp_path, f"{evaluation}/dog/7.png")
    train = open_split(data, tmp_path)
    assert len(train) == 3
    assert {train[index].name: (train[index].label, train[index].image) for index in range(3)} == {
        "train/cat/1.jpg": (0, b"train/cat/1.jpg"),
        "train/cat/2.jpg": (0, b"train/cat/2.jpg"),
        "train/dog/1.jpg": (1, b"train/dog/1.jpg"),
    }
    for split in ("", "val", "validation", "test"):
        source = open_split(data, tmp_path, split)
        assert names(source) == [f"{evaluation}/dog/7.png"]
        assert source.class_names == ("cat", "dog")
        assert source[0].label == 1


def test_exact_split_names_win_over_synonyms(tmp_path, data):
    for split in ("train", "val", "test", "extra"):
        write_images(tmp_path, f"{split}/a/1.jpg", f"{split}/b/1.jpg")
    for split, found in (("test", "test"), ("val", "val"), ("validation", "val"), ("", "val")):
        assert set(names(open_split(data, tmp_path, split))) == {
            f"{found}/a/1.jpg",
            f"{found}/b/1.jpg",
        }
    extra, test = (names(open_split(data, tmp_path, split)) for split in ("extra", "test"))
    assert names(open_split(data, tmp_path, "extra[:1]+test[1:]")) == [extra[0], test[1]]
    with pytest.raises(DataError, match="no split 'other'"):
        open_split(data, tmp_path, "other")


def test_evaluation_only(tmp_path, data):
    write_class(tmp_path, "val/cat")
    write_class(tmp_path, "val/dog")
    assert open_split(data, tmp_path, "").class_names == ("cat", "dog")
    with pytest.raises(DataError, match="no split 'train'"):
        open_split(data, tmp_path)


@pytest.mark.parametrize("prefix", ["", "train/"])
def test_held_out_fraction(tmp_path, data, prefix, caplog):
    for label in ("cat", "dog"):
        write_class(tmp_path, f"{prefix}{label}", 100)
    with caplog.at_level(logging.INFO, "vit_jax"):
        train, held_out = (set(names(open_split(data, tmp_path, split))) for split in ("train", ""))
    assert f"{len(held_out)} of its 200 images are held out" in caplog.text
    assert not train & held_out
    assert len(train | held_out) == 200
    assert 8 <= len(held_out) <= 34  # 20 expected, standard deviation 4.2.
    assert held_out == set(names(open_split(data, tmp_path, "test")))
    # New files move none of the old ones.
    write_class(tmp_path, f"{prefix}bird", 50)
    assert train < set(names(open_split(data, tmp_path)))
    assert held_out < set(names(open_split(data, tmp_path, "")))


def test_held_out_split_does_not_depend_on_where_the_folder_is(tmp_path, data):
    for folder in ("here", "there"):
        write_class(tmp_path / folder, "cat", 50)
        write_class(tmp_path / folder, "dog", 50)
    assert names(open_split(data, tmp_path / "here", "")) == names(
        open_split(data, tmp_path / "there", "")
    )


def test_any_slice_is_a_fair_sample_of_the_classes(tmp_path, data):
    for label in ("cat", "dog"):
        write_class(tmp_path, label, 100)
    data.held_out_fraction = 0.0
    half = open_split(data, tmp_path, "train[:50%]")
    dogs = sum(half[index].label for index in range(100))
    assert 36 <= dogs <= 64  # 50 expected, standard deviation 3.5.
    again = open_split(data, tmp_path, "train[:50%]")
    assert names(half) == names(again)


def test_a_few_images_still_give_something_to_evaluate(tmp_path, data):
    write_class(tmp_path, "cat", 2)
    write_class(tmp_path, "dog", 2)
    data.held_out_fraction = 1e-6
    assert open_split(data, tmp_path, "").labels.tolist() in ([0, 1], [1, 0])
    assert len(open_split(data, tmp_path)) == 2
    data.holding_out = "hash"
    assert len(open_split(data, tmp_path, "")) == 1
    assert len(open_split(data, tmp_path)) == 3


def test_nothing_held_out(tmp_path, data):
    write_class(tmp_path, "cat")
    write_class(tmp_path, "dog")
    data.held_out_fraction = 0.0
    assert len(open_split(data, tmp_path)) == 4
    with pytest.raises(DataError, match="has no evaluation split"):
        open_split(data, tmp_path, "")


# ---------------------------------------------------------------------------- what is found


def test_classes_are_in_natural_case_folded_order(tmp_path, data):
    labels = ["cat", "Cat2", "ähre", "10", "9", "Zebra", "img12", "IMG2"]
    for label in labels:
        write_class(tmp_path, label)
    assert open_split(data, tmp_path).class_names == (
        *("9", "10", "cat", "Cat2", "IMG2", "img12", "Zebra", "ähre"),
    )
    assert sorted(["b", "Cat", "cat", "1a", "a1"], key=natural_order) == [
        "1a",
        "a1",
        "b",
        "Cat",
        "cat",
    ]


def test_only_images_count(tmp_path, data, caplog):
    write_images(
        tmp_path,
        "cat/élève 1.jpg",
        "cat/deep/er/2.JPEG",
        "cat/notes.txt",
        "cat/.DS_Store",
        "cat/._3.jpg",
        "cat/.ipynb_checkpoints/4.jpg",
        "dog/5.TIFF",
        ".ipynb_checkpoints/6.jpg",
        "only_text/readme.txt",
        "stray.jpg",
    )
    (tmp_path / "empty").mkdir()
    data.held_out_fraction = 0.0
    with caplog.at_level(logging.WARNING):
        source = open_split(data, tmp_path)
    assert source.class_names == ("cat", "dog")
    assert set(names(source)) == {"cat/deep/er/2.JPEG", "cat/élève 1.jpg", "dog/5.TIFF"}
    assert "folders without images, ignored: empty, only_text" in caplog.text


def test_linked_class_folders_are_followed(tmp_path, data):
    write_class(tmp_path / "elsewhere", "cat")
    write_class(tmp_path / "here", "dog")
    (tmp_path / "here" / "cat").symlink_to(tmp_path / "elsewhere" / "cat")
    assert open_split(data, tmp_path / "here").class_names == ("cat", "dog")


# ---------------------------------------------------------------------------- refusals


def test_no_such_folder(tmp_path, data):
    with pytest.raises(DataError, match=r"no such folder; expected DIR/train/CLASS"):
        open_split(data, tmp_path / "missing")


@pytest.mark.parametrize("files", [[], ["1.jpg", "2.jpg"], ["cat/readme.txt"]])
def test_no_classes(tmp_path, data, files):
    write_images(tmp_path, *files)
    with pytest.raises(DataError, match=r"found none; expected DIR/train/CLASS"):
        open_split(data, tmp_path)


def test_one_class(tmp_path, data):
    write_class(tmp_path, "cat")
    with pytest.raises(DataError, match=r"at least 2 class folders .* found cat;") as caught:
        open_split(data, tmp_path)
    assert "taken for a split" not in str(caught.value)


def test_a_class_only_in_evaluation(tmp_path, data):
    for split, labels in (("train", ("cat", "dog")), ("val", ("cat", "cow"))):
        for label in labels:
            write_class(tmp_path, f"{split}/{label}")
    with pytest.raises(DataError, match=r"val has classes that .*train lacks: cow"):
        open_split(data, tmp_path, "")


def test_real_files_decode(tmp_path, data):
    for label, value in (("dark", 10), ("light", 200)):
        (tmp_path / label).mkdir()
        Image.fromarray(np.full((5, 7), value, np.uint8)).save(tmp_path / label / "1.png")
    data.held_out_fraction = 0.0
    source = open_split(data, tmp_path)
    for index in range(2):
        example = source[index]
        image = decode(example.image, 3)
        assert image.shape == (5, 7, 3)
        assert (image == (10, 200)[example.label]).all()


def test_an_evaluation_split_without_images(tmp_path, data):
    write_class(tmp_path, "train/cat")
    write_class(tmp_path, "train/dog")
    (tmp_path / "val" / "cat").mkdir(parents=True)
    message = (
        rf"{tmp_path}/val/: need at least 1 class folders with images, found none; .* val/ is taken"
    )
    with pytest.raises(DataError, match=message):
        open_split(data, tmp_path, "")
