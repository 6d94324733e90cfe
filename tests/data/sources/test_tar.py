import io
import pickle
import tarfile
import uuid

import fsspec
import numpy as np
import pytest
from PIL import Image

from vit_jax import storage
from vit_jax.data.images.picture import decode
from vit_jax.data.sources import tar_samples
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import DataError


def png(value):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def packed(contents):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            content = content.encode() if isinstance(content, str) else content
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


@pytest.fixture(params=["local", "remote"])
def write(request, tmp_path, data):
    """Writes shards, which become the source."""
    root = str(tmp_path) if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    data.source, data.index_dir = f"tar:{root}", str(tmp_path / "index")

    def write(shards):
        for name, contents in shards.items():
            content = contents if isinstance(contents, bytes) else packed(contents)
            filesystem, path = fsspec.core.url_to_fs(storage.join(root, name))
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            filesystem.pipe_file(path, content)
        return root

    return write


def open_split(data, split="train", num_classes=0):
    return open_source(data, split, image_size=(4, 4), channels=3, num_classes=num_classes)


SHARDS = {
    "train-0.tar": {"b.png": png(1), "b.cls": "2", "folder/a.cls": "0\n", "folder/a.png": png(2)},
    "train-1.tar": {"b.JPG": png(3), "b.json": '{"label": 1}', "b.txt": "a caption"},
    "val-0.tar": {"c.png": png(4), "c.cls": "1", "c.json": '{"label": "dog", "width": 3}'},
}


def test_examples(write, data):
    write(SHARDS)
    source = open_split(data)
    assert source.class_names == ("0", "1", "2")
    assert len(open_split(data, num_classes=2).class_names) == 3, "as many as the labels say"
    assert [source[index][1:] for index in range(len(source))] == [
        (2, "train-0.tar/b.png"),
        (0, "train-0.tar/folder/a.png"),
        (1, "train-1.tar/b.JPG"),
    ]
    assert [source.name_of(index) for index in (2, 0, 1)] == [
        "train-1.tar/b.JPG",
        "train-0.tar/b.png",
        "train-0.tar/folder/a.png",
    ]
    assert (decode(source[1].image, 3) == 2).all()
    assert list(source.fetch([2, 0])) == [source[2], source[0]]
    assert source.labels.tolist() == [2, 0, 1]
    (example,) = open_split(data, "").fetch([0])
    assert example[1:] == (1, "val-0.tar/c.png")  # Of .cls; what .json has is another thing.
    assert open_split(data, "test+validation")[1].name == "val-0.tar/c.png"


def test_neighbours_are_one_request(write, data, monkeypatch):
    write(SHARDS)
    source = open_split(data, "train[:2]")
    requests, read = [], storage.read

    def counted(*arguments):
        requests.append(arguments)
        return read(*arguments)

    monkeypatch.setattr(storage, "read", counted)
    names = [example.name for example in source.fetch([1, 0])]
    assert names == ["train-0.tar/folder/a.png", "train-0.tar/b.png"]
    assert len(requests) == (1 if storage.is_remote(requests[0][0]) else 2)


def test_a_worker_process_gets_no_index(write, data):
    write(SHARDS)
    source = open_split(data)
    pickled = pickle.dumps(source)
    assert len(pickled) < 1000
    assert pickle.loads(pickled)[1] == source[1]
    data.index_dir = ""
    source = pickle.loads(pickle.dumps(open_split(data)))
    assert (source[1].label, source.name_of(2)) == (0, "train-1.tar/b.JPG")


@pytest.mark.parametrize(
    "names",
    [
        {"classes.txt": b"\xef\xbb\xbfcat \r\n dog\nem\xc3\xbc\n"},
        {"classes.json": b'["cat","dog","em\xc3\xbc"]'},
    ],
)
def test_class_names(write, data, names):
    write(SHARDS | names)
    assert open_split(data).class_names == ("cat", "dog", "emü")
    data.classes = ("emü", "cat")
    source = open_split(data)
    assert [source[index].label for index in range(len(source))] == [0, 1]


def test_class_lists_that_do_not_fit(write, data):
    write(SHARDS | {"classes.txt": b"cat\ndog\n"})
    with pytest.raises(DataError, match=r"has 2 names, but a label is 2"):
        open_split(data)
    write({"classes.txt": b"cat\xff"})
    with pytest.raises(DataError, match=r"classes.txt cannot be read"):
        open_split(data)


@pytest.mark.parametrize("content", [b"{", b'{"0": "cat"}', b"[1, 2, 3]", b"[" * 99_999])
def test_class_lists_that_are_none(write, data, content):
    write(SHARDS | {"classes.json": content})
    with pytest.raises(DataError, match=r"classes.json"):
        open_split(data)


def test_other_pictures_of_a_sample(write, data, caplog):
    contents = {"a.mask.png": b"", "a.png": png(1), "a.cls": "0", "a.meta.json": "{", "a.txt": "x"}
    write({"train.tar": contents})
    data.held_out_fraction = 0.0
    assert open_split(data)[0].name == "train.tar/a.png"
    assert not caplog.records, "samples have what they like beside their image"


