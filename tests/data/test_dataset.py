"""A run's training and evaluation data together."""

import dataclasses
import io
import tarfile

import numpy as np
import pytest

from tests import tiny
from tests.data.example_sources import Numbered
from tests.data.pictures import encode, photograph
from tests.states import mesh_of
from vit_jax.data.dataset import (
    Dataset,
    advise_on_requests,
    cache_holds,
    check_classes,
    check_size,
    open_dataset,
    train_loading,
    with_index,
)
from vit_jax.data.evaluation_data import EvaluationData
from vit_jax.data.sources.examples import Example, Source, Targets
from vit_jax.data.sources.views import Slices, Subset
from vit_jax.devices import sharding
from vit_jax.errors import DataError
from vit_jax.training.experiment import make_experiment


def write_shard(path, labels):
    """A tar shard of small photographs with these labels, as JSON."""
    with tarfile.open(path, "w") as shard:
        for index, label in enumerate(labels):
            parts = {
                "jpg": encode(photograph(8, 8), "JPEG"),
                "json": f'{{"label": {label}}}'.encode(),
            }
            for extension, content in parts.items():
                member = tarfile.TarInfo(f"{index}.{extension}")
                member.size = len(content)
                shard.addfile(member, io.BytesIO(content))


@pytest.fixture
def config(tmp_path):
    """Training images with one class each, and evaluation images with several, as ImageNet ReaL's."""
    write_shard(tmp_path / "train.tar", [0, 1, 2])
    write_shard(tmp_path / "val.tar", ["[0, 2]", "[1]"])
    config = tiny.get_config()
    config.data.source, config.model.channels = f"tar:{tmp_path}", 3
    return config


def open_splits(config):
    """Training and evaluation, as a run opens them."""
    experiment = make_experiment(config, mesh_of(1), open_dataset(config))
    return experiment.dataset, experiment.setting(config.data).data.open()


def test_what_stands_for_unreadable_examples_is_like_the_others_of_the_split(config):
    config.data.update(on_error="skip", dtype="float32")
    train, evaluation = open_splits(config)
    assert train.skipping.label == 0
    np.testing.assert_array_equal(evaluation.skipping.label, np.zeros(3))
    assert evaluation.source[0].label.shape == evaluation.skipping.label.shape
    for skipping in (train.skipping, evaluation.skipping):
        assert (skipping.image.shape, skipping.image.dtype) == ((8, 8, 3), np.float32)


def test_what_stands_for_unreadable_examples_among_other_classes_than_the_models(config):
    config.data.on_error = "skip"
    rows = sharding.batch_sharding(mesh_of(1))
    data = EvaluationData(config.data, None, (8, 8, 3), (), 10, 64, rows)
    split = data.open(own_classes=True)
    assert split.source[0].label.shape == split.skipping.label.shape == (3,)


def test_unreadable_examples_are_errors_by_default(config):
    train, evaluation = open_splits(config)
    assert train.skipping is evaluation.skipping is None


def test_more_examples_than_an_index_counts_are_refused():
    check_size("tar:x", 2**31 - 1)
    with pytest.raises(
        DataError, match=r"tar:x has 3,000,000,000 examples.* at most 2,147,483,647"
    ):
        check_size("tar:x", 3_000_000_000)


def test_the_config_says_how_training_examples_are_loaded(monkeypatch):
    monkeypatch.setattr("jax.process_count", lambda: 2)  # The batch is that of all processes.
    config = tiny.get_config()
    dataset = Dataset(Numbered(1000), None, 1000, 2, ("even", "odd"))
    positions = np.arange(100)
    plain = train_loading(config, dataset)
    assert (plain.copies, plain.batch_size, plain.num_threads, plain.num_workers) == (1, 32, 0, 0)
    config.data.update(repeated_augmentation=3, num_threads=5, num_workers=2)
    config.seed = 7
    other = train_loading(config, dataset)
    assert (other.copies, other.num_threads, other.num_workers) == (3, 5, 2)
    assert (plain.order.indices(positions) != other.order.indices(positions)).any(), "by the seed"
    config.data.shuffle = "blocks"
    runs = train_loading(config, dataset).order.indices(np.arange(960)).reshape(-1, 32)
    spread = np.ptp((runs - runs[:, :1] + 500) % 1000, axis=1)
    assert np.median(spread) < 32, "neighbours stay together"


@pytest.mark.parametrize(("limit", "count"), [(0, 1000), (300, 300), (5000, 1000)])
def test_a_plan_without_the_data_counts_what_a_run_would_train_on(limit, count):
    config = tiny.get_config()
    config.data.update(source="", num_train_examples=1000, num_classes=7, max_train_examples=limit)
    for of_model, expected in ((0, 7), (9, 9)):
        config.model.num_classes = of_model
        dataset = open_dataset(config, required=False)
        found = dataset.source, dataset.num_examples, dataset.num_classes
        assert found == (None, count, expected)


def test_a_model_may_have_more_classes_than_the_data():
    config = tiny.get_config()
    config.model.num_classes = 12
    dataset = open_dataset(config)
    assert (dataset.num_classes, len(dataset.class_names)) == (12, 10)


