import logging

import numpy as np
import pytest

from tests import tiny
from tests.states import mesh_of
from vit_jax.data import split_checks
from vit_jax.data.dataset import open_dataset
from vit_jax.data.evaluation_data import EvaluationData
from vit_jax.data.loading.cache import Cached
from vit_jax.data.sources.arrays import Arrays
from vit_jax.data.split_checks import check_classes_of_both, check_run, check_splits
from vit_jax.devices import sharding


def source_of(labels, names=("cat", "dog", "cow")):
    return Arrays("train", np.zeros((len(labels), 2, 2, 1), np.uint8), np.array(labels), names)


SPLITS = {name: lambda name=name: source_of(range(10)) for name in ("Train", "val", "extra")}
SPLITS |= {"train": SPLITS["Train"], "validation": SPLITS["val"]}


@pytest.fixture
def said(data, caplog):
    """The messages about the splits of a run, of at least some level."""

    def check(train_split="train", eval_split="", evaluated=("",), level=logging.INFO):
        data.source, data.train_split, data.eval_split = "folder:x", train_split, eval_split
        with caplog.at_level(level, "vit_jax"):
            check_splits(data, SPLITS, [split or eval_split for split in evaluated])
        return caplog.messages

    return check


def test_a_split_that_is_never_read_is_named_as_it_is_written(said):
    assert said() == ["folder:x: never read in this run: extra"]


def test_all_that_evaluators_read_is_read(said):
    assert said(evaluated=("", "extra[:50%]")) == []


def test_without_an_evaluation_all_others_are_never_read(said):
    assert said(evaluated=()) == ["folder:x: never read in this run: val, extra"]


@pytest.mark.parametrize(
    ("train_split", "eval_split", "shared"),
    [
        ("train", "train", 10),
        ("train", "Train[:30%]", 3),
        ("train[:80%]", "train[70%:]", 1),
        ("train+val[:5]", "val[3:]", 2),
        ("train[:80%]", "train[80%:]", 0),
        ("train[:5]+extra", "train[5:]+val", 0),
        ("train", "validation", 0),
    ],
)
def test_images_that_are_trained_and_evaluated_on_are_counted(
    said, train_split, eval_split, shared
):
    messages = said(train_split, eval_split, level=logging.WARNING)
    expected = (
        f"folder:x: {shared} images are both in config.data.train_split={train_split!r} and in "
        f"config.data.eval_split={eval_split!r}: "
    )
    assert [message.startswith(expected) for message in messages] == [True] * bool(shared)


def test_a_split_that_only_an_evaluator_names_may_be_trained_on(said):
    assert said(evaluated=("", "train[:2]"), level=logging.WARNING) == []
    assert said("train", "train[:2]", evaluated=("extra",), level=logging.WARNING) == []


@pytest.mark.parametrize("split", ["", "train[:60]"])
def test_a_run_checks_the_splits_that_its_evaluators_opened(caplog, split):
    """By its own name or by default: the split that nobody names is `data.eval_split`."""
    config = tiny.get_config()
    config.data.eval_split = "train[:50]"
    rows = sharding.batch_sharding(mesh_of(1))
    evaluation = EvaluationData(config.data, None, (8, 8, 1), (), 10, 64, rows)
    evaluation.open("", split)
    evaluation.open("fake")
    with caplog.at_level(logging.WARNING, "vit_jax"):
        check_run(open_dataset(config), evaluation)
    shared = "digits: 50 images are both in config.data.train_split='train' and in"
    assert [message.startswith(shared) for message in caplog.messages] == [True] * (not split)


@pytest.mark.parametrize("cached", [False, True])
def test_classes_that_one_side_lacks_are_named(caplog, cached):
    training, evaluation = source_of([0, 0, 1]), source_of([1, 2])
    if cached:
        training = Cached(training, 1, 0.1)
    check_classes_of_both("here", training, evaluation)
    assert caplog.messages == [
        "here: 1 of the 3 classes have no image for training: cow",
        "here: 1 of the 3 classes have no image for evaluation: cat",
    ]


def test_where_all_classes_have_images_nothing_is_said(caplog):
    check_classes_of_both("here", source_of([0, 1, 2]), source_of([2, 1, 0, 0]))
    assert not caplog.records


def test_classes_are_compared_whoever_names_the_evaluation_split(caplog, monkeypatch):
    """An evaluator that leaves it open, or one that names it."""
    compared = []
    monkeypatch.setattr(split_checks, "check_splits", lambda *_: None)
    monkeypatch.setattr(
        split_checks, "check_classes_of_both", lambda *given: compared.append(given)
    )
    config = tiny.get_config()
    config.data.eval_split = "test[:50]"
    dataset, rows = open_dataset(config), sharding.batch_sharding(mesh_of(1))
    for source, split, count in (
        ("", "", 1),
        ("", "test[:50]", 1),
        ("", "train", 0),
        ("fake", "", 0),
    ):
        evaluation = EvaluationData(config.data, None, (8, 8, 1), (), 10, 64, rows)
        opened = evaluation.examples(source, split)
        check_run(dataset, evaluation)
        assert compared == [("digits", dataset.examples, opened)] * count
        compared.clear()