def test_several_labels(write, data):
    write(
        {
            "0.tar": {
                "a.png": png(1),
                "a.json": '{"label": [2, 0]}',
                "b.png": png(2),
                "b.cls": "1",
            },
            "1.tar": {"c.png": png(3), "c.json": '{"label": []}', "d.png": png(4), "d.cls": "3"},
            "2.tar": {"e.png": png(5), "e.cls": "2"},  # None here has several.
        }
    )
    data.held_out_fraction = 0.0
    source = open_split(data)
    labels = np.array([source[index].label for index in range(5)])
    assert labels.dtype == np.float32
    expected = [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 0]]
    assert labels.tolist() == expected


def test_class_folders(write, data):
    write(
        {
            "train/0.tar": {"./x/10/a.b.png": png(1), "9/é.png": png(2), "9/._é.png": b"junk"},
            "train/1.tar": {"10/c.png": png(3)},
            "val/0.tar": {"10/d.png": png(4)},
        }
    )
    source = open_split(data)
    assert source.class_names == ("9", "10")
    assert [source[index][1:] for index in range(3)] == [
        (1, "train/0.tar/x/10/a.b.png"),
        (0, "train/0.tar/9/é.png"),
        (1, "train/1.tar/10/c.png"),
    ]
    assert open_split(data, "validation")[0][1:] == (1, "val/0.tar/10/d.png")


def test_a_shard_of_each_class(write, data):
    write(
        {
            "n01440764.tar": {"n01440764_18.JPEG": png(1)},
            "n01443537.tar": {"n01443537_2.JPEG": png(2), "n01443537_3.JPEG": png(3)},
        }
    )
    data.held_out_fraction = 0.0
    source = open_split(data)
    assert source.class_names == ("n01440764", "n01443537")
    assert [source[index].label for index in range(3)] == [0, 1, 1]
    with pytest.raises(DataError, match="no evaluation split"):
        open_split(data, "")


def test_held_out_images_stay_when_shards_are_added(write, data, caplog):
    shards = {
        f"{shard}.tar": {
            name: content
            for index in range(20)
            for name, content in (
                (f"{shard}_{index}.png", png(index)),
                (f"{shard}_{index}.cls", "1"),
            )
        }
        for shard in range(3)
    }
    write({"0.tar": shards["0.tar"], "1.tar": shards["1.tar"]})

    def names(split):
        source = open_split(data, split)
        return [source.name_of(index) for index in range(len(source))]

    train, held_out = names("train"), names("validation")
    assert len(train) + len(held_out) == 40
    assert 1 <= len(held_out) <= 10
    with caplog.at_level("INFO"):
        source = open_split(data, "val")
    assert f"{len(held_out)} of its 40 images are held out" in caplog.text
    assert source[0].name == held_out[0]
    write({"2.tar": shards["2.tar"]})
    assert set(train) < set(names("train"))
    assert set(held_out) <= set(names("validation"))


