"""A tiny dataset, as `tfds build` would leave it, written without TensorFlow in both formats."""

import io
import json
import os
import pickle
import struct
import sys
import uuid

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image
from tensorboardX.record_writer import masked_crc32c

from tests.calls import recorded
from vit_jax.data.images.picture import decode
from vit_jax.data.sources import tfds as tfds_source
from vit_jax.data.sources.registry import open_source
from vit_jax.errors import DataError

tfds = pytest.importorskip("tensorflow_datasets")

SIZES = {"train": 5, "validation": 3, "test": 2}


def png(value):
    file = io.BytesIO()
    Image.fromarray(np.full((4, 6, 3), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def serialized_example(**values):
    from tensorflow_datasets.proto import tf_example_pb2, tf_feature_pb2

    def feature(value):
        if isinstance(value, bytes):
            return tf_feature_pb2.Feature(bytes_list=tf_feature_pb2.BytesList(value=[value]))
        if isinstance(value, list):
            return tf_feature_pb2.Feature(float_list=tf_feature_pb2.FloatList(value=value))
        return tf_feature_pb2.Feature(int64_list=tf_feature_pb2.Int64List(value=[value]))

    features = {key: feature(value) for key, value in values.items()}
    return tf_example_pb2.Example(
        features=tf_feature_pb2.Features(feature=features)
    ).SerializeToString(deterministic=True)


def examples(split, label_key):
    for index in range(SIZES[split]):
        values = {"image": png(10 * index), label_key: index % 2, "file_name": b"x"}
        values["label_x_position"] = 3 * index
        values["number"] = index - 1
        values["objects/pixel_coords"] = [1.0, 2.0, 9.2] * (3 + index)
        yield serialized_example(**values)


def write_array_record(path, records):
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def write_tfrecord(path, records):
    with open(path, "wb") as file:
        for record in records:
            length = struct.pack("<Q", len(record))
            file.write(length + struct.pack("<I", masked_crc32c(length)))
            file.write(record + struct.pack("<I", masked_crc32c(record)))


WRITERS = {
    "array_record": write_array_record,
    "tfrecord": write_tfrecord,
    "riegeli": write_tfrecord,
}


def write_dataset(root, file_format="array_record", label_key="label", num_shards=1):
    folder = root / "tiny" / "1.0.0"
    folder.mkdir(parents=True)
    features = {
        "image": tfds.features.Image(shape=(None, None, 3)),
        label_key: tfds.features.ClassLabel(names=["cat", "dog"]),
        "label_x_position": tfds.features.ClassLabel(num_classes=32),
        "number": tfds.features.Scalar(np.int64),
        "objects": tfds.features.Sequence(
            {"pixel_coords": tfds.features.Tensor(shape=(3,), dtype=np.float32)}
        ),
        "file_name": tfds.features.Text(),
    }
    tfds.features.FeaturesDict(features).save_config(folder)
    lengths = {}
    for split in SIZES:
        shards = np.array_split(np.array(list(examples(split, label_key)), object), num_shards)
        lengths[split] = [str(len(shard)) for shard in shards]
        for number, shard in enumerate(shards):
            name = f"tiny-{split}.{file_format}-{number:05}-of-{num_shards:05}"
            WRITERS[file_format](folder / name, shard)
    info = {
        "name": "tiny",
        "version": "1.0.0",
        "fileFormat": file_format,
        "splits": [
            {
                "name": split,
                "shardLengths": lengths[split],
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
            for split in SIZES
        ],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))
    return folder


def open_split(data, split="train", num_classes=0):
    return open_source(data, split, image_size=(4, 4), channels=3, num_classes=num_classes)


@pytest.fixture(params=["array_record", "tfrecord"])
def tiny(tmp_path, data, request):
    write_dataset(tmp_path, request.param, num_shards=2)
    data.source, data.data_dir = "tfds:tiny", str(tmp_path)
    return data


def test_examples(tiny):
    source = open_split(tiny)
    assert len(source) == 5
    assert source.class_names == ("cat", "dog")
    assert source[3][1:] == (1, "train/3")
    image = source[3].image
    assert isinstance(image, bytes)  # Still encoded.
    assert (decode(image, 3) == 30).all()
    assert "tensorflow" not in sys.modules
    assert not source.remote


@pytest.mark.parametrize(
    ("label", "labels", "num_classes"),
    [
        ("label_x_position", [0, 3, 6, 9, 12], 32),
        ("dsprites_location", [0, 1, 3, 4, 6], 16),
        ("clevr_count", [0, 1, 2, 3, 4], 8),
        ("clevr_distance", [3, 3, 3, 3, 3], 6),
    ],
)
def test_other_labels(tiny, label, labels, num_classes):
    tiny.label = label
    source = pickle.loads(pickle.dumps(open_split(tiny, num_classes=99)))  # Of the model's head.
    assert [source[index].label for index in range(5)] == labels
    assert source.class_names == tuple(map(str, range(num_classes)))
    if label != "label_x_position":  # Its feature says 32, but no names of them.
        assert len(open_split(tiny).class_names) == num_classes
    image = decode(source[1].image, 3)
    # Dsprites stores its pixels as 0 and 1.
    assert (image == (10 * 255 % 256 if label.startswith("dsprites") else 10)).all()


def test_labels_that_are_no_class_are_named(tiny):
    tiny.label = "number"
    found = list(open_split(tiny, num_classes=3).fetch(range(5)))
    assert [example.label for example in found[1:4]] == [0, 1, 2]
    for index, label in ((0, -1), (4, 3)):
        assert f"train/{index}: its label is {label}, none of the 3 classes" in str(found[index])


def test_splits(tiny):
    assert open_split(tiny, "")[0].name == "validation/0"
    part = open_split(tiny, "train[-2:]+test")
    assert [part[index].name for index in range(4)] == ["train/3", "train/4", "test/0", "test/1"]
    with pytest.raises(DataError, match=r"no split 'dev'.*train, validation, test"):
        open_split(tiny, "dev")


def test_a_version_may_be_named(tiny):
    for version in ("1.0.0", "1.*.*"):
        tiny.source = f"tfds:tiny:{version}"
        assert len(open_split(tiny)) == 5


def test_picklable(tiny):
    source = pickle.loads(pickle.dumps(open_split(tiny)))
    assert source[4][1:] == (0, "train/4")


@pytest.mark.parametrize("name", ["missing", "tiny:other_config", "tiny:2.0.0", "mnist"])
def test_not_prepared(tiny, name, tmp_path):
    tiny.source = f"tfds:{name}"
    with pytest.raises(DataError) as caught:
        open_split(tiny)
    message = str(caught.value)
    assert name.partition(":")[0] in message
    assert str(tmp_path) in message
    assert "tfds build" in message
    assert "--file_format=array_record" in message
    assert "--config.data.source=folder:DIR" in message


def test_other_formats_say_how_to_convert(tmp_path, data):
    write_dataset(tmp_path, "riegeli")
    data.source, data.data_dir = "tfds:tiny", str(tmp_path)
    folder = rf"--dataset_version_dir={tmp_path}/tiny/1.0.0"
    message = rf"stored as riegeli;.* tfds convert_format {folder} --out_file_format=array_record$"
    with pytest.raises(DataError, match=message):
        open_split(data)


@pytest.mark.parametrize("num_shards", [1, 3, 7])  # Seven: some are empty.
def test_both_formats_hold_the_same(tmp_path, data, num_shards):
    data.source, copies = "tfds:tiny", []
    for file_format in ("array_record", "tfrecord"):
        write_dataset(tmp_path / file_format, file_format, num_shards=num_shards)
        data.data_dir = str(tmp_path / file_format)
        copies.append([list(open_split(data, split).fetch(range(SIZES[split]))) for split in SIZES])
    assert copies[0] == copies[1]


@pytest.fixture
def store(monkeypatch):
    """Puts a folder into memory; the URL, which begins with s3:// because TFDS knows that."""

    class Store(MemoryFileSystem):
        protocol = "s3"

        @classmethod
        def _strip_protocol(cls, path):
            return MemoryFileSystem._strip_protocol(path.replace("s3://", "memory://"))

    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "s3", Store)

    def put(folder):
        url = f"s3://{uuid.uuid4().hex}"
        Store().put(str(folder), url, recursive=True)
        return url

    return put


def test_tfrecord_by_url(tmp_path, data, store):
    write_dataset(tmp_path, "tfrecord", num_shards=2)
    data.source, data.data_dir = "tfds:tiny", store(tmp_path)
    remote = open_split(data)
    assert remote.remote
    data.data_dir = str(tmp_path)
    assert list(remote.fetch([4, 0, 3])) == list(open_split(data).fetch([4, 0, 3]))


def test_array_record_by_url_says_what_can_be_done(tmp_path, data, store):
    write_dataset(tmp_path, "array_record")
    data.source, data.data_dir = "tfds:tiny", store(tmp_path)
    with pytest.raises(DataError, match=r"mounted folders.*--out_file_format=tfrecord"):
        open_split(data)


def test_a_damaged_array_record(tmp_path, data):
    folder = write_dataset(tmp_path, "array_record")
    path = folder / "tiny-train.array_record-00000-of-00001"
    content = bytearray(path.read_bytes())
    content[150:260] = b"\xff" * 110
    path.write_bytes(content)
    data.source, data.data_dir = "tfds:tiny", str(tmp_path)
    first, second = open_split(data).fetch([0, 1])
    assert "train/0 cannot be read" in str(first)
    assert second.name == "train/1"


def test_array_record_is_preferred(tmp_path, data):
    folder = write_dataset(tmp_path, "array_record")
    info = json.loads((folder / "dataset_info.json").read_text())
    info |= {"fileFormat": "tfrecord", "alternativeFileFormats": ["array_record"]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    data.source, data.data_dir = "tfds:tiny", str(tmp_path)
    assert open_split(data)[4].name == "train/4"


@pytest.fixture
def records(tmp_path, data):
    """The config and the only training shard of a dataset in TFRecord files, with its index."""
    folder = write_dataset(tmp_path, "tfrecord")
    data.source, data.data_dir = "tfds:tiny", str(tmp_path)
    data.index_dir = str(tmp_path / "index")
    return data, folder / "tiny-train.tfrecord-00000-of-00001"


def test_a_worker_process_gets_no_index(records):
    data, _ = records
    source = open_split(data)
    assert len(os.listdir(data.index_dir)) == 1
    assert data.index_dir.encode() in pickle.dumps(source)
    assert len(pickle.dumps(source)) < 1000
    assert pickle.loads(pickle.dumps(source))[3] == source[3]


def test_a_shard_with_too_few_records(records):
    data, path = records
    write_tfrecord(path, list(examples("train", "label"))[:3])
    with pytest.raises(DataError, match=r"00000-of-00001 holds 3 records, .*json says 5: copy"):
        open_split(data)


def test_a_missing_shard(records):
    data, path = records
    path.unlink()
    with pytest.raises(DataError, match=r"train.tfrecord-00000-of-00001: .*No such file"):
        open_split(data)


def test_a_shard_removed_after_indexing(records):
    data, path = records
    source = open_split(data)
    path.unlink()
    with pytest.raises(DataError, match=r"train.tfrecord-00000-of-00001 cannot be read \(No such"):
        source[0]


def test_a_damaged_record_is_named(records):
    data, path = records
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[12:16] = b"\xff" * 4
    path.write_bytes(damaged)
    source = open_split(data)
    with pytest.raises(DataError, match=r"tfrecord-00000-of-00001, byte 0: the record is damaged"):
        source[0]
    assert source[1].label == 1
    assert isinstance(next(source.fetch([0, 1])), DataError)


NO_EXAMPLES = (b"\xff" * 9, serialized_example(label=1), serialized_example(image=3, label=1))


@pytest.mark.parametrize("record", NO_EXAMPLES)
def test_a_whole_record_that_is_no_example_is_named(records, record):
    data, path = records
    write_tfrecord(path, [record, *list(examples("train", "label"))[1:]])
    source = open_split(data)
    with pytest.raises(DataError, match=r"train/0: its record is damaged"):
        source[0]
    assert source[1].label == 1


@pytest.mark.parametrize("split", ["train", ""])
def test_a_damaged_description_is_named(tiny, tmp_path, split):
    path = tmp_path / "tiny" / "1.0.0" / "dataset_info.json"
    text = path.read_text()
    path.write_text(text.replace('"name": "tiny"', '"name": ""'))
    with pytest.raises(DataError, match=r"tiny.1\.0\.0 cannot be opened .*dataset_info\.json"):
        open_split(tiny, split)


def test_other_tasks_are_refused(tmp_path, data):
    write_dataset(tmp_path, label_key="kind")
    data.source, data.data_dir = "tfds:tiny", str(tmp_path)
    with pytest.raises(DataError, match=r"has no feature label, only .*kind"):
        open_split(data)
    data.label = "dsprites_orientation"
    with pytest.raises(DataError, match=r"tiny has no feature label_orientation, only .*kind"):
        open_split(data)
    data.label = "number"
    with pytest.raises(DataError, match=r"tiny does not say how many classes it has: set --config"):
        open_split(data)
    assert open_split(data, num_classes=3).class_names == ("0", "1", "2")


def test_a_folder_that_does_not_answer_is_told_before_it_is_searched(data, monkeypatch):
    asked = recorded(monkeypatch, tfds_source.storage, "probe", True)
    monkeypatch.setattr(tfds_source, "_find_builder", lambda name, folder: 1 / 0)
    data.source, data.data_dir = "tfds:tiny", "s3://b/data"
    with pytest.raises(ZeroDivisionError):
        open_split(data)
    assert [given for given, _ in asked] == [("s3://b/data", "config.data.data_dir")]
    data.data_dir = ""  # Of TFDS's own.
    with pytest.raises(ZeroDivisionError):
        open_split(data)
    assert len(asked) == 1
