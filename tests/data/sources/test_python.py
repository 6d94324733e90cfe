import json
import pickle
import types

import grain
import numpy as np
import pytest
from PIL import Image

import vit_jax
from tests import tiny
from vit_jax import train
from vit_jax.data.sources.python import as_image
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import ConfigError, DataError


def image(value):
    return np.full((4, 6, 3), value, np.uint8)


PAIRS = [(image(0), "b"), (image(1), "a10"), (image(2), "a9")]


class TorchStyle:
    """Pillow images and numbers, as torchvision's data sets give them."""

    classes = ("cat", "dog")
    targets = (1, 0, 1, 1)

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return Image.fromarray(image(index)), self.targets[index]


class HubStyle:
    """Rows are dictionaries and columns lists, as in a `Dataset` of Hugging Face's library."""

    column_names = ["picture", "tag"]  # noqa: RUF012
    features = {"tag": types.SimpleNamespace(names=["x", "y"])}  # noqa: RUF012

    def __len__(self):
        return 2

    def __getitem__(self, key):
        columns = {"picture": [Image.fromarray(image(n)) for n in (5, 6)], "tag": [1, 0]}
        return columns[key] if key in columns else {name: columns[name][key] for name in columns}


def make_splits():
    """What a config may name instead of an object: it is called."""
    return {"train": TorchStyle(), "val": [(image(9), "dog")]}


def opened(data, source, split="train", num_classes=0):
    data.source, data.held_out_fraction = source, 0.0
    return open_source(data, split, image_size=(4, 4), channels=3, num_classes=num_classes)


def described(source):
    """Class names, and of each example its label, name and first value."""
    examples = [source[index] for index in range(len(source))]
    return source.class_names, [(e.label, e.name, int(e.image[0, 0, 0])) for e in examples]


def test_a_list(data):
    found = described(opened(data, f"python:{__name__}:PAIRS"))
    labels = [(2, "train/0", 0), (1, "train/1", 1), (0, "train/2", 2)]
    assert found == (("a9", "a10", "b"), labels)


def test_numbers_with_a_gap_are_classes_up_to_the_highest(data):
    pairs = [(image(0), 3), (image(1), 0)]
    found = described(opened(data, vit_jax.as_source("gap", train=pairs)))
    assert found == (("0", "1", "2", "3"), [(3, "train/0", 0), (0, "train/1", 1)])


def test_torch_style(data):
    """Its labels are at hand, without an image being read."""
    source = opened(data, f"python:{__name__}:TorchStyle")
    assert source.labels.tolist() == [1, 0, 1, 1]
    assert described(source)[0] == ("cat", "dog")
    assert described(pickle.loads(pickle.dumps(source))) == described(source)
    validation = opened(data, f"python:{__name__}:make_splits", "")
    assert described(validation) == (("cat", "dog"), [(1, "val/0", 9)])


class OtherOrder(TorchStyle):
    classes = ("dog", "cat")
    targets = (1, 1, 0, 0)


def test_classes_are_the_training_splits_in_its_order(data):
    """Numbers of another split are of its own list, which must be the same."""
    pairs = [(image(1), "dog"), (image(2), "cat")]
    name = vit_jax.as_source("orders", train=TorchStyle(), validation=OtherOrder(), test=pairs)
    validation = opened(data, name, "validation")
    assert validation.class_names == ("cat", "dog")
    assert described(opened(data, name, "test"))[1] == [(1, "test/0", 1), (0, "test/1", 2)]
    train = vit_jax.as_source("orders", train=OtherOrder(), validation=TorchStyle())
    assert opened(data, train, "validation").class_names == ("dog", "cat")


