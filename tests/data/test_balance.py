"""Weights and draws of classes, against scikit-learn and by hand."""

import collections
import dataclasses
import pickle
import re

import jax
import numpy as np
import pytest
from sklearn.utils.class_weight import compute_class_weight

from tests import tiny
from tests.data.example_sources import Numbered
from tests.data.sources.test_tfds import write_dataset
from tests.stages import Setup, config_with, mesh_of
from vit_jax.data import balance
from vit_jax.data.balance import (
    Balance,
    balanced_weights,
    is_class_weights,
    read_balance,
    share_out,
)
from vit_jax.data.dataset import open_dataset, train_order
from vit_jax.data.loading.order import ClassOrder
from vit_jax.data.sources.examples import Example, LabelSets, Source
from vit_jax.errors import ConfigError, DataError
from vit_jax.objectives.base import Labels, Objective
from vit_jax.training.overview import describe_run
from vit_jax.training.step import with_weights

COUNTS = np.array([900, 90, 9, 1])
LABELS = np.random.default_rng(0).permutation(np.repeat(np.arange(4), COUNTS))


def order_of(draws, seed=3, labels=LABELS):
    members = np.argsort(labels, kind="stable")
    return ClassOrder(
        len(labels), seed, members=members, sizes=np.bincount(labels), draws=np.array(draws)
    )


def test_weights_are_scikit_learns():
    expected = compute_class_weight("balanced", classes=np.arange(4), y=LABELS)
    np.testing.assert_allclose(balanced_weights(COUNTS), expected)
    assert balanced_weights([6, 0, 2]) == pytest.approx((8 / 12, 0, 8 / 4))


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [(1.0, [900, 90, 9, 1]), (0.0, [250] * 4), (0.5, [698, 221, 70, 23])],
)
def test_draws_sum_to_an_epoch(exponent, expected):
    draws = share_out(1000, COUNTS, exponent)
    assert draws.sum() == 1000
    scale = 1000 / sum(expected)
    assert np.abs(draws - np.array(expected) * scale).max() < 1
    assert share_out(10, np.array([5, 0, 5]), 0.0).tolist() == [5, 0, 5]
    assert share_out(11, np.array([7, 2, 2]), 0.0).tolist() == [4, 4, 3]
    assert share_out(10, np.array([46, 27, 27]), 1.0).tolist() == [4, 3, 3], "of 4.6, 2.7 and 2.7"


@pytest.mark.parametrize("epoch", [0, 1, 7])
def test_each_class_comes_as_often_as_it_should(epoch):
    indices = order_of([250] * 4).indices(np.arange(1000 * epoch, 1000 * (epoch + 1)))
    assert np.bincount(LABELS[indices]).tolist() == [250] * 4
    turns = np.bincount(indices, minlength=1000)
    for label, count in enumerate(COUNTS):
        of_class = turns[label == LABELS]
        assert of_class.max() - of_class.min() <= 2, "twice, at most, at the ends of an epoch"
        assert of_class.sum() == 250, count


def test_no_image_comes_again_before_the_others_of_its_class():
    order = order_of([250] * 4)
    drawn = np.sort(order.indices(np.arange(18_000)))  # 18 epochs are 5 of the first class's.
    counts = collections.Counter(drawn.tolist())
    assert {counts[index] for index in np.flatnonzero(LABELS == 0)} == {5}
    assert {counts[index] for index in np.flatnonzero(LABELS == 2)} == {500}


def test_any_position_may_be_asked_for_by_any_process():
    order = pickle.loads(pickle.dumps(order_of([250] * 4)))
    whole = order.indices(np.arange(5000))
    scattered = np.random.default_rng(0).integers(0, 5000, 64)
    np.testing.assert_array_equal(order.indices(scattered), whole[scattered])
    assert not np.array_equal(order_of([250] * 4, seed=4).indices(np.arange(5000)), whole)
    assert not np.array_equal(whole[:1000], whole[1000:2000])


def test_order_never_changes():
    """A resumed run must see the order of the version that it was started with."""
    positions = np.array([0, 1, 2, 999, 123_456])
    assert order_of([250] * 4).indices(positions).tolist() == [895, 998, 451, 113, 451]
    large = np.repeat([0, 1], [100_000, 3_000])
    drawn = order_of([51_500] * 2, labels=large).indices(positions)
    assert drawn.tolist() == [88409, 101154, 68538, 102270, 101691]


