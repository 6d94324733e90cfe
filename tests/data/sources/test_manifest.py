import json
import logging
import os
import pickle
import uuid

import fsspec
import numpy as np
import pytest

from vit_jax.data.sources.columns import is_columns
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import ConfigError, DataError


@pytest.fixture
def write(tmp_path, data):
    """Writes a manifest, with images beside it, and names it in the config."""

    def write(content, name="list.csv", images=()):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        for image in images:
            file = tmp_path / image
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(image.encode())
        data.source, data.held_out_fraction = f"manifest:{path}", 0.0
        return path

    return write


def open_split(data, split="train", num_classes=0):
    return open_source(data, split, image_size=(4, 4), channels=3, num_classes=num_classes)


def labels(source):
    return {source.name_of(index): label for index, label in enumerate(source.labels.tolist())}


def sets(source):
    return {source.name_of(index): row.tolist() for index, row in enumerate(source.labels)}


def lines(*rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


# ---------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("name", ["list.csv", "LIST.JSONL"])
def test_paths_labels_and_splits(write, data, name):
    rows = [
        {"path": "deep/1.jpg", "label": "dog", "split": "train"},
        {"path": "2, élève.jpg", "label": "cat", "split": "train"},
        {"path": "3.jpg", "label": "dog", "split": "val"},
    ]
    if name.endswith("csv"):
        text = "split,more,label,path\n" + "".join(
            f'{row["split"]},x,{row["label"]},"{row["path"]}"\n' for row in rows
        )
    else:
        text = lines(*({**row, "more": [1]} for row in rows))
    write(text, name, [row["path"] for row in rows])
    train, val = open_split(data), open_split(data, "")
    assert train.class_names == val.class_names == ("cat", "dog")
    assert sorted(train[index] for index in range(2)) == [
        ("2, élève.jpg".encode(), 0, "2, élève.jpg"),
        (b"deep/1.jpg", 1, "deep/1.jpg"),
    ]
    for split in ("", "val", "validation", "test"):
        assert open_split(data, split)[0] == (b"3.jpg", 1, "3.jpg")
    copy = pickle.loads(pickle.dumps(train))
    assert [copy[index] for index in range(2)] == [train[index] for index in range(2)]


@pytest.mark.parametrize(
    "content",
    [
        b"path,label\r\n1.jpg,cat\r\n2.jpg,dog\r\n",
        b"\xef\xbb\xbfpath,label\n1.jpg,cat\n2.jpg,dog",
        b'"path", label \n\n"1.jpg", cat \n2.jpg,dog\n\n',
    ],
)
def test_what_other_programs_write(write, data, content):
    write(content)
    assert labels(open_split(data)) == {"1.jpg": 0, "2.jpg": 1}


def test_absolute_paths_and_urls(write, data, tmp_path):
    url = f"memory://{uuid.uuid4().hex}/1.jpg"
    filesystem, path = fsspec.core.url_to_fs(url)
    filesystem.pipe_file(path, b"remote")
    (tmp_path / "elsewhere.jpg").write_bytes(b"local")
    write(f"path,label\n{url},a\n{tmp_path / 'elsewhere.jpg'},b\n")
    with pytest.raises(
        DataError, match=r"list\.csv:2: a URL of 'memory'.*gs, s3, https.*protocols"
    ):
        open_split(data)
    data.protocols = ()
    with pytest.raises(DataError, match=r"a manifest may name URLs of no kind\."):
        open_split(data)
    data.protocols = ("memory",)
    source = open_split(data)
    assert {source[index].image for index in range(2)} == {b"remote", b"local"}


@pytest.mark.parametrize(
    "url",
    [
        *("ftp://internal/1.jpg", "HTTP://169.254.169.254/x.jpg", "file:///etc/passwd"),
        *("https://a.org/1.jpg::ftp://internal", "zip://1.jpg::https://a.org/x.zip"),
        *("simplecache::ssh://host/1.jpg", "https://[::1]/1.jpg"),
    ],
)
def test_a_manifest_leads_nowhere_else(write, data, url):
    rows = [{"path": path, "label": "a"} for path in ("1.jpg", url, "2.jpg", url + "?x")]
    write(lines(*rows), "list.jsonl")
    with pytest.raises(DataError, match=r"list\.jsonl:2: a URL of "):
        open_split(data)


def test_the_usual_stores_are_allowed(write, data):
    urls = [f"{protocol}://bucket/1.jpg" for protocol in ("gs", "s3", "https", "HTTPS")]
    write(lines(*({"path": url, "label": str(i)} for i, url in enumerate(urls))), "list.jsonl")
    assert len(open_split(data)) == 4


def test_pipes_and_devices_are_no_images(write, data, tmp_path):
    os.mkfifo(tmp_path / "1.jpg")
    write("path,label\n1.jpg,a\n/dev/zero,b\n")
    source = open_split(data)
    for index in range(2):
        with pytest.raises(DataError, match=r"(1\.jpg|/dev/zero) cannot be read \(it is a pipe"):
            source[index]


def test_a_remote_manifest(data):
    root = f"memory://{uuid.uuid4().hex}"
    filesystem, path = fsspec.core.url_to_fs(root)
    filesystem.pipe_file(f"{path}/lists/all.csv", b"path,label\n../1.jpg,a\n2.jpg,b\n")
    filesystem.pipe_file(f"{path}/lists/2.jpg", b"two")
    data.source, data.held_out_fraction = f"manifest:{root}/lists/all.csv", 0.0
    source = open_split(data)
    images = [source[index] for index in range(2) if source.name_of(index) == "2.jpg"]
    assert images == [(b"two", 1, "2.jpg")]


def test_an_image_that_is_missing_is_named_when_it_is_read(write, data):
    path = write("path,label\n1.jpg,a\n2.jpg,b\n")
    source = open_split(data)
    with pytest.raises(DataError, match=rf"{path.parent}/\d\.jpg cannot be read \(No such file"):
        source[0]


# ---------------------------------------------------------------------------- splits


def test_without_a_split_a_fraction_is_held_out_for_ever(write, data, caplog):
    rows = [f"{index}.jpg,{'ab'[index % 2]}\n" for index in range(200)]
    write("path,label\n" + "".join(rows))
    data.held_out_fraction = 0.1
    with caplog.at_level(logging.INFO, "vit_jax"):
        train, val = (set(labels(open_split(data, split))) for split in ("train", ""))
    assert f"{len(val)} of its 200 images are held out" in caplog.text
    assert not train & val
    assert len(train | val) == 200
    assert 8 <= len(val) <= 34  # 20 expected, standard deviation 4.2.
    write("path,label\n" + "".join([*reversed(rows), "x.jpg,a\n", "y.jpg,c\n"]))
    data.held_out_fraction = 0.1
    assert train <= set(labels(open_split(data)))
    assert val <= set(labels(open_split(data, "")))


def test_any_slice_is_a_fair_sample_of_a_sorted_list(write, data):
    write("path,label\n" + "".join(f"{name}/{i}.jpg,{name}\n" for name in "ab" for i in range(100)))
    half = open_split(data, "train[:50%]")
    # 50 expected, standard deviation 3.5.
    assert 36 <= sum(half.name_of(index).startswith("a") for index in range(100)) <= 64


# ---------------------------------------------------------------------------- classes


def test_names_are_in_natural_order(write, data):
    names = ["10", "9", "b", "A", "ä"]
    write("path,label\n" + "".join(f"{name}.jpg,{name}\n" for name in names))
    assert open_split(data).class_names == ("9", "10", "A", "b", "ä")
    data.classes = ("b", "9")
    assert labels(open_split(data)) == {"b.jpg": 0, "9.jpg": 1}


@pytest.mark.parametrize(
    ("name", "text", "last_line"),
    [
        ("list.csv", "path,label\n1,0\n2,3\n", 3),
        ("list.jsonl", '{"path":"1","label":0}\n{"path":"2","label":3}', 2),
    ],
)
def test_numbers_are_classes_as_they_are(write, data, name, text, last_line):
    write(text, name)
    source = open_split(data)
    assert source.class_names == ("0", "1", "2", "3")
    assert labels(source) == {"1": 0, "2": 3}
    assert open_split(data, num_classes=10).class_names == tuple("0123456789")
    for num_classes in (2, 3):  # The model's, though the data has more.
        message = f"{name}:{last_line}: the class '3' is none of the {num_classes}"
        with pytest.raises(DataError, match=message):
            open_split(data, num_classes=num_classes)


def test_lines_without_anything_in_them(write, data):
    write('\n{"path":"1","label":"b"}\n  \n{"path":"2","label":"a"}\n\n', "list.jsonl")
    assert labels(open_split(data)) == {"1": 1, "2": 0}
    write('\n{"path":"1","label":"b"}\n  \n[]\n', "list.jsonl")
    with pytest.raises(DataError, match="jsonl:4: expected an object"):
        open_split(data)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_several_labels(write, data, kind):
    rows = [("1", ["sky", "tree"]), ("2", []), ("3", ["tree", "tree"]), ("4", ["cow"])]
    if kind == "csv":
        text = "path,labels\n" + "".join(f"{path},{'; '.join(names)}\n" for path, names in rows)
    else:
        text = lines(*({"path": path, "labels": names} for path, names in rows))
    write(text, f"list.{kind}", "1234")
    source = open_split(data)
    assert source.class_names == ("cow", "sky", "tree")
    assert sets(source) == {"1": [0, 1, 1], "2": [0, 0, 0], "3": [0, 0, 1], "4": [1, 0, 0]}
    example = source[0]
    assert example.label.dtype == np.float32
    assert example.label.tolist() == sets(source)[example.name]
    write("path,labels\n1,sky\n2,\n")
    assert sets(open_split(data)) == {"1": [1], "2": [0]}, "one class is enough"
    write(text, f"list.{kind}")
    data.classes = ("tree", "cow")
    assert sets(open_split(data)) == {"1": [1, 0], "3": [1, 0], "4": [0, 1]}


def test_a_class_that_only_evaluation_has_is_named_with_its_line(write, data):
    write("path,label,split\n1,a,train\n2,b,train\n3,cow,val\n4,a,val\n")
    assert len(open_split(data)) == 2
    with pytest.raises(
        DataError, match=r"list\.csv:4: the class 'cow' is none of the 2 classes of .*: a, b"
    ):
        open_split(data, "")
    rows = "".join(f"{number},cow,val\n" for number in range(3, 15))
    write(f"path,label,split\n1,a,train\n2,b,train\n{rows}")
    with pytest.raises(DataError, match=r"list\.csv:4: the class 'cow'"):
        open_split(data, "")
    write("path,labels,split\n1,0;1,train\n2,1,train\n3,1;2,val\n")
    assert sets(open_split(data)) == {"1": [1, 1], "2": [0, 1]}
    with pytest.raises(DataError, match=r"list\.csv:4: the class '2' is none of the 2 classes"):
        open_split(data, "")


def test_evaluation_alone_has_its_own_classes(write, data):
    write("path,label,split\n1,a,test\n")
    assert open_split(data, "").class_names == ("a",)
    with pytest.raises(DataError, match="no split 'train'"):
        open_split(data)


# ---------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "list.csv lists no images"),
        ("path,label\n", "list.csv lists no images"),
        ("file,label\n1,a\n", r"csv:2: expected path.*there are file, label"),
        ("path,class\n1,a\n", r"csv:2: expected path.*there are path, class"),
        ("path,label,labels\n1,a,a\n", "csv:2: expected path, and one of label, labels"),
        ("path,label\n1,a\n2\n", "csv:3: 1 fields, but the first line has 2"),
        ("path,label\n1,a,b\n", "csv:2: 3 fields, .* must be in quotes"),
        ("path,label\n1,a\n2, \n", r"csv:3: label is ' ', expected a class"),
        ("path,label\n,a\n", "csv:2: path is ''"),
        ('path,label\n1,a\n"2,b\n', "csv:3: cannot be read as CSV"),
        ("path,label,split\n1,a,train\n2,b,trian\n", "csv:3: split is 'trian', expected one of"),
        ("path,label,split\n1,a,\n", "csv:2: split is ''"),
        ("path,label\n1,a\n2,b\n1,b\n", "csv:4: 1 is on line 2 already"),
        ("path,label\n1,a\n2,a\n", "at least 2 classes, found only a"),
        ("path,label\n1,a\n\0,b\n", r"csv:3: path is '\\x00', expected the name of a file"),
        ("path,label\n1,0\n2,-1\n", "csv:3: label -1 is no class number"),
        ("path,label\n1,0\n2,20261128\n", "csv:3: label 20261128 is no class number"),
        ("path,label\n1,1048576\n", "label 1048576 is no class .* between 0 and 1,048,576"),
        (f"path,label\n1,0\n2,{'9' * 5000}\n", "csv:3: label 9+ is no class number"),
        ("path,labels\n1,\n2,\n", "at least 1 classes, found only none"),
        (b"path,label\n1,a\n\xff\xfe,b\n", "csv:3: this is no UTF-8 text"),
        ("path,label\n1,a\n2,b\n".encode("utf-16"), "csv:1: this is no UTF-8 text"),
    ],
)
def test_bad_csv(write, data, content, message):
    write(content)
    with pytest.raises(DataError, match=message):
        open_split(data)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"path": "1", "label": "a"}\n{"path": ', "jsonl:2: cannot be read as JSON"),
        ("[" * 100_000, "jsonl:1: cannot be read as JSON"),
        ('["1", "a"]\n', r"jsonl:1: expected an object, {\"path\""),
        ("{}", "jsonl:1: expected path.*there are none"),
        ('{"path": "1", "label": true}', "jsonl:1: label is True"),
        ('{"path": "1", "label": 1.0}', "jsonl:1: label is 1.0"),
        ('{"path": "1", "label": null}', "jsonl:1: label is None"),
        ('{"path": 1, "label": 1}', "jsonl:1: path is 1"),
        ('{"path": "\\ud800", "label": 1}', r"jsonl:1: path is '\\ud800', which is no text"),
        ('{"path": "1", "labels": "a"}', "jsonl:1: labels is 'a', expected a list"),
        ('{"path": "1", "label": "a"}\n{"path": "2"}', "jsonl:2: 'label' must be in every line"),
        (
            '{"path": "1", "label": "a"}\n{"path": "2", "label": "b", "split": "val"}',
            "jsonl:2: 'split' must be in every line",
        ),
    ],
)
def test_bad_json(write, data, content, message):
    write(content, "list.jsonl")
    with pytest.raises(DataError, match=message):
        open_split(data)