WRONG = {
    "no label": ({"a.png": b"", "b.png": b"", "b.cls": "1"}, r"a.png has no label; expected a.cls"),
    "no labels": ({"a.png": b""}, r"a.png has no label; expected a.cls .*or a folder"),
    "no image": (
        {"a.png": b"", "a.cls": "1", "b.cls": "1"},
        r"no image b with one of \.jpg, .*, \.psd, \.npy; a sam",
    ),
    "a dot too many": (
        {"a.1.png": b"", "b.png": b"", "b.cls": "1"},
        r"there is a.1.png, but no .*",
    ),
    "a label's dot": ({"x/a.1.png": b"", "x/a.1.cls": "1"}, r"a.1.cls belongs to no image: .*dot"),
    "two images": ({"a.png": b"", "a.jpg": b"", "a.cls": "1"}, r"a.png and a.jpg are two images"),
    "a word": ({"a.png": b"", "a.cls": "cat"}, r"a.cls holds no label: 'cat' is no whole number"),
    "nothing": ({"a.png": b"", "a.cls": ""}, r"a.cls holds no label: '' is no whole number"),
    "negative": ({"a.png": b"", "a.cls": "-1"}, r"a.cls holds no label: '-1' is no whole number"),
    "huge": ({"a.png": b"", "a.cls": "9" * 60}, r"a.cls holds no label: '9{40}' is"),
    "bad json": ({"a.png": b"", "a.json": "{"}, r"a.json holds no label: Expecting"),
    "deep json": ({"a.png": b"", "a.json": "[" * 200_000}, r"a.json holds no label"),
    "a string": ({"a.png": b"", "a.json": '{"label": "x"}'}, r'a.json holds .*"label" is \'x\''),
    "false": ({"a.png": b"", "a.json": '{"label": false}'}, r'"label" is False, neither'),
    "an empty text": ({"a.png": b"", "a.json": '{"label": ""}'}, r"\"label\" is '', neither"),
    "a bool": ({"a.png": b"", "a.json": '{"label": [true]}'}, r'"label" is True, neither'),
    "one folder": ({"x/a.png": b"", "x/b.png": b""}, r"all images .* lie in folders called x"),
    "a large label": ({"a.png": b"", "a.json": " " * 1_100_000}, r"a.json has 1,100,000 bytes"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_labels(write, data, name):
    contents, message = WRONG[name]
    write({"0.tar": contents})
    with pytest.raises(DataError, match=message) as caught:
        open_split(data)
    assert data.source.removeprefix("tar:") in str(caught.value)


def test_the_same_name_twice(write, data):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for _ in range(2):
            archive.addfile(tarfile.TarInfo("a.png"))
    write({"0.tar": file.getvalue()})
    with pytest.raises(DataError, match=r"0.tar holds a.png twice, the second time at byte 512"):
        open_split(data)
    for name in ("a.npy", "a.cls", "a.json"):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as archive:
            for _ in range(2):
                archive.addfile(tarfile.TarInfo(name))
        write({"0.tar": file.getvalue()})
        with pytest.raises(DataError, match=rf"0.tar holds {name} twice"):
            open_split(data)


def test_the_same_key_in_two_shards(write, data):
    write({f"train-{shard}.tar": {"0.png": png(shard), "0.cls": "1"} for shard in range(2)})
    data.held_out_fraction = 0.0
    source = open_split(data)
    assert [source[index].name for index in range(2)] == ["train-0.tar/0.png", "train-1.tar/0.png"]


def test_links_are_named(write, data, caplog):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, kind in (
            ("a", tarfile.DIRTYPE),
            ("a/1.png", tarfile.REGTYPE),
            ("b/2.png", tarfile.REGTYPE),
            ("b/3.png", tarfile.SYMTYPE),
        ):
            member = tarfile.TarInfo(name)
            member.type = kind
            archive.addfile(member)
    write({"train.tar": file.getvalue()})
    data.held_out_fraction = 0.0
    assert len(open_split(data)) == 2
    assert "train.tar: 1 links are left out, such as b/3.png" in caplog.text


def test_a_class_of_validation_alone(write, data):
    write({"train.tar": {"a/1.png": b"", "b/1.png": b""}, "val.tar": {"c/1.png": b""}})
    with pytest.raises(DataError, match=r"val.tar has classes that the training split lacks: c"):
        open_split(data, "val")
    write({"train.tar": SHARDS["train-0.tar"], "val.tar": {"c.png": b"", "c.cls": "3"}})
    with pytest.raises(
        DataError, match=r"val.tar has the label 3, but the training split has only 3"
    ):
        open_split(data, "val")
    assert len(open_split(data, "val", num_classes=10).class_names) == 10


def test_numbers_and_folders(write, data):
    folders = {"a/1.png": b"", "b/1.png": b""}
    write({"1.tar": folders, "2.tar": {"notes.txt": ""}})
    assert open_split(data).class_names == ("a", "b"), "a shard without images has neither"
    root = write({"0.tar": SHARDS["train-0.tar"]})
    with pytest.raises(DataError, match=rf"^{root}/0.tar has labels that are numbers, but other"):
        open_split(data)


def test_a_changed_shard_is_noticed(write, data):
    write(SHARDS)
    source = open_split(data)
    write({"train-0.tar": {"new.png": png(9), "new.cls": "0", "z.png": png(1), "z.cls": "1"}})
    wrong = list(source.fetch([0, 1, 2]))
    assert isinstance(wrong[1], DataError)
    assert "train-0.tar" in str(wrong[1])
    assert wrong[2].label == 1
    assert open_split(data)[0][1:] == (0, "train-0.tar/new.png")


def test_a_shard_removed_after_indexing(write, data):
    root = write(SHARDS)
    source = open_split(data)
    filesystem, path = fsspec.core.url_to_fs(storage.join(root, "train-1.tar"))
    filesystem.rm(path)
    with pytest.raises(DataError, match=r"train-1.tar cannot be read"):
        source[2]
    data.source = f"tar:{root}/x-{{3..3}}.tar"
    with pytest.raises(DataError, match=r"x-3.tar: this shard cannot be read"):
        open_split(data)


def test_a_damaged_shard_is_named(write, data):
    write(SHARDS | {"train-2.tar": packed(SHARDS["train-0.tar"])[:700]})
    with pytest.raises(DataError, match=r"train-2.tar is cut short"):
        open_split(data)


def test_one_folder_in_all_shards_is_no_class(write, data):
    root = write({f"{number}.tar": {f"x/{number}.png": b""} for number in range(3)})
    message = f"{root}: all images of 3 shards lie in folders called x; expected a folder for each"
    with pytest.raises(DataError, match=message):
        open_split(data)


def test_how_long_a_label_may_be(write, data, monkeypatch):
    monkeypatch.setattr(tar_samples, "_LONGEST_LABEL", 12)
    data.held_out_fraction = 0.0
    write({"0.tar": {"a.png": b"", "a.json": '{"label": 0}'}})
    assert open_split(data).labels.tolist() == [0]
    write({"0.tar": {"a.png": b"", "a.json": '{"label": 0} '}})
    with pytest.raises(DataError, match=r"0.tar: a.json has 13 bytes, too many for a label"):
        open_split(data)
