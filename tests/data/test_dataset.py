"""A run's training and evaluation data together."""

import io
import tarfile

import numpy as np
import pytest

from tests import tiny
from tests.data.pictures import encode, photograph
from tests.states import mesh_of
from vit_jax.data.dataset import check_size, open_dataset
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
    config.data.on_error = "skip"
    train, evaluation = open_splits(config)
    assert train.skipping.label == 0
    np.testing.assert_array_equal(evaluation.skipping.label, np.zeros(3))
    assert evaluation.source[0].label.shape == evaluation.skipping.label.shape
    for skipping in (train.skipping, evaluation.skipping):
        assert skipping.image.shape == (8, 8, 3)


def test_unreadable_examples_are_errors_by_default(config):
    train, evaluation = open_splits(config)
    assert train.skipping is evaluation.skipping is None


def test_more_examples_than_an_index_counts_are_refused():
    check_size("tar:x", 2**31 - 1)
    with pytest.raises(
        DataError, match=r"tar:x has 3,000,000,000 examples.* at most 2,147,483,647"
    ):
        check_size("tar:x", 3_000_000_000)