def test_other_files(write, data, tmp_path):
    write("", "list.txt")
    with pytest.raises(ConfigError, match=r"list\.txt: expected a file that ends in \.csv or "):
        open_split(data)
    for name in ("missing.csv", "folder.csv"):
        (tmp_path / "folder.csv").mkdir(exist_ok=True)
        data.source = f"manifest:{tmp_path / name}"
        with pytest.raises(DataError, match=rf"{name}: no such file"):
            open_split(data)


# ---------------------------------------------------------------------------- other columns


@pytest.mark.parametrize(
    ("columns", "header"),
    [
        ("path=image,label=breed,split=set", "image,breed,set"),
        ("path = my image , label=the breed", "my image,the breed,set"),
        ("path=p,label=breed,split=set", "p,breed,set"),
        ("label=breed,split=set", "path,breed,set"),
        ("label=breed,split=set", "file_name,breed,set"),
        ("path=image,split=set", "image,label,set"),
        ("path={image},label=breed,split=set", "image,breed,set"),
    ],
)
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_columns_of_other_names(write, data, columns, header, kind):
    rows = [("1.jpg", "cat", "train"), ("2.jpg", "dog", "train"), ("3.jpg", "dog", "valid")]
    if "split" not in columns:
        rows = rows[:2]
    names = header.split(",")
    text = "\n".join([header, *map(",".join, rows)])
    if kind == "jsonl":
        text = lines(*(dict(zip(names, row, strict=True)) for row in rows))
    write(text, f"list.{kind}")
    data.columns = columns
    assert labels(open_split(data)) == {"1.jpg": 0, "2.jpg": 1}
    if "split" in columns:
        assert labels(open_split(data, "")) == {"3.jpg": 1}