def test_a_plan_has_the_sizes_of_data_that_is_here_and_says_when_it_is_not(tmp_path, caplog):
    config = tiny.get_config()
    config.data.update(num_train_examples=1_281_167, num_classes=1000)
    dataset = open_dataset(config, required=False)
    assert (len(dataset.examples), dataset.num_examples, dataset.num_classes) == (1437, 1437, 10)
    assert not caplog.records

    config.data.source = f"folder:{tmp_path}/photos"
    dataset = open_dataset(config, required=False)
    assert (dataset.source, dataset.num_examples, dataset.num_classes) == (None, 1_281_167, 1000)
    assert "1,281,167 examples and 1,000 classes" in caplog.text
    assert "photos: no such folder" in caplog.text
    with pytest.raises(DataError, match="photos: no such folder"):
        open_dataset(config)
    config.data.num_classes = 0
    with pytest.raises(DataError, match="photos: no such folder"):
        open_dataset(config, required=False)


def opened_of(**values):
    """Evaluation splits of the digits, or of another source."""
    data = tiny.get_config().data
    data.update(values)
    rows = sharding.batch_sharding(mesh_of(1))
    return EvaluationData(data, None, (8, 8, 1), (), 10, 64, rows)


def test_another_source_has_its_own_evaluation_split_and_classes():
    data = opened_of(
        source="fake", eval_split="test[:50]", classes=("3", "5"), num_eval_examples=24
    )
    assert len(data.open(own_classes=True)) == 5  # Examples 3, 5, 13, 15 and 23.
    assert len(data.open("digits")) == 360
    assert len(data.open("digits", "train[:7]")) == 7
    data = opened_of(eval_split="test[:50]")
    assert (len(data.open()), len(data.open("", "train[:9]"))) == (50, 9), "the evaluator's own"


def test_what_training_leaves_out_is_left_out_of_the_runs_own_source_alone(tmp_path):
    (tmp_path / "list").write_text("train/3\n")
    data = opened_of(source="fake", max_train_examples=20, exclude=str(tmp_path / "list"))
    assert len(data.open("", "train[:30]", training=True)) == 20
    assert len(data.open("", "train[:30]")) == 30
    assert len(data.open("digits", "train", training=True)) == 1437


@pytest.mark.parametrize("several", [False, True])
def test_a_batch_is_as_the_experiment_says(several, tmp_path):
    """Programs are compiled for these shapes before the first batch is there."""
    write_shard(tmp_path / "train.tar", ["[0, 2]", "[1]", "[]", "[2]"] if several else [0, 1, 2, 2])
    config = tiny.get_config()
    config.data.source, config.model.channels, config.batch_size = f"tar:{tmp_path}", 3, 4
    config.model.image_size = (8, 12)
    config.data.held_out_fraction = 0.0
    config.objective.loss = "sigmoid"
    experiment = make_experiment(config, mesh_of(1), open_dataset(config))
    (batch,) = experiment.batches(0, 1)
    shapes = {name: (array.shape, array.dtype) for name, array in batch.items()}
    assert shapes == {name: (leaf.shape, leaf.dtype) for name, leaf in experiment.batch.items()}
    assert experiment.setting(config.data).loss == "sigmoid"


def test_a_head_with_more_classes_than_the_data_is_told(caplog):
    config = tiny.get_config()
    config.model.num_classes = 12
    open_dataset(config)
    assert "num_classes=12, and digits has 10 classes" in caplog.text
    caplog.clear()
    check_classes(config, 0, False)
    assert not caplog.text, "of no classes there is nothing to tell"


def test_means_of_targets_are_not_rounded_on_the_way():
    labels = Targets(np.float32([[2**24, 1], [1, 2], [1, 3], [1, 6]]))
    numbers = dataclasses.replace(Stored(), labels=labels)
    dataset = Dataset(numbers, None, 4, 2, ("far", "near"))
    assert dataset.means == ((2**24 + 3) / 4, 3)
    assert Dataset(Stored(), None, 4, 2, ()).means == ()


def test_an_index_dir_that_is_set_comes_first(monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    data = tiny.get_config().data
    assert with_index(data, "given").index_dir == "given"
    data.index_dir = "~/own"
    assert with_index(data, "given").index_dir == "/home/me/own"
    assert data.index_dir == "~/own"


@dataclasses.dataclass(frozen=True)
class Stored(Source):
    """100 images in a store, each a row higher than the last."""

    labels: Targets | None = None

    remote = True
    one_file_each = False

    def __len__(self):
        return 100

    def __getitem__(self, index):
        return Example(np.zeros((1 + index, 8, 3), np.uint8), 0, str(index))


class StoredFiles(Stored):
    one_file_each = True


def advice(caplog, source, **keys):
    data = tiny.get_config().data
    data.update(keys)
    caplog.clear()
    advise_on_requests(data, Subset(Slices(((source, range(100)),)), np.arange(100)))
    return caplog.text


def test_advice_on_requests_is_of_the_source_and_the_cache(caplog):
    assert "Pack them into shards" in advice(caplog, StoredFiles())
    told = advice(caplog, Stored())
    assert "digits: with data.shuffle=global each image is a request" in told
    assert "data.shuffle=blocks 32 neighbours" in told
    assert advice(caplog, Stored(), shuffle="blocks") == ""
    decoded_gib = 5050 * 8 * 3 / 2**30
    for source in (Stored(), StoredFiles()):
        assert advice(caplog, source, cache_gib=1.1 * decoded_gib) == ""
        assert "of its own" in advice(caplog, source, cache_gib=0.8 * decoded_gib)
    data = tiny.get_config().data
    data.cache_gib = 6 * 8 * 3 / 2**30
    assert cache_holds(data, Subset(Stored(), np.arange(3))), "rows 1, 2 and 3"
    assert not cache_holds(data, Subset(Stored(), np.arange(4)))