def test_hugging_face_style(data):
    data.columns = "path=picture,label=tag"
    source = opened(data, f"python:{__name__}:HubStyle")
    assert described(source) == (("x", "y"), [(1, "train/0", 5), (0, "train/1", 6)])
    data.columns = "path=picture,labels=tag"
    assert described(opened(data, f"python:{__name__}:HubStyle")) == described(source)
    data.columns = "path=photo,label=tag"
    with pytest.raises(
        DataError, match=r"train/0: its item has no image, only picture, tag: .*path=KEY"
    ):
        _ = opened(data, f"python:{__name__}:HubStyle")[0]
    name = vit_jax.as_source("rows", train=[{"img": image(0)}])
    data.columns = "path=img"
    with pytest.raises(DataError, match=r"train/0: its item has no label, only img: .*label=KEY"):
        opened(data, name)


def test_a_grain_source(data):
    """Transformed by Grain, with several labels an image."""
    rows = grain.MapDataset.source(range(3)).map(lambda n: {"image": image(n), "label": [0, n]})
    source = opened(data, vit_jax.as_source("rows", train=rows))
    assert source.multi_label
    assert [source[index].label.tolist() for index in range(3)] == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]


def test_a_key_that_is_named_is_not_replaced_by_a_usual_one(data):
    name = vit_jax.as_source("usual", train=[{"image": image(0), "label": 1}])
    data.columns = "path=image,label=species"
    with pytest.raises(DataError, match="its item has no label, only image, label"):
        opened(data, name)


def test_labels_that_only_items_have(data):
    """With the number of classes given nothing is read before it is needed."""
    rows = grain.MapDataset.source(range(3)).map(lambda n: (image(n), np.int64(n)))
    name = vit_jax.as_source("rows", train=rows)
    source = opened(data, name, num_classes=5)
    assert source.labels is None
    assert described(source)[0] == tuple("01234")
    assert source[2].label == 2
    with pytest.raises(DataError, match="the label 2 is none of 2 classes"):
        _ = opened(data, name, num_classes=2)[2]


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        ("python:nowhere:x", ConfigError, "No module named 'nowhere'"),
        (f"python:{__name__}:nothing", ConfigError, "no attribute 'nothing'"),
        ("python:unnamed", ConfigError, "MODULE:ATTRIBUTE, or name objects of this process"),
        (
            f"python:{__name__}:pytest",
            DataError,
            "^split train of config.data.source='python:.*:pytest' is a module, without __len__ or",
        ),
    ],
)
def test_what_is_no_source(data, source, error, message):
    with pytest.raises(error, match=message):
        opened(data, source)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("text", "its item is a str; expected"),
        ((None, 0), "its image is a NoneType; expected the bytes"),
        ((np.zeros(3, np.uint8), 0), "a Pillow image, or an array [height, width"),
    ],
)
def test_items_that_are_no_example(data, item, message):
    source = opened(data, vit_jax.as_source("bad", train=[item]), num_classes=1)
    (failure,) = source.fetch([0])
    assert message in str(failure)


def test_images(tmp_path):
    path = tmp_path / "x.png"
    Image.fromarray(image(3)).save(path)
    content = path.read_bytes()
    assert as_image({"bytes": None, "path": str(path)}, "") == as_image(path, "") == content
    assert as_image({"bytes": content, "path": "gone.png"}, "") == content
    assert as_image(image(3)[..., 0], "").shape == (4, 6, 1)
    assert as_image(image(3) / 2, "").tolist() == (image(3) / 2).tolist()
    for odd, told in (
        (image(3)[None], r"uint8 \[1, 4, 6, 3\]"),
        (image(3) > 1, r"bool \[4, 6, 3\]"),
        (image(3) * 1j, r"complex128 \[4, 6, 3\]"),
    ):
        with pytest.raises(
            DataError,
            match=f"x: its image is {told}; expected .* of numbers",
        ):
            as_image(odd, "x")
    assert as_image(Image.fromarray(image(3)).convert("L"), "").shape == (4, 6, 1)
    assert as_image(Image.fromarray(image(3)).convert("RGBA"), "").shape == (4, 6, 3)