def test_a_path_that_is_made_of_columns(write, data):
    """As in Kaggle's tables: names of files without their folder and extension."""
    write("id,part,breed,label\n7,a,cat,x\n8,b,dog,y\n")
    data.columns = "path=train/{part}/{id}.jpg,label=breed"
    assert labels(open_split(data)) == {"train/a/7.jpg": 0, "train/b/8.jpg": 1}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_several_labels_in_a_column_of_another_name(write, data, kind):
    text = "path,label,tags\n1.jpg,x,sky;tree\n2.jpg,x,\n"
    if kind == "jsonl":
        text = lines(
            {"path": "1.jpg", "label": "x", "tags": ["sky", "tree"]},
            {"path": "2.jpg", "label": "x", "tags": []},
        )
    write(text, f"list.{kind}")
    data.columns = "labels=tags"
    assert sets(open_split(data)) == {"1.jpg": [1, 1], "2.jpg": [0, 0]}


def test_a_line_without_any_column_is_named(write, data):
    write("{}", "list.jsonl")
    data.columns = "label=breed"
    message = "label=breed: there is no column 'breed'; there are none"
    with pytest.raises(DataError, match=rf"jsonl:1: config\.data\.columns: {message}\."):
        open_split(data)


def test_a_path_comes_before_a_file_name(write, data):
    write("file_name,path,label\nx,1.jpg,a\ny,2.jpg,b\n")
    assert labels(open_split(data)) == {"1.jpg": 0, "2.jpg": 1}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (
            "label=species",
            r"list\.csv:2: .*label=species: there is no column 'species'.* are path, br",
        ),
        ("path={id}.jpg,label=breed", r"there is no column 'id'"),
        ("", r"list\.csv:2: expected path, .*config\.data\.columns, such as path=image"),
    ],
)
def test_columns_that_are_not_there_are_named(write, data, columns, message):
    write("path,breed\n1.jpg,cat\n2.jpg,dog\n")
    data.columns = columns
    with pytest.raises(DataError, match=message):
        open_split(data)


