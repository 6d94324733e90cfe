"""k-NN against scikit-learn's, weighted and plain."""

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from tests.evaluators.test_fewshot import problem
from vit_jax.errors import DataError
from vit_jax.evaluators import knn
from vit_jax.evaluators.features import Features

TEMPERATURE = 0.07


@pytest.mark.parametrize("k", [1, 5, 20, 60])
@pytest.mark.parametrize("temperature", [TEMPERATURE, None])
@pytest.mark.parametrize("size", [16, 4096])
def test_predictions_are_those_of_scikit_learn(monkeypatch, k, temperature, size):
    monkeypatch.setattr(knn, "CHUNK_ROWS", size)
    train, labels, test, _ = problem(60, 16)
    labels = np.array([3, 10, 11, 500, 501])[labels]

    def weights(distances):
        return np.exp((1 - distances) / temperature)

    reference = KNeighborsClassifier(
        k, metric="cosine", algorithm="brute", weights=weights if temperature else "uniform"
    ).fit(np.float64(train), labels)
    expected = reference.predict(np.float64(test))
    found = knn.predict(train, labels, test, k=k, temperature=temperature)
    np.testing.assert_array_equal(found, expected)


def test_weights_tell_ties_apart_and_the_first_class_wins_equal_votes():
    train = np.float32([[1, 0], [0, 1], [0.9, 0.1], [0.2, 1]])
    labels = np.array([4, 2, 4, 2])
    test = np.float32([[1, 0.6]])  # Two of each class vote, those of class 4 are nearer.
    assert knn.predict(train, labels, test, k=4, temperature=TEMPERATURE) == [4]
    assert knn.predict(train, labels, test, k=4, temperature=None) == [2]


@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({"k": 7, "weights": "uniform"}, "uniform"),
        ({"k": 7, "temperature": 0.5}, lambda distances: np.exp((1 - distances) / 0.5)),
        ({}, lambda distances: np.exp((1 - distances) / 0.07)),  # DINO's.
    ],
)
def test_the_score_is_the_accuracy_by_the_options(options, weights):
    train, labels, test, test_labels = problem(60, 16)
    reference = KNeighborsClassifier(
        options.get("k", 20), metric="cosine", algorithm="brute", weights=weights
    ).fit(np.float64(train), labels)
    evaluator = knn.NearestNeighbors(**options)
    assert evaluator.metrics(None) == ("accuracy",)
    found = evaluator.score(Features(train, labels), Features(test, test_labels))
    assert found == {"accuracy": reference.score(np.float64(test), test_labels)}


def test_a_feature_of_zeros_and_a_tiny_temperature_are_numbers():
    train = np.float32([[0, 0], [1, 0], [0, 1]])
    found = knn.predict(train, np.array([0, 1, 2]), train, k=1, temperature=1e-3)
    np.testing.assert_array_equal(found, [0, 1, 2])


def test_more_votes_than_images_are_an_error():
    train, labels, test, _ = problem(10, 4)
    with pytest.raises(DataError, match="10 training images, fewer than k=11"):
        knn.predict(train, labels, test, k=11, temperature=None)
    assert len(knn.predict(train, labels, test, k=10, temperature=None)) == len(test)
