"""Accuracy and loss over whole splits, against NumPy over all images at once."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.states import mesh_of
from vit_jax.devices import sharding
from vit_jax.evaluators.classification import Classification, ClassificationMeans
from vit_jax.objectives.losses import LOSSES


def forward(params, images):
    """A linear classifier on the flattened pixels."""
    return images.reshape(len(images), -1).astype(jnp.float32) / 255 @ params["kernel"]


class Problem:
    """Images, labels and a classifier; what is right of them, computed in one go."""

    def __init__(self, num_images, num_classes, seed=0):
        generator = np.random.default_rng(seed)
        self.images = generator.integers(0, 256, (num_images, 4, 4, 1), np.uint8)
        self.labels = generator.integers(num_classes, size=num_images).astype(np.int32)
        self.params = {"kernel": generator.normal(size=(16, num_classes)).astype(np.float32)}
        self.logits = np.float64(self.images.reshape(num_images, -1) / 255) @ self.params["kernel"]

    def batches(self, batch_size, place=None):
        """As the pipeline makes them: the last one is filled up, and its padding masked."""
        for start in range(0, len(self.labels), batch_size):
            rows = np.arange(start, start + batch_size)
            mask = rows < len(self.labels)
            rows = np.minimum(rows, len(self.labels) - 1)
            batch = {"image": self.images[rows], "label": self.labels[rows], "mask": mask}
            yield jax.device_put(batch, place)

    def expected(self, loss):
        shifted = self.logits - self.logits.max(-1, keepdims=True)
        own = (np.arange(len(self.labels)), self.labels)
        every_class = np.log1p(np.exp(self.logits)).sum(-1) - self.logits[own]
        losses = {
            "softmax": np.log(np.exp(shifted).sum(-1)) - shifted[own],
            "sigmoid": every_class,
            "binary": every_class / self.logits.shape[-1],
        }[loss]
        better = (self.logits > self.logits[own][:, None]).sum(-1)
        return {
            "loss": losses.mean(),
            "accuracy": (better == 0).mean(),
            "top5_accuracy": (better < 5).mean(),
            "count": len(self.labels),
        }


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("num_images", "batch_size"), [(7, 4), (8, 4), (3, 4), (50, 32), (1, 1), (64, 64)]
)
def test_means_are_over_images_not_batches(loss, num_images, batch_size):
    problem = Problem(num_images, num_classes=10)
    evaluator = ClassificationMeans(forward, LOSSES[loss])
    found = evaluator(problem.params, problem.batches(batch_size))
    assert found == pytest.approx(problem.expected(loss), rel=1e-5)
    assert all(type(value) is float for name, value in found.items() if name != "count")
    assert type(found["count"]) is int


def test_padding_may_hold_anything():
    problem = Problem(7, num_classes=10)
    *whole, last = problem.batches(4)
    last["label"] = last["label"].at[-1].set(-1)
    last["image"] = last["image"].at[-1].set(0)

    def forward_with_nan(params, images):
        logits = forward(params, images)
        return jnp.where(images.max((1, 2, 3))[:, None] == 0, jnp.nan, logits)

    evaluator = ClassificationMeans(forward_with_nan, LOSSES["softmax"])
    found = evaluator(problem.params, [*whole, last])
    assert found == pytest.approx(problem.expected("softmax"), rel=1e-5)


def test_masked_rows_anywhere_are_not_counted():
    problem = Problem(10, num_classes=10)
    problem.labels[1:4] = problem.logits[1:4].argmax(-1)  # They would all be right.
    batches = list(problem.batches(4))
    batches[0]["mask"] = batches[0]["mask"].at[1:].set(False)
    readable = [0, *range(4, 10)]
    for name in ("images", "labels", "logits"):
        setattr(problem, name, getattr(problem, name)[readable])
    evaluator = ClassificationMeans(forward, LOSSES["softmax"])
    found = evaluator(problem.params, batches)
    assert found == pytest.approx(problem.expected("softmax"), rel=1e-5)


def test_means_of_nothing_are_not_numbers():
    problem = Problem(4, num_classes=3)
    (batch,) = problem.batches(4)
    batch["mask"] = jnp.zeros(4, bool)
    found = ClassificationMeans(forward, LOSSES["softmax"])(problem.params, [batch])
    assert found["count"] == 0
    assert np.isnan([found["loss"], found["accuracy"]]).all()


@pytest.mark.parametrize(
    ("num_classes", "has_top5"), [(1, False), (2, False), (5, False), (6, True)]
)
def test_top_5_is_reported_above_five_classes(num_classes, has_top5):
    problem = Problem(20, num_classes)
    evaluator = ClassificationMeans(forward, LOSSES["softmax"])
    found = evaluator(problem.params, problem.batches(8))
    expected = problem.expected("softmax")
    if not has_top5:
        del expected["top5_accuracy"]
    assert found == pytest.approx(expected, rel=1e-5)
    setting = types.SimpleNamespace(data=types.SimpleNamespace(num_classes=num_classes))
    assert set(Classification().metrics(setting)) == set(found), "what a run may call the best by"


@pytest.mark.parametrize("axes", [{"data": 8}, {"data": 2, "fsdp": 4}, {"data": 4, "tensor": 2}])
def test_fifty_images_count_fifty_on_eight_devices_as_on_one(axes):
    mesh = mesh_of(8, **axes)
    problem = Problem(50, num_classes=10)
    evaluator = ClassificationMeans(forward, LOSSES["softmax"])
    alone = evaluator(problem.params, problem.batches(32, jax.devices()[0]))
    params = jax.device_put(problem.params, NamedSharding(mesh, PartitionSpec()))
    found = evaluator(params, problem.batches(32, sharding.batch_sharding(mesh)))
    assert alone["count"] == found["count"] == 50
    assert found == pytest.approx(alone, abs=1e-5)


def test_batches_are_read_one_late_and_every_one_once():
    problem, taken = Problem(12, num_classes=3), []

    def batches():
        for number, batch in enumerate(problem.batches(4)):
            taken.append(number)
            yield batch

    evaluator = ClassificationMeans(forward, LOSSES["softmax"])
    with jax.transfer_guard("disallow"):
        placed = list(problem.batches(4, jax.devices()[0]))
        found = evaluator(jax.device_put(problem.params), placed)
    assert evaluator(problem.params, batches()) == found
    assert taken == [0, 1, 2]


def test_any_of_an_images_classes_is_right():
    problem = Problem(9, num_classes=10)
    order = np.argsort(-problem.logits, axis=-1)
    targets = np.zeros((9, 10), np.float32)
    for row, ranks in enumerate([(0, 8), (1, 9), (3,), (5,), (9, 0), (8, 7), (4, 6), (2,), (6,)]):
        targets[row, order[row, list(ranks)]] = 1
    problem.labels = targets
    evaluate = ClassificationMeans(forward, LOSSES["sigmoid"])
    found = evaluate(problem.params, problem.batches(4))
    assert found["count"] == 9
    np.testing.assert_allclose(found["accuracy"], 2 / 9)  # Rank 0 is a class in rows 0 and 4.
    np.testing.assert_allclose(found["top5_accuracy"], 6 / 9)
    losses = np.log1p(np.exp(problem.logits)).sum(-1) - (targets * problem.logits).sum(-1)
    np.testing.assert_allclose(found["loss"], losses.mean(), rtol=1e-5)
