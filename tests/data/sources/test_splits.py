import dataclasses
import pickle
import re

import pytest

from vit_jax.data.sources.examples import Example, Source
from vit_jax.data.sources.registry import open_source
from vit_jax.data.sources.split_expressions import open_split
from vit_jax.data.sources.splits import select_classes
from vit_jax.errors import ConfigError, DataError


@dataclasses.dataclass(frozen=True)
class Numbers(Source):
    split: str
    size: int
    class_names = ("even", "odd")

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return Example(b"", index % 2, f"{self.split}/{index}")


SPLITS = {
    name: lambda name=name, size=size: Numbers(name, size)
    for name, size in (("train", 205), ("test", 10))
}


def names(split):
    source = open_split(SPLITS, split, "fake")
    return [source[index].name for index in range(len(source))]


def numbers(split):
    return [int(name.removeprefix("train/")) for name in names(split)]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train", range(205)),
        ("train[:98%]", range(201)),  # 200.9 rounds to 201.
        ("train[98%:]", range(201, 205)),
        ("train[10%:20%]", range(20, 41)),  # 20.5 rounds half to even, as in TFDS.
        ("train[-10%:]", range(185, 205)),  # -20.5 rounds to -20.
        ("train[0.5%:1.5%]", range(1, 3)),
        ("train[:100]", range(100)),
        ("train[:205]", range(205)),
        ("train[-205:100%]", range(205)),
        ("train[-5:]", range(200, 205)),
        ("train[200:-2]", range(200, 203)),
        ("train[:1_0]", range(10)),
        ("train[:3]+train[2:5]", [0, 1, 2, 2, 3, 4]),
        ("train[:3] + train[203:]", [0, 1, 2, 203, 204]),
    ],
)
def test_parts(split, expected):
    assert numbers(split) == list(expected)


@pytest.mark.parametrize("percent", range(0, 101, 7))
def test_percent_boundaries_equal_tfds(percent):
    tfds = pytest.importorskip("tensorflow_datasets")
    info = tfds.core.SplitInfo(
        name="train",
        shard_lengths=[205],
        num_bytes=0,
        filename_template=tfds.core.ShardedFileTemplate(
            data_dir="/", dataset_name="x", split="train", filetype_suffix="array_record"
        ),
    )
    instruction = tfds.core.ReadInstruction("train", from_=percent, unit="%")
    (absolute,) = instruction.to_absolute({"train": info})
    expected = list(range(absolute.from_ or 0, 205))
    if expected:
        assert numbers(f"train[{percent}%:]") == expected


def test_a_sum_may_join_different_splits():
    assert names("train[203:]+test[:1]") == ["train/203", "train/204", "test/0"]


def test_the_empty_split_is_the_evaluation_split():
    assert names("") == [f"test/{index}" for index in range(10)]


def test_an_index_past_the_end_is_an_error():
    with pytest.raises(IndexError):
        open_split(SPLITS, "test[:4]", "fake")[4]


@pytest.mark.parametrize("split", ["train[", "train[5]", "train[:1.5]", "train[:]+", "train[a:b]"])
def test_malformed(split):
    if split == "train[:]+":
        with pytest.raises(ConfigError, match=r"cannot read ''"):
            names(split)
    else:
        with pytest.raises(ConfigError, match="train"):
            names(split)


def test_unknown_split_names_those_there_are():
    with pytest.raises(DataError, match=r"no split 'valid' .*there are train, test"):
        names("valid[:10]")


@pytest.mark.parametrize(
    ("split", "boundary"), [("test[:11]", "11"), ("test[-11:]", "-11"), ("test[:110%]", "110%")]
)
def test_boundaries_outside(split, boundary):
    message = f"Split {split!r}: {boundary} lies outside its 10 examples"
    with pytest.raises(DataError, match=re.escape(message)):
        names(split)


@pytest.mark.parametrize("split", ["test[5:5]", "test[:0%]", "test[6:2]"])
def test_nothing_left(split):
    message = f"Split {split!r} of fake holds no examples"
    with pytest.raises(DataError, match=re.escape(message)):
        names(split)


def test_selected_classes_are_labelled_in_the_order_given():
    selected = select_classes(Numbers("train", 7), ("odd",), "here")
    assert selected.class_names == ("odd",)
    assert [selected[i].name for i in range(len(selected))] == ["train/1", "train/3", "train/5"]
    assert {selected[i].label for i in range(len(selected))} == {0}
    swapped = pickle.loads(pickle.dumps(select_classes(Numbers("train", 5), ("odd", "even"), "x")))
    assert [swapped[i].label for i in range(5)] == [1, 0, 1, 0, 1]


def test_slices_count_selected_classes_only(data):
    data.source, data.classes = "digits", ("7", "1", "3")
    source = open_source(data, "train[:20]", image_size=(8, 8), channels=1, num_classes=0)
    everything = data.copy_and_resolve_references()
    everything.classes = ()
    train = open_source(everything, "train", image_size=(8, 8), channels=1, num_classes=0)
    expected = [
        (example.name, (7, 1, 3).index(example.label))
        for example in (train[index] for index in range(len(train)))
        if example.label in (7, 1, 3)
    ]
    assert [(source[i].name, source[i].label) for i in range(20)] == expected[:20]
    assert source.class_names == ("7", "1", "3")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (("even", "evil"), "'evil' is none of the 2 classes of here; the nearest: even"),
        (("odd", "odd"), "'odd' is named twice"),
    ],
)
def test_unknown_classes_are_refused(classes, message):
    with pytest.raises(DataError, match=message):
        select_classes(Numbers("train", 5), classes, "here")