@pytest.mark.parametrize("value", ["", "balanced", (1.0, 2), [0, 1]])
def test_what_weights_may_be(value):
    assert is_class_weights(value)


@pytest.mark.parametrize("value", ["sqrt", (), (0, 0), (1, -1), ("a",), 3, None, (float("nan"),)])
def test_what_weights_may_not_be(value):
    assert not is_class_weights(value)


def dataset_with(**data):
    config = tiny.get_config()
    config.data.update(data)
    return config, open_dataset(config)


def test_a_run_says_what_each_class_counts():
    config, dataset = dataset_with(class_weights="balanced", sampling="sqrt")
    counts = np.bincount(dataset.source.labels)
    shares = np.sqrt(counts) / np.sqrt(counts).sum()
    assert np.abs(dataset.balance.draws - 1437 * shares).max() < 1
    line = dataset.balance.describe()[3]
    weight = 1437 / (10 * counts[3])
    draws = dataset.balance.draws[3]
    assert line == f"3: {counts[3]} images, weight {weight:.4g}, {draws} draws an epoch"
    config.data.cache_gib = 0.1
    orders = [train_order(config, each) for each in (dataset, open_dataset(config))]
    first, second = (order.indices(np.arange(64)) for order in orders)
    np.testing.assert_array_equal(first, second)
    config.seed = 7
    assert (train_order(config, dataset).indices(np.arange(64)) != first).any(), "by the seed"
    assert dataset_with()[1].balance is None


def test_of_many_classes_the_largest_and_the_smallest_are_told():
    for count in (20, 21, 25):
        sizes = np.random.default_rng(0).permutation(np.arange(1, count + 1))
        balance = Balance(tuple(f"c{size}" for size in sizes), sizes, labels=np.zeros(0, int))
        lines = balance.describe()
        if count == 20:
            assert lines == [f"c{size}: {size} images" for size in sizes]
            continue
        told = [*range(count, count - 10, -1), None, *range(10, 0, -1)]
        between = f"... and {count - 20} between these"
        assert lines == [between if n is None else f"c{n}: {n} images" for n in told]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"class_weights": (1.0, 2.0)}, "2 weights; the data has 10 classes"),
        ({"sampling": "balanced", "shuffle": "blocks"}, "needs --config.data.shuffle=global"),
    ],
)
def test_what_does_not_fit_is_refused(data, message):
    with pytest.raises(ConfigError, match=message):
        dataset_with(**data)


@dataclasses.dataclass(frozen=True)
class Stub(Source):
    """Two examples, with labels as given."""

    labels: np.ndarray | LabelSets | None = dataclasses.field()
    class_names: tuple[str, ...] = ("a", "b")

    def __len__(self):
        return 2


def test_images_must_have_one_class_each():
    data = tiny.get_config().data
    data.update(sampling="balanced", source="x")
    sets = LabelSets(np.array([0, 1]), np.array([1, 2]), 2)
    with pytest.raises(ConfigError, match="one class each"):
        read_balance(data, Stub(sets))
    data.update(sampling="natural", class_weights=(1.0, 2.0))
    assert read_balance(data, Stub(np.array([1, 1]))).weights == (1.0, 2.0)


class Records(Source):
    """Examples that say their classes when they are read, which is counted."""

    class_names = ("a", "b", "c")

    def __init__(self, classes):
        self.classes, self.read = classes, 0

    def __len__(self):
        return len(self.classes)

    def __getitem__(self, index):
        self.read += 1
        if self.classes[index] is None:
            raise DataError(f"{index}: its record is damaged")
        return Example(b"", self.classes[index], self.name_of(index))

    def name_of(self, index):
        return str(index)


def test_classes_that_only_records_say_are_read_once(tmp_path, caplog):
    data = tiny.get_config().data
    data.update(sampling="balanced", source="tfds:x", index_dir=str(tmp_path))
    classes = np.random.default_rng(0).integers(0, 3, 3000).tolist()
    source = Records(classes)
    balance = read_balance(data, source)
    assert source.read == 3000
    assert balance.labels.tolist() == classes
    assert balance.draws.tolist() == [1000] * 3
    expected = dataclasses.replace(balance, labels=np.array(classes)).order(3)
    again = Records(classes)
    order = read_balance(data, again).order(3)
    assert again.read == 32, "only to see that they are the same"
    positions = np.arange(6000)
    np.testing.assert_array_equal(order.indices(positions), expected.indices(positions))

    other = Records(classes[::-1])  # Prepared anew, in another order.
    assert read_balance(data, other).labels.tolist() == classes[::-1]
    for index in (0, -1):  # Only one differs, the first or the last.
        changed = list(classes)
        changed[index] = (changed[index] + 1) % 3
        assert read_balance(data, Records(changed)).labels.tolist() == changed
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert read_balance(data, Records(classes)).labels.tolist() == classes
    assert "is damaged: it is made again" in caplog.text