def test_training(tmp_path):
    """A list in memory trains, and the run says in its config what it was called."""
    generator = np.random.default_rng(0)
    pairs = [(generator.integers(256, size=(8, 8, 1), dtype=np.uint8), n % 10) for n in range(64)]
    config = tiny.get_config()
    config.data.source = vit_jax.as_source("noise", train=pairs, validation=pairs[:8])
    result = train.run(config, str(tmp_path))
    assert result["eval/count"] == 8
    assert json.loads((tmp_path / "config.json").read_text())["config"]["data"]["source"] == (
        "python:noise"
    )


def test_without_a_training_split_the_first_has_the_classes(data):
    name = vit_jax.as_source("evaluated", test=[(image(4), "b"), (image(3), "a")], val=PAIRS[:1])
    assert described(opened(data, name, "test")) == (
        ("a", "b"),
        [(1, "test/0", 4), (0, "test/1", 3)],
    )
    assert opened(data, name, "val")[0].label == 1
    with pytest.raises(DataError, match="no split 'train'"):
        opened(data, name)


CALLS = []


def make_once():
    CALLS.append(1)
    return PAIRS


def test_what_is_called_is_called_once(data):
    for _ in range(3):
        opened(data, f"python:{__name__}:make_once")
    assert len(CALLS) == 1


def test_class_names_are_texts(data):
    """Numbers of classes are none, and what Hugging Face says of a column without names neither."""

    class Numbered(list):
        classes = (5, 7)

    class Featured(list):
        features = {"label": types.SimpleNamespace(dtype="int64")}  # noqa: RUF012

    for kind in (Numbered, Featured):
        name = vit_jax.as_source("odd", train=kind([(image(0), 2), (image(1), 0)]))
        assert opened(data, name).class_names == ("0", "1", "2")


def test_what_else_an_item_holds_is_left(data):
    items = [(image(0), "b", {"box": 3}), [image(1), "a", None]]
    found = described(opened(data, vit_jax.as_source("more", train=items)))
    assert found == (("a", "b"), [(1, "train/0", 0), (0, "train/1", 1)])


@pytest.mark.parametrize(
    ("name", "splits"), [("", {"train": []}), ("a:b", {"train": []}), ("a", {})]
)
def test_what_cannot_be_named(name, splits):
    with pytest.raises(ConfigError, match=rf"as_source\({name!r}\): give a name without a colon"):
        vit_jax.as_source(name, **splits)


def test_that_every_item_is_read_is_said(data, caplog):
    """Of what is no list, whose items are in memory."""
    rows = grain.MapDataset.source(range(3)).map(lambda n: (image(n), n))
    with caplog.at_level("INFO"):
        opened(data, vit_jax.as_source("rows", train=rows))
    told = [message for message in caplog.messages if "read for its class" in message]
    assert len(told) == 1
    assert told[0].startswith("Every item of split train is read for its class: give the object")
    caplog.clear()
    with caplog.at_level("INFO"):
        opened(data, vit_jax.as_source("rows", train=rows), num_classes=3)
        opened(data, vit_jax.as_source("list", train=PAIRS))
    assert "read for its class" not in caplog.text


def test_classes_that_the_training_split_lacks_are_named(data):
    """Where they are at hand when the split is opened, else by the item that is read."""
    later = [(image(0), "c"), (image(1), "b"), (image(2), "a")]
    name = vit_jax.as_source("later", train=PAIRS[:1], test=later)
    found = list(opened(data, name, "test").fetch([0, 2, 1]))
    lacking = "has classes that the training split lacks"
    assert str(found[0]) == f"test/0 {lacking}: c; the training split has b."
    assert str(found[1]) == f"test/2 {lacking}: a; the training split has b."
    assert found[2][1:] == (0, "test/1")

    class Labelled(TorchStyle):
        targets = ("c", "b", "a", "b")

    vit_jax.as_source("later", train=PAIRS[:1], test=Labelled())
    with pytest.raises(DataError, match=f"^python:later, test {lacking}: a, c; the training split"):
        opened(data, name, "test")
