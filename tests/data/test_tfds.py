"""A tiny ArrayRecord dataset, written without TensorFlow, as `tfds build` would leave it."""

import io
import json
import pickle
import sys

import numpy as np
import pytest
from array_record.python.array_record_module import ArrayRecordWriter
from PIL import Image

from vit_jax.data.decoding import decode
from vit_jax.data.sources import open_source
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
    ).SerializeToString()


def write_dataset(root, file_format="array_record", label_key="label"):
    folder = root / "tiny" / "1.0.0"
    folder.mkdir(parents=True)
    features = {
        "image": tfds.features.Image(shape=(None, None, 3)),
        label_key: tfds.features.ClassLabel(names=["cat", "dog"]),
        "label_x_position": tfds.features.ClassLabel(num_classes=32),
        "objects": tfds.features.Sequence(
            {"pixel_coords": tfds.features.Tensor(shape=(3,), dtype=np.float32)}
        ),
        "file_name": tfds.features.Text(),
    }
    tfds.features.FeaturesDict(features).save_config(folder)
    for split, size in SIZES.items():
        path = folder / f"tiny-{split}.{file_format}-00000-of-00001"
        writer = ArrayRecordWriter(str(path), "group_size:1")
        for index in range(size):
            values = {"image": png(10 * index), label_key: index % 2, "file_name": b"x"}
            values["label_x_position"] = 3 * index
            values["objects/pixel_coords"] = [1.0, 2.0, 9.2] * (3 + index)
            writer.write(serialized_example(**values))
        writer.close()
    info = {
        "name": "tiny",
        "version": "1.0.0",
        "fileFormat": file_format,
        "splits": [
            {
                "name": split,
                "shardLengths": [str(size)],
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
            }
            for split, size in SIZES.items()
        ],
    }
    (folder / "dataset_info.json").write_text(json.dumps(info))


def open_split(data, split="train", num_classes=0):
    return open_source(data, split, image_size=(4, 4), channels=3, num_classes=num_classes)


@pytest.fixture
def tiny(tmp_path, data):
    write_dataset(tmp_path)
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
    source = pickle.loads(pickle.dumps(open_split(tiny)))
    assert [source[index].label for index in range(5)] == labels
    assert source.class_names == tuple(map(str, range(num_classes)))
    image = decode(source[1].image, 3)
    # Dsprites stores its pixels as 0 and 1.
    assert (image == (10 * 255 % 256 if label.startswith("dsprites") else 10)).all()


def test_splits(tiny):
    assert open_split(tiny, "")[0].name == "validation/0"
    part = open_split(tiny, "train[-2:]+test")
    assert [part[index].name for index in range(4)] == ["train/3", "train/4", "test/0", "test/1"]
    with pytest.raises(DataError, match=r"no split 'dev'.*train, validation, test"):
        open_split(tiny, "dev")


def test_a_version_may_be_named(tiny):
    tiny.source = "tfds:tiny:1.0.0"
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


def test_tfrecord_says_how_to_convert(tmp_path, data):
    write_dataset(tmp_path, "tfrecord")
    data.source, data.data_dir = "tfds:tiny", str(tmp_path)
    with pytest.raises(DataError, match=r"stored as tfrecord.*tfds convert_format"):
        open_split(data)


def test_other_tasks_are_refused(tmp_path, data):
    write_dataset(tmp_path, label_key="kind")
    data.source, data.data_dir = "tfds:tiny", str(tmp_path)
    with pytest.raises(DataError, match=r"has no feature label, only .*kind"):
        open_split(data)
