import io
import json
import pickle
import uuid

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.data.example_sources import loading
from vit_jax import storage
from vit_jax.data.loading import pipeline
from vit_jax.data.sources import parquet_values
from vit_jax.data.sources.parquet_pages import read_runs, read_struct
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import ConfigError, DataError

NAMES = ["airplane", "car", "bird"]


def png(value):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


IMAGE = {"_type": "Image"}
CLASS = {"names": NAMES, "_type": "ClassLabel"}


def features(**columns):
    """The schema's metadata as Hugging Face's `datasets` writes it."""
    return {"huggingface": json.dumps({"info": {"features": columns}})}


def rows(images, **columns):
    """A table as the Hub has it: the image's file and its name in one column."""
    values = [{"bytes": image, "path": f"{number}.png"} for number, image in enumerate(images)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.table({"image": pa.array(values, kind), **columns})


def labelled(images, labels):
    table = rows(images, label=pa.array(labels, pa.int64()))
    return table.replace_schema_metadata(features(image=IMAGE, label=CLASS))


@pytest.fixture(params=["memory", "pages"])
def held(request, monkeypatch):
    """Both ways of reading a column, whatever its size."""
    if request.param == "pages":
        monkeypatch.setattr(parquet_values, "IN_MEMORY", -1)
    return request.param


@pytest.fixture(params=["local", "remote"])
def write(request, tmp_path, data):
    """Writes tables, which become the source."""
    root = str(tmp_path / "hub") if request.param == "local" else f"memory://{uuid.uuid4().hex}"
    data.source, data.index_dir = f"parquet:{root}", str(tmp_path / "index")

    def write(tables, **options):
        for name, table in tables.items():
            content = io.BytesIO()
            pq.write_table(table, content, **options)
            filesystem, path = fsspec.core.url_to_fs(storage.join(root, name))
            filesystem.makedirs(path.rpartition("/")[0], exist_ok=True)
            filesystem.pipe_file(path, content.getvalue())
        return root

    return write


def open_split(data, split="train", num_classes=0):
    return open_source(data, split, image_size=(4, 4), channels=3, num_classes=num_classes)


def test_examples(write, data, held):
    write(
        {
            "data/train-00000-of-00002.parquet": labelled([png(0), png(1), png(2)], [2, 0, 1]),
            "data/train-00001-of-00002.parquet": labelled([png(3)], [0]),
            "data/test-00000-of-00001.parquet": labelled([png(4)], [1]),
        }
    )
    source = open_split(data)
    assert source.class_names == tuple(NAMES)
    assert source.labels.tolist() == [2, 0, 1, 0]
    first = "data/train-00000-of-00002.parquet"
    assert [example[1:] for example in source.fetch([2, 0, 3, 2])] == [
        (1, f"{first}/2"),
        (2, f"{first}/0"),
        (0, "data/train-00001-of-00002.parquet/0"),
        (1, f"{first}/2"),
    ]
    assert [example.image for example in source.fetch([2, 0, 3])] == [png(2), png(0), png(3)]
    assert source.name_of(3) == "data/train-00001-of-00002.parquet/0"
    assert open_split(data, "")[0].image == png(4)
    assert open_split(data, "train[1:3]+test")[2].image == png(4)
    copy = pickle.loads(pickle.dumps(source))
    assert copy[1] == source[1]
    with pytest.raises(IndexError):
        source.name_of(4)


LARGE = [bytes([number]) * (1000 + 37 * number) for number in range(40)]


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "gzip"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("by_dictionary", [False, True])
def test_every_kind_of_page_gives_the_same_values(
    tmp_path, data, monkeypatch, compression, version, by_dictionary
):
    """What PyArrow reads of a file is what the pages are: null values and repeated ones, too."""
    monkeypatch.setattr(parquet_values, "IN_MEMORY", -1)
    images = [*LARGE, None, *LARGE[::-3], None, None, LARGE[7]]
    table = rows(images, label=pa.array(range(len(images))))
    pq.write_table(
        table,
        tmp_path / "train.parquet",
        row_group_size=19,
        data_page_size=4096,
        write_batch_size=3,
        compression=compression,
        data_page_version=version,
        use_dictionary=by_dictionary,
    )
    data.source = f"parquet:{tmp_path}/train.parquet"
    data.held_out_fraction = 0.0
    source = open_split(data)
    order = np.random.default_rng(0).permutation(len(images)).tolist()
    for index, example in zip(order, source.fetch(order), strict=True):
        if images[index] is None:
            assert f"train.parquet: row {index} has no image" in str(example)
        else:
            assert example.image == images[index]


def test_one_image_is_read_alone_where_it_is_not_compressed(tmp_path, data, monkeypatch):
    monkeypatch.setattr(parquet_values, "IN_MEMORY", -1)
    path = tmp_path / "train.parquet"
    pq.write_table(labelled(LARGE, [0, 1] * 20), path, compression="none", use_dictionary=False)
    data.source, data.held_out_fraction = f"parquet:{path}", 0.0
    source, asked = open_split(data), []
    read = storage.read
    monkeypatch.setattr(
        storage,
        "read",
        lambda path, start, stop: asked.append(stop - start) or read(path, start, stop),
    )
    assert source[5].image == LARGE[5]
    assert asked == [len(LARGE[5]) + 4]


def test_packed_and_repeated_numbers():
    """The example of the format's documentation, 0 to 7 by 3 bits, and a run of 300 twos."""
    packed = bytes([0b00000011, 0b10001000, 0b11000110, 0b11111010])
    repeated = bytes([0b11011000, 0b00000100, 2])  # 300 << 1
    assert read_runs(packed + repeated, 3, 308).tolist() == [*range(8), *[2] * 300]
    wide = bytes([5 << 1, 0x2C, 0x01, 2 << 1, 7, 0])  # Two bytes a number: 300 and 7.
    assert read_runs(wide, 9, 7).tolist() == [*[300] * 5, 7, 7]
    assert read_runs(b"", 0, 3).tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("labels", "names", "numbers"),
    [
        (pa.array(["b", "a10", "a9"]), ("a9", "a10", "b"), [2, 1, 0]),
        (pa.array(["b", "a", "b"]).dictionary_encode(), ("a", "b"), [1, 0, 1]),
        (pa.array([2, 0, 2], pa.uint8()), ("0", "1", "2"), [2, 0, 2]),
        (pa.array([True, False, True]), ("0", "1"), [1, 0, 1]),
    ],
)
def test_labels(tmp_path, data, labels, names, numbers):
    pq.write_table(rows([png(1)] * 3, label=labels), tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    source = open_split(data)
    assert (source.class_names, source.labels.tolist()) == (names, numbers)
    numeric = names[0] == "0"
    counts = [len(open_split(data, num_classes=count).class_names) for count in (1, 7)]
    assert counts == [len(names), 7 if numeric else len(names)]


@pytest.mark.parametrize("labels", [[["x", "y"], [], ["y"]], [[0, 1], [], [1]]])
def test_lists_of_labels(tmp_path, data, labels):
    pq.write_table(rows([png(1)] * 3, labels=pa.array(labels)), tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    source = open_split(data)
    assert source.multi_label
    assert [source[row].label.tolist() for row in range(3)] == [[1, 1], [0, 0], [0, 1]]


@pytest.mark.parametrize("kind", [{"feature": CLASS, "_type": "List"}, [CLASS]])
def test_lists_of_named_classes(tmp_path, data, kind):
    table = rows([png(1)] * 2, tags=pa.array([[2], [0, 1]]))
    table = table.replace_schema_metadata(features(image=IMAGE, tags=kind))
    pq.write_table(table, tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    source = open_split(data)
    assert (source.class_names, source[1].label.tolist()) == (tuple(NAMES), [1, 1, 0])


def test_columns_of_other_names(tmp_path, data):
    """Two columns of labels: the message asks, and `data.columns` answers, inside structs too."""
    table = pa.table(
        {
            "scan": [png(1), png(2)],
            "fine": [1, 0],
            "more": pa.array([{"coarse": "x", "in": {"to": 2}}, {"coarse": "y", "in": {"to": 0}}]),
        }
    )
    pq.write_table(table, tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    with pytest.raises(DataError, match=r"which column is the image\? .*scan, fine, more"):
        open_split(data)
    data.columns = "path=scan,label=more.coarse"
    assert open_split(data)[1][:2] == (png(2), 1)
    data.columns = "path=scan,labels=more.in.to"
    assert open_split(data).labels.tolist() == [2, 0]
    data.columns = "path=scan,label=nothing"
    with pytest.raises(DataError, match="no column nothing; there are scan, fine, more"):
        open_split(data)
    data.columns = "path=fine,label=fine"
    with pytest.raises(DataError, match="column fine is int64; expected the bytes"):
        open_split(data)
    data.columns = "path=scan,label=fine,split=set"
    with pytest.raises(ConfigError, match="the splits of Parquet files go by"):
        open_split(data)
    for kind in ("target", "targets"):
        data.columns = f"path=scan,{kind}=fine"
        with pytest.raises(ConfigError, match=f": {kind} is of manifests; name path and label"):
            open_split(data)


@pytest.mark.parametrize("with_statistics", [False, True])
def test_a_row_without_bytes_does_not_make_paths_of_all(tmp_path, data, with_statistics):
    table = rows([png(1), None, png(2)], label=pa.array([0, 1, 1]))
    pq.write_table(table, tmp_path / "train-0.parquet", write_statistics=with_statistics)
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    source = open_split(data)
    first, lacking, last = source.fetch([0, 1, 2])
    assert (first.image, last.image) == (png(1), png(2))
    assert "row 1 has no image" in str(lacking)


@pytest.mark.parametrize("as_struct", [False, True])
def test_paths_instead_of_bytes(tmp_path, data, as_struct):
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(png(7))
    names = ["images/a.png", "images/gone.png"]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    structs = pa.array([{"bytes": None, "path": name} for name in names], kind)
    table = pa.table({"image": structs if as_struct else names, "label": [0, 1]})
    pq.write_table(table, tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    found, gone = open_split(data).fetch([0, 1])
    assert found.image == png(7)
    assert "gone.png cannot be read" in str(gone)


def test_a_path_of_a_protocol_that_is_not_allowed(tmp_path, data):
    table = pa.table({"image": ["ftp://host/a.png"], "label": [0]})
    pq.write_table(table, tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    message = (
        "row 0 has a URL of 'ftp' in column image; expected an image file, or a URL of gs, s3, http"
    )
    with pytest.raises(DataError, match=message):
        open_split(data)


@pytest.mark.parametrize(
    ("files", "splits"),
    [
        (["default/train/0000.parquet", "default/test/0000.parquet"], ["train", "test"]),
        (["extra-00000-of-00001-0a1b2c.parquet", "train-00000-of-00001.parquet"], ["extra"]),
        (["test_mini-00000-of-00001.parquet", "test-00000-of-00001.parquet"], ["test_mini"]),
        (["c/partial-train/0000.parquet", "c/partial-validation/0000.parquet"], ["validation"]),
        (["flowers.parquet"], ["train", "validation"]),
        (["my_val_set.parquet", "my_train_set.parquet"], ["val", "train"]),
    ],
)
def test_splits_by_the_files_names(tmp_path, data, files, splits):
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(labelled([png(1)] * 3, [0, 1, 0]), tmp_path / name)
    # Folders in folders are searched for one level, as those of tar shards.
    data.source = f"parquet:{tmp_path}" if "/" not in files[0] else f"parquet:{tmp_path}/*/*/*"
    for split in splits:
        assert open_split(data, split).class_names == tuple(NAMES)


def test_missing_files_are_counted(write, data, caplog):
    write({"train-00001-of-00004.parquet": labelled([png(1)] * 3, [0, 1, 1])})
    open_split(data)
    assert "train: of its 4 files 3 are missing, the first is 00000" in caplog.text


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, -1], "row 1 has the label -1, none of the 3 classes, airplane, car, bird; a split"),
        ([3, 0], "row 0 has the label 3, none of the 3 classes"),
        ([0, None], r"train-0\.parquet: row 1 has no label in column label"),
    ],
)
def test_labels_that_are_none(tmp_path, data, labels, message):
    pq.write_table(labelled([png(1)] * 2, labels), tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    with pytest.raises(DataError, match=message):
        open_split(data)


def test_a_wrong_label_of_several_is_named_by_its_row(tmp_path, data):
    table = rows([png(1)] * 3, tags=pa.array([[0, 1], [2], [0, 9]]))
    kind = {"feature": CLASS, "_type": "List"}
    table = table.replace_schema_metadata(features(image=IMAGE, tags=kind))
    pq.write_table(table, tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    with pytest.raises(DataError, match="row 2 has the label 9"):
        open_split(data)


@pytest.mark.parametrize(
    ("later", "message"),
    [
        ({"more": [1, 2]}, "train-1.parquet has no column label; there are image, more"),
        ({"label": ["a", "b"]}, "column label is string, but int64 in .*train-0.parquet"),
        ({"label": [[0], [1]]}, "column label is list<.*>, but int64 in .*train-0.parquet"),
        ({"label": [0.5, 1.0]}, "train-1.parquet: column label is double; expected whole numbers"),
        (
            {"label": pa.array([0, None, None], pa.int64())},
            "train-1.parquet: row 1 has no label in column label",
        ),
    ],
)
def test_a_later_file_whose_labels_are_others_is_named(tmp_path, data, later, message):
    first = {"label": pa.array([0, 1], pa.int64())}
    for number, columns in enumerate((first, later)):
        count = len(next(iter(columns.values())))
        pq.write_table(rows([png(1)] * count, **columns), tmp_path / f"train-{number}.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    with pytest.raises(DataError, match=message):
        open_split(data)


@pytest.mark.parametrize("labels", [[["x"], [], [None, "y"]], [[1, 0], [0], [None, 1]]])
def test_a_list_with_a_label_that_is_none(tmp_path, data, labels):
    pq.write_table(rows([png(1)] * 3, label=pa.array(labels)), tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    with pytest.raises(
        DataError, match=r"train-0.parquet: row 2 has a label that is none in label"
    ):
        open_split(data)


def test_a_later_file_without_the_images_or_some_of_them(tmp_path, data, held):
    """Of the first file's column, whole images and single ones are absent in the second."""
    pq.write_table(rows([png(1), png(2)], label=[0, 1]), tmp_path / "train-0.parquet")
    images = [png(3), None, png(4)]
    pq.write_table(rows(images, label=[1, 1, 0]), tmp_path / "train-1.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    found = list(open_split(data).fetch([3, 4, 1]))
    assert str(found[0]) == f"{tmp_path}/train-1.parquet: row 1 has no image"
    assert [(each.image, each.label) for each in found[1:]] == [(png(4), 0), (png(2), 1)]
    absent = pa.table({"picture": [png(3)], "label": [1]})
    pq.write_table(absent, tmp_path / "train-1.parquet")
    with pytest.raises(DataError, match=r"train-1\.parquet has no column image\.bytes"):
        open_split(data)


@pytest.mark.parametrize("images", [[7], [[b"b"]]], ids=["numbers", "lists"])
def test_a_later_file_whose_images_are_of_another_kind(tmp_path, data, monkeypatch, images):
    monkeypatch.setattr(parquet_values, "IN_MEMORY", -1)
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    pq.write_table(pa.table({"image": [b"a"], "label": [0]}), tmp_path / "train-0.parquet")
    other = pa.table({"image": images, "label": [1]})
    pq.write_table(other, tmp_path / "train-1.parquet")
    with pytest.raises(DataError, match=r"train-1\.parquet: column image holds no bytes of one im"):
        open_split(data)


@pytest.mark.parametrize("lacking", [None, ""])
def test_a_row_without_a_path_is_named(tmp_path, data, lacking):
    for number, names in enumerate((["a.png", "b.png"], ["c.png", lacking])):
        table = pa.table({"image": pa.array(names, pa.string()), "label": [0, 1]})
        pq.write_table(table, tmp_path / f"train-{number}.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    with pytest.raises(DataError, match=r"train-1.parquet: row 1 has no path in column image; exp"):
        open_split(data)


def test_a_class_that_the_training_split_lacks(tmp_path, data):
    for split, labels in (("train", ["a", "b"]), ("test", ["a", "c"])):
        pq.write_table(rows([png(1)] * 2, label=labels), tmp_path / f"{split}-0.parquet")
    data.source = f"parquet:{tmp_path}"
    with pytest.raises(DataError, match="lacks: c; the training split has a, b"):
        open_split(data, "test")


def test_a_file_that_is_none(write, data, tmp_path):
    root = write({"train-0.parquet": labelled([png(1)], [0])})
    path = storage.join(root, "train-1.parquet")
    filesystem, where = fsspec.core.url_to_fs(path)
    filesystem.pipe_file(where, b"something else entirely")
    with pytest.raises(DataError, match=r"train-1\.parquet cannot be read as a Parquet file"):
        open_split(data)


def test_a_file_that_changed_since_it_was_indexed(tmp_path, data, monkeypatch):
    monkeypatch.setattr(parquet_values, "IN_MEMORY", -1)
    path = tmp_path / "train-0.parquet"
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    for options in ({"compression": "none", "use_dictionary": False}, {"compression": "zstd"}):
        pq.write_table(labelled(LARGE, [0, 1] * 20), path, **options)
        source = open_split(data)
        path.write_bytes(bytes(path.stat().st_size))
        (failure,) = source.fetch([3])
        assert "it has changed since it was indexed" in str(failure)


def test_large_compressed_pages_are_told(tmp_path, data, monkeypatch, caplog):
    monkeypatch.setattr(parquet_values, "IN_MEMORY", -1)
    monkeypatch.setattr(parquet_values, "_LARGE_PAGE", 1000)
    large = [bytes([number]) * 500_000 for number in range(40)]
    one_page = {"use_dictionary": False, "data_page_size": 2**30}
    pq.write_table(labelled(large, [0, 1] * 20), tmp_path / "train-0.parquet", **one_page)
    data.source = f"parquet:{tmp_path}"
    open_split(data)
    told = f"{tmp_path}/train-0.parquet and others: images lie compressed in pages of up to 20 MB, "
    assert told in caplog.text
    assert "--config.data.shuffle=blocks" in caplog.text


def test_the_same_rows_on_any_number_of_processes_and_after_a_resume(write, data, held):
    """Two processes' halves of batches, and a start in the middle, are what one process reads."""
    write({"train-0.parquet": labelled([png(value) for value in range(24)], [0, 1, 2] * 8)})
    source = open_split(data)

    def read(rows, start):
        loaded = pipeline.host_batches(
            loading(source, _decoded, 8, seed=3, num_threads=2), rows, start, 4
        )
        return [(batch["index"].tolist(), batch["image"][:, 0, 0, 0].tolist()) for batch in loaded]

    whole = read(np.arange(8), 0)
    first, second = read(np.arange(4), 0), read(np.arange(4, 8), 0)
    joined = [
        tuple(a + b for a, b in zip(*pair, strict=True)) for pair in zip(first, second, strict=True)
    ]
    assert joined == whole
    assert read(np.arange(8), 2) == whole[2:]


def _decoded(image, rng):
    del rng
    return np.asarray(Image.open(io.BytesIO(image)))


@pytest.mark.parametrize("said", ["{", "[1]", "null", '{"info": null}', '{"info": {}}', "3"])
def test_metadata_that_says_nothing_of_columns(tmp_path, data, said):
    table = rows([png(1)] * 2, label=pa.array([1, 0])).replace_schema_metadata(
        {"huggingface": said}
    )
    pq.write_table(table, tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    assert open_split(data).class_names == ("0", "1")


@pytest.mark.parametrize(
    ("described", "found"),
    [
        (("scan", "mask"), "which column is the image.* There are scan, mask: name it with"),
        (("scan", "img"), "img"),
        (("scan",), "scan"),
        ((), "png"),
    ],
)
def test_of_several_columns_of_images_one_is_meant(tmp_path, data, described, found):
    """The usual name among those that the metadata describes; without any, among all."""
    names = ["scan", "mask", "img", "png"] if described else ["scan", "mask", "png"]
    table = pa.table({**{name: [name.encode()] for name in names}, "cls": [0]})
    table = table.replace_schema_metadata(features(**dict.fromkeys(described, IMAGE)))
    pq.write_table(table, tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    if "which" in found:
        with pytest.raises(DataError, match=rf"train-0.parquet: {found} .*columns=path=COLUMN"):
            open_split(data)
    else:
        assert open_split(data)[0].image == found.encode()


def test_the_index_of_a_large_column_is_kept(tmp_path, data, monkeypatch):
    monkeypatch.setattr(parquet_values, "IN_MEMORY", -1)
    pq.write_table(labelled([png(1)] * 2, [0, 1]), tmp_path / "train-0.parquet")
    data.source, data.index_dir = f"parquet:{tmp_path}", str(tmp_path / "index")
    open_split(data)
    assert len(list((tmp_path / "index").iterdir())) == 1


def test_a_file_without_rows_among_others(tmp_path, data, held):
    for number, labels in enumerate(([0], [], [1, 2])):
        table = labelled([png(3 + label) for label in labels], labels)
        pq.write_table(table, tmp_path / f"train-{number}.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    source = open_split(data)
    assert [example.image for example in source.fetch(range(3))] == [png(3), png(4), png(5)]
    assert source.name_of(1) == "train-2.parquet/0"


def test_what_is_just_small_enough_is_held_in_memory(tmp_path, data, monkeypatch):
    pq.write_table(labelled([png(1)] * 2, [0, 1]), tmp_path / "train-0.parquet")
    size = parquet_values._size(str(tmp_path / "train-0.parquet"), "image.bytes")
    paths = [str(tmp_path / "train-0.parquet")] * 2
    for limit, kind in (
        (2 * size, parquet_values.ColumnInMemory),
        (2 * size - 1, parquet_values.ColumnInPages),
    ):
        monkeypatch.setattr(parquet_values, "IN_MEMORY", limit)
        assert isinstance(parquet_values.open_column(paths, "image.bytes", ""), kind)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_damaged_pages_are_named(tmp_path, data, monkeypatch, compression, version):
    """Bytes of the first pages are others: most are met when the file is indexed, none is a bug."""
    monkeypatch.setattr(parquet_values, "IN_MEMORY", -1)
    path, found = tmp_path / "train-0.parquet", []
    options = {"compression": compression, "data_page_version": version, "use_dictionary": False}
    pq.write_table(labelled(LARGE, [0, 1] * 20), path, **options)
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    content = path.read_bytes()
    for start in range(4, 44):
        path.write_bytes(content[:start] + b"\xff\xff\xff" + content[start + 3 :])
        try:
            list(open_split(data).fetch(range(40)))
        except DataError as error:
            found.append(str(error))
    assert len(found) > 10
    for message in found:
        assert f"{path}" in message
    assert any("the pages of image.bytes from byte 4 on are damaged (" in each for each in found)


def test_of_many_columns_twenty_are_named(tmp_path, data):
    table = pa.table({f"c{number}": [number] for number in range(25)})
    pq.write_table(table, tmp_path / "train-0.parquet")
    data.source, data.columns = f"parquet:{tmp_path}", "path=scan"
    listed = ", ".join(f"c{number}" for number in range(20)) + ", …"
    for columns, asked in (("path=scan,label=c1", "there are"), ("label=c1", "There are")):
        data.columns = columns
        with pytest.raises(DataError, match=f"{asked} {listed}"):
            open_split(data)


def test_names_of_columns_may_have_dots(tmp_path, data, held):
    images = rows([png(3), png(4)])["image"]
    columns = {"my.scan": images, "my.tag": ["b", "a"], "tag": pa.array([{"a.b": 1}, {"a.b": 0}])}
    pq.write_table(pa.table(columns), tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    data.columns = "path=my.scan,label=my.tag"
    assert [example[:2] for example in open_split(data).fetch([1, 0])] == [(png(4), 0), (png(3), 1)]
    data.columns = "path=my.scan,label=my.tags"
    with pytest.raises(DataError, match=r"has no column my.tags; there are my.scan, my.tag, tag"):
        open_split(data)


def test_images_that_have_a_path_alone(tmp_path, data):
    (tmp_path / "a.png").write_bytes(png(7))
    table = pa.table({"image": pa.array([{"path": "a.png"}]), "label": [0]})
    pq.write_table(table, tmp_path / "train-0.parquet")
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    assert open_split(data)[0].image == png(7)


def test_long_lists_in_headers():
    """Of Thrift's compact protocol: up to 14 items are counted with their type, more after it."""
    for count in (14, 15, 200):
        size = (
            bytes([count << 4 | 5])
            if count < 15
            else b"\xf5" + bytes([count & 127 | 128, count >> 7])
        )
        items = bytes([2 * (number % 60) for number in range(count)])  # Zigzag.
        content = b"\x19" + size + items + b"\x15\x08\0more"
        fields, end = read_struct(lambda a, b, content=content: content[a:b], 0)
        assert fields == {1: [number % 60 for number in range(count)], 2: 4}
        assert end == len(content) - 4


def test_an_encoding_that_single_values_are_not_read_from(tmp_path, data, monkeypatch):
    monkeypatch.setattr(parquet_values, "IN_MEMORY", -1)
    encoding = {"column_encoding": {"image": "DELTA_LENGTH_BYTE_ARRAY"}, "use_dictionary": False}
    table = pa.table({"image": [png(1), png(2)], "label": [0, 1]})
    pq.write_table(table, tmp_path / "train-0.parquet", **encoding)
    data.source, data.held_out_fraction = f"parquet:{tmp_path}", 0.0
    message = r"train-0\.parquet: the pages from byte 4 on are in encoding 6, of which no .*column_encoding\.$"
    with pytest.raises(DataError, match=message):
        open_split(data)
    monkeypatch.setattr(parquet_values, "IN_MEMORY", 1 << 20)
    assert open_split(data)[1].image == png(2)


def test_a_column_that_cannot_be_read_is_named(tmp_path, data, monkeypatch):
    pq.write_table(labelled([png(1)], [0]), tmp_path / "train-0.parquet")
    data.source = f"parquet:{tmp_path}"
    for error in (pa.ArrowInvalid("odd"), OSError("odd")):

        def refuse(file, columns, error=error):
            raise error

        monkeypatch.setattr(pq.ParquetFile, "read", refuse)
        with pytest.raises(
            DataError, match=r"train-0.parquet: column label cannot be read \(odd\)"
        ):
            open_split(data)