@pytest.mark.parametrize("value", ["image", "path=", "image=path", "path=a,path=b", "path=a,", 3])
def test_what_columns_are_not(value):
    assert not is_columns(value)


def test_beside_labels_a_column_called_target_is_one_of_the_others(write, data):
    write("path,label,target\na.jpg,dog,1\nb.jpg,cat,none\n")
    source = open_split(data)
    assert (source.class_names, source.numeric) == (("cat", "dog"), False)
    assert labels(source) == {"a.jpg": 1, "b.jpg": 0}


@pytest.mark.parametrize(
    ("columns", "header", "names"),
    [
        ("", "path,target", ("target",)),
        ("", "path,targets", ("target_0", "target_1")),
        ("target=age", "path,age", ("age",)),
        ("targets=box", "path,box", ("box_0", "box_1")),
    ],
)
def test_what_numbers_to_predict_are_called(write, data, columns, header, names):
    cells = ("1.5;2", "3;4") if len(names) == 2 else ("1.5", "3")
    write(f"{header}\na.jpg,{cells[0]}\nb.jpg,{cells[1]}\n")
    data.columns = columns
    source = open_split(data)
    assert source.class_names == names
    found = {source.name_of(index): source.labels[index].tolist() for index in range(2)}
    assert found == {"a.jpg": [1.5, 2][: len(names)], "b.jpg": [3, 4][: len(names)]}


def test_a_list_that_cannot_be_read(write, data, monkeypatch):
    path = write("path,label\n1.jpg,a\n2.jpg,b\n")

    def refuse(file):
        raise PermissionError(13, "Permission denied", file)

    monkeypatch.setattr("vit_jax.storage.read", refuse)
    with pytest.raises(DataError, match=rf"{path} cannot be read \(Permission denied\)"):
        open_split(data)