def test_an_image_without_a_class_is_named(tmp_path):
    data = tiny.get_config().data
    data.update(class_weights="balanced", source="tfds:x", index_dir=str(tmp_path))
    message = r"class_weights='balanced': the class of each image is needed, and 1: its record is"
    with pytest.raises(DataError, match=message):
        read_balance(data, Records([0, None, 2]))
    with pytest.raises(DataError, match="and 1 has several"):
        read_balance(data, Records([0, np.zeros(3), 2]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("file_format", ["array_record", "tfrecord"])
def test_tfds_is_sampled_by_class(tmp_path, file_format):
    write_dataset(tmp_path, file_format, num_shards=2)
    config = tiny.get_config()
    config.data.update(source="tfds:tiny", data_dir=str(tmp_path), sampling="balanced")
    dataset = open_dataset(config, index_dir=str(tmp_path / "index"))
    labels = [dataset.source[index].label for index in range(len(dataset.source))]
    assert dataset.balance.counts.tolist() == np.bincount(labels).tolist()
    drawn = train_order(config, dataset).indices(np.arange(10 * len(labels)))
    counts = np.bincount(np.array(labels)[drawn])
    assert abs(counts[0] - counts[1]) <= 10


# ------------------------------------------------------------------------------------------ runs


def test_a_run_draws_by_position_wherever_it_begins():
    setup = Setup(config_with(**{"data.sampling": "sqrt", "total_steps": 4}), mesh_of(1))
    whole = [np.asarray(batch["index"]) for batch in setup.batches()]
    later = [np.asarray(batch["index"]) for batch in setup.experiment.batches(start=2)]
    np.testing.assert_array_equal(whole[2:], later)
    assert re.search(
        r"classes +0: \d+ images, \d+ draws an epoch\n +1:", describe_run(setup.experiment)
    )


@pytest.mark.parametrize("mixup", [pytest.param(0.0, marks=pytest.mark.slow), 0.8])
def test_the_loss_is_the_mean_of_weighted_losses(mixup):
    weights = tuple(float(number + 1) for number in range(10))
    """By the targets before they are smoothed: else a class would have others' weights in its own."""
    keys = {"objective.mixing.mixup_alpha": mixup, "objective.loss": "sigmoid"}
    keys |= {"objective.label_smoothing": 0.3}
    plain = Setup(config_with(**keys), mesh_of(1))
    weighted = Setup(config_with(**{"data.class_weights": weights}, **keys), mesh_of(1))
    batch = next(plain.batches())
    objective = plain.experiment.objective

    @jax.jit
    def losses_and_targets(params, batch):
        prepared = objective.prepare(with_weights(batch), 0, 0)
        return objective.loss(params, {}, prepared, None)[0], objective.show(prepared)[1]

    losses, targets = map(np.asarray, losses_and_targets(plain.state.params, batch))
    assert (targets.max(-1) < 1).any() == bool(mixup)
    _, metrics = weighted.step(weighted.state, batch)
    assert float(metrics["loss"]) == pytest.approx(np.mean(losses * (targets @ weights)), rel=1e-4)
    assert "times the weights of classes" in describe_run(weighted.experiment)


def test_an_objective_that_knows_no_weights_refuses_them():
    labels = Labels(("a", "b"), 2, weights=(1.0, 2.0))
    with pytest.raises(ConfigError, match="does not weigh classes"):
        Objective(Objective.Options(), None, labels)


def test_labels_that_are_kept_are_of_the_data_in_that_folder(monkeypatch, data):
    asked = []
    monkeypatch.setattr(
        balance, "read_labels", lambda *given: asked.append(given[1:]) or np.arange(9) % 2
    )
    data.update(source="tfds:x", data_dir="there", index_dir="index", class_weights="balanced")
    found = read_balance(data, Numbered(9))
    assert asked == [("tfds:x there", "index")]
    assert found.counts.tolist() == [5, 4]
